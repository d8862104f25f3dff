"""Ascend NPUs: the TND layout of ``npu_fusion_attention``."""

from __future__ import annotations

from typing import Any

from dcpack.export.base import Packed, check_packed, cover_tail

__all__ = ["ascend_tnd"]


def ascend_tnd(packed: Packed, *, num_tokens: int | None = None) -> dict[str, Any]:
    """Return the arguments that tell Ascend's fused attention where sequences end.

    The operator takes the ends of sequences as host integers, without the leading 0, and knows no padding between
    sequences: where there is some, the ends are those of the padded sequences, which say where they really lie.

    Args:
        packed: the offsets.
        num_tokens: tokens of the row where it is longer than its sequences; the tail becomes a sequence of its own.

    Returns:
        ``input_layout``, and ``actual_seq_qlen`` and ``actual_seq_kvlen``: lists of n Python ints.

    Example:
        >>> from dcpack.layout import packed_offsets
        >>> ascend_tnd(packed_offsets([3, 2, 4]))
        {'input_layout': 'TND', 'actual_seq_qlen': [3, 5, 9], 'actual_seq_kvlen': [3, 5, 9]}
    """
    real, padded, _ = check_packed(packed)
    _, padded, _ = cover_tail(real, padded, num_tokens)
    ends = padded[1:].tolist()
    return {"input_layout": "TND", "actual_seq_qlen": ends, "actual_seq_kvlen": list(ends)}
