from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpack._checks import Int64Array
from dcpack.balancing import BALANCERS, refine
from dcpack.balancing.refine import _nearest


def refined(costs: list[int], parts: list[int], num_parts: int, equal_size: bool = False) -> list[int]:
    return refine(np.array(costs), np.array(parts), num_parts, equal_size=equal_size).tolist()


def loads(costs: Int64Array, parts: Int64Array, num_parts: int) -> Int64Array:
    sums = np.zeros(num_parts, np.int64)
    np.add.at(sums, parts, costs)
    return sums


def least_maximum(costs: list[int], num_parts: int, equal_size: bool) -> int:
    """The optimum, by trying all ways to deal the items."""
    size = len(costs) // num_parts
    ways = (np.array(way) for way in itertools.product(range(num_parts), repeat=len(costs)))
    legal = (way for way in ways if not equal_size or set(np.bincount(way, minlength=num_parts)) <= {size, size + 1})
    return min(int(loads(np.array(costs), way, num_parts).max()) for way in legal)


def test_a_move() -> None:
    # 5+3+2 | 4: moving the 3 gives 7 and 7
    assert refined([5, 4, 3, 2], [0, 1, 0, 0], 2) == [0, 1, 1, 0]


def test_a_swap() -> None:
    # 6+5 | 4+3: the 5 for the 3 gives 9 and 9
    assert refined([6, 5, 4, 3], [0, 0, 1, 1], 2, equal_size=True) == [0, 1, 1, 0]


def test_two_for_one() -> None:
    # 7+3+3 | 5+4+2+... : 13 and 11; only the 3+3 for the 5 shifts 1
    assert refined([7, 5, 3, 3, 3, 3], [0, 1, 0, 0, 1, 1], 2) == [0, 0, 1, 1, 1, 1]


def test_two_for_two() -> None:
    # 10+9+1 | 8+6+4, 20 and 18: no item for an item shifts 1, but 10+1 for 6+4 does
    assert sorted(loads(np.array([10, 9, 8, 6, 4, 1]), np.array([0, 0, 1, 1, 1, 0]), 2).tolist()) == [18, 20]
    parts = refined([10, 9, 8, 6, 4, 1], [0, 0, 1, 1, 1, 0], 2, equal_size=True)
    assert loads(np.array([10, 9, 8, 6, 4, 1]), np.array(parts), 2).tolist() == [19, 19]


def test_many_items_at_once() -> None:
    # Blocks of four leave the giant 150 above 100 + 3: each part needs nearly all of its items exchanged.
    costs = np.array([1000] + [2] * 1199 + [1] * 1200)
    parts = np.arange(2400) % 2
    after = refine(costs, parts, 2, equal_size=True)
    assert np.bincount(after).tolist() == [1200, 1200]
    assert loads(costs, after, 2).max() == 2299  # half of 1000 + 2398 + 1200
    assert loads(costs, parts, 2).tolist() == [2798, 1799 + 1]


def test_only_a_full_part_gives_an_item_for_an_empty_slot() -> None:
    # 6+6 | 2+1 | 5+1+1: moving a 6 to the 2+1 would shift most, but leave one part with one item
    costs = np.array([6, 6, 5, 2, 1, 1, 1])
    parts = refine(costs, np.array([0, 0, 2, 1, 1, 2, 2]), 3, equal_size=True)
    assert np.bincount(parts).tolist() == [2, 2, 3]
    assert loads(costs, parts, 3).tolist() == [8, 7, 7]
    # 3+3+3 | 2+1: the dearest has three items and may give one away
    costs = np.array([3, 3, 3, 2, 1])
    parts = refine(costs, np.array([0, 0, 0, 1, 1]), 2, equal_size=True)
    assert np.bincount(parts).tolist() == [2, 3]
    assert loads(costs, parts, 2).tolist() == [6, 6]


def test_nothing_is_touched_at_a_lower_bound() -> None:
    # the mean; the dearest item; two of the 5s share a part; three of the 4s do; the giant has two others beside it
    for costs, parts, num_parts, equal_size in (
        ([4, 3, 2, 1], [0, 1, 1, 0], 2, False),
        ([9, 2, 1, 1], [0, 1, 1, 1], 2, False),
        ([5, 5, 5, 0], [0, 0, 1, 1], 2, False),
        ([4, 4, 4, 4, 4, 1], [0, 0, 1, 1, 0, 1], 2, False),
        ([9, 3, 2, 2, 1, 1], [0, 1, 1, 1, 0, 0], 2, True),
    ):
        given_parts = np.array(parts)
        assert refine(np.array(costs), given_parts, num_parts, equal_size=equal_size) is given_parts


