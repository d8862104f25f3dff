"""Lengths, offsets, positions, segments: the layout of sequences that are packed end to end.

One packed row of three sequences with 3, 2 and 4 real tokens, padded to 4, 4 and 5:

    tokens              a a a . b b . . c c c c .
    cu_seqlens          0 3 5 9           (real tokens, as if the padding were not there)
    cu_seqlens_padded   0 4 8 13          (where each sequence starts in the row)
    position_ids        0 1 2 0 0 1 0 0 0 1 2 3 0
    segment_ids         1 1 1 0 2 2 0 0 3 3 3 3 0

Padded slots always hold neutral values, never what lay in memory. Boundaries come from offsets and are never guessed
from positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import BoolArray, Int64Array, as_array, as_integers, as_lengths, check_int, frozen, list_offenders
from dcpack.errors import ArgumentError

__all__ = [
    "IGNORED_LABEL",
    "MAX_OFFSET",
    "PackedOffsets",
    "check_cu_seqlens",
    "cu_seqlens_from_lengths",
    "fixed_shape_cu_seqlens",
    "lengths_from_cu_seqlens",
    "packed_offsets",
    "padding_mask",
    "position_ids",
    "scatter_real",
    "segment_ids",
    "shift_labels",
    "slots_of_real_tokens",
]

Int32Array = npt.NDArray[np.int32]

IGNORED_LABEL = -100
"""The label of a token that counts in no loss."""

MAX_OFFSET = 2**31 - 1
"""The largest offset that int32 ``cu_seqlens`` can hold, in tokens."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedOffsets:
    """The offsets of one packed bin, as varlen attention kernels take them.

    Attributes:
        cu_seqlens: int32[n + 1], starts at 0, counts real tokens.
        cu_seqlens_padded: int32[n + 1], starts at 0, the place of each sequence in the padded row.
        max_seqlen: a Python int, the largest padded length in tokens (0 without sequences).

    Example:
        >>> offsets = packed_offsets([3, 2], [4, 4])
        >>> offsets.cu_seqlens.tolist(), offsets.cu_seqlens_padded.tolist(), offsets.max_seqlen
        ([0, 3, 5], [0, 4, 8], 4)
    """

    cu_seqlens: Int32Array
    cu_seqlens_padded: Int32Array
    max_seqlen: int


def cu_seqlens_from_lengths(lengths: Any) -> Int32Array:
    """Return the running sum of `lengths`, from 0.

    Args:
        lengths: int64[n], tokens of each sequence, at least 0.

    Returns:
        int32[n + 1].

    Raises:
        ArgumentError: the sum is over 2**31 - 1.

    Example:
        >>> cu_seqlens_from_lengths([3, 2, 4])
        array([0, 3, 5, 9], dtype=int32)
    """
    checked = as_lengths("lengths", lengths)
    _check_int32(checked.sum(dtype=np.float64))
    return np.concatenate([[0], np.cumsum(checked)]).astype(np.int32)


def _check_int32(total: float) -> None:
    if total > MAX_OFFSET:
        raise ArgumentError(f"a bin of {total:.0f} tokens is over the {MAX_OFFSET} that int32 offsets can hold")


def check_cu_seqlens(name: str, cu_seqlens: Any) -> Int64Array:
    """Return `cu_seqlens` as int64[n + 1] if it starts at 0 and never decreases.

    Args:
        name: what the offsets are called, for errors.
        cu_seqlens: [n + 1], integers.

    Raises:
        ArgumentError: other values, or none; the first falls are named.

    Example:
        >>> check_cu_seqlens("cu_seqlens", [0, 5, 3])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: cu_seqlens must not decrease: cu_seqlens[2] = 3 after 5
    """
    offsets = as_lengths(name, cu_seqlens)
    if offsets.size == 0 or offsets[0] != 0:
        raise ArgumentError(f"{name} must start at 0, got {offsets[:4].tolist()}")
    falls = (np.flatnonzero(np.diff(offsets) < 0) + 1).tolist()
    if falls:
        listed = list_offenders([f"{name}[{i}] = {offsets[i]} after {offsets[i - 1]}" for i in falls])
        raise ArgumentError(f"{name} must not decrease: {listed}")
    return offsets


def lengths_from_cu_seqlens(cu_seqlens: Any) -> Int64Array:
    """Return the length of each sequence.

    Args:
        cu_seqlens: [n + 1], integers that start at 0 and never decrease.

    Returns:
        int64[n], in tokens.

    Example:
        >>> lengths_from_cu_seqlens([0, 3, 5, 9]).tolist()
        [3, 2, 4]
    """
    return np.diff(check_cu_seqlens("cu_seqlens", cu_seqlens))


