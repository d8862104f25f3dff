"""Samples to the bytes of a message and back. Pure; nothing is pickled, the routes say where each field lies."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_kinds
from dcpack.comm.dtypes import as_bytes, from_bytes
from dcpack.errors import ArgumentError
from dcpack.exchange.routes import Routes
from dcpack.exchange.table import FieldKind, GatheredSamples, SampleTable
from dcpack.plans import Plan
from dcpack.sharding import ShardRanges

__all__ = ["Parcels", "decode", "encode", "take_runs"]

Parcels = dict[tuple[int, str], npt.NDArray[Any]]
"""Arrays by (delivery, field name)."""


def take_runs(values: npt.NDArray[Any], ranges: ShardRanges, index: int, start: int = 0) -> npt.NDArray[Any]:
    """Return the rows of `values` that the `index`-th pair of runs names, shifted by `start`; a view where possible.

    Example:
        >>> runs = ShardRanges(starts=np.array([[0], [6]]), stops=np.array([[2], [8]]), steps=np.array([1]))
        >>> take_runs(np.arange(10), runs, 0).tolist()
        [0, 1, 6, 7]
    """
    step = int(ranges.steps[index])
    parts = [
        values[start + int(ranges.starts[run, index]) : start + int(ranges.stops[run, index]) : step]
        for run in (0, 1)
        if ranges.stops[run, index] > ranges.starts[run, index]
    ]
    if len(parts) == 1:
        return parts[0]
    return np.concatenate(parts) if parts else values[:0]


def encode(
    plan: Plan, gathered: GatheredSamples, routes: Routes, process: int
) -> tuple[npt.NDArray[np.uint8], Parcels]:
    """Return the bytes that `process` sends, message after message, and what it keeps for itself.

    Args:
        plan: the plan.
        gathered: the samples of this process, and the table of all.
        routes: the routes to send by.
        process: this process.

    Returns:
        uint8[sum of send counts], and the parcels whose destination is the process itself.

    Raises:
        ArgumentError: an argument of another kind, or no process of the routes.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import build_routes, gather_samples
        >>> gathered = dcpack.run_ranks(1, lambda c: gather_samples(c, [{"input_ids": [1, 2, 3]}]))[0]
        >>> plan = dcpack.plan(gathered.table.lengths, num_ranks=1, capacity=4)
        >>> buffer, kept = encode(plan, gathered, build_routes(plan, gathered.table, num_processes=1), 0)
        >>> buffer.size, {name: values.tolist() for (_, name), values in kept.items()}      # alone, all stays
        (0, {'input_ids': [1, 2, 3], 'labels': [2, 3, -100]})
    """
    check_kinds(plan=(plan, Plan), gathered=(gathered, GatheredSamples), routes=(routes, Routes))
    counts = routes.send_counts(process)
    places = _local_places(gathered.table, process)
    message_start = np.cumsum(counts) - counts
    buffer = np.zeros(int(counts.sum()), np.uint8)
    kept: Parcels = {}
    for s in np.flatnonzero(routes.source == process).tolist():
        delivery, name = int(routes.delivery[s]), gathered.table.field_names[routes.field[s]]
        entry = routes.deliveries.entry[delivery]
        sample = int(plan.sequence_ids[entry])
        values = gathered.local[places[sample]].fields[name]
        if gathered.table.kinds[gathered.table.kind_of[sample, routes.field[s]]].per_token:
            values = _tokens_of(plan, routes, delivery, values)
        if routes.destination[s] == process:
            kept[delivery, name] = values
        elif routes.num_bytes[s]:
            at = int(message_start[routes.destination[s]] + routes.start[s])
            buffer[at : at + int(routes.num_bytes[s])] = as_bytes(values)
    return buffer, kept


def _local_places(table: SampleTable, process: int) -> dict[int, int]:
    """Return where among its own samples the process holds each sample."""
    sample = np.repeat(np.arange(table.num_samples), np.diff(table.holder_offsets))
    mine = table.holders == process
    return dict(zip(sample[mine].tolist(), table.holder_places[mine].tolist(), strict=True))


def _tokens_of(plan: Plan, routes: Routes, delivery: int, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    entry = int(routes.deliveries.entry[delivery])
    start = int(plan.starts[entry])
    if routes.whole:
        return values[start : start + int(plan.entry_lengths[entry])]
    return take_runs(values, routes.deliveries.real, delivery, start)


def decode(plan: Plan, table: SampleTable, routes: Routes, process: int, buffer: npt.NDArray[np.uint8]) -> Parcels:
    """Return the parcels in the bytes that `process` received, message after message.

    Args:
        plan: the plan.
        table: what the samples are.
        routes: the routes that they came by.
        process: this process.
        buffer: uint8[sum of receive counts], messages in the order of their senders.

    Returns:
        The arrays by delivery and field.

    Raises:
        ArgumentError: an argument of another kind, no process of the routes, or another number of bytes than it gets.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import build_routes, encode, gather_samples
        >>> def step(communicator):
        ...     samples = [{"input_ids": [5, 6]}, {"input_ids": [7, 8]}] if communicator.rank == 0 else []
        ...     gathered = gather_samples(communicator, samples)
        ...     plan = dcpack.plan(gathered.table.lengths, num_ranks=2, capacity=2)
        ...     routes, me = build_routes(plan, gathered.table, num_processes=2), communicator.rank
        ...     sent, kept = encode(plan, gathered, routes, me)
        ...     received = communicator.all_to_all(sent, routes.send_counts(me), routes.receive_counts(me))
        ...     parcels = {**kept, **decode(plan, gathered.table, routes, me, received)}
        ...     return {name: values.tolist() for (_, name), values in sorted(parcels.items())}
        >>> dcpack.run_ranks(2, step)
        [{'input_ids': [5, 6], 'labels': [6, -100]}, {'input_ids': [7, 8], 'labels': [8, -100]}]
    """
    check_kinds(plan=(plan, Plan), table=(table, SampleTable), routes=(routes, Routes), buffer=(buffer, np.ndarray))
    counts = routes.receive_counts(process)
    if buffer.dtype != np.uint8 or buffer.shape != (counts.sum(),):
        raise ArgumentError(f"buffer must be uint8[{counts.sum()}], got {buffer.dtype} of shape {buffer.shape}")
    message_start = np.cumsum(counts) - counts
    received: Parcels = {}
    tokens = _delivered_tokens(plan, routes)
    for s in np.flatnonzero((routes.destination == process) & (routes.source != process)).tolist():
        delivery, field = int(routes.delivery[s]), int(routes.field[s])
        sample = int(plan.sequence_ids[routes.deliveries.entry[delivery]])
        kind = table.kinds[table.kind_of[sample, field]]
        rows = int(tokens[delivery]) if kind.per_token else int(table.rows[sample, field])
        at = int(message_start[routes.source[s]] + routes.start[s])
        part = buffer[at : at + int(routes.num_bytes[s])]
        received[delivery, kind.name] = from_bytes(part, kind.dtype, _shape(kind, rows))
    return received


def _delivered_tokens(plan: Plan, routes: Routes) -> Int64Array:
    return plan.entry_lengths[routes.deliveries.entry] if routes.whole else routes.deliveries.num_tokens


def _shape(kind: FieldKind, rows: int) -> tuple[int, ...]:
    return () if kind.is_scalar else (rows, *kind.dims)
