"""Striped: token i of the row goes to rank ``i % cp`` (Transformer Engine for JAX, for packed rows)."""

from __future__ import annotations

import numpy as np

from dcpack._checks import Int64Array
from dcpack.sharding.base import ShardRanges

__all__ = ["Striped"]


class Striped:
    """Tokens dealt to the ranks in turn. Rows must be multiples of cp.

    Example:
        >>> two = [np.array(x) for x in ([0, 3], [3, 5], [8, 8], [2, 2], [1, 1])]
        >>> Striped().ranges(*two).tokens().tolist()
        [1, 0, 2, 4]
    """

    name = "striped"
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
        """Return every cp-th token of each sequence, from the first that falls to the rank; see `RangeSharding`."""
        del row_lengths  # the stripe does not depend on where the row ends
        first = (cp_rank - offsets) % cp_size
        nothing = np.zeros_like(first)
        stops = np.maximum(padded_lengths, first)
        return ShardRanges(starts=np.stack([first, nothing]), stops=np.stack([stops, nothing]), steps=cp_size)
