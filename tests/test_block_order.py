"""Orders of blocks of ranks over nodes, against trying all of them."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack._block_order import fewest_crossings, fill_nodes
from dcpack.topology import crosses_node


def num_crossings(sizes: np.ndarray, node_size: int) -> int:
    starts = np.cumsum(sizes) - sizes
    return int(crosses_node(starts, sizes, node_size).sum())


@settings(max_examples=60, deadline=None)
@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6), node_size=st.integers(1, 8))
def test_no_other_order_crosses_fewer_nodes(sizes: list[int], node_size: int) -> None:
    descending = np.array(sorted(sizes, reverse=True))
    order = fewest_crossings(descending, node_size)
    assert order is not None
    assert sorted(order.tolist()) == list(range(len(sizes)))
    least = min(num_crossings(np.array(each), node_size) for each in permutations(sizes))
    assert num_crossings(descending[order], node_size) == least


def test_blocks_of_one_size_stay_in_their_order() -> None:
    order = fewest_crossings(np.array([3, 3, 1, 1]), 4)
    assert order is not None
    # 3 1 | 3 1: no block crosses; among equal blocks the lower number comes first.
    assert order.tolist() == [0, 2, 1, 3]


def test_too_many_counts_to_look_at_give_none() -> None:
    assert fewest_crossings(np.arange(13, 0, -1), 8) is None  # 2^13 states
    assert fewest_crossings(np.ones(4000, np.int64), 8) is not None  # one size: 4,001 states


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([5, 3, 2, 2], [0, 1, 2, 3]),  # 5 3 | 2 2
        ([6, 5, 2, 1], [0, 2, 1, 3]),  # 6 2 | 5 1
        ([9, 7], [1, 0]),  # 9 fits in no node of 8, so it comes where nothing else fits
    ],
)
def test_filling_takes_the_largest_that_fits(sizes: list[int], expected: list[int]) -> None:
    assert fill_nodes(np.array(sizes), 8).tolist() == expected
