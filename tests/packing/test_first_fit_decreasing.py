from __future__ import annotations

import numpy as np
import pytest

from dcpack.packing import first_fit_decreasing


def plain_first_fit_decreasing(
    lengths: list[int], capacity: int, limit: int, alone: list[bool], sizes: list[int]
) -> list[list[int]]:
    """Items alone first; the others by (-length, -size, index), each asks every bin in turn."""
    bins: list[list[int]] = []
    shared = [item for item, lonely in enumerate(alone) if not lonely]
    for item in sorted(shared, key=lambda i: (-lengths[i], -sizes[i], i)):
        for members in bins:
            tokens, count = sum(lengths[i] for i in members), sum(sizes[i] for i in members)
            if tokens + lengths[item] <= capacity and count + sizes[item] <= limit:
                members.append(item)
                break
        else:
            bins.append([item])
    return [[item] for item, lonely in enumerate(alone) if lonely] + [sorted(members) for members in bins]


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
    for round_number in range(150):
        size, capacity = int(rng.integers(1, 60)), int(rng.integers(1, 40))
        lengths = rng.integers(1, capacity + 1, size).tolist()
        alone = (rng.random(size) < 0.1).tolist()
        sizes = rng.integers(1, (limit or 3) + 1, size).tolist() if round_number % 3 == 0 else None
        bins = first_fit_decreasing(lengths, capacity, max_sequences=limit, alone=alone, sizes=sizes)
        plain = plain_first_fit_decreasing(lengths, capacity, limit or 999, alone, sizes or [1] * size)
        assert bins.lists() == plain


def test_a_bin_that_may_not_take_so_many_waits_for_fewer() -> None:
    # capacity 20, 4 sequences: 12 (of 3) leaves room 8 for one more; 7 (of 2) may not come, 6 (of 1) may
    assert first_fit_decreasing([12, 7, 6], 20, max_sequences=4, sizes=[3, 2, 1]).lists() == [[0, 2], [1]]
