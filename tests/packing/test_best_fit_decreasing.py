from __future__ import annotations

import numpy as np
import pytest

from dcpack.packing import Packer, best_fit_decreasing, first_fit_decreasing
from dcpack.packing.base import LengthClasses, check_packing
from dcpack.packing.best_fit_decreasing import _place


def plain_best_fit_decreasing(
    lengths: list[int], capacity: int, limit: int, alone: list[bool], sizes: list[int]
) -> list[list[int]]:
    """Items alone first; the others by (-length, -size, index), each compared with the room of every bin."""
    bins = [[item] for item, lonely in enumerate(alone) if lonely]
    rooms, left = [0] * len(bins), [0] * len(bins)
    shared = [item for item, lonely in enumerate(alone) if not lonely]
    for item in sorted(shared, key=lambda i: (-lengths[i], -sizes[i], i)):
        best = -1
        for number, room in enumerate(rooms):
            if room < lengths[item] or left[number] < sizes[item]:
                continue
            if best < 0 or room < rooms[best]:
                best = number
        if best < 0:
            best = len(bins)
            bins.append([])
            rooms.append(capacity)
            left.append(limit)
        bins[best].append(item)
        rooms[best] -= lengths[item]
        left[best] -= sizes[item]
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


def test_a_class_ends_inside_a_run_of_bins() -> None:
    # capacity 10: 6 6 6 leave room 4 three times; two of the five 2s fill bin 0, two bin 1, the last begins bin 2
    assert best_fit_decreasing([6, 6, 6, 2, 2, 2, 2, 2], 10).lists() == [[0, 3, 4], [1, 5, 6], [2, 7]]
    # the 1 then takes the tightest room, that of the bin that was begun (2), not an untouched one (4)
    assert best_fit_decreasing([6, 6, 6, 2, 1], 10).lists() == [[0, 3, 4], [1], [2]]


def test_a_full_bin_is_closed() -> None:
    assert best_fit_decreasing([6, 2, 1, 1], 10, max_sequences=2).lists() == [[0, 1], [2, 3]]


def test_an_item_alone_comes_first_and_keeps_its_bin() -> None:
    assert best_fit_decreasing([6, 3, 4], 10, alone=[False, True, False]).lists() == [[1], [0, 2]]


def test_a_bin_that_may_not_take_so_many_waits_for_fewer() -> None:
    # capacity 20, 4 sequences: 12 (of 3) leaves room 8 for one more; 7 (of 2) may not come, 6 (of 1) may
    assert best_fit_decreasing([12, 7, 6], 20, max_sequences=4, sizes=[3, 2, 1]).lists() == [[0, 2], [1]]


@pytest.mark.parametrize("limit", [None, 1, 3])
@pytest.mark.parametrize("widest", [12, 60, 5000])  # few different rooms, some, and hardly an equal one
def test_equals_the_plain_search(limit: int | None, widest: int) -> None:
    rng = np.random.default_rng(10)
    for round_number in range(100):
        size, capacity = int(rng.integers(1, 80)), int(rng.integers(1, widest))
        lengths = rng.integers(1, capacity + 1, size).tolist()
        if rng.random() < 0.5:
            lengths = [-(-length // 4) for length in lengths]
        alone = (rng.random(size) < 0.1).tolist()
        sizes = rng.integers(1, (limit or 3) + 1, size).tolist() if round_number % 3 == 0 else None
        bins = best_fit_decreasing(lengths, capacity, max_sequences=limit, alone=alone, sizes=sizes)
        plain = plain_best_fit_decreasing(lengths, capacity, limit or 999, alone, sizes or [1] * size)
        assert bins.lists() == plain


def test_equals_the_plain_search_on_realistic_lengths() -> None:
    rng = np.random.default_rng(5)
    lengths = np.clip(600 * np.exp(1.3 * rng.standard_normal(1500)), 16, 4096).astype(np.int64)
    bins = best_fit_decreasing(lengths, 4096)
    assert bins.lists() == plain_best_fit_decreasing(lengths.tolist(), 4096, 1500, [False] * 1500, [1] * 1500)


def test_work_grows_with_different_lengths_and_not_with_items() -> None:
    lengths = np.random.default_rng(4).choice([7, 11, 25, 60], 400_000)
    classes = LengthClasses.of(check_packing(lengths, 100))
    assert len(_place(classes, 100, lengths.size).flat) // 3 < 40
    for packer in (best_fit_decreasing, first_fit_decreasing):
        bins = packer(lengths, 100)
        assert np.array_equal(np.sort(bins.items), np.arange(lengths.size))
        assert np.add.reduceat(lengths[bins.items], bins.offsets[:-1]).max() <= 100


@pytest.mark.parametrize("packer", [best_fit_decreasing, first_fit_decreasing])
def test_lengths_too_long_to_share_a_word_with_their_numbers(packer: Packer) -> None:
    # capacity 2**60 + 3: the 3 fills bin 0, the 2 and the 1 fill bin 1
    assert packer([2**60, 3, 2**60, 1, 2], 2**60 + 3).lists() == [[0, 1], [2, 3, 4]]
