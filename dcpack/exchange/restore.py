"""Bring per-token results from CP slices back to the owners, in the original order: the inverse of the exchange."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_array, as_number, check_items, check_kinds
from dcpack.comm import Communicator
from dcpack.comm.dtypes import as_bytes, dtype_from_name, from_bytes, wire_name
from dcpack.errors import ArgumentError
from dcpack.exchange.batches import PackedBatch
from dcpack.exchange.routes import Deliveries, deliveries_of
from dcpack.exchange.run import process_of_rank
from dcpack.exchange.table import GatheredSamples, SampleTable
from dcpack.plans import Plan
from dcpack.topology import Topology

__all__ = ["restore"]


def restore(
    communicator: Communicator,
    gathered: GatheredSamples,
    plan: Plan,
    batches: Mapping[int, Sequence[PackedBatch]],
    outputs: Mapping[int, Sequence[Any] | npt.NDArray[Any]],
    *,
    topology: Topology | None = None,
    sharding: str = "zigzag",
    fill_value: float = 0,
) -> list[npt.NDArray[Any] | None]:
    """Return the results of this process's samples, token by token, whoever computed them. Collective.

    The round trip is the identity: restoring ``batch.tokens["input_ids"]`` gives back the samples' tokens.

    Args:
        communicator: the processes of the DPxCP domain.
        gathered: what `gather_samples` returned.
        plan: the plan that was carried out.
        batches: what `exchange_samples` returned.
        outputs: for each plan rank of this process one array a batch, in a list or stacked, [t, ...] with t the tokens
            of the batch; dtype and further dimensions are the same everywhere.
        topology: as given to `exchange_samples`.
        sharding: as given to `exchange_samples`.
        fill_value: stands where a token was dropped by the overlong policy.

    Returns:
        For each local sample [length, ...]. A sample that several processes hold goes to the first of them; the others
        get None for it.

    Raises:
        PeerError: outputs that do not fit their batches, or differ in dtype or dimensions between processes; on every
            process.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import exchange_samples, gather_samples
        >>> def fn(communicator):
        ...     gathered = gather_samples(communicator, [{"input_ids": [communicator.rank, 7, 9]}])
        ...     plan = dcpack.plan(gathered.table.lengths, num_ranks=2, capacity=4)
        ...     batches = exchange_samples(communicator, gathered, plan)
        ...     doubled = {rank: [2 * batch.tokens["input_ids"] for batch in mine] for rank, mine in batches.items()}
        ...     return restore(communicator, gathered, plan, batches, doubled)[0].tolist()
        >>> dcpack.run_ranks(2, fn)
        [[0, 14, 18], [2, 14, 18]]
    """
    check_kinds(communicator=(communicator, Communicator))
    with communicator.guard():
        check_kinds(
            gathered=(gathered, GatheredSamples),
            plan=(plan, Plan),
            batches=(batches, Mapping),
            outputs=(outputs, Mapping),
        )
        outputs = {rank: list(check_items(f"outputs[{rank}]", given)) for rank, given in outputs.items()}
        kind = _kind_of_outputs(batches, outputs)
        deliveries = deliveries_of(plan, sharding)
        back = _ReturnRoutes.of(communicator, gathered.table, plan, deliveries, topology)
    kind = _agree_on_kind(communicator, kind)
    with communicator.guard():
        fill_value = _check_fill_value(as_number("fill_value", fill_value), kind.dtype)
        parts = _split_outputs(plan, deliveries, batches, outputs)
    send, receive = back.counts(communicator.rank, kind.row_bytes)
    buffer = np.concatenate([np.zeros(0, np.uint8), *(as_bytes(parts[d]) for d in back.sent_by(communicator.rank))])
    received = communicator.all_to_all(buffer, send, receive)
    results = [_new_result(kind, sample.length, fill_value) for sample in gathered.local]
    owned = _owned_samples(gathered.table, communicator.rank)
    at = 0
    for d in back.received_by(communicator.rank):
        size = int(back.tokens[d]) * kind.row_bytes
        parts[d] = from_bytes(received[at : at + size], kind.dtype, (int(back.tokens[d]), *kind.dims))
        at += size
    for d in back.arriving_at(communicator.rank):
        _put(plan, deliveries, d, results[owned[int(back.sample[d])]], parts[d])
    kept = set(owned.values())
    return [result if place in kept else None for place, result in enumerate(results)]


@dataclass(frozen=True, kw_only=True, slots=True)
class _OutputKind:
    dtype: str
    dims: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        return dtype_from_name(self.dtype).itemsize * int(np.prod(self.dims, dtype=np.int64))


def _kind_of_outputs(
    batches: Mapping[int, Sequence[PackedBatch]], outputs: Mapping[int, Sequence[Any]]
) -> _OutputKind | None:
    """Check the outputs of this process against its batches; None where it has no batch."""
    if set(outputs) != set(batches):
        raise ArgumentError(f"outputs must be of ranks {list(batches)}, got {list(outputs)}")
    check_kinds(**{f"batches[{rank}]": (mine, list | tuple) for rank, mine in batches.items()})
    kinds: dict[_OutputKind, str] = {}
    for rank, mine in batches.items():
        if len(outputs[rank]) != len(mine):
            raise ArgumentError(f"rank {rank} has {len(mine)} batches, got {len(outputs[rank])} outputs")
        for i, (batch, output) in enumerate(zip(mine, outputs[rank], strict=True)):
            check_kinds(**{f"batches[{rank}][{i}]": (batch, PackedBatch)})
            array = as_array(f"outputs[{rank}][{i}]", output)
            if array.shape[:1] != (batch.num_tokens,):
                raise ArgumentError(
                    f"outputs[{rank}][{i}] must have {batch.num_tokens} tokens first, got shape {array.shape}"
                )
            kind = _OutputKind(dtype=wire_name(array.dtype), dims=tuple(int(d) for d in array.shape[1:]))
            kinds.setdefault(kind, f"outputs[{rank}][{i}] is {kind.dtype} [t, {', '.join(map(str, kind.dims))}]")
    if len(kinds) > 1:
        raise ArgumentError(f"outputs must be of one dtype and shape: {'; '.join(kinds.values())}")
    return next(iter(kinds), None)


def _agree_on_kind(communicator: Communicator, kind: _OutputKind | None) -> _OutputKind:
    mine = json.dumps(None if kind is None else [kind.dtype, list(kind.dims)]).encode()
    found = [json.loads(bytes(part)) for part in communicator.all_gather(np.frombuffer(mine, np.uint8))]
    kinds = {(dtype, tuple(dims)): r for r, (dtype, dims) in reversed([(r, k) for r, k in enumerate(found) if k])}
    if len(kinds) > 1:
        by_rank = sorted((r, dtype, dims) for (dtype, dims), r in kinds.items())
        listed = "; ".join(f"rank {communicator.ranks[r]} has {dtype} {dims}" for r, dtype, dims in by_rank)
        raise ArgumentError(f"outputs must be of one dtype and shape on all ranks: {listed}")
    dtype, dims = next(iter(kinds), ("float32", ()))
    return _OutputKind(dtype=dtype, dims=dims)


@dataclass(frozen=True, kw_only=True, eq=False)
class _ReturnRoutes:
    """Every delivery on its way back: from the process that computed it to the first holder of its sample."""

    sample: Int64Array
    tokens: Int64Array
    source: Int64Array
    destination: Int64Array
    num_processes: int

    @classmethod
    def of(
        cls,
        communicator: Communicator,
        table: SampleTable,
        plan: Plan,
        deliveries: Deliveries,
        topology: Topology | None,
    ) -> _ReturnRoutes:
        sample = plan.sequence_ids[deliveries.entry]
        first_holder = table.holder_offsets[:-1]
        return cls(
            sample=sample,
            tokens=deliveries.num_tokens,
            source=process_of_rank(plan, topology)[deliveries.rank],
            destination=table.holders[first_holder[sample]],
            num_processes=communicator.size,
        )

    def sent_by(self, process: int) -> list[int]:
        """Deliveries that `process` sends, ordered by destination."""
        mine = np.flatnonzero((self.source == process) & (self.destination != process))
        return mine[np.argsort(self.destination[mine], kind="stable")].tolist()

    def received_by(self, process: int) -> list[int]:
        """Deliveries that `process` receives, ordered by source."""
        mine = np.flatnonzero((self.destination == process) & (self.source != process))
        return mine[np.argsort(self.source[mine], kind="stable")].tolist()

    def arriving_at(self, process: int) -> list[int]:
        """Deliveries that end on `process`, those that never left it included."""
        return np.flatnonzero(self.destination == process).tolist()

    def counts(self, process: int, row_bytes: int) -> tuple[Int64Array, Int64Array]:
        """Bytes that `process` sends to, and receives from, each process."""
        sent, received = self.sent_by(process), self.received_by(process)
        sizes = self.tokens * row_bytes
        send = np.bincount(self.destination[sent], weights=sizes[sent], minlength=self.num_processes)
        receive = np.bincount(self.source[received], weights=sizes[received], minlength=self.num_processes)
        return send.astype(np.int64), receive.astype(np.int64)


def _owned_samples(table: SampleTable, process: int) -> dict[int, int]:
    """Return the place among the local samples of each sample whose first holder is `process`."""
    first = table.holder_offsets[:-1]
    mine = np.flatnonzero(table.holders[first] == process)
    return dict(zip(mine.tolist(), table.holder_places[first[mine]].tolist(), strict=True))


def _split_outputs(
    plan: Plan,
    deliveries: Deliveries,
    batches: Mapping[int, Sequence[PackedBatch]],
    outputs: Mapping[int, Sequence[Any]],
) -> dict[int, npt.NDArray[Any]]:
    """Return the real tokens of each delivery that this process computed."""
    parts: dict[int, npt.NDArray[Any]] = {}
    for rank, mine in batches.items():
        for b, batch, output in zip(plan.bins_of_rank(rank), mine, outputs[rank], strict=True):
            wanted = deliveries.of_bin(int(b), batch.cp_rank)
            is_real = batch.tokens["segment_ids"] != 0
            real = np.asarray(output)[is_real] if not batch.is_dummy else np.asarray(output)[:0]
            ends = np.cumsum(deliveries.num_tokens[wanted])
            for d, part in zip(wanted.tolist(), np.split(real, ends[:-1]), strict=True) if wanted.size else ():
                parts[d] = part
    return parts


def _check_fill_value(fill_value: Any, dtype: str) -> Any:
    """Return a number that outputs can hold as it is."""
    wanted = dtype_from_name(dtype)
    with np.errstate(invalid="ignore", over="ignore"):
        try:
            if np.iscomplexobj(fill_value) and wanted.kind != "c":
                raise TypeError("a complex number is no real one")
            held = np.full(1, fill_value, wanted)[0]
        except (OverflowError, TypeError, ValueError) as error:
            raise ArgumentError(f"fill_value {fill_value!r} does not fit in the outputs' {dtype}") from error
    if held != fill_value and not (np.isnan(held) and np.isnan(fill_value)):
        raise ArgumentError(f"fill_value {fill_value!r} would become {held!r} in the outputs' {dtype}")
    return fill_value


def _new_result(kind: _OutputKind, length: int, fill_value: float) -> npt.NDArray[Any]:
    return np.full((length, *kind.dims), fill_value, dtype_from_name(kind.dtype))


def _put(plan: Plan, deliveries: Deliveries, d: int, result: npt.NDArray[Any], part: npt.NDArray[Any]) -> None:
    """Write the tokens of one delivery to their places in the sample."""
    entry = int(deliveries.entry[d])
    at = 0
    for run in (0, 1):
        start, stop = int(deliveries.real.starts[run, d]), int(deliveries.real.stops[run, d])
        places = np.arange(start, stop, int(deliveries.real.steps[d])) + int(plan.starts[entry])
        result[places] = part[at : at + places.size]
        at += places.size
