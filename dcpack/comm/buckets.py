"""Blocks of equal size for libraries that need them, in few sizes, so that few programs are compiled.

TPU collectives take no uneven blocks, and each new size is a new program. So blocks are padded to the next bucket: a
power of two. What is moved is uint32 words: bits that no library converts, cuts or rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

__all__ = ["SMALLEST_BYTES", "as_words", "bucket_bytes", "place_blocks", "take_blocks"]

SMALLEST_BYTES = 1 << 10
"""Bytes of the smallest bucket; each next one is twice as large."""


def bucket_bytes(num_bytes: int) -> int:
    """Return the size of the smallest bucket that holds `num_bytes`.

    Example:
        >>> bucket_bytes(1), bucket_bytes(1024), bucket_bytes(1025)
        (1024, 1024, 2048)
    """
    return max(SMALLEST_BYTES, 1 << (num_bytes - 1).bit_length())


def as_words(data: npt.NDArray[np.uint8], num_bytes: int) -> npt.NDArray[np.uint32]:
    """Return bytes as uint32 words of zero-padded memory of their own.

    Args:
        data: uint8[n].
        num_bytes: bytes of the result, a multiple of 4 and at least n.

    Example:
        >>> as_words(np.array([1, 0, 0, 0, 2], np.uint8), 8)
        array([1, 2], dtype=uint32)
    """
    return place_blocks(data, [len(data)], num_bytes)[0]


def place_blocks(data: npt.NDArray[np.uint8], sizes: Sequence[int], num_bytes: int) -> npt.NDArray[np.uint32]:
    """Return blocks of bytes, end to end in `data`, as rows of equal size, zero-padded.

    Args:
        data: uint8[sum(sizes)].
        sizes: bytes of each block.
        num_bytes: bytes of a row, a multiple of 4 and at least the largest of `sizes`.

    Returns:
        uint32[len(sizes), num_bytes / 4].

    Example:
        >>> place_blocks(np.array([1, 2, 3], np.uint8), [1, 2], 4).tolist()
        [[1], [770]]
    """
    rows = np.zeros((len(sizes), num_bytes), np.uint8)
    for row, start, size in zip(rows, np.cumsum(sizes) - sizes, sizes, strict=True):
        row[:size] = data[start : start + size]
    return rows.view(np.uint32)


def take_blocks(words: npt.NDArray[np.uint32], sizes: Sequence[int]) -> npt.NDArray[np.uint8]:
    """Return the blocks of `place_blocks`, end to end, in new memory.

    Example:
        >>> take_blocks(np.array([[1], [770]], np.uint32), [1, 2]).tolist()
        [1, 2, 3]
    """
    rows = np.ascontiguousarray(words).view(np.uint8)
    return np.concatenate([row[:size] for row, size in zip(rows, sizes, strict=True)])
