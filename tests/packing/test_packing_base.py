from __future__ import annotations

import numpy as np
import pytest

from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.packing import PACKERS, Bins, get_packer
from dcpack.packing.base import LengthClasses, bins_from_numbers, check_packing


def test_bins_from_bin_of_keeps_items_ascending() -> None:
    bins = Bins.from_bin_of([2, 0, 1, 0, 2, 0])
    assert bins.num_bins == 3
    assert bins.items.tolist() == [1, 3, 5, 2, 0, 4]
    assert bins.offsets.tolist() == [0, 3, 4, 6]
    assert bins.lists() == [[1, 3, 5], [2], [0, 4]]
    assert bins.bin_of(6).tolist() == [2, 0, 1, 0, 2, 0]


def test_bins_are_read_only_and_apart_from_their_input() -> None:
    offsets = np.array([0, 2])
    bins = Bins(items=np.array([1, 0]), offsets=offsets)
    offsets[1] = 1
    assert bins.lists() == [[1, 0]]
    assert bins.items.dtype == bins.offsets.dtype == np.int64
    for array in (bins.items, bins.offsets, bins.bin_of(2)):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_bins_of_nothing() -> None:
    bins = Bins.from_bin_of([])
    assert (bins.num_bins, bins.lists(), bins.bin_of(2).tolist()) == (0, [], [-1, -1])


@pytest.mark.parametrize("offsets", [[], [1, 3], [0, 2], [0, 2, 2, 3], [0, 2, 1, 3]])
def test_bins_refuse_offsets_that_do_not_rise_to_the_items(offsets: list[int]) -> None:
    with pytest.raises(ArgumentError, match=r"offsets must rise from 0 to the number of items \(3\)"):
        Bins(items=np.arange(3), offsets=np.array(offsets, np.int64))


def test_bin_numbers_with_gaps_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"without gaps, missing: 0, 2$"):
        Bins.from_bin_of([3, 1, 3, 3])
    with pytest.raises(ArgumentError, match=r"must number 2 items without gaps, got bin 1099511627776$"):
        Bins.from_bin_of([0, 2**40])
    with pytest.raises(ArgumentError, match=r"bin_of must be at least 0: bin_of\[1\] = -1$"):
        Bins.from_bin_of([0, -1])


def test_bin_of_needs_room_for_every_item() -> None:
    with pytest.raises(ArgumentError, match="num_items must be at least 5, got 4"):
        Bins(items=np.array([4]), offsets=np.array([0, 1])).bin_of(4)


def test_check_packing_fills_in_the_defaults() -> None:
    checked = check_packing(np.array([3, 1], np.uint8), 4)
    assert (checked.lengths.tolist(), checked.lengths.dtype) == ([3, 1], np.int64)
    assert (checked.capacity, checked.max_sequences, checked.alone.tolist()) == (4, 2, [False] * 2)
    assert checked.sizes is None
    assert checked.size_of_each.tolist() == [1, 1]


def test_bins_from_numbers_in_any_order() -> None:
    assert bins_from_numbers(np.array([2, 0, 2, 1]), np.array([5, 9, 0, 3])).lists() == [[9], [3], [0, 5]]
    assert bins_from_numbers(np.array([], np.int64), np.array([], np.int64)).lists() == []


def test_classes_stand_by_falling_length_then_size() -> None:
    alone = [False, False, True, False, False, False]
    classes = LengthClasses.of(check_packing([3, 8, 9, 3, 3, 8], 10, 6, alone, [1, 1, 1, 2, 1, 1]))
    assert (classes.lengths.tolist(), classes.sizes.tolist(), classes.counts.tolist()) == (
        [8, 3, 3],
        [1, 2, 1],
        [2, 1, 2],
    )
    assert (classes.items.tolist(), classes.lonely.tolist(), classes.num_long) == ([1, 5, 3, 0, 4], [2], 1)
    # bins 0 and 1 of length 8 have room 2, which is too little for any
    assert classes.open_long(10, 6)[0].size == 0
    assert classes.open_long(11, 6)[0].tolist() == [[3], [0], [2], [5]]


