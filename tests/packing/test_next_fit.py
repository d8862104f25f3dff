from __future__ import annotations

import numpy as np
import pytest

from dcpack.packing import next_fit


def plain_next_fit(lengths: list[int], capacity: int, limit: int | None, alone: list[bool]) -> list[list[int]]:
    """Walk over the items with one open bin."""
    bins: list[list[int]] = []
    room, closed = 0, True
    for item, length in enumerate(lengths):
        if closed or alone[item] or length > room or len(bins[-1]) == limit:
            bins.append([])
            room = capacity
        bins[-1].append(item)
        room -= length
        closed = alone[item]
    return bins


def test_long_ones_then_short_ones() -> None:
    # 95 + 20 is over 100, so each 95 is left alone; the five 20s fill the sixth bin exactly.
    bins = next_fit([95] * 5 + [20] * 5, 100)
    assert bins.num_bins == 6
    assert bins.lists() == [[0], [1], [2], [3], [4], [5, 6, 7, 8, 9]]


def test_never_looks_back() -> None:
    assert next_fit([6, 5, 4, 1], 10).lists() == [[0], [1, 2, 3]]
    assert next_fit([6, 5, 4, 4], 10).lists() == [[0], [1, 2], [3]]


def test_an_item_alone_closes_the_open_bin() -> None:
    assert next_fit([1, 1, 50, 1, 1], 10, alone=[False, False, True, False, False]).lists() == [[0, 1], [2], [3, 4]]


@pytest.mark.parametrize("limit", [None, 1, 3])
def test_equals_the_plain_walk(limit: int | None) -> None:
    rng = np.random.default_rng(7)
    for _ in range(100):
        size, capacity = int(rng.integers(1, 60)), int(rng.integers(1, 40))
        lengths = rng.integers(1, capacity + 1, size).tolist()
        alone = (rng.random(size) < 0.1).tolist()
        bins = next_fit(lengths, capacity, max_sequences=limit, alone=alone)
        assert bins.lists() == plain_next_fit(lengths, capacity, limit, alone)