@st.composite
def starts(draw: st.DrawFn) -> tuple[list[int], list[int], int, bool]:
    """Descending costs, a way to deal them without an empty part, the number of parts, and whether sizes are equal."""
    largest = draw(st.sampled_from([1, 5, 100, 10**6, 2**52]))
    costs = sorted(draw(st.lists(st.integers(0, largest), min_size=2, max_size=60)), reverse=True)
    num_parts = draw(st.integers(2, min(12, len(costs))))
    equal_size = draw(st.booleans())
    extra = len(costs) - num_parts
    rest = [
        i % num_parts if equal_size else part
        for i, part in enumerate(draw(st.lists(st.integers(0, num_parts - 1), min_size=extra, max_size=extra)))
    ]
    return costs, draw(st.permutations([*range(num_parts), *rest])), num_parts, equal_size


@given(starts())
def test_never_worse_never_empty_sizes_kept(start: tuple[list[int], list[int], int, bool]) -> None:
    costs, parts, num_parts, equal_size = start
    before = np.array(parts)
    after = refine(np.array(costs), before, num_parts, equal_size=equal_size)
    assert before.tolist() == parts  # the argument is left alone
    assert after.shape == before.shape
    sizes = np.bincount(after, minlength=num_parts)
    assert sizes.size == num_parts
    assert sizes.min() >= 1
    if equal_size:
        assert sizes.max() - sizes.min() <= 1
    assert loads(np.array(costs), after, num_parts).max() <= loads(np.array(costs), before, num_parts).max()
    assert after.tolist() == refine(np.array(costs), before, num_parts, equal_size=equal_size).tolist()


def test_a_bad_start_with_equal_sizes_is_mended() -> None:
    # 16 parts of consecutive items: the first costs 30 times the last
    costs = np.sort(np.rint(np.random.default_rng(1).lognormal(12, 1, 1601)).astype(np.int64))[::-1].copy()
    parts = np.minimum(np.arange(1601) // 100, 15)
    after = refine(costs, parts, 16, equal_size=True)
    assert loads(costs, parts, 16).max() > 3.5 * costs.sum() / 16
    assert loads(costs, after, 16).max() < 1.001 * costs.sum() / 16
    assert sorted(np.bincount(after).tolist()) == [100] * 15 + [101]


@pytest.mark.parametrize("lowest", [0, -400])  # below 0 are the prices that bar empty slots
def test_the_search_finds_what_trying_all_exchanges_finds(lowest: int) -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        given = np.sort(rng.integers(lowest, 200, (3, 4)), axis=-1)
        taken = np.sort(rng.integers(lowest, 200, (2, 3, 4)), axis=-1)
        gap = rng.integers(0, 400, (2, 3))
        error, at_given, at_taken = _nearest(given, taken, gap)
        for row, dear in itertools.product(range(2), range(3)):
            tried = np.abs(2 * (given[dear][:, np.newaxis] - taken[row, dear]) - gap[row, dear])
            assert error[row, dear] == tried.min()
            at = at_given[row, dear], at_taken[row, dear] - (3 * row + dear) * 4
            assert tried[at] == tried.min()


@pytest.mark.parametrize("equal_size", [False, True])
def test_costs_whose_last_bits_are_lost_in_the_search(equal_size: bool) -> None:
    # 512 pairs of parts with costs of up to 2**54 have no room in 63 bits: some bits go, but here those are zeros.
    rng = np.random.default_rng(2)
    small = np.sort(np.concatenate([rng.integers(2**23, 2**25, 24), rng.integers(1, 2**14, 4072)]))[::-1].copy()
    parts = np.concatenate([np.arange(24) // 2, np.arange(24, 4096) % 1024])
    parts = np.arange(4096) // 2 % 1024 if equal_size else parts
    huge = small << 29
    assert huge.sum() < 2**59 < 512 * huge[0]
    expected = refine(small, parts, 1024, equal_size=equal_size)
    assert loads(small, expected, 1024).max() < 0.7 * loads(small, parts, 1024).max()
    assert refine(huge, parts, 1024, equal_size=equal_size).tolist() == expected.tolist()


@pytest.mark.parametrize("equal_size", [False, True])
@pytest.mark.parametrize("name", sorted(BALANCERS))
def test_small_cases_end_at_the_optimum_or_near(name: str, equal_size: bool) -> None:
    rng = np.random.default_rng(3)
    excess = []
    for _ in range(40):
        num_parts = int(rng.integers(2, 4))
        costs = rng.integers(1, 100, int(rng.integers(num_parts, 8))).tolist()
        optimum = least_maximum(costs, num_parts, equal_size)
        parts = BALANCERS[name](costs, num_parts, equal_size=equal_size)
        excess.append(int(loads(np.array(costs), parts, num_parts).max()) / optimum - 1)
    assert min(excess) == 0
    assert excess.count(0) >= 36
    assert max(excess) < 0.06


def test_many_items_and_parts() -> None:
    costs = np.sort(np.random.default_rng(4).integers(1, 10**9, 300_000))[::-1].copy()
    parts = np.arange(300_000) % 1024
    for equal_size in (False, True):
        after = refine(costs, parts, 1024, equal_size=equal_size)
        sizes = np.bincount(after, minlength=1024)
        assert sizes.min() >= 1
        if equal_size:
            assert set(sizes.tolist()) == {292, 293}
        assert loads(costs, after, 1024).max() < 1.0001 * costs.sum() / 1024
