"""The contract of a sharding method: which tokens of a packed row sit on which CP rank.

A method says it in *ranges*: of each sequence, rank r holds at most two runs of tokens, each a start, a stop and a
common step. Ranges are worked out for any number of (sequence, rank) pairs at once, so routes for thousands of ranks
cost a few array operations. Everything else (index arrays, local offsets, the inverse) follows from them in
`dcpack.sharding.indices`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dcpack._checks import Int64Array

__all__ = ["RangeSharding", "ShardRanges"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardRanges:
    """Runs of tokens, relative to the start of their sequence.

    Attributes:
        starts: int64[2, n], first token of each run.
        stops: int64[2, n], one past the last; at most the start for an empty run.
        steps: int64[n], distance between the tokens of a run.

    Example:
        >>> ranges = ShardRanges(starts=np.array([[0], [6]]), stops=np.array([[2], [8]]), steps=np.array([1]))
        >>> ranges.tokens().tolist(), ranges.clip(np.array([7])).tokens().tolist()
        ([0, 1, 6, 7], [0, 1, 6])
    """

    starts: Int64Array
    stops: Int64Array
    steps: Int64Array

    def clip(self, lengths: Int64Array) -> ShardRanges:
        """Return the runs without what lies beyond `lengths` (int64[n]): the real tokens alone."""
        stops = np.minimum(self.stops, lengths)
        return ShardRanges(starts=self.starts, stops=np.maximum(stops, self.starts), steps=self.steps)

    def counts(self) -> Int64Array:
        """Return int64[2, n]: tokens of each run."""
        return np.maximum(-((self.starts - self.stops) // self.steps), 0)

    def tokens(self) -> Int64Array:
        """Return int64[sum(counts)]: every token, sequence after sequence, run after run."""
        counts = self.counts().T.ravel()
        starts, steps = self.starts.T.ravel(), np.repeat(self.steps, 2)
        before = np.cumsum(counts) - counts
        within = np.arange(int(counts.sum())) - np.repeat(before, counts)
        return np.repeat(starts, counts) + within * np.repeat(steps, counts)


class RangeSharding(Protocol):
    """A sharding method.

    Example:
        >>> from dcpack.sharding import get_sharding
        >>> sharding: RangeSharding = get_sharding("zigzag")
        >>> sharding.divisor(np.array([1, 2, 4])).tolist(), sharding.divides_rows
        ([1, 4, 8], False)
    """

    name: str

    def divisor(self, cp_size: Int64Array) -> Int64Array:
        """Return what padded lengths (or row lengths, see `divides_rows`) must be a multiple of."""
        ...

    @property
    def divides_rows(self) -> bool:
        """Whether the divisor applies to whole rows rather than to each sequence."""
        ...

    def ranges(
        self,
        offsets: Int64Array,
        padded_lengths: Int64Array,
        row_lengths: Int64Array,
        cp_size: Int64Array,
        cp_rank: Int64Array,
    ) -> ShardRanges:
        """Return the runs of each (sequence, rank) pair; all arguments are int64[n], in tokens.

        Args:
            offsets: where the sequence starts in its padded row.
            padded_lengths: its padded length.
            row_lengths: padded tokens of the whole row.
            cp_size: ranks that share the row.
            cp_rank: the rank asked for.
        """
        ...
