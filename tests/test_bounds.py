from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpack.bounds import balance_lower_bound, packing_lower_bound, step_bounds
from dcpack.cost import RingCost
from dcpack.errors import ArgumentError


def plain_l2(lengths: list[int], capacity: int) -> int:
    """Martello and Toth's L2, threshold by threshold, straight from its definition."""
    best = 0
    for threshold in range(capacity // 2 + 1):
        huge = [w for w in lengths if w > capacity - threshold]
        long = [w for w in lengths if capacity - threshold >= w and 2 * w > capacity]
        short = [w for w in lengths if 2 * w <= capacity and w >= threshold]
        left = sum(short) - (len(long) * capacity - sum(long))
        best = max(best, len(huge) + len(long) + max(0, -(-left // capacity)))
    return best


def fewest_bins(lengths: list[int], capacity: int) -> int:
    """The optimum, by trying every bin for every item."""
    fewest = len(lengths)

    def place(item: int, rooms: list[int]) -> None:
        nonlocal fewest
        if len(rooms) >= fewest:
            return
        if item == len(lengths):
            fewest = len(rooms)
            return
        for number, room in enumerate(rooms):
            if room >= lengths[item]:
                place(item + 1, [*rooms[:number], room - lengths[item], *rooms[number + 1 :]])
        place(item + 1, [*rooms, capacity - lengths[item]])

    place(0, [])
    return fewest


@pytest.mark.parametrize(
    ("lengths", "capacity", "expected"),
    [
        ([], 10, 0),
        ([0, 0], 10, 0),
        ([10], 10, 1),
        ([6, 6, 6], 10, 3),  # no two sixes share a bin; the sum says 2
        ([6, 6, 5, 5, 5], 10, 4),  # threshold 5: 2 bins of their own, and 15 tokens beside them; the sum says 3
        ([7, 7, 4, 4], 10, 3),  # threshold 4: the sevens take no four; 2 + ceil(8 / 10)
        ([6, 4, 6, 4], 10, 2),
        ([1] * 21, 10, 3),
        ([95] * 5 + [20] * 5, 100, 6),  # threshold 20: no 20 beside a 95; 5 + ceil(100 / 100)
        ([0, 12, 30, 5], 10, 3),  # two that fit no bin, each alone
    ],
)
def test_packing_bound_by_hand(lengths: list[int], capacity: int, expected: int) -> None:
    assert packing_lower_bound(lengths, capacity) == expected


def test_packing_bound_with_a_cap_on_sequences() -> None:
    assert packing_lower_bound([1] * 7, 100) == 1
    assert packing_lower_bound([1] * 7, 100, max_sequences=3) == 3
    assert packing_lower_bound([1, 0, 1, 200], 100, max_sequences=2) == 2  # the zero needs no place, the 200 its own
    assert packing_lower_bound([60] * 7, 100, max_sequences=3) == 7
    assert isinstance(packing_lower_bound([1], 100), int)


def test_packing_bound_is_exact_beyond_int32() -> None:
    # 5000 lengths of 1e6 sum to 5e9 = 4882.8 times 1_024_000; of two lengths at most one fits.
    assert packing_lower_bound(np.full(5000, 10**6, np.int32), 1_024_000) == 5000
    # three of 333_334 are over 1e6, so two a bin are possible: the sum says 1667 for 5000 of them.
    assert packing_lower_bound(np.full(5000, 333_334), 10**6) == -(-5000 * 333_334 // 10**6) == 1667
    assert packing_lower_bound([2**60, 2**60, 1], 2**60) == 3
    assert packing_lower_bound([5, 6], 2**70) == 1


def test_packing_bound_names_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"lengths must be at least 0: lengths\[0\] = -1"):
        packing_lower_bound([-1], 4)
    with pytest.raises(ArgumentError, match="capacity must be at least 1, got 0"):
        packing_lower_bound([1], 0)
    with pytest.raises(ArgumentError, match="max_sequences must be at least 1, got 0"):
        packing_lower_bound([], 4, max_sequences=0)
    with pytest.raises(ArgumentError, match=r"lengths must sum to less than 2\*\*62 tokens, got about 4\.61e\+18"):
        packing_lower_bound([2**61, 2**61], 4)


@given(st.integers(1, 40).flatmap(lambda c: st.tuples(st.lists(st.integers(1, c), max_size=30), st.just(c))))
def test_packing_bound_equals_its_definition(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    bound = packing_lower_bound(lengths, capacity)
    assert bound == plain_l2(lengths, capacity)
    assert bound >= -(-sum(lengths) // capacity)


@given(st.integers(1, 20).flatmap(lambda c: st.tuples(st.lists(st.integers(1, c), max_size=7), st.just(c))))
def test_packing_bound_is_never_above_the_optimum(case: tuple[list[int], int]) -> None:
    lengths, capacity = case
    assert packing_lower_bound(lengths, capacity) <= fewest_bins(lengths, capacity)


def test_balance_bound_by_hand() -> None:
    assert balance_lower_bound([3, 3, 3], 2) == 5  # 4.5 rounded up
    assert balance_lower_bound([9, 1, 1], 2) == 9
    assert balance_lower_bound([3, 3, 3], 1) == 9
    assert balance_lower_bound([1.5, 1.5, 1.5], 2) == 2.25
    assert balance_lower_bound([0.1] * 10, 1) == 1.0
    assert balance_lower_bound([2.5, 0.5], 2) == 2.5
    assert balance_lower_bound([], 3) == 0
    assert isinstance(balance_lower_bound(np.array([3, 4]), 2), int)
    assert isinstance(balance_lower_bound(np.array([3, 4], np.float32), 2), float)


def test_balance_bound_is_exact_beyond_int64() -> None:
    assert balance_lower_bound([2**62, 2**62, 2**62 + 1], 1) == 3 * 2**62 + 1
    assert balance_lower_bound(np.array([2**31 - 1] * 3, np.int32), 2) == -(-3 * (2**31 - 1) // 2)


def test_balance_bound_names_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="num_parts must be at least 1, got 0"):
        balance_lower_bound([1], 0)
    with pytest.raises(
        ArgumentError,
        match=r"costs must be finite and at least 0: costs\[0\] = -1\.0, costs\[2\] = nan, costs\[3\] = inf",
    ):
        balance_lower_bound([-1.0, 0.0, float("nan"), float("inf")], 2)
    with pytest.raises(ArgumentError, match=r"costs must be one-dimensional, got shape \(1, 1\)"):
        balance_lower_bound([[1]], 2)
    with pytest.raises(ArgumentError, match="costs must hold numbers, got bools"):
        balance_lower_bound([True], 2)


@pytest.mark.parametrize(("node_size", "longest"), [(None, 100.0), (8, 100.0), (4, 200.0), (2, 800.0)])
def test_the_longest_sequence_waits_for_nodes_that_its_group_must_cross(node_size: int | None, longest: float) -> None:
    # 200 tokens a rank: on 4 ranks 200 and 3 x 200 where they lie on several nodes, on 8 ranks 100 and 7 x 100.
    cost = RingCost(linear=1.0, quadratic=0.0, ring_intra=0.0, ring_inter=1.0, node_size=node_size)
    found = step_bounds([800, 100], num_ranks=8, capacity=200, cp_sizes=(1, 2, 4, 8), padding=None, cost=cost)
    assert found == {"work": 112.5, "longest": longest, "step_time": max(112.5, longest), "num_microbatches": 1.0}
