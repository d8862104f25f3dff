from __future__ import annotations

from typing import Any

import numpy as np

from dcpack.cost import QuadraticCost
from dcpack.padding import PaddingRule
from dcpack.scheduling import Group, Problem


def problem(lengths: list[int], num_ranks: int, capacity: int, cp_sizes: tuple[int, ...], **changes: Any) -> Problem:
    options: dict[str, Any] = {
        "sequence_ids": np.arange(len(lengths)),
        "lengths": np.array(lengths, np.int64),
        "oversized": np.zeros(len(lengths), np.bool_),
        "num_ranks": num_ranks,
        "capacity": capacity,
        "cp_sizes": cp_sizes,
        "padding": None,
        "microbatch_multiple": 1,
        "max_sequences": None,
        "on_empty": "error",
    }
    return Problem(**{"cost": QuadraticCost(), "sync": "microbatch", **options, **changes})


def test_lengths_are_padded_at_every_legal_size() -> None:
    given = problem([10, 33], 4, 100, (1, 2, 4), padding=PaddingRule(tp=2, block=8))
    # multiples: lcm(2, 8), lcm(8, 16), lcm(16, 32)
    assert given.padded.tolist() == [[16, 40], [16, 48], [32, 64]]
    assert given.limits.tolist() == [100, 200, 400]
    sequence_parallel = problem([10], 4, 100, (1, 2), padding=PaddingRule(tp=8, sequence_parallel=True))
    assert sequence_parallel.limits.tolist() == [96, 192]


def test_longest_first_keeps_the_order_of_equals() -> None:
    assert problem([5, 9, 5, 9, 1], 1, 100, (1,)).longest_first.tolist() == [1, 3, 0, 2, 4]


def test_the_smallest_size_that_holds_a_group() -> None:
    given = problem([90, 60, 401], 4, 100, (1, 2, 4))
    assert given.smallest_size(Group(1, [0])) == 1
    assert given.smallest_size(Group(1, [0, 1])) == 2
    assert given.smallest_size(Group(1, [2])) is None
    assert given.fits(Group(1, [0, 1]), 1)
    assert not given.fits(Group(1, [0, 1]), 0)


def test_an_oversized_item_fits_alone_on_the_largest_size_only() -> None:
    given = problem([90, 401], 4, 100, (1, 2, 4), oversized=np.array([False, True]))
    assert [given.fits(Group(1, [1]), k) for k in range(3)] == [False, False, True]
    assert not given.fits(Group(1, [0, 1]), 2)
    assert given.smallest_size(Group(1, [1])) == 4


def test_the_whole_domain_and_descriptions() -> None:
    assert problem([], 6, 100, (1, 6)).has_whole_domain
    assert not problem([], 6, 100, (1, 4)).has_whole_domain
    pieces = problem([4, 1], 1, 4, (1,), sequence_ids=np.array([7, 7]))
    assert pieces.describe([1, 0]) == ["sequence 7 of 1 tokens", "sequence 7 of 4 tokens"]
