"""Sequence packing: the rows of a chunk in bins, and the bins on shards, equally many on each."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from dcpack._checks import Float64Array, Int64Array
from dcpack.api import balance, pack, plan
from dcpack.batched_data_dict.options import SequencePacking
from dcpack.cost import CostModel
from dcpack.errors import InfeasibleError

__all__ = ["pack_onto_shards"]

_Bins = list[Int64Array]


def pack_onto_shards(
    padded: Int64Array, shards: int, options: SequencePacking, groups: Int64Array | None
) -> list[_Bins]:
    """Return the bins of each shard: equally many, a multiple of `microbatch_multiple`, none empty.

    Args:
        padded: int64[n], padded tokens of each row of the chunk, at least 1.
        shards: number of shards.
        options: see there.
        groups: int64[n], the group of each row, or None.

    Raises:
        InfeasibleError: the rows or the groups are too few or too large.

    Example:
        >>> options = SequencePacking(max_tokens_per_microbatch=8, input_lengths_key="n")
        >>> pack_onto_shards(np.array([5, 4, 3, 3]), 2, options, None)
        [[array([0, 2])], [array([1, 3])]]
    """
    capacity, multiple = options.max_tokens_per_microbatch, options.microbatch_multiple
    if groups is not None and options.keep_groups == "shard":
        return _groups_onto_shards(padded, shards, options, groups)
    if options.cost is not None and groups is None:
        planned = plan(
            padded,
            num_ranks=shards,
            capacity=capacity,
            scheduler="balanced",
            cost=options.cost,
            cp_sizes=(1,),
            microbatch_multiple=multiple,
        )
        order = np.lexsort((planned.microbatch, planned.first_rank)).reshape(shards, -1).tolist()
        bins = np.split(planned.sequence_ids, planned.offsets[1:-1])
        return [[bins[b] for b in row] for row in order]
    bins = _pack_bins(padded, options, groups)
    units = np.arange(padded.size) if groups is None else groups
    bins = _split_bins(bins, _next_multiple(len(bins), shards * multiple), padded, units)
    if options.cost is None:
        return [bins[s::shards] for s in range(shards)]
    costs = _bin_costs(bins, padded, options.cost)
    shard_of = balance(costs, num_parts=shards, equal_size=True)
    return [
        _dearest_first([bins[b] for b in np.flatnonzero(shard_of == s)], padded, options.cost) for s in range(shards)
    ]


def _groups_onto_shards(padded: Int64Array, shards: int, options: SequencePacking, groups: Int64Array) -> list[_Bins]:
    """Balance whole groups over the shards, then pack each shard, and level the numbers of bins."""
    num_groups = int(groups.max(initial=-1)) + 1
    if num_groups < shards:
        raise InfeasibleError(f"{num_groups} groups cannot give each of {shards} shards one")
    costs = _row_costs(padded, options.cost)
    shard_of = balance(np.bincount(groups, weights=costs), num_parts=shards)[groups]
    rows_of = [np.flatnonzero(shard_of == s) for s in range(shards)]
    packed = [[rows[b] for b in _pack_bins(padded[rows], options, None)] for rows in rows_of]
    most = _next_multiple(max(len(bins) for bins in packed), options.microbatch_multiple)
    units = np.arange(padded.size)
    return [_dearest_first(_split_bins(bins, most, padded, units), padded, options.cost) for bins in packed]


def _pack_bins(padded: Int64Array, options: SequencePacking, groups: Int64Array | None) -> _Bins:
    packed = pack(padded, capacity=options.max_tokens_per_microbatch, method=options.algorithm, groups=groups)
    return np.split(packed.sequence_ids, packed.offsets[1:-1]) if packed.num_bins else []


def _split_bins(bins: _Bins, num_bins: int, padded: Int64Array, units: Int64Array) -> _Bins:
    """Halve the fullest bin of two units or more until there are `num_bins`.

    Args:
        bins: the rows of each bin.
        num_bins: at least as many as there are.
        padded: int64[n], tokens of each row.
        units: int64[n], rows with equal numbers stay together.
    """
    result = list(bins)
    fullest = [(-int(padded[rows].sum()), b) for b, rows in enumerate(result)]
    heapq.heapify(fullest)
    while len(result) < num_bins:
        if not fullest:
            raise InfeasibleError(
                f"{padded.size} rows cannot fill {num_bins} micro-batches: {len(result)} hold one row or group each"
            )
        _, b = heapq.heappop(fullest)
        distinct, unit_of = np.unique(units[result[b]], return_inverse=True)
        if distinct.size < 2:
            continue
        half = balance(np.bincount(unit_of, weights=padded[result[b]]), num_parts=2, method="lpt", effort="fast")
        rows = result[b]
        result[b] = rows[half[unit_of] == 0]
        result.append(rows[half[unit_of] == 1])
        for place in (b, len(result) - 1):
            heapq.heappush(fullest, (-int(padded[result[place]].sum()), place))
    return result


def _dearest_first(bins: _Bins, padded: Int64Array, cost: CostModel | None) -> _Bins:
    """Order bins so that shards, which meet at each micro-batch, have like ones at the same time."""
    return [bins[b] for b in np.argsort(-_bin_costs(bins, padded, cost), kind="stable")]


def _row_costs(padded: Int64Array, cost: CostModel | None) -> Float64Array:
    return _bin_costs(np.arange(padded.size).reshape(-1, 1), padded, cost)


def _bin_costs(bins: Sequence[Int64Array] | Int64Array, padded: Int64Array, cost: CostModel | None) -> Float64Array:
    """Return the time of each bin by `cost` at CP 1, or its tokens; float64[bins]."""
    starts = np.cumsum([0, *(len(rows) for rows in bins)])[:-1]
    lengths = padded[np.concatenate(bins)] if len(bins) else padded[:0]
    columns = lengths[:, None].astype(np.float64) if cost is None else cost.columns(lengths)
    sums = np.add.reduceat(columns, starts, axis=0) if len(bins) else columns
    if cost is None:
        return sums[:, 0]
    return cost.bin_time(sums, np.ones(len(sums), np.int64), np.zeros(len(sums), np.bool_))


def _next_multiple(number: int, multiple: int) -> int:
    return -(-max(number, 1) // multiple) * multiple
