from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpack.balancing import lpt


def plain_lpt(costs: list[int], num_parts: int, equal_size: bool) -> list[int]:
    """Compare every part for every item."""
    small_size, num_larger = divmod(len(costs), num_parts)
    loads, counts = [0] * num_parts, [0] * num_parts
    part_of = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        larger = sum(count > small_size for count in counts)
        open_parts = [
            part
            for part in range(num_parts)
            if not equal_size or counts[part] < small_size or (counts[part] == small_size and larger < num_larger)
        ]
        part = min(open_parts, key=lambda p: (loads[p], counts[p], p))
        part_of[item] = part
        loads[part] += costs[item]
        counts[part] += 1
    return part_of


def least_maximum(costs: list[int], num_parts: int) -> int:
    """The optimum, by trying all ways to deal the items."""
    return min(int(np.bincount(parts, costs).max()) for parts in itertools.product(range(num_parts), repeat=len(costs)))


def test_dearest_item_to_the_least_loaded_part() -> None:
    # 7 | 5 | 4 on the 5 | 4 on the 7 | 2 on the 9
    assert lpt([7, 5, 4, 4, 2], 2, effort="fast").tolist() == [0, 1, 1, 0, 1]


def test_ties_go_to_the_fewest_items_then_the_lowest_part() -> None:
    # after 4, 2, 2 both parts cost 4; part 0 has one item
    assert lpt([4, 2, 2, 1], 2, effort="fast").tolist() == [0, 1, 1, 0]
    # after 2, 1, 1 in three parts, the 1s tie with one item each
    assert lpt([2, 1, 1, 1], 3, effort="fast").tolist() == [0, 1, 2, 1]
    assert lpt([3, 3], 2, effort="fast").tolist() == [0, 1]


def test_equal_sizes_close_full_parts() -> None:
    assert lpt([9, 1, 1, 1], 2, effort="fast").tolist() == [0, 1, 1, 1]
    assert lpt([9, 1, 1, 1], 2, equal_size=True, effort="fast").tolist() == [0, 1, 1, 0]
    # 5 items in 2 parts: part 1 takes the one place more, then the last item must go to the dear part
    assert lpt([9, 1, 1, 1, 1], 2, equal_size=True, effort="fast").tolist() == [0, 1, 1, 1, 0]
    # 5 items in 3 parts: two parts of 2, one of 1; the nine keeps its part for itself
    assert lpt([9, 2, 2, 1, 1], 3, equal_size=True, effort="fast").tolist() == [0, 1, 2, 1, 2]


@pytest.mark.parametrize("equal_size", [False, True])
def test_equals_the_plain_search(equal_size: bool) -> None:
    rng = np.random.default_rng(11)
    for _ in range(100):
        size, num_parts, top = int(rng.integers(1, 50)), int(rng.integers(1, 12)), int(rng.integers(1, 100))
        costs = rng.integers(0, top, size).tolist()
        assert lpt(costs, num_parts, equal_size=equal_size, effort="fast").tolist() == plain_lpt(
            costs, num_parts, equal_size
        )


@given(st.lists(st.integers(0, 30), min_size=1, max_size=7), st.integers(1, 3))
def test_within_grahams_bound_of_the_optimum(costs: list[int], num_parts: int) -> None:
    largest = int(np.bincount(lpt(costs, num_parts, effort="fast"), costs).max())
    # 4/3 - 1/(3k), in whole numbers
    assert 3 * num_parts * largest <= (4 * num_parts - 1) * least_maximum(costs, num_parts)
