"""One number a token: which sequence it belongs to."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dcpack.export.base import Packed, check_packed, cover_tail

__all__ = ["segment_ids", "seq_idx"]


def seq_idx(packed: Packed, *, num_tokens: int | None = None) -> npt.NDArray[np.int32]:
    """Return the sequence of each slot, from 0, as Mamba and other linear layers take it.

    Such layers carry a state along the row and start anew where the number changes, so padding has the number of its
    sequence, and a tail behind the last sequence a number of its own.

    Args:
        packed: the offsets.
        num_tokens: tokens of the row where it is longer than its sequences.

    Returns:
        int32[1, t].

    Example:
        >>> from dcpack.layout import packed_offsets
        >>> seq_idx(packed_offsets([3, 2], [4, 3]), num_tokens=9)
        array([[0, 0, 0, 0, 1, 1, 1, 2, 2]], dtype=int32)
    """
    real, padded, _ = check_packed(packed)
    _, padded, _ = cover_tail(real, padded, num_tokens)
    lengths = np.diff(padded)
    return np.repeat(np.arange(lengths.size, dtype=np.int32), lengths)[np.newaxis]


def segment_ids(packed: Packed, *, num_tokens: int | None = None) -> npt.NDArray[np.int32]:
    """Return the sequence of each slot, from 1, and 0 in padding, as masks of the JAX world take it.

    Args:
        packed: the offsets.
        num_tokens: tokens of the row where it is longer than its sequences.

    Returns:
        int32[1, t].

    Example:
        >>> from dcpack.layout import packed_offsets
        >>> segment_ids(packed_offsets([3, 2], [4, 3]), num_tokens=9)
        array([[1, 1, 1, 0, 2, 2, 0, 0, 0]], dtype=int32)
    """
    real, padded, _ = check_packed(packed)
    real, padded, _ = cover_tail(real, padded, num_tokens)
    lengths = np.diff(padded)
    within = np.arange(int(padded[-1])) - np.repeat(padded[:-1], lengths)
    numbers = np.repeat(np.arange(1, lengths.size + 1, dtype=np.int32), lengths)
    return np.where(within < np.repeat(np.diff(real), lengths), numbers, np.int32(0))[np.newaxis]
