"""Megatron-Core and Transformer Engine: ``PackedSeqParams`` and the keys of a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import as_array, check_flag, check_int, check_kinds, check_names
from dcpack.errors import ArgumentError
from dcpack.export.base import Packed, check_packed, cover_tail
from dcpack.padding import MAX_CP_SIZE

__all__ = ["megatron_fields", "packed_seq_params"]

_NAMES = {"input_ids": "tokens"}
_DTYPES = {
    "tokens": np.dtype(np.int64),
    "labels": np.dtype(np.int64),
    "position_ids": np.dtype(np.int64),
    "loss_mask": np.dtype(np.float32),
}


def packed_seq_params(
    packed: Packed,
    *,
    local_cp_size: int | None = None,
    cp_group: Any = None,
    padded_in_both: bool = False,
    num_tokens: int | None = None,
) -> dict[str, Any]:
    """Return the fields of Megatron's ``PackedSeqParams`` for one packed row.

    The offsets are those of the whole row, also under context parallelism: Transformer Engine divides them by the CP
    size itself.

    Args:
        packed: the offsets.
        local_cp_size: CP size of this micro-batch where it changes from one to the next, else None.
        cp_group: the process group of those ranks, handed on as it is.
        padded_in_both: put the padded offsets in the places of the real ones too. Megatron-Core does so, as Transformer
            Engine has had trouble with offsets that differ; attention then sees padding as tokens of its sequence,
            behind all real ones, which causal attention never looks at.
        num_tokens: tokens of the row where it is longer than its sequences; the tail becomes a sequence of its own.

    Returns:
        ``qkv_format``, ``cu_seqlens_q``, ``cu_seqlens_kv``, ``cu_seqlens_q_padded``, ``cu_seqlens_kv_padded`` (int32),
        ``max_seqlen_q``, ``max_seqlen_kv``, ``local_cp_size``, ``cp_group``, and ``pad_between_seqs``: whether real and
        padded offsets differ. Releases whose class has no such field leave it to Transformer Engine, which then
        compares the offsets itself.

    Example:
        >>> from dcpack.layout import packed_offsets
        >>> params = packed_seq_params(packed_offsets([3, 2, 4], [4, 4, 5]))
        >>> params["cu_seqlens_q"].tolist(), params["cu_seqlens_q_padded"].tolist(), params["pad_between_seqs"]
        ([0, 3, 5, 9], [0, 4, 8, 13], True)
    """
    real, padded, largest = check_packed(packed)
    real, padded, tail = cover_tail(real, padded, num_tokens)
    if local_cp_size is not None:
        local_cp_size = check_int("local_cp_size", local_cp_size, minimum=1, maximum=MAX_CP_SIZE)
    if check_flag("padded_in_both", padded_in_both):
        real = padded
    largest = max(largest, tail)
    return {
        "qkv_format": "thd",
        "cu_seqlens_q": real.copy(),
        "cu_seqlens_kv": real.copy(),
        "cu_seqlens_q_padded": padded.copy(),
        "cu_seqlens_kv_padded": padded.copy(),
        "max_seqlen_q": largest,
        "max_seqlen_kv": largest,
        "local_cp_size": local_cp_size,
        "cp_group": cp_group,
        "pad_between_seqs": not np.array_equal(real, padded),
    }


def megatron_fields(fields: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Return per-token fields under Megatron's names, one row of a batch of one.

    Args:
        fields: name to [t, ...], such as the ``tokens`` of a `dcpack.exchange.PackedBatch`.

    Returns:
        The same names (``input_ids`` becomes ``tokens``), [1, t, ...]: views where the dtype is right. ``tokens``,
        ``labels`` and ``position_ids`` are int64, ``loss_mask`` is float32, others keep their dtype.

    Raises:
        ArgumentError: a field is given under both names, or its values do not fit the dtype.

    Example:
        >>> megatron_fields({"input_ids": np.array([5, 6], np.int32), "loss_mask": np.array([1, 0])})
        {'tokens': array([[5, 6]]), 'loss_mask': array([[1., 0.]], dtype=float32)}
    """
    check_kinds(fields=(fields, Mapping))
    check_names("fields", fields)
    result: dict[str, npt.NDArray[Any]] = {}
    for name, values in fields.items():
        key = _NAMES.get(name, name)
        if key in result:
            raise ArgumentError(f"fields holds {key!r} twice, the second time as {name!r}")
        array = as_array(name, values)
        if array.ndim == 0:
            raise ArgumentError(f"{name} must have one element a token first, got the number {array}")
        dtype = _DTYPES.get(key, array.dtype)
        if dtype.kind == "i" and not np.can_cast(array.dtype, dtype):
            raise ArgumentError(f"{name} must fit in {dtype}, got {array.dtype}")
        if dtype.kind == "f" and array.dtype.kind not in "biuf" and not np.can_cast(array.dtype, dtype):  # bfloat16 can
            raise ArgumentError(f"{name} must hold real numbers, got {array.dtype}")
        result[key] = array.astype(dtype, copy=False)[np.newaxis]
    return result
