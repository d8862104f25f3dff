"""What `plan_faults` says of a plan, word for word: each invariant by its smallest break, and no other."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack._plan_faults import plan_faults, refuse_huge_bins
from dcpack.errors import InfeasibleError
from dcpack.layout import MAX_OFFSET
from dcpack.padding import PaddingRule
from dcpack.plans import Plan


def ints(*values: int) -> Any:
    return np.array(values, np.int64)


def flags(*values: int) -> Any:
    return np.array(values, np.bool_)


def three_bins(**changes: Any) -> Plan:
    """Two ranks, two micro-batches: sequence 0 over both; then 1 on the first and 2 and 3 on the second."""
    fields: dict[str, Any] = {
        "microbatch": ints(0, 1, 1),
        "first_rank": ints(0, 0, 1),
        "cp_size": ints(2, 1, 1),
        "row": ints(0, 0, 0),
        "oversized": flags(0, 0, 0),
        "dummy": flags(0, 0, 0),
        "offsets": ints(0, 1, 2, 4),
        "sequence_ids": ints(0, 1, 2, 3),
        "starts": ints(0, 0, 0, 0),
        "entry_lengths": ints(16, 8, 5, 3),
        "lengths": ints(16, 8, 5, 3),
        "dropped": ints(0, 0, 0, 0),
        "num_ranks": 2,
        "num_microbatches": 2,
        "rows_per_rank": 1,
        "capacity": 8,
        "cp_sizes": (1, 2),
    }
    return Plan(**{**fields, **changes})


@pytest.mark.parametrize(
    "plan",
    [
        three_bins(),
        three_bins(entry_lengths=ints(15, 8, 5, 3), dropped=ints(1, 0, 0, 0)),
        three_bins(capacity=7, padding=PaddingRule(), oversized=flags(1, 1, 0), entry_lengths=ints(16, 8, 4, 3)),
        dcpack.pack([5, 0, 9], capacity=4, overlong="split"),
        dcpack.plan([], num_ranks=3, capacity=4),
        dcpack.plan([4], num_ranks=2, capacity=4, cp_sizes=(1,), on_empty="dummy"),
    ],
    ids=["whole", "with dropped tokens", "with oversized bins", "without ranks", "without sequences", "with a dummy"],
)
def test_a_plan_without_a_fault_has_none(plan: Plan) -> None:
    expected = []
    if plan.capacity == 7:  # one token less is placed than there is
        expected = ["tokens neither placed nor reported as dropped: sequence 2: 4 placed, 0 dropped of 5"]
    assert plan_faults(plan) == expected


@pytest.mark.parametrize(
    ("changes", "faults"),
    [
        # What is one token, rank or slot beyond its bound, and all offenders of it.
        ({"sequence_ids": ints(0, 4, 2, -1)}, ["unknown sequences: entry 1 names 4, entry 3 names -1"]),
        (
            {"starts": ints(0, 0, 1, -1)},
            ["parts outside their sequence: 2[1:6], 3[-1:2]"],
        ),
        (
            {"sequence_ids": ints(0, 1, 2, 2), "lengths": ints(16, 8, 5, 0)},
            [
                "tokens in two entries: sequence 2",
                "tokens neither placed nor reported as dropped: sequence 2: 8 placed, 0 dropped of 5",
            ],
        ),
        (
            {"entry_lengths": ints(16, 8, 5, 2)},
            ["tokens neither placed nor reported as dropped: sequence 3: 2 placed, 0 dropped of 3"],
        ),
        (
            {"entry_lengths": ints(16, 8, 5, 2), "dropped": ints(0, 0, 0, 2)},
            ["tokens neither placed nor reported as dropped: sequence 3: 2 placed, 2 dropped of 3"],
        ),
        ({"dummy": flags(0, 1, 1)}, ["dummy bins hold entries, others none: bin 1, bin 2"]),
        (
            {"capacity": 7},
            ["over capacity: bin 0: 16 padded tokens of 14, bin 1: 8 padded tokens of 7, bin 2: 8 padded tokens of 7"],
        ),
        ({"capacity": 7, "oversized": flags(1, 1, 1)}, ["oversized bins not alone: bin 2"]),
        ({"cp_sizes": (2,)}, ["CP size not in (2,): bin 1: 1, bin 2: 1"]),
        (
            {"first_rank": ints(0, 1, 1)},
            ["CP groups do not partition 2 ranks: micro-batch 1, bin 1, micro-batch 1, bin 2"],
        ),
        ({"first_rank": ints(0, 0, 0)}, ["CP groups do not partition 2 ranks: micro-batch 1, bin 2"]),
        ({"row": ints(0, 1, 0)}, ["bins outside the micro-batches and rows: bin 1"]),
        ({"row": ints(0, -1, 0)}, ["bins outside the micro-batches and rows: bin 1"]),
        ({"microbatch": ints(2, 1, -1)}, ["bins outside the micro-batches and rows: bin 0, bin 2"]),
        ({"num_microbatches": 3}, ["micro-batches or rows without a bin: slot 2"]),
        ({"num_microbatches": 4}, ["micro-batches or rows without a bin: 4 slots, 3 bins"]),
        ({"num_ranks": 0}, ["placed bins in a plan without ranks: bin 0, bin 1, bin 2"]),
    ],
)
def test_a_fault_is_told_with_all_its_offenders_and_nothing_else_is(changes: dict[str, Any], faults: list[str]) -> None:
    assert plan_faults(three_bins(**changes)) == faults


def test_the_last_of_a_plan_without_ranks_is_where_one_number_is_not_minus_one() -> None:
    plan = dcpack.pack([3, 4], capacity=4)
    for name in ("microbatch", "first_rank", "row"):
        broken = dataclasses.replace(plan, **{name: ints(-1, 0)})
        assert plan_faults(broken) == ["placed bins in a plan without ranks: bin 1"]


def test_blocks_of_powers_of_two_are_aligned_unless_others_are_among_them() -> None:
    layout: dict[str, Any] = {
        "microbatch": ints(0, 0, 0),
        "row": ints(0, 0, 0),
        "num_microbatches": 1,
        "capacity": 16,
        "cp_sizes": (1, 2, 3),
    }
    unaligned = three_bins(**layout, num_ranks=4, first_rank=ints(1, 0, 3))
    assert plan_faults(unaligned) == ["blocks not aligned to their size: bin 0"]
    assert plan_faults(three_bins(**layout, num_ranks=4, first_rank=ints(0, 2, 3))) == []
    mixed = three_bins(**layout, num_ranks=6, cp_size=ints(2, 1, 3), first_rank=ints(1, 0, 3))
    assert plan_faults(mixed) == []


def test_rows_of_one_rank_are_slots_of_their_own() -> None:
    two_rows = {"num_ranks": 1, "num_microbatches": 1, "rows_per_rank": 2, "cp_size": ints(1, 1), "cp_sizes": (1,)}
    plan = dataclasses.replace(
        dcpack.pack([3, 4], capacity=4), microbatch=ints(0, 0), first_rank=ints(0, 0), row=ints(0, 1), **two_rows
    )
    assert plan_faults(plan) == []
    same = dataclasses.replace(plan, row=ints(1, 1))
    assert plan_faults(same) == [
        "CP groups do not partition 1 ranks: micro-batch 0, bin 1",
        "micro-batches or rows without a bin: slot 0",
    ]


@pytest.mark.parametrize("over", [0, 1])
def test_bins_that_no_kernel_could_take_are_refused_by_number(over: int) -> None:
    length = MAX_OFFSET + over
    lengths = ints(3, length)
    plan = dataclasses.replace(
        dcpack.pack([3, 4], capacity=4),
        capacity=2**40,
        sequence_ids=ints(0, 1),
        lengths=lengths,
        entry_lengths=lengths,
    )
    if not over:
        assert refuse_huge_bins(plan) is None
        assert plan_faults(plan) == []
        return
    text = "bins over the 2147483647 padded tokens that int32 offsets can hold: bin 1 of 2147483648"
    with pytest.raises(InfeasibleError, match=f"^{text}$"):
        refuse_huge_bins(plan)
    assert plan_faults(plan) == ["over the int32 offsets: bin 1: 2147483648 tokens"]
