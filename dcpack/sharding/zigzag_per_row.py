"""Zigzag over the whole row, whatever sequences it holds (Megatron's per-sequence balancing of one long row)."""

from __future__ import annotations

import numpy as np

from dcpack._checks import Int64Array
from dcpack.sharding.base import ShardRanges

__all__ = ["ZigzagPerRow"]


class ZigzagPerRow:
    """The row in ``2 * cp`` chunks; rank r takes chunk r and its mirror image. Rows must be multiples of ``2 * cp``.

    Work is even only where one sequence fills most of the row; otherwise `Zigzag` balances better.

    Example:
        >>> two = [np.array(x) for x in ([0, 4], [4, 4], [8, 8], [2, 2], [1, 1])]
        >>> ZigzagPerRow().ranges(*two).tokens().tolist()
        [2, 3, 0, 1]
    """

    name = "zigzag_per_row"
    divides_rows = True

    def divisor(self, cp_size: Int64Array) -> Int64Array:
        """Return ``2 * cp``, or 1 at cp = 1."""
        return np.where(cp_size > 1, 2 * cp_size, 1)

    def ranges(
        self,
        offsets: Int64Array,
        padded_lengths: Int64Array,
        row_lengths: Int64Array,
        cp_size: Int64Array,
        cp_rank: Int64Array,
    ) -> ShardRanges:
        """Return the parts of each sequence that lie in the two chunks of the rank; see `RangeSharding`."""
        alone = cp_size == 1
        chunk = np.where(alone, row_lengths, row_lengths // (2 * cp_size))
        mirror = np.where(alone, row_lengths, (2 * cp_size - 1 - cp_rank) * chunk)
        row_starts = np.stack([cp_rank * chunk, mirror])
        row_stops = np.stack([(cp_rank + 1) * chunk, np.where(alone, mirror, mirror + chunk)])
        starts = np.clip(row_starts - offsets, 0, padded_lengths)
        stops = np.clip(row_stops - offsets, 0, padded_lengths)
        return ShardRanges(starts=starts, stops=stops, steps=np.ones_like(chunk))
