from __future__ import annotations

import numpy as np
import pytest

from dcpack.packing import first_fit_decreasing


def plain_first_fit_decreasing(
    lengths: list[int], capacity: int, limit: int | None, alone: list[bool]
) -> list[list[int]]:
    """Sort by (-length, index), then ask every bin in turn."""
    bins: list[list[int]] = []
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        for members in bins:
            closed = alone[members[0]] or len(members) == limit
            if not alone[item] and not closed and sum(lengths[i] for i in members) + lengths[item] <= capacity:
                members.append(item)
                break
        else:
            bins.append([item])
    return [sorted(members) for members in bins]


def test_longest_first_into_the_lowest_bin() -> None:
    # sorted 7 6 4 3: 7 | 6 | 4 beside the 6 | 3 beside the 7
    assert first_fit_decreasing([4, 3, 6, 7], 10).lists() == [[1, 3], [0, 2]]


def test_takes_the_lower_bin_where_a_higher_one_is_tighter() -> None:
    # capacity 20, sorted 14 11 7 2 1: 14 (room 6), 11 + 7 (room 2); 2 and 1 take bin 0 although bin 1 is tighter
    assert first_fit_decreasing([14, 11, 7, 2, 1], 20).lists() == [[0, 3, 4], [1, 2]]


def test_equal_lengths_keep_their_order() -> None:
    assert first_fit_decreasing([5, 5, 5, 5, 5], 10).lists() == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("limit", [None, 1, 3])
def test_equals_the_plain_search(limit: int | None) -> None:
    rng = np.random.default_rng(9)
    for _ in range(100):
        size, capacity = int(rng.integers(1, 60)), int(rng.integers(1, 40))
        lengths = rng.integers(1, capacity + 1, size).tolist()
        alone = (rng.random(size) < 0.1).tolist()
        bins = first_fit_decreasing(lengths, capacity, max_sequences=limit, alone=alone)
        assert bins.lists() == plain_first_fit_decreasing(lengths, capacity, limit, alone)