def packed_offsets(lengths: Any, padded_lengths: Any = None) -> PackedOffsets:
    """Return the offsets of sequences that are packed in the order given.

    Args:
        lengths: int64[n], real tokens, at least 1: a sequence without tokens never reaches a bin.
        padded_lengths: int64[n], padded tokens, each at least its length; default `lengths`.

    Example:
        >>> packed_offsets([3, 2, 4], [4, 4, 5]).cu_seqlens_padded.tolist()
        [0, 4, 8, 13]
    """
    real, padded = _length_pair(lengths, padded_lengths)
    return PackedOffsets(
        cu_seqlens=cu_seqlens_from_lengths(real),
        cu_seqlens_padded=cu_seqlens_from_lengths(padded),
        max_seqlen=int(padded.max(initial=0)),
    )


def _length_pair(lengths: Any, padded_lengths: Any) -> tuple[Int64Array, Int64Array]:
    real = as_lengths("lengths", lengths, minimum=1)
    padded = real if padded_lengths is None else as_lengths("padded_lengths", padded_lengths, minimum=1)
    if real.size != padded.size:
        raise ArgumentError(f"lengths and padded_lengths must be equally long, got {real.size} and {padded.size}")
    short = np.flatnonzero(padded < real).tolist()
    if short:
        listed = list_offenders([f"sequence {i} has {real[i]} tokens padded to {padded[i]}" for i in short])
        raise ArgumentError(f"padded_lengths must be at least lengths: {listed}")
    return real, padded


def slots_of_real_tokens(lengths: Any, padded_lengths: Any = None) -> Int64Array:
    """Return the place in the padded row of each real token, in order.

    Args:
        lengths: int64[n], real tokens of each sequence.
        padded_lengths: int64[n], its slots in the row; None is no padding.

    Returns:
        int64[sum(lengths)].

    Example:
        >>> slots_of_real_tokens([3, 2], [4, 4]).tolist()
        [0, 1, 2, 4, 5]
    """
    real, padded = _length_pair(lengths, padded_lengths)
    _check_int32(padded.sum(dtype=np.float64))
    shift = (np.cumsum(padded) - padded) - (np.cumsum(real) - real)
    return np.arange(int(real.sum())) + np.repeat(shift, real)


def position_ids(lengths: Any, padded_lengths: Any = None) -> Int64Array:
    """Return the position of each slot in its own sequence; 0 in padding.

    Args:
        lengths: int64[n], real tokens of each sequence.
        padded_lengths: int64[n], its slots in the row; None is no padding.

    Returns:
        int64[sum(padded_lengths)].

    Example:
        >>> position_ids([3, 1, 2]).tolist()
        [0, 1, 2, 0, 0, 1]
    """
    real, padded = _length_pair(lengths, padded_lengths)
    _check_int32(padded.sum(dtype=np.float64))
    starts = np.cumsum(padded) - padded
    positions = np.arange(int(padded.sum())) - np.repeat(starts, padded)
    return np.where(positions < np.repeat(real, padded), positions, 0)


def segment_ids(lengths: Any, padded_lengths: Any = None) -> Int32Array:
    """Return the number of the sequence in each slot, from 1; 0 in padding.

    Args:
        lengths: int64[n], real tokens of each sequence.
        padded_lengths: int64[n], its slots in the row; None is no padding.

    Returns:
        int32[sum(padded_lengths)].

    Example:
        >>> segment_ids([3, 1, 2], [4, 1, 2]).tolist()
        [1, 1, 1, 0, 2, 3, 3]
    """
    real, padded = _length_pair(lengths, padded_lengths)
    _check_int32(padded.sum(dtype=np.float64))
    segments = np.zeros(int(padded.sum()), np.int32)
    segments[slots_of_real_tokens(real, padded)] = np.repeat(np.arange(1, real.size + 1, dtype=np.int32), real)
    return segments


def padding_mask(cu_seqlens: Any, cu_seqlens_padded: Any) -> BoolArray:
    """Tell which slots of a padded row are padding.

    Args:
        cu_seqlens: int32[n + 1], real tokens.
        cu_seqlens_padded: int32[n + 1], padded tokens.

    Returns:
        bool[cu_seqlens_padded[-1]], True in padding.

    Raises:
        ArgumentError: offsets that do not fit each other; the sequences are named.

    Example:
        >>> padding_mask([0, 3, 5], [0, 4, 8]).astype(int).tolist()
        [0, 0, 0, 1, 0, 0, 1, 1]
    """
    ends = check_cu_seqlens("cu_seqlens", cu_seqlens)
    starts = check_cu_seqlens("cu_seqlens_padded", cu_seqlens_padded)
    if ends.size != starts.size:
        raise ArgumentError(f"cu_seqlens and cu_seqlens_padded must be equally long, got {ends.size} and {starts.size}")
    real, padded = np.diff(ends), np.diff(starts)
    if short := np.flatnonzero(padded < real).tolist():
        listed = list_offenders([f"sequence {i} has {real[i]} tokens padded to {padded[i]}" for i in short])
        raise ArgumentError(f"cu_seqlens_padded must leave room for cu_seqlens: {listed}")
    within = np.arange(int(starts[-1])) - np.repeat(starts[:-1], padded)
    return within >= np.repeat(real, padded)