@pytest.mark.parametrize("name", sorted(PACKERS))
class TestEveryPacker:
    def test_nothing_to_pack(self, name: str) -> None:
        assert get_packer(name)([], 4).lists() == []
        assert get_packer(name)([], 4, max_sequences=1, alone=[]).lists() == []

    def test_one_item_and_whole_bins(self, name: str) -> None:
        assert get_packer(name)([4], 4).lists() == [[0]]
        assert get_packer(name)([4, 4, 4], 4).lists() == [[0], [1], [2]]

    def test_max_sequences_closes_a_bin(self, name: str) -> None:
        assert get_packer(name)([1] * 5, 100, max_sequences=2).lists() == [[0, 1], [2, 3], [4]]

    def test_alone_items_have_their_own_bin_and_may_be_too_long(self, name: str) -> None:
        bins = get_packer(name)([9, 1, 1, 1], 4, alone=[True, False, True, False])
        assert sorted(map(tuple, bins.lists())) in ([(0,), (1, 3), (2,)], [(0,), (1,), (2,), (3,)])
        assert get_packer(name)([2, 2], 4, alone=[True, True]).lists() == [[0], [1]]

    def test_sizes_count_towards_max_sequences(self, name: str) -> None:
        packer = get_packer(name)
        assert packer([1, 1, 1], 100, max_sequences=3, sizes=[2, 2, 1]).lists() in ([[0], [1, 2]], [[0, 2], [1]])
        assert packer([1, 1, 1], 100, sizes=[2, 2, 1]).lists() == [[0, 1, 2]]
        with pytest.raises(InfeasibleError, match=r"^1 size is over max_sequences = 3: sizes\[1\] = 4$"):
            packer([1, 1], 100, max_sequences=3, sizes=[2, 4])
        with pytest.raises(ArgumentError, match=r"sizes must be int64\[2\], got 1 of them"):
            packer([1, 1], 100, sizes=[2])
        with pytest.raises(ArgumentError, match=r"sizes must be at least 1: sizes\[0\] = 0"):
            packer([1, 1], 100, sizes=[0, 1])

    def test_input_is_not_changed_and_may_be_read_only(self, name: str) -> None:
        lengths = np.array([5, 7, 1, 3], np.uint16)
        lengths.setflags(write=False)
        bins = get_packer(name)(lengths, 10)
        assert bins.lists() == get_packer(name)([5, 7, 1, 3], 10).lists()

    def test_lengths_beyond_int32(self, name: str) -> None:
        assert get_packer(name)([2**40, 2**40, 2**40], 2**41).lists() == [[0, 1], [2]]
        assert get_packer(name)([2**40, 1], 2**70).lists() == [[0, 1]]

    def test_every_item_over_the_capacity_is_named(self, name: str) -> None:
        with pytest.raises(
            InfeasibleError,
            match=r"^2 lengths are over the capacity of 4 tokens: lengths\[0\] = 5, lengths\[3\] = 9$",
        ):
            get_packer(name)([5, 4, 8, 9], 4, alone=[False, False, True, False])
        with pytest.raises(InfeasibleError, match=r"^1 length is over the capacity of 100 tokens: lengths\[0\] = 900$"):
            get_packer(name)([900], 100)

    def test_bad_arguments_are_named(self, name: str) -> None:
        packer = get_packer(name)
        with pytest.raises(ArgumentError, match=r"lengths must be at least 1: lengths\[1\] = 0, lengths\[2\] = -1$"):
            packer([1, 0, -1], 4)
        with pytest.raises(ArgumentError, match=r"lengths must hold integers, got dtype float64"):
            packer([1.0], 4)
        with pytest.raises(ArgumentError, match=r"capacity must be at least 1, got 0"):
            packer([1], 0)
        with pytest.raises(ArgumentError, match=r"max_sequences must be at least 1, got 0"):
            packer([1], 4, max_sequences=0)
        with pytest.raises(ArgumentError, match=r"alone must be bool\[2\], got bool of shape \(1,\)"):
            packer([1, 1], 4, alone=[True])
        with pytest.raises(ArgumentError, match=r"alone must be bool\[2\], got int64 of shape \(2,\)"):
            packer([1, 1], 4, alone=[0, 1])
        with pytest.raises(ArgumentError, match=r"lengths must sum to less than 2\*\*62 tokens"):
            packer([2**61, 2**61], 2**62)


def test_unknown_packer_lists_those_there_are() -> None:
    with pytest.raises(
        ArgumentError,
        match="packing method must be one of 'best_fit_decreasing', 'first_fit', 'first_fit_decreasing', 'next_fit', "
        "got 'bfd'",
    ):
        get_packer("bfd")
