from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.errors import ArgumentError
from dcpack.layout import (
    IGNORED_LABEL,
    MAX_OFFSET,
    check_cu_seqlens,
    cu_seqlens_from_lengths,
    fixed_shape_cu_seqlens,
    lengths_from_cu_seqlens,
    packed_offsets,
    padding_mask,
    position_ids,
    scatter_real,
    segment_ids,
    shift_labels,
    slots_of_real_tokens,
)

rows = st.lists(st.tuples(st.integers(1, 12), st.integers(0, 5)), max_size=10)


@settings(deadline=None)
@given(row=rows)
def test_a_padded_row_slot_by_slot(row: list[tuple[int, int]]) -> None:
    lengths, padded = [n for n, _ in row], [n + extra for n, extra in row]
    slots, positions, segments, mask = [], [], [], []
    for number, (length, extra) in enumerate(row, start=1):
        for i in range(length + extra):
            real = i < length
            if real:
                slots.append(len(positions))
            positions.append(i if real else 0)
            segments.append(number if real else 0)
            mask.append(not real)
    offsets = packed_offsets(lengths, padded)
    assert slots_of_real_tokens(lengths, padded).tolist() == slots
    assert position_ids(lengths, padded).tolist() == positions
    assert segment_ids(lengths, padded).tolist() == segments
    assert padding_mask(offsets.cu_seqlens, offsets.cu_seqlens_padded).tolist() == mask
    assert lengths_from_cu_seqlens(offsets.cu_seqlens).tolist() == lengths
    assert lengths_from_cu_seqlens(offsets.cu_seqlens_padded).tolist() == padded
    assert offsets.max_seqlen == max(padded, default=0)


def test_dtypes_are_those_that_kernels_take() -> None:
    offsets = packed_offsets(np.array([3], np.uint8))
    assert (offsets.cu_seqlens.dtype, offsets.cu_seqlens_padded.dtype) == (np.int32, np.int32)
    assert type(offsets.max_seqlen) is int
    assert segment_ids([3]).dtype == np.int32
    assert position_ids([3]).dtype == np.int64
    assert packed_offsets([]).max_seqlen == 0
    assert packed_offsets([]).cu_seqlens.tolist() == [0]


def test_offsets_reach_the_last_int32_and_no_further() -> None:
    assert cu_seqlens_from_lengths([MAX_OFFSET - 1, 1]).tolist() == [0, 2**31 - 2, 2**31 - 1]
    with pytest.raises(ArgumentError, match="a bin of 2147483648 tokens is over the 2147483647"):
        cu_seqlens_from_lengths([MAX_OFFSET, 1])


@pytest.mark.parametrize("count", [2, 3, 4])
def test_sums_beyond_int64_are_over_the_limit_too(count: int) -> None:
    with pytest.raises(ArgumentError, match="int32 offsets"):
        cu_seqlens_from_lengths([2**62] * count)


def test_fixed_shapes_do_not_wrap_offsets_beyond_int32() -> None:
    with pytest.raises(ArgumentError, match="int32"):
        fixed_shape_cu_seqlens([0, 2**31], 2)


def test_lengths_that_cannot_share_a_row_are_named() -> None:
    with pytest.raises(
        ArgumentError, match=r"padded_lengths must be at least lengths: sequence 1 has 5 tokens padded to 4$"
    ):
        packed_offsets([3, 5, 2], [4, 4, 4])
    with pytest.raises(ArgumentError, match="must be equally long, got 2 and 1"):
        position_ids([3, 5], [8])
    with pytest.raises(ArgumentError, match=r"lengths must be at least 1: lengths\[1\] = 0$"):
        segment_ids([3, 0])