def scatter_real(values: Any, slots: Int64Array, size: int, fill: Any) -> npt.NDArray[Any]:
    """Return a row of `size` slots that holds `values` at `slots` and `fill` everywhere else.

    Args:
        values: [k, ...], one value a real token; the result has its dtype.
        slots: int64[k], where they go, each below `size`.
        size: slots of the row.
        fill: the neutral value of padding.

    Raises:
        ArgumentError: slots that are not those of a row of `size`, or more or fewer than the values.

    Example:
        >>> scatter_real(np.array([7, 8]), np.array([0, 2]), 4, -100).tolist()
        [7, -100, 8, -100]
    """
    values, slots = as_array("values", values), as_integers("slots", slots)
    size = check_int("size", size, minimum=0, maximum=MAX_OFFSET)
    if slots.ndim != 1 or values.shape[:1] != slots.shape:
        raise ArgumentError(f"slots must be one for each value, got shapes {slots.shape} and {values.shape}")
    if slots.max(initial=-1) >= size:
        raise ArgumentError(f"slots must be below size, {size}, got {slots.max()}")
    row = np.full((size, *values.shape[1:]), _held("fill", fill, values.dtype), values.dtype)
    row[slots] = values
    return row


def _held(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    """Return `value` as `dtype` holds it; integers and bools must hold it exactly, others may round it."""
    try:
        if np.iscomplexobj(value) and dtype.kind != "c":
            raise TypeError("a complex number is no real one")
        with np.errstate(invalid="ignore", over="ignore"):
            held = np.full(1, value, dtype)[0]
    except (OverflowError, TypeError, ValueError) as error:
        raise ArgumentError(f"{name} must be held by {dtype}, got {value!r}: {error}") from error
    if dtype.kind in "iub" and held != value:
        raise ArgumentError(f"{name} must be held by {dtype}, got {value!r}")
    return held


def shift_labels(tokens: Any, cu_seqlens: Any) -> npt.NDArray[Any]:
    """Return the label of each token: the next token of its own sequence, -100 at each sequence's end.

    The shift comes before packing, splitting and slicing, so that the last token of one sequence never predicts the
    first of the next.

    Args:
        tokens: [t], integers; an unsigned dtype is widened to int64, so that it can hold -100.
        cu_seqlens: int32[n + 1], ends at t.

    Returns:
        Labels, [t], of the dtype of `tokens` where that can hold -100.

    Raises:
        ArgumentError: tokens that are no integers, or that do not end with `cu_seqlens`.

    Example:
        >>> shift_labels([10, 11, 12, 20, 21, 22], [0, 3, 6]).tolist()
        [11, 12, -100, 21, 22, -100]
    """
    whole = as_integers("tokens", tokens, minimum=np.iinfo(np.int64).min)
    tokens = np.asarray(tokens, None if whole.size else whole.dtype)
    offsets = check_cu_seqlens("cu_seqlens", cu_seqlens)
    if tokens.ndim != 1 or tokens.size != offsets[-1]:
        raise ArgumentError(f"tokens must be one-dimensional and end with cu_seqlens: {tokens.shape}, {offsets[-1]}")
    dtype = tokens.dtype if tokens.dtype.kind == "i" else whole.dtype
    labels = np.full(tokens.size, IGNORED_LABEL, dtype)
    labels[:-1] = tokens[1:]
    labels[offsets[1:][np.diff(offsets) > 0] - 1] = IGNORED_LABEL
    return labels


def fixed_shape_cu_seqlens(cu_seqlens: Any, max_sequences: int) -> tuple[Int32Array, int]:
    """Repeat the last offset until there are ``max_sequences + 1``, so that every batch has the same shape.

    The repeated offsets are sequences of length 0 that kernels skip; the number of true sequences is given beside.

    Args:
        cu_seqlens: int32[n + 1].
        max_sequences: the fixed number of sequences, at least n.

    Returns:
        int32[max_sequences + 1] and n.

    Raises:
        ArgumentError: more sequences than `max_sequences`; the planner's cap keeps such bins away.

    Example:
        >>> fixed_shape_cu_seqlens([0, 16, 40], 4)
        (array([ 0, 16, 40, 40, 40], dtype=int32), 2)
    """
    offsets = check_cu_seqlens("cu_seqlens", cu_seqlens)
    max_sequences = check_int("max_sequences", max_sequences, minimum=0, maximum=MAX_OFFSET - 1)
    _check_int32(float(offsets[-1]))
    count = offsets.size - 1
    if count > max_sequences:
        raise ArgumentError(f"{count} sequences do not fit in max_sequences {max_sequences}")
    fixed = np.full(max_sequences + 1, offsets[-1], np.int32)
    fixed[: offsets.size] = offsets
    return frozen(fixed), count
