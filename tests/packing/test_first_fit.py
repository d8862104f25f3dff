from __future__ import annotations

import numpy as np
import pytest

from dcpack.packing import first_fit


def plain_first_fit(lengths: list[int], capacity: int, limit: int | None, alone: list[bool]) -> list[list[int]]:
    """Ask every bin in turn."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for item, length in enumerate(lengths):
        fitting = [number for number, room in enumerate(rooms) if room >= length and not alone[item]]
        number = fitting[0] if fitting else len(bins)
        if not fitting:
            bins.append([])
            rooms.append(capacity)
        bins[number].append(item)
        rooms[number] = 0 if alone[item] or len(bins[number]) == limit else rooms[number] - length
    return bins


def test_lowest_numbered_bin_with_room() -> None:
    # 6 | 7 | 4 goes beside the 6 | 3 beside the 7 | 1 fits nowhere (10, 10) | 9 beside the 1
    assert first_fit([6, 7, 4, 3, 1, 9], 10).lists() == [[0, 2], [1, 3], [4, 5]]
    # the tighter bin 1 (room 3) loses to the lower bin 0 (room 4)
    assert first_fit([6, 7, 3], 10).lists() == [[0, 2], [1]]


def test_long_ones_then_short_ones() -> None:
    assert first_fit([95] * 5 + [20] * 5, 100).num_bins == 6


def test_an_item_alone_opens_the_next_bin_and_closes_it() -> None:
    alone = [False, True, False, False]
    assert first_fit([3, 50, 3, 3], 6, alone=alone).lists() == [[0, 2], [1], [3]]


def test_a_full_bin_is_closed() -> None:
    assert first_fit([1, 1, 1, 9, 1], 10, max_sequences=2).lists() == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("limit", [None, 1, 3])
def test_equals_the_plain_search(limit: int | None) -> None:
    rng = np.random.default_rng(8)
    for _ in range(100):
        size, capacity = int(rng.integers(1, 60)), int(rng.integers(1, 40))
        lengths = rng.integers(1, capacity + 1, size).tolist()
        alone = (rng.random(size) < 0.1).tolist()
        bins = first_fit(lengths, capacity, max_sequences=limit, alone=alone)
        assert bins.lists() == plain_first_fit(lengths, capacity, limit, alone)
