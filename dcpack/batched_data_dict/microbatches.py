"""What sharding says of one chunk on one shard: its rows, and where its micro-batches begin and end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from dcpack._checks import Int64Array
from dcpack.errors import ArgumentError

__all__ = ["ShardChunk", "even_chunks"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ShardChunk:
    """The part of one shard in one chunk.

    Attributes:
        rows: int64[k], in the order in which the shard holds them.
        bounds: the first place of each micro-batch in `rows`, and the place behind its last.
        lengths: the padded length of each micro-batch: of its longest row, or of all its rows together.
    """

    rows: Int64Array
    bounds: list[list[int]]
    lengths: list[int]

    @classmethod
    def of_bins(cls, bins: Sequence[Int64Array], padded: Int64Array) -> ShardChunk:
        """Return the part whose micro-batches are `bins`, at least one.

        Args:
            bins: the rows of each micro-batch.
            padded: int64[n], tokens of each row of the chunk.

        Example:
            >>> part = ShardChunk.of_bins([np.array([2, 0]), np.array([1])], np.array([4, 8, 4]))
            >>> part.rows.tolist(), part.bounds, part.lengths
            ([2, 0, 1], [[0, 2], [2, 3]], [8, 8])
        """
        places = accumulate((len(rows) for rows in bins), initial=0)
        lengths = [int(padded[rows].sum()) for rows in bins]
        return cls(rows=np.concatenate(bins), bounds=[[*pair] for pair in pairwise(places)], lengths=lengths)


def even_chunks(size: int, batch_size: int | None) -> list[int]:
    """Return the rows of each chunk of a batch of `size` rows, where no sharding has made micro-batches.

    Example:
        >>> even_chunks(6, 2)
        [2, 2, 2]
    """
    if batch_size is None:
        raise ArgumentError("get_batch needs a batch_size, as no micro-batches were made by shard_by_batch_size")
    if size % batch_size:
        raise ArgumentError(
            f"batch_size must divide the {size} rows, got {batch_size}: {size % batch_size} would be in no chunk"
        )
    return [batch_size] * (size // batch_size)
