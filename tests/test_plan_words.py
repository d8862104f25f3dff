"""Plans in words: what is said first, of which bin, and that equal plans leave nothing to say."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import dcpack
from dcpack._plan_words import bin_in_words, difference_of_bins, difference_of_headers, difference_of_sequences
from dcpack.plans import Plan


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def shared_and_alone() -> Plan:
    """Three ranks: sequence 0 over ranks 0 and 1, then 2 and a part of 1 on rank 2."""
    return Plan(
        microbatch=ints(5, 5),
        first_rank=ints(0, 2),
        cp_size=ints(2, 1),
        row=ints(0, 3),
        oversized=np.array([True, False]),
        dummy=np.array([True, False]),
        offsets=ints(0, 1, 3),
        sequence_ids=ints(0, 2, 1),
        starts=ints(0, 0, 7),
        entry_lengths=ints(9, 4, 2),
        lengths=ints(9, 9, 4),
        dropped=ints(0, 7, 0),
        num_ranks=3,
        num_microbatches=6,
        rows_per_rank=4,
        capacity=8,
        cp_sizes=(1, 2),
    )


def test_a_bin_by_hand() -> None:
    plan = shared_and_alone()
    assert bin_in_words(plan, 0) == "micro-batch 5, ranks 0..1, row 0, entries 0[0:9], oversized, dummy"
    assert bin_in_words(plan, 1) == "micro-batch 5, ranks 2..2, row 3, entries 2[0:4] 1[7:9]"


def test_a_bin_without_entries_or_ranks() -> None:
    empty = dcpack.plan([4], num_ranks=2, capacity=4, cp_sizes=(1,), on_empty="dummy")
    assert bin_in_words(empty, 1) == "micro-batch 0, ranks 1..1, row 0, entries none, dummy"
    assert bin_in_words(dcpack.pack([4], capacity=4), 0) == "micro-batch -1, ranks -1..-1, row -1, entries 0[0:4]"


def test_of_headers_the_first_key_that_differs_is_told() -> None:
    mine = {"num_ranks": 2, "capacity": 8, "padding": None}
    assert difference_of_headers(mine, dict(mine)) is None
    assert difference_of_headers(mine, {**mine, "capacity": 9, "padding": 1}) == "capacity: 8 against 9"
    assert difference_of_headers(mine, {**mine, "padding": {"tp": 2}}) == "padding: None against {'tp': 2}"


def test_of_sequences_the_first_that_differs_or_the_numbers_are_told() -> None:
    assert difference_of_sequences("lengths", ints(3, 4), ints(3, 4)) is None
    assert difference_of_sequences("lengths", ints(), ints()) is None
    assert difference_of_sequences("lengths", ints(3, 4, 5), ints(3, 6, 7)) == "lengths: sequence 1 has 4 against 6"
    assert difference_of_sequences("dropped", ints(3, 4), ints(3)) == "dropped: 2 sequences against 1"
    # One length would be compared with all.
    assert difference_of_sequences("dropped", ints(3, 3), ints(3)) == "dropped: 2 sequences against 1"


def test_of_bins_the_first_that_differs_is_told_with_both_sides() -> None:
    plan = shared_and_alone()
    assert difference_of_bins(plan, shared_and_alone()) is None
    other = dataclasses.replace(plan, starts=ints(0, 0, 6), row=ints(0, 2))
    assert difference_of_bins(plan, other) == (
        "bin 1: micro-batch 5, ranks 2..2, row 3, entries 2[0:4] 1[7:9] "
        "against micro-batch 5, ranks 2..2, row 2, entries 2[0:4] 1[6:8]"
    )
    swapped = difference_of_bins(other, plan)
    assert swapped is not None
    assert swapped.startswith("bin 1: micro-batch 5, ranks 2..2, row 2,")


def test_a_plan_that_goes_on_where_another_ends() -> None:
    one, two = dcpack.pack([4], capacity=4), dcpack.pack([4, 4], capacity=4)
    two = dataclasses.replace(two, sequence_ids=ints(0, 1))
    assert difference_of_bins(one, two) == "1 bins against 2"
    assert difference_of_bins(two, one) == "2 bins against 1"
