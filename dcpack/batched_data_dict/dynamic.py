"""Dynamic batching: micro-batches of rows of like length, padded to the longest; the same bounds on every shard."""

from __future__ import annotations

import numpy as np

from dcpack._checks import Int64Array, list_offenders
from dcpack.batched_data_dict.microbatches import ShardChunk
from dcpack.batched_data_dict.options import DynamicBatching
from dcpack.errors import InfeasibleError

__all__ = ["batch_dynamically", "padded_widths"]


def padded_widths(lengths: Int64Array, width: int, options: DynamicBatching) -> Int64Array:
    """Return the padded length of each row, rounded up but at most `width`.

    Raises:
        InfeasibleError: rows that are too long for a micro-batch of their own; all are named.

    Example:
        >>> options = DynamicBatching(
        ...     max_tokens_per_microbatch=12, sequence_length_round=4, input_key="x", input_lengths_key="n"
        ... )
        >>> padded_widths(np.array([3, 5, 9]), 10, options).tolist()
        [4, 8, 10]
    """
    multiple = options.sequence_length_round
    padded = np.minimum(-(-lengths // multiple) * multiple, width)
    if over := np.flatnonzero(padded > options.max_tokens_per_microbatch).tolist():
        listed = list_offenders([f"row {i} of {lengths[i]} tokens has {padded[i]}" for i in over])
        raise InfeasibleError(
            f"{len(over)} of {lengths.size} rows are longer, rounded to {multiple}, than max_tokens_per_microbatch = "
            f"{options.max_tokens_per_microbatch}: {listed}"
        )
    return padded


def batch_dynamically(lengths: Int64Array, padded: Int64Array, shards: int, limit: int) -> list[ShardChunk]:
    """Sort the rows of one chunk by length, deal them to the shards in turn, and bound micro-batches.

    Row j of a shard joins its micro-batch if rows x longest, over all shards, stays within `limit`; so all shards have
    the same bounds. As rows ascend, the longest is the last.

    Args:
        lengths: int64[n], tokens of each row; n is a multiple of `shards`.
        padded: int64[n], what `padded_widths` made of them.
        shards: number of shards.
        limit: rows x padded length of a micro-batch at most; no row alone is over it.

    Returns:
        The part of each shard, with rows numbered inside the chunk.

    Example:
        Sorted: 1, 2, 3, 4 (rows 1, 3, 0, 2). Two rows on each shard; both of 4 tokens are 8, which do not fit.

        >>> parts = batch_dynamically(np.array([3, 1, 4, 2]), np.array([3, 1, 4, 2]), 2, 7)
        >>> [(part.rows.tolist(), part.bounds, part.lengths) for part in parts]
        [([1, 0], [[0, 1], [1, 2]], [2, 4]), ([3, 2], [[0, 1], [1, 2]], [2, 4])]
    """
    order = np.argsort(lengths, kind="stable").reshape(-1, shards)
    longest = padded[order].max(axis=1, initial=0).tolist()
    bounds: list[list[int]] = []
    widths: list[int] = []
    for j, width in enumerate(longest):
        if bounds and (j + 1 - bounds[-1][0]) * width <= limit:
            bounds[-1][1] = j + 1
            widths[-1] = width
        else:
            bounds.append([j, j + 1])
            widths.append(width)
    return [ShardChunk(rows=order[:, s], bounds=[[*b] for b in bounds], lengths=[*widths]) for s in range(shards)]
