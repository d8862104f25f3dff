"""Carry out a plan: check that all decided alike, move everything in one all-to-all, build the batches."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dcpack._checks import BoolArray, Int64Array, check_kinds, list_offenders
from dcpack.comm import Communicator
from dcpack.comm.guard import tell_failure
from dcpack.errors import ArgumentError, PeerError, PlanError
from dcpack.exchange.batches import PackedBatch, build_batches, check_dummy_fields
from dcpack.exchange.codec import Parcels, decode, encode
from dcpack.exchange.routes import Routes, build_routes
from dcpack.exchange.shapes import StaticShapes, check_static_shapes
from dcpack.exchange.table import GatheredSamples
from dcpack.loss import valid_token_mask
from dcpack.plans import Plan
from dcpack.topology import Topology

__all__ = [
    "check_same_plan",
    "exchange_samples",
    "kept_valid_tokens",
    "move_samples",
    "process_of_rank",
    "ranks_of_process",
    "routes_for",
]


def check_same_plan(communicator: Communicator, plan: Plan) -> None:
    """Compare the digests of all processes' plans before anything moves. Collective.

    Args:
        communicator: the processes that carry the plan out.
        plan: this process's plan.

    Raises:
        PeerError: some process decided otherwise, or has no plan; on every process, naming the first bin that differs.

    Example:
        >>> import dcpack
        >>> def fn(communicator):
        ...     check_same_plan(communicator, dcpack.plan([5, 6], num_ranks=2, capacity=8))
        >>> dcpack.run_ranks(2, fn)
        [None, None]
    """
    check_kinds(communicator=(communicator, Communicator))
    _check_kinds_everywhere(communicator, plan=(plan, Plan))
    _check_alike(communicator, plan)


def _check_kinds_everywhere(communicator: Communicator, **given: tuple[Any, Any]) -> None:
    """Do as `check_kinds` does; others, who wait in the next call, raise what is wrong here too."""
    with tell_failure(communicator):
        check_kinds(**given)


def _check_alike(communicator: Communicator, plan: Plan, **options: Any) -> None:
    """Raise on every process where one has another plan or other options.

    With other options all sizes may agree, and tokens would be mixed up silently.
    """
    text = json.dumps(options, sort_keys=True).encode()
    digest = hashlib.sha256(plan.digest().encode() + text).digest()
    digests = [bytes(part) for part in communicator.all_gather(np.frombuffer(digest, np.uint8))]
    if len(set(digests)) == 1:
        return
    given = [bytes(part).decode() for part in communicator.all_gather(np.frombuffer(text, np.uint8))]
    if len(set(given)) > 1:
        listed = [f"rank {rank}: {other}" for rank, other in zip(communicator.ranks, given, strict=True)]
        raise PeerError(f"options of the exchange differ between ranks: {list_offenders(listed)}")
    reference = communicator.broadcast(np.frombuffer(plan.to_json().encode(), np.uint8), root=0)
    difference = Plan.from_json(bytes(reference)).first_difference(plan)
    error = None
    if difference is not None:
        error = PlanError(f"this rank's plan differs from that of rank {communicator.ranks[0]}: {difference}")
    communicator.agree(error)


def _digest_of(array: Any) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def ranks_of_process(communicator: Communicator, plan: Plan, topology: Topology | None = None) -> Int64Array:
    """Return int64[k]: the plan ranks that this process hosts.

    Without a topology a process hosts the rank of its own number.

    Args:
        communicator: of this process.
        plan: the plan.
        topology: as for `process_of_rank`.

    Example:
        >>> import dcpack
        >>> plan = dcpack.plan([4, 4], num_ranks=2, capacity=4)
        >>> dcpack.run_ranks(2, lambda communicator: ranks_of_process(communicator, plan).tolist())
        [[0], [1]]
    """
    check_kinds(communicator=(communicator, Communicator))
    return np.flatnonzero(process_of_rank(plan, topology) == communicator.rank)


def process_of_rank(plan: Plan, topology: Topology | None = None) -> Int64Array:
    """Return int64[num_ranks]: the group-local process that hosts each plan rank; the identity without a topology.

    Args:
        plan: the plan.
        topology: the mesh and its processes; None puts each rank in a process of its number.

    Raises:
        ArgumentError: a topology of more than one DPxCP domain.

    Example:
        >>> import dcpack
        >>> plan = dcpack.plan([4, 4, 4, 4], num_ranks=4, capacity=4)
        >>> process_of_rank(plan).tolist()
        [0, 1, 2, 3]
    """
    check_kinds(plan=(plan, Plan), topology=(topology, Topology | None))
    if topology is None:
        return np.arange(plan.num_ranks)
    if topology.num_plan_ranks != topology.num_ranks:
        raise ArgumentError(f"the exchange takes a topology of one DPxCP domain, got axes {topology.axes}")
    domain = list(topology.plan_ranks(int(topology.ranks.flat[0])))
    return topology.process_of_rank[domain]


def exchange_samples(
    communicator: Communicator,
    gathered: GatheredSamples,
    plan: Plan,
    *,
    topology: Topology | None = None,
    sharding: str = "zigzag",
    routing: str = "sliced",
    static_shapes: StaticShapes | None = None,
    dummy_fields: Mapping[str, BoolArray] | None = None,
) -> dict[int, list[PackedBatch]]:
    """Move every sample of the step to the ranks that compute on it. Collective, one all-to-all of bytes.

    Args:
        communicator: the processes of the DPxCP domain.
        gathered: what `gather_samples` returned.
        plan: the plan of the step, the same on every process.
        topology: which process hosts which rank, and nodes; None where process r hosts rank r. Only topologies of one
            DPxCP domain make sense here.
        sharding: the CP slicing, one of ``dcpack.sharding.SHARDINGS``.
        routing: ``"sliced"`` or ``"whole"``, see `dcpack.exchange.routes`.
        static_shapes: fixed shapes, or None.
        dummy_fields: bool[num_bins] by field name, the bins that get a zero-weight stand-in; from `align_fields`, whose
            plan then is the one to pass.

    Returns:
        For each plan rank of this process its batches, by micro-batch and row.

    Raises:
        PeerError: plans differ, or an argument was wrong on some process; on every process.

    Example:
        >>> import dcpack
        >>> def fn(communicator):
        ...     gathered = gather_samples(communicator, [{"input_ids": [communicator.rank, 7]}])
        ...     plan = dcpack.plan(gathered.table.lengths, num_ranks=2, capacity=4)
        ...     batch, = exchange_samples(communicator, gathered, plan)[communicator.rank]
        ...     return batch.tokens["input_ids"].tolist()
        >>> from dcpack.exchange import gather_samples
        >>> dcpack.run_ranks(2, fn)
        [[0, 7], [1, 7]]
    """
    check_kinds(communicator=(communicator, Communicator))
    with communicator.guard():
        check_kinds(
            gathered=(gathered, GatheredSamples),
            plan=(plan, Plan),
            topology=(topology, Topology | None),
            static_shapes=(static_shapes, StaticShapes | None),
            dummy_fields=(dummy_fields, Mapping | None),
        )
        if dummy_fields is not None:
            check_dummy_fields(plan, gathered.table, dummy_fields)
        if static_shapes is not None:
            check_static_shapes(plan, static_shapes)
        routes = routes_for(communicator, gathered, plan, topology, sharding, routing)
        options = {
            "sharding": sharding,
            "routing": routing,
            "static_shapes": repr(static_shapes),
            "process_of_rank": _digest_of(process_of_rank(plan, topology)),
            "node_size": None if topology is None else topology.node_size,
            "dummy_fields": {name: _digest_of(bins) for name, bins in sorted((dummy_fields or {}).items())},
        }
    _check_alike(communicator, plan, **options)
    table = replace(gathered.table, num_valid=kept_valid_tokens(communicator, gathered, plan))
    parcels = move_samples(communicator, gathered, plan, routes)
    with communicator.guard():
        return {
            int(rank): build_batches(
                plan,
                table,
                routes,
                parcels,
                int(rank),
                static_shapes=static_shapes,
                dummy_fields=dummy_fields,
            )
            for rank in ranks_of_process(communicator, plan, topology)
        }


def kept_valid_tokens(communicator: Communicator, gathered: GatheredSamples, plan: Plan) -> Int64Array:
    """Return int64[n]: tokens of each sample that count in the loss and are in some bin. Collective.

    `exchange_samples` calls it; group means over truncated samples need it too. Only where the overlong policy kept a
    part of a sequence does it take a message: its holder says how many of its valid tokens lie in that part.

    Args:
        communicator: the processes of the DPxCP domain.
        gathered: what `gather_samples` returned.
        plan: the plan of those samples.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import gather_samples
        >>> def step(communicator):
        ...     gathered = gather_samples(communicator, [{"input_ids": [1, 2, 3, 4, 5]}])
        ...     plan = dcpack.plan(gathered.table.lengths, num_ranks=1, capacity=3, overlong="truncate")
        ...     return gathered.table.num_valid.tolist(), kept_valid_tokens(communicator, gathered, plan).tolist()
        >>> dcpack.run_ranks(1, step)                                       # the label of the third token is kept
        [([4], [3])]
    """
    check_kinds(communicator=(communicator, Communicator))
    _check_kinds_everywhere(communicator, gathered=(gathered, GatheredSamples), plan=(plan, Plan))
    table = gathered.table
    counts = np.where(plan.dropped > 0, 0, table.num_valid)
    in_part = np.flatnonzero((plan.dropped > 0) & (plan.dropped < plan.lengths))
    if in_part.size == 0:
        return counts
    first_holder = table.holder_offsets[in_part]
    mine = table.holders[first_holder] == communicator.rank
    by_sequence = np.argsort(plan.sequence_ids, kind="stable")
    found = []
    for sample, place in zip(in_part[mine], table.holder_places[first_holder[mine]], strict=True):
        fields = gathered.local[place].fields
        valid = valid_token_mask(fields["labels"], fields.get("loss_mask"))
        span = np.searchsorted(plan.sequence_ids[by_sequence], [sample, sample + 1])
        entries = by_sequence[span[0] : span[1]]
        parts = [valid[plan.starts[e] : plan.starts[e] + plan.entry_lengths[e]] for e in entries]
        found.append((sample, sum(int(part.sum()) for part in parts)))
    for part in communicator.all_gather(np.array(found, np.int64).reshape(-1, 2)):
        counts[part[:, 0]] = part[:, 1]
    return counts


def routes_for(
    communicator: Communicator,
    gathered: GatheredSamples,
    plan: Plan,
    topology: Topology | None,
    sharding: str,
    routing: str,
) -> Routes:
    """Return the routes among the processes of `communicator`.

    Args:
        communicator: the processes of the DPxCP domain.
        gathered: what `gather_samples` returned.
        plan: the plan of those samples.
        topology: the mesh and its processes, which say what is near; None puts all on one node.
        sharding: the CP slicing, one of ``dcpack.sharding.SHARDINGS``.
        routing: one of `ROUTINGS`.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import gather_samples
        >>> def step(communicator):
        ...     gathered = gather_samples(communicator, [{"input_ids": [5, 6]}])
        ...     plan = dcpack.plan(gathered.table.lengths, num_ranks=2, capacity=2)
        ...     return routes_for(communicator, gathered, plan, None, "zigzag", "sliced").bytes_moved
        >>> dcpack.run_ranks(2, step)                                       # every sample is where it is needed
        [0, 0]
    """
    check_kinds(communicator=(communicator, Communicator), gathered=(gathered, GatheredSamples))
    processes = process_of_rank(plan, topology)
    nodes = None
    if topology is not None and topology.node_size is not None and processes.max(initial=0) < communicator.size:
        nodes = np.zeros(communicator.size, np.int64)
        nodes[processes] = np.arange(processes.size) // topology.node_size
    return build_routes(
        plan,
        gathered.table,
        num_processes=communicator.size,
        process_of_rank=processes,
        node_of_process=nodes,
        sharding=sharding,
        routing=routing,
    )


def move_samples(communicator: Communicator, gathered: GatheredSamples, plan: Plan, routes: Routes) -> Parcels:
    """Send and receive by `routes`; return what arrived and what stayed. Collective, one all-to-all of bytes.

    Args:
        communicator: the processes of the DPxCP domain.
        gathered: what `gather_samples` returned.
        plan: the plan of those samples.
        routes: the same on every process.

    Returns:
        The arrays by delivery and field, for `build_batches`.

    Raises:
        PeerError: some process failed; on every process.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import build_routes, gather_samples
        >>> def step(communicator):
        ...     samples = [{"input_ids": [5, 6]}, {"input_ids": [7, 8]}] if communicator.rank == 0 else []
        ...     gathered = gather_samples(communicator, samples)
        ...     plan = dcpack.plan(gathered.table.lengths, num_ranks=2, capacity=2)
        ...     routes = build_routes(plan, gathered.table, num_processes=2)
        ...     parcels = move_samples(communicator, gathered, plan, routes)
        ...     return [values.tolist() for _, values in sorted(parcels.items())]
        >>> dcpack.run_ranks(2, step)                                       # ids and labels
        [[[5, 6], [6, -100]], [[7, 8], [8, -100]]]
    """
    check_kinds(communicator=(communicator, Communicator))
    with communicator.guard():
        buffer, parcels = encode(plan, gathered, routes, communicator.rank)
    received = communicator.all_to_all(
        buffer, routes.send_counts(communicator.rank), routes.receive_counts(communicator.rank)
    )
    parcels.update(decode(plan, gathered.table, routes, communicator.rank, received))
    return parcels
