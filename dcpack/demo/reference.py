"""CP slices written down the slow, plain way, so that the proof does not lean on the code that it proves."""

from __future__ import annotations

import numpy as np

from dcpack._checks import Int64Array
from dcpack.errors import ArgumentError

__all__ = ["reference_slice"]


def reference_slice(padded_lengths: list[int], cp_size: int, cp_rank: int, sharding: str) -> Int64Array:
    """Return the slots of the padded row that one CP rank must hold, by the textbook.

    Example:
        >>> reference_slice([8, 8], 2, 1, "zigzag").tolist()
        [2, 3, 4, 5, 10, 11, 12, 13]
    """
    row = np.arange(sum(padded_lengths))
    if sharding == "zigzag":
        sequences = np.split(row, np.cumsum(padded_lengths)[:-1])
        return np.concatenate([_two_chunks(sequence, cp_size, cp_rank) for sequence in sequences])
    if sharding == "zigzag_per_row":
        return _two_chunks(row, cp_size, cp_rank)
    if sharding == "contiguous":
        return np.split(row, cp_size)[cp_rank]
    if sharding == "striped":
        return row[cp_rank::cp_size]
    raise ArgumentError(f"the proof has no reference for sharding {sharding!r}")


def _two_chunks(slots: Int64Array, cp_size: int, cp_rank: int) -> Int64Array:
    if cp_size == 1:
        return slots
    chunks = np.split(slots, 2 * cp_size)
    return np.concatenate([chunks[cp_rank], chunks[2 * cp_size - 1 - cp_rank]])
