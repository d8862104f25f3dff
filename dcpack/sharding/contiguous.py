"""Contiguous: rank r takes the r-th of cp equal parts of the row (Ulysses, all-gather attention)."""

from __future__ import annotations

import numpy as np

from dcpack._checks import Int64Array
from dcpack.sharding.base import ShardRanges

__all__ = ["Contiguous"]


class Contiguous:
    """The row in cp equal parts, in order. Rows must be multiples of cp.

    Under causal ring attention the last rank works most; use it where every rank sees all keys (Ulysses).

    Example:
        >>> two = [np.array(x) for x in ([0, 3], [3, 5], [8, 8], [2, 2], [1, 1])]
        >>> Contiguous().ranges(*two).tokens().tolist()
        [1, 2, 3, 4]
    """

    name = "contiguous"
    divides_rows = True

    def divisor(self, cp_size: Int64Array) -> Int64Array:
        """Return cp."""
        return cp_size

    def ranges(
        self,
        offsets: Int64Array,
        padded_lengths: Int64Array,
        row_lengths: Int64Array,
        cp_size: Int64Array,
        cp_rank: Int64Array,
    ) -> ShardRanges:
        """Return the part of each sequence that lies in the rank's part of the row; see `RangeSharding`."""
        part = row_lengths // cp_size
        starts = np.clip(cp_rank * part - offsets, 0, padded_lengths)
        stops = np.clip((cp_rank + 1) * part - offsets, 0, padded_lengths)
        nothing = np.zeros_like(starts)
        return ShardRanges(
            starts=np.stack([starts, nothing]), stops=np.stack([stops, nothing]), steps=np.ones_like(part)
        )
