from __future__ import annotations

import numpy as np
import pytest

from dcpack.packing import best_fit_decreasing


def plain_best_fit_decreasing(
    lengths: list[int], capacity: int, limit: int | None, alone: list[bool]
) -> list[list[int]]:
    """Sort by (-length, index), then compare the room of every bin."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        best = -1
        for number, room in enumerate(rooms):
            closed = alone[bins[number][0]] or len(bins[number]) == limit
            if alone[item] or closed or room < lengths[item]:
                continue
            if best < 0 or room < rooms[best]:
                best = number
        if best < 0:
            best = len(bins)
            bins.append([])
            rooms.append(capacity)
        bins[best].append(item)
        rooms[best] -= lengths[item]
    return [sorted(members) for members in bins]


def test_tightest_bin_that_fits() -> None:
    # capacity 20, sorted 14 11 7 2 1: 14 (room 6), 11 + 7 (room 2); 2 fills bin 1, and 1 goes to bin 0
    assert best_fit_decreasing([14, 11, 7, 2, 1], 20).lists() == [[0, 4], [1, 2, 3]]


def test_of_equal_rooms_the_oldest_bin() -> None:
    # capacity 10: 8, 8, 8 leave room 2 in bins 0, 1, 2, and the 1s fill bin 0 first
    assert best_fit_decreasing([8, 8, 8, 1, 1, 1], 10).lists() == [[0, 3, 4], [1, 5], [2]]
    # capacity 20: bin 1 (10 + 9) comes to room 1 before bin 0 (12 + 7) does; the 1 takes bin 0 all the same
    assert best_fit_decreasing([12, 10, 9, 7, 1], 20).lists() == [[0, 3, 4], [1, 2]]


def test_equal_lengths_keep_their_order() -> None:
    assert best_fit_decreasing([5, 5, 5, 5, 5], 10).lists() == [[0, 1], [2, 3], [4]]


def test_a_full_bin_is_closed() -> None:
    assert best_fit_decreasing([6, 2, 1, 1], 10, max_sequences=2).lists() == [[0, 1], [2, 3]]


def test_an_item_alone_keeps_its_bin() -> None:
    assert best_fit_decreasing([6, 3, 4], 10, alone=[True, False, False]).lists() == [[0], [1, 2]]


@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.parametrize("widest", [12, 60, 5000])  # few different rooms, some, and hardly an equal one
def test_equals_the_plain_search(limit: int | None, widest: int) -> None:
    rng = np.random.default_rng(10)
    for _ in range(50):
        size, capacity = int(rng.integers(1, 80)), int(rng.integers(1, widest))
        lengths = rng.integers(1, capacity + 1, size).tolist()
        if rng.random() < 0.5:
            lengths = [-(-length // 4) for length in lengths]
        alone = (rng.random(size) < 0.1).tolist()
        bins = best_fit_decreasing(lengths, capacity, max_sequences=limit, alone=alone)
        assert bins.lists() == plain_best_fit_decreasing(lengths, capacity, limit, alone)
