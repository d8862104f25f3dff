"""Which rows of a batch go to which shard, and in which micro-batches: decided from lengths, before anything moves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, as_lengths, check_flag, check_int, list_offenders
from dcpack.batched_data_dict.dynamic import batch_dynamically, padded_widths
from dcpack.batched_data_dict.kinds import count_rows, kind_of
from dcpack.batched_data_dict.microbatches import ShardChunk
from dcpack.batched_data_dict.options import MOST_TOKENS, DynamicBatching, SequencePacking
from dcpack.batched_data_dict.packing import pack_onto_shards
from dcpack.errors import ArgumentError, InfeasibleError

__all__ = ["Shard", "shard_rows"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shard:
    """What one shard holds.

    Attributes:
        rows: int64[k], its rows of the batch, in order.
        chunks: its part of each chunk; empty where no micro-batches were made.
    """

    rows: Int64Array
    chunks: list[ShardChunk]


def shard_rows(
    columns: Mapping[Any, Any],
    shards: int,
    batch_size: int | None,
    allow_uneven_shards: bool,
    dynamic: DynamicBatching | None,
    packing: SequencePacking | None,
) -> list[Shard]:
    """Return the rows of each shard; see `BatchedDataDict.shard_by_batch_size`.

    Example:
        >>> [shard.rows.tolist() for shard in shard_rows({"x": [*"abcd"]}, 2, 2, False, None, None)]
        [[0, 2], [1, 3]]
    """
    num_rows = count_rows(columns)
    shards = check_int("shards", shards, minimum=1)
    if batch_size is not None:
        batch_size = check_int("batch_size", batch_size, minimum=1)
    allow_uneven_shards = check_flag("allow_uneven_shards", allow_uneven_shards)
    _check_sizes(num_rows, shards, batch_size, allow_uneven_shards, dynamic is not None)
    size = num_rows if batch_size is None else batch_size
    if dynamic is not None and packing is not None:
        raise ArgumentError("dynamic_batching_cfg and sequence_packing_cfg exclude each other, got both")
    if dynamic is None and packing is None:
        if allow_uneven_shards:
            return [Shard(rows=rows, chunks=[]) for rows in np.array_split(np.arange(num_rows), shards)]
        rows = (
            np.arange(num_rows).reshape(-1, shards, size // shards) if num_rows else np.zeros((0, shards, 0), np.int64)
        )
        return [Shard(rows=rows[:, s].reshape(-1), chunks=[]) for s in range(shards)]
    if num_rows == 0:
        raise InfeasibleError(f"a batch without rows gives none of {shards} shards a micro-batch")
    starts = range(0, num_rows, size)
    if dynamic is not None:
        table = _dynamic_chunks(columns, starts, size, shards, dynamic)
    else:
        assert packing is not None
        table = _packed_chunks(columns, starts, size, shards, packing)
    return [
        Shard(
            rows=np.concatenate([chunk[s].rows + start for start, chunk in zip(starts, table, strict=True)]),
            chunks=[chunk[s] for chunk in table],
        )
        for s in range(shards)
    ]


def _check_sizes(num_rows: int, shards: int, batch_size: int | None, is_uneven: bool, is_dynamic: bool) -> None:
    if is_uneven and batch_size is not None:
        raise ArgumentError(f"allow_uneven_shards=True excludes a batch_size, got {batch_size}")
    if is_uneven and is_dynamic:
        raise ArgumentError("allow_uneven_shards=True excludes dynamic_batching_cfg, whose shards share their bounds")
    size = num_rows if batch_size is None else batch_size
    if batch_size is not None and num_rows % batch_size:
        raise ArgumentError(f"the batch of {num_rows} rows is not a multiple of batch_size {batch_size}")
    if not is_uneven and size % shards:
        what = "the batch of" if batch_size is None else "batch_size"
        rows = " rows" if batch_size is None else ""
        raise ArgumentError(f"{what} {size}{rows} is not a multiple of {shards} shards; see allow_uneven_shards")


def _column(columns: Mapping[Any, Any], key: str, option: str) -> Any:
    if key not in columns:
        raise ArgumentError(f"{option} {key!r} is no column of the batch, which has {', '.join(map(repr, columns))}")
    return columns[key]


def _lengths(columns: Mapping[Any, Any], key: str, input_key: str | None) -> tuple[Int64Array, int]:
    """Return the lengths, and the width of the tokens; -1 where no column of tokens is named."""
    column = _column(columns, key, "input_lengths_key")
    lengths = as_lengths(f"column {key!r}", kind_of(key, column).to_host(column))
    if long := np.flatnonzero(lengths > MOST_TOKENS).tolist():
        listed = list_offenders([f"row {i} has {lengths[i]}" for i in long])
        raise ArgumentError(f"lengths in column {key!r} must be at most {MOST_TOKENS}: {listed}")
    if input_key is None:
        return lengths, -1
    tokens = _column(columns, input_key, "input_key")
    shape = getattr(tokens, "shape", ())
    if len(shape) < 2:
        found = f"shape {tuple(shape)}" if shape else f"a {type(tokens).__name__}"
        raise ArgumentError(f"input_key {input_key!r} must be an array of at least two dims, got {found}")
    width = int(shape[1])
    if over := np.flatnonzero(lengths > width).tolist():
        listed = list_offenders([f"row {i} has {lengths[i]}" for i in over])
        raise ArgumentError(f"column {key!r} names more tokens than the width {width} of {input_key!r}: {listed}")
    return lengths, width


def _dynamic_chunks(
    columns: Mapping[Any, Any], starts: range, size: int, shards: int, options: DynamicBatching
) -> list[list[ShardChunk]]:
    lengths, width = _lengths(columns, options.input_lengths_key, options.input_key)
    padded = padded_widths(lengths, width, options)
    limit = options.max_tokens_per_microbatch
    return [batch_dynamically(lengths[a : a + size], padded[a : a + size], shards, limit) for a in starts]


def _packed_chunks(
    columns: Mapping[Any, Any], starts: range, size: int, shards: int, options: SequencePacking
) -> list[list[ShardChunk]]:
    lengths, _ = _lengths(columns, options.input_lengths_key, options.input_key)
    multiple, limit = options.sequence_length_pad_multiple, options.max_tokens_per_microbatch
    padded = -(-np.maximum(lengths, 1) // multiple) * multiple
    if over := np.flatnonzero(padded > limit).tolist():
        listed = list_offenders([f"row {i} of {lengths[i]} tokens has {padded[i]}" for i in over])
        raise InfeasibleError(
            f"{len(over)} of {lengths.size} rows are longer, padded to {multiple}, than max_tokens_per_microbatch = "
            f"{limit}: {listed}"
        )
    groups = _groups(columns, starts, size, options)
    table = []
    for start in starts:
        part = slice(start, start + size)
        try:
            bins = pack_onto_shards(padded[part], shards, options, None if groups is None else _dense(groups[part]))
        except InfeasibleError as error:
            last = min(start + size, lengths.size) - 1
            raise InfeasibleError(f"rows {start} to {last} cannot be packed onto {shards} shards: {error}") from error
        table.append([ShardChunk.of_bins(each, padded[part]) for each in bins])
    return table


def _groups(columns: Mapping[Any, Any], starts: range, size: int, options: SequencePacking) -> Int64Array | None:
    """Return the group of each row as a number from 0."""
    key = options.group_key
    if key is None:
        return None
    column = _column(columns, key, "group_key")
    host = kind_of(key, column).to_host(column)
    if isinstance(host, list) and len({isinstance(value, str) for value in host}) > 1:
        raise ArgumentError(
            f"group_key {key!r} must hold integers alone or texts alone, got both: 1 and '1' would be one"
        )
    try:
        values = np.asarray(host)
    except ValueError as error:
        raise ArgumentError(f"group_key {key!r} must hold an integer or a text for each row: {error}") from error
    if values.ndim != 1 or values.dtype.kind not in "iubUS":
        raise ArgumentError(
            f"group_key {key!r} must hold an integer or a text for each row, got dtype {values.dtype} of shape "
            f"{values.shape}"
        )
    names, groups = np.unique(values, return_inverse=True)
    chunk = np.arange(groups.size) // size
    first, last = np.full(names.size, len(starts)), np.full(names.size, -1)
    np.minimum.at(first, groups, chunk)
    np.maximum.at(last, groups, chunk)
    if parted := np.flatnonzero(first < last).tolist():
        listed = list_offenders([f"{names[g]} from row {first[g] * size} to row {last[g] * size}" for g in parted])
        raise InfeasibleError(f"{len(parted)} groups of {key!r} lie in several chunks of batch_size {size}: {listed}")
    return groups.astype(np.int64)


def _dense(groups: Int64Array) -> Int64Array:
    return np.unique(groups, return_inverse=True)[1].astype(np.int64)