@pytest.mark.parametrize(
    ("offsets", "text"),
    [
        ([], r"must start at 0, got \[\]"),
        ([1, 2], r"must start at 0, got \[1, 2\]"),
        ([0, 5, 3, 4, 1], r"must not decrease: cu[2] = 3 after 5, cu[4] = 1 after 4".replace("[", r"\[")),
        ([0, -1], r"must be at least 0: cu\[1\] = -1"),
        ([0.0, 1.0], "must hold integers"),
    ],
)
def test_offsets_that_are_none_are_named(offsets: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^cu {text}"):
        check_cu_seqlens("cu", offsets)


def test_repeated_offsets_are_legal() -> None:
    assert check_cu_seqlens("cu", np.array([0, 4, 4], np.int32)).tolist() == [0, 4, 4]
    assert lengths_from_cu_seqlens([0, 4, 4]).tolist() == [4, 0]


def test_a_fixed_shape_repeats_the_last_offset() -> None:
    fixed, count = fixed_shape_cu_seqlens(np.array([0, 4, 9], np.int32), 2)
    assert (fixed.tolist(), count, fixed.dtype) == ([0, 4, 9], 2, np.int32)
    assert fixed_shape_cu_seqlens([0], 3)[0].tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="read-only"):
        fixed[0] = 1
    with pytest.raises(ArgumentError, match="2 sequences do not fit in max_sequences 1"):
        fixed_shape_cu_seqlens([0, 4, 9], 1)
    with pytest.raises(ArgumentError, match=r"cu_seqlens\[2\] = 3 after 4"):
        fixed_shape_cu_seqlens([0, 4, 3], 4)


def test_the_padding_mask_takes_offsets_of_a_fixed_shape() -> None:
    real, _ = fixed_shape_cu_seqlens([0, 3, 5], 4)
    padded, _ = fixed_shape_cu_seqlens([0, 4, 8], 4)
    assert padding_mask(real, padded).astype(int).tolist() == [0, 0, 0, 1, 0, 0, 1, 1]


@pytest.mark.parametrize("dtype", [np.int8, np.int16, np.int32, np.int64])
def test_labels_keep_a_dtype_that_can_hold_the_ignored_label(dtype: type[np.signedinteger[Any]]) -> None:
    labels = shift_labels(np.array([1, 2, 3, 4], dtype), [0, 1, 1, 4])
    assert labels.dtype == dtype
    assert labels.tolist() == [-100, 3, 4, -100]


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.uint32])
def test_labels_of_unsigned_tokens_are_widened(dtype: type[np.unsignedinteger[Any]]) -> None:
    labels = shift_labels(np.array([250, 251, 252], dtype), [0, 3])
    assert labels.dtype == np.int64
    assert labels.tolist() == [251, 252, -100]


@settings(deadline=None)
@given(lengths=st.lists(st.integers(0, 6), max_size=8))
def test_a_label_is_the_next_token_of_its_own_sequence(lengths: list[int]) -> None:
    sequences = [[100 * s + i for i in range(length)] for s, length in enumerate(lengths)]
    expected = [label for tokens in sequences for label in (*tokens[1:], *([IGNORED_LABEL] if tokens else []))]
    tokens = np.array([token for tokens in sequences for token in tokens], np.int64)
    assert shift_labels(tokens, cu_seqlens_from_lengths(lengths)).tolist() == expected


def test_labels_need_tokens_that_end_with_the_offsets() -> None:
    with pytest.raises(ArgumentError, match=r"tokens must be one-dimensional and end with cu_seqlens: \(2,\), 3"):
        shift_labels([1, 2], [0, 3])
    with pytest.raises(ArgumentError, match=r"\(1, 3\), 3"):
        shift_labels([[1, 2, 3]], [0, 3])


def test_scattered_rows_hold_neutral_values_in_padding() -> None:
    slots = slots_of_real_tokens([2, 1], [3, 2])
    tokens = scatter_real(np.array([7, 8, 9], np.uint16), slots, 5, 0)
    assert (tokens.tolist(), tokens.dtype) == ([7, 8, 0, 9, 0], np.uint16)
    images = scatter_real(np.ones((3, 2), np.float32), slots, 5, 0.0)
    assert images.tolist() == [[1, 1], [1, 1], [0, 0], [1, 1], [0, 0]]
    assert scatter_real(np.array([True, True, True]), slots, 5, False).tolist() == [True, True, False, True, False]
