"""Kernels that know one set of offsets: flash-attention's varlen functions and ``torch.nn.attention.varlen``.

They have no second set of offsets for padding between sequences, so they get the padded ones, which say where the
sequences really lie. Padding then counts as the last tokens of its sequence: causal attention never looks at it; for
others, ``seqused_k`` tells the kernel how many keys of each sequence are real.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dcpack._checks import check_flag
from dcpack.export.base import Packed, check_packed, cover_tail

__all__ = ["flash_attn_varlen", "torch_varlen"]


def flash_attn_varlen(packed: Packed, *, seqused: bool = False, num_tokens: int | None = None) -> dict[str, Any]:
    """Return the arguments of ``flash_attn_varlen_func`` for one packed row.

    Args:
        packed: the offsets; those of the rank's slice (``local_*``) where the kernel sees the slice alone.
        seqused: add ``seqused_k`` (flash-attention 3), which hides padding from attention that is not causal.
        num_tokens: tokens of the row where it is longer than its sequences; the tail becomes a sequence of its own.

    Returns:
        ``cu_seqlens_q``, ``cu_seqlens_k`` (int32[n + 1], padded), ``max_seqlen_q``, ``max_seqlen_k`` (Python ints), and
        ``seqused_k`` (int32[n], real tokens).

    Example:
        >>> from dcpack.layout import packed_offsets
        >>> flash_attn_varlen(packed_offsets([3, 2], [4, 4]), seqused=True)["seqused_k"].tolist()
        [3, 2]
    """
    return _varlen(packed, ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"), seqused, num_tokens)


def torch_varlen(packed: Packed, *, seqused: bool = False, num_tokens: int | None = None) -> dict[str, Any]:
    """Return the arguments of ``torch.nn.attention.varlen.varlen_attn`` for one packed row.

    Args:
        packed: the offsets; those of the rank's slice (``local_*``) where the kernel sees the slice alone.
        seqused: add ``seqused_k``, which hides padding from attention that is not causal.
        num_tokens: tokens of the row where it is longer than its sequences; the tail becomes a sequence of its own.

    Returns:
        ``cu_seq_q``, ``cu_seq_k`` (int32[n + 1], padded), ``max_q``, ``max_k`` (Python ints), and ``seqused_k``
        (int32[n], real tokens).

    Example:
        >>> from dcpack.layout import packed_offsets
        >>> torch_varlen(packed_offsets([3, 2], [4, 4]))["cu_seq_q"].tolist()
        [0, 4, 8]
    """
    return _varlen(packed, ("cu_seq_q", "cu_seq_k", "max_q", "max_k"), seqused, num_tokens)


def _varlen(packed: Packed, names: tuple[str, str, str, str], seqused: bool, num_tokens: int | None) -> dict[str, Any]:
    real, padded, largest = check_packed(packed)
    real, padded, tail = cover_tail(real, padded, num_tokens)
    seqused = check_flag("seqused", seqused)
    values = (padded.copy(), padded.copy(), max(largest, tail), max(largest, tail))
    result: dict[str, Any] = dict(zip(names, values, strict=True))
    if seqused:
        result["seqused_k"] = np.diff(real)
    return result
