from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.packing import SplitBins, concat_then_split


def plain_split(lengths: list[int], capacity: int, multiple: int, limit: int | None) -> list[list[tuple[int, ...]]]:
    """Fill bins block by block of `multiple` tokens; a list of (sequence, start, length) a bin."""
    bins: list[list[tuple[int, ...]]] = []
    room = 0
    for sequence, length in enumerate(lengths):
        for start in range(0, length, multiple):
            real = min(multiple, length - start)
            if room < multiple or (bins[-1][-1][0] != sequence and len(bins[-1]) == limit):
                bins.append([])
                room = capacity
            if bins[-1] and bins[-1][-1][0] == sequence:
                _, first, so_far = bins[-1].pop()
                bins[-1].append((sequence, first, so_far + real))
            else:
                bins[-1].append((sequence, start, real))
            room -= multiple
    return bins


def as_lists(bins: SplitBins) -> list[list[tuple[int, ...]]]:
    pieces = list(zip(bins.sequence_ids.tolist(), bins.starts.tolist(), bins.lengths.tolist(), strict=True))
    bounds = bins.offsets.tolist()
    return [pieces[start:stop] for start, stop in pairwise(bounds)]


def test_cuts_where_a_bin_ends() -> None:
    # 5 + 2 + 3 + 1 tokens in fours: 4 | 1 2 1 | 2 1
    bins = concat_then_split([5, 2, 3, 1], 4)
    assert as_lists(bins) == [[(0, 0, 4)], [(0, 4, 1), (1, 0, 2), (2, 0, 1)], [(2, 1, 2), (3, 0, 1)]]
    assert bins.num_bins == 3


def test_a_long_sequence_fills_many_bins() -> None:
    assert as_lists(concat_then_split([9], 4)) == [[(0, 0, 4)], [(0, 4, 4)], [(0, 8, 1)]]
    assert as_lists(concat_then_split([4, 4], 4)) == [[(0, 0, 4)], [(1, 0, 4)]]


def test_cuts_fall_on_the_multiple() -> None:
    # padded 6 + 4, capacity 9 holds 8: bin 0 is all of sequence 0 and 2 tokens of sequence 1
    assert as_lists(concat_then_split([5, 3], 9, multiple=2)) == [[(0, 0, 5), (1, 0, 2)], [(1, 2, 1)]]


def test_a_capped_bin_ends_with_its_last_piece() -> None:
    assert as_lists(concat_then_split([1, 1, 1, 9], 4, max_sequences=2)) == [
        [(0, 0, 1), (1, 0, 1)],
        [(2, 0, 1), (3, 0, 3)],
        [(3, 3, 4)],
        [(3, 7, 2)],
    ]


def test_zero_lengths_give_no_piece_and_ids_stay() -> None:
    assert as_lists(concat_then_split([0, 1, 0, 1], 8)) == [[(1, 0, 1), (3, 0, 1)]]
    assert as_lists(concat_then_split([0, 1, 0, 1], 8, max_sequences=1)) == [[(1, 0, 1)], [(3, 0, 1)]]
    for limit in (None, 2):
        empty = concat_then_split([0, 0], 8, max_sequences=limit)
        assert (empty.num_bins, empty.offsets.tolist(), empty.sequence_ids.size) == (0, [0], 0)
        assert empty.offsets.dtype == empty.sequence_ids.dtype == empty.starts.dtype == empty.lengths.dtype == np.int64


def test_arrays_are_read_only() -> None:
    bins = concat_then_split([5, 3], 4)
    for array in (bins.sequence_ids, bins.starts, bins.lengths, bins.offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 7


def test_sums_beyond_int32_and_huge_capacities() -> None:
    bins = concat_then_split([2**40, 2**40], 2**40 + 2**39)
    assert as_lists(bins) == [[(0, 0, 2**40), (1, 0, 2**39)], [(1, 2**39, 2**39)]]
    assert as_lists(concat_then_split([3, 2], 2**70)) == [[(0, 0, 3), (1, 0, 2)]]


def test_errors_name_the_argument() -> None:
    with pytest.raises(InfeasibleError, match="a capacity of 7 tokens is below the padding multiple of 8"):
        concat_then_split([1], 7, multiple=8)
    with pytest.raises(ArgumentError, match="capacity must be at least 1, got 0"):
        concat_then_split([1], 0)
    with pytest.raises(ArgumentError, match="multiple must be from 1 to 2147483647, got 0"):
        concat_then_split([1], 4, multiple=0)
    with pytest.raises(ArgumentError, match="max_sequences must be at least 1, got 0"):
        concat_then_split([1], 4, max_sequences=0)
    with pytest.raises(ArgumentError, match=r"lengths must be at least 0: lengths\[1\] = -2"):
        concat_then_split([1, -2], 4)
    with pytest.raises(ArgumentError, match=r"padded lengths must sum to less than 2\*\*62"):
        concat_then_split([2**62 - 2**10, 1, 1], 2**40, multiple=2**31 - 1)


@given(st.lists(st.integers(0, 40), max_size=25), st.integers(1, 30), st.integers(1, 8), st.none() | st.integers(1, 4))
def test_equals_the_plain_fill(lengths: list[int], blocks: int, multiple: int, limit: int | None) -> None:
    capacity = blocks * multiple + (multiple - 1)  # the odd tokens are of no use
    bins = as_lists(concat_then_split(lengths, capacity, multiple=multiple, max_sequences=limit))
    assert bins == plain_split(lengths, capacity, multiple, limit)
    if limit is None:
        sizes = [sum(-(-length // multiple) * multiple for *_, length in pieces) for pieces in bins]
        assert all(size == blocks * multiple for size in sizes[:-1])


def test_more_bins_than_memory_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="1125899906842624 padded tokens in bins of 10 are more than"):
        concat_then_split([2**50], 10)
