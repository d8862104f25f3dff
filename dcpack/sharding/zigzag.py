"""Zigzag: each sequence in ``2 * cp`` chunks, rank r takes chunk r and chunk ``2 * cp - 1 - r``.

Also known as head-tail (PyTorch), DualChunkSwap (Transformer Engine for JAX, MaxText) and load-balanced. Under causal
attention every rank gets the same work: an early chunk, which sees little, is paired with a late one, which sees much.
"""

from __future__ import annotations

import numpy as np

from dcpack._checks import Int64Array
from dcpack.sharding.base import ShardRanges

__all__ = ["Zigzag"]


class Zigzag:
    """Zigzag over each sequence. Padded lengths must be multiples of ``2 * cp`` (any length at cp = 1).

    Example:
        >>> one = [np.array([x]) for x in (0, 8, 8, 2, 1)]
        >>> Zigzag().ranges(*one).tokens().tolist()
        [2, 3, 4, 5]
    """

    name = "zigzag"
    divides_rows = False

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
        """Return chunk r and its mirror image of each sequence; see `RangeSharding`."""
        del offsets, row_lengths  # each sequence is sliced on its own
        alone = cp_size == 1
        chunk = np.where(alone, padded_lengths, padded_lengths // (2 * cp_size))
        mirror = np.where(alone, padded_lengths, (2 * cp_size - 1 - cp_rank) * chunk)
        starts = np.stack([cp_rank * chunk, mirror])
        stops = np.stack([(cp_rank + 1) * chunk, np.where(alone, mirror, mirror + chunk)])
        return ShardRanges(starts=starts, stops=stops, steps=np.ones_like(chunk))
