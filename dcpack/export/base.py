"""What an exporter needs to know of a packed row."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dcpack._checks import check_int
from dcpack.errors import ArgumentError
from dcpack.layout import MAX_OFFSET, check_cu_seqlens

__all__ = ["Packed", "check_packed", "cover_tail"]

Int32Array = npt.NDArray[np.int32]


class Packed(Protocol):
    """The offsets of one packed row: a `dcpack.layout.PackedOffsets`, a `dcpack.exchange.PackedBatch`, or alike.

    Attributes:
        cu_seqlens: int32[n + 1], starts at 0, real tokens.
        cu_seqlens_padded: int32[n + 1], starts at 0, the place of each sequence in the padded row.
        max_seqlen: a Python int, the largest padded length in tokens or a bound of it.

    Example:
        >>> from dcpack.layout import packed_offsets
        >>> packed: Packed = packed_offsets([3, 2], [4, 4])
        >>> packed.max_seqlen
        4
    """

    @property
    def cu_seqlens(self) -> Any:
        """int32[n + 1], real tokens."""
        ...

    @property
    def cu_seqlens_padded(self) -> Any:
        """int32[n + 1], padded tokens."""
        ...

    @property
    def max_seqlen(self) -> int:
        """Largest padded length."""
        ...


def check_packed(packed: Packed) -> tuple[Int32Array, Int32Array, int]:
    """Return the real offsets, the padded offsets and the maximum of `packed`, checked against one another.

    Raises:
        ArgumentError: something is missing or of the wrong kind, sequences are longer than their padded length, or
            `max_seqlen` is below the largest padded length.

    Example:
        >>> from dcpack.layout import packed_offsets
        >>> check_packed(packed_offsets([3, 2], [4, 4]))
        (array([0, 3, 5], dtype=int32), array([0, 4, 8], dtype=int32), 4)
    """
    if missing := [name for name in ("cu_seqlens", "cu_seqlens_padded", "max_seqlen") if not hasattr(packed, name)]:
        raise ArgumentError(f"packed must have cu_seqlens, cu_seqlens_padded and max_seqlen; no {', '.join(missing)}")
    real, padded = (check_cu_seqlens(name, getattr(packed, name)) for name in ("cu_seqlens", "cu_seqlens_padded"))
    if real.size != padded.size or np.any(np.diff(padded) < np.diff(real)):
        raise ArgumentError(
            f"cu_seqlens_padded must leave room for cu_seqlens: {real.tolist()[:8]} in {padded.tolist()[:8]}"
        )
    if padded[-1] > MAX_OFFSET:
        raise ArgumentError(f"a row of {padded[-1]} tokens is over the {MAX_OFFSET} that int32 offsets can hold")
    largest = int(np.diff(padded).max(initial=0))
    return real.astype(np.int32), padded.astype(np.int32), check_int("max_seqlen", packed.max_seqlen, minimum=largest)


def cover_tail(real: Int32Array, padded: Int32Array, num_tokens: int | None) -> tuple[Int32Array, Int32Array, int]:
    """Append one sequence of padding alone, so that the offsets cover a row that is longer than its sequences.

    Args:
        real: int32[n + 1], real tokens.
        padded: int32[n + 1], padded tokens.
        num_tokens: tokens of the whole row, or None for a row that ends with its last sequence.

    Returns:
        The offsets, int32[n + 1] or int32[n + 2], and the tokens of the tail.

    Raises:
        ArgumentError: the row is shorter than its sequences.

    Example:
        >>> cover_tail(np.array([0, 3], np.int32), np.array([0, 4], np.int32), 6)
        (array([0, 3, 3], dtype=int32), array([0, 4, 6], dtype=int32), 2)
    """
    end = int(padded[-1])
    if num_tokens is None:
        return real, padded, 0
    tail = check_int("num_tokens", num_tokens, minimum=end, maximum=MAX_OFFSET) - end
    if tail == 0:
        return real, padded, 0
    return np.append(real, real[-1]), np.append(padded, np.int32(num_tokens)), tail
