"""Who sends what to whom: from a plan and a sample table to routes. Pure, and the same on every process.

A *delivery* is one part of a sequence that one plan rank needs: entry e of a bin, as CP rank r of that bin. Its tokens
are at most two runs (see `dcpack.sharding.base`). A *segment* is one field of one delivery: a run of bytes in the one
message that a process sends to another. Segments lie in the message ordered by delivery and field, each starting at a
multiple of 16 bytes.

Worked example, two processes, one bin over both (cp 2, zigzag) that holds sequence 0 of 8 tokens, held by process 0:

    delivery 0   entry 0, rank 0: tokens 0 1 6 7   stays on process 0
    delivery 1   entry 0, rank 1: tokens 2 3 4 5   from process 0 to process 1
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dcpack._checks import BoolArray, Int64Array, as_lengths, check_choice, check_int, check_kinds, list_offenders
from dcpack.errors import ArgumentError
from dcpack.exchange.table import SampleTable
from dcpack.plans import Plan
from dcpack.sharding import ShardRanges, get_sharding

__all__ = ["ALIGNMENT", "ROUTINGS", "Deliveries", "Routes", "build_routes", "deliveries_of"]

ALIGNMENT = 16
"""Segments start at multiples of this many bytes."""

ROUTINGS = ("sliced", "whole")
"""``"sliced"``: a rank receives only the tokens it computes; ``"whole"``: whole sequences, sliced after arrival."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Deliveries:
    """The parts of sequences that plan ranks need; all arrays have one element a delivery.

    Ordered by bin, CP rank and entry, so that the deliveries of one rank's bin are consecutive.

    Attributes:
        entry: int64[d], entry of the plan.
        bin: int64[d], its bin.
        rank: int64[d], the plan rank that needs it.
        cp_rank: int64[d], its number inside the bin's CP group.
        ranges: the tokens it holds, padding included, relative to the start of the entry.
        real: the same without padding.
        bin_starts: int64[num_bins], first delivery of each bin.
        bin_sizes: int64[num_bins], entries of each bin.
    """

    entry: Int64Array
    bin: Int64Array
    rank: Int64Array
    cp_rank: Int64Array
    ranges: ShardRanges
    real: ShardRanges
    bin_starts: Int64Array
    bin_sizes: Int64Array

    def of_bin(self, index: int, cp_rank: int) -> Int64Array:
        """Return int64[k]: the deliveries of bin `index` to its CP rank `cp_rank`, in the order of the entries."""
        size = int(self.bin_sizes[index])
        start = int(self.bin_starts[index]) + cp_rank * size
        return np.arange(start, start + size)

    @cached_property
    def num_tokens(self) -> Int64Array:
        """int64[d]: real tokens of each delivery."""
        return self.real.counts().sum(axis=0)


def deliveries_of(plan: Plan, sharding: str) -> Deliveries:
    """Return all deliveries of `plan` under the sharding method named `sharding`.

    Raises:
        ArgumentError: padded lengths that the sharding cannot divide; a padding rule for these CP sizes prevents it.
    """
    method = get_sharding(sharding)
    sizes = np.diff(plan.offsets)
    cp = plan.cp_size
    block = np.repeat(np.arange(plan.num_bins), cp)  # one element a (bin, CP rank)
    block_rank = np.arange(block.size) - np.repeat(np.cumsum(cp) - cp, cp)
    counts = sizes[block]
    of_block = np.repeat(np.arange(block.size), counts)
    within = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    bins, cp_rank = block[of_block], block_rank[of_block]
    entry = plan.offsets[bins] + within
    row = plan.bin_padded_tokens
    starts = np.cumsum(plan.entry_padded_lengths) - plan.entry_padded_lengths
    starts = starts - (np.cumsum(row) - row)[plan.entry_bin]
    _check_divides(plan, sharding)
    ranges = method.ranges(starts[entry], plan.entry_padded_lengths[entry], row[bins], cp[bins], cp_rank)
    return Deliveries(
        entry=entry,
        bin=bins,
        rank=plan.first_rank[bins] + cp_rank,
        cp_rank=cp_rank,
        ranges=ranges,
        real=ranges.clip(plan.entry_lengths[entry]),
        bin_starts=np.cumsum(cp * sizes) - cp * sizes,
        bin_sizes=sizes,
    )


def _check_divides(plan: Plan, sharding: str) -> None:
    method = get_sharding(sharding)
    divisor = method.divisor(plan.cp_size)
    if method.divides_rows:
        bad = np.flatnonzero(plan.bin_padded_tokens % divisor).tolist()
        listed = [f"bin {b} of {plan.bin_padded_tokens[b]} tokens by {divisor[b]}" for b in bad]
    else:
        needed = divisor[plan.entry_bin]
        bad = np.flatnonzero(plan.entry_padded_lengths % needed).tolist()
        listed = [
            f"sequence {plan.sequence_ids[e]} padded to {plan.entry_padded_lengths[e]} by {needed[e]}" for e in bad
        ]
    if bad:
        raise ArgumentError(
            f"sharding {sharding!r} cannot divide evenly (plan with a PaddingRule): {list_offenders(listed)}"
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Routes:
    """The messages of one exchange.

    Attributes:
        deliveries: what the plan ranks need.
        whole: whether deliveries bring whole entries rather than slices.
        delivery: int64[s], the delivery of each segment.
        field: int64[s], index of its field in ``SampleTable.field_names``.
        num_bytes: int64[s], without alignment.
        source: int64[s], process that sends it.
        destination: int64[s], process that receives it.
        start: int64[s], first byte in the message from `source` to `destination`.
        num_processes: processes of the group.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import build_routes, gather_samples
        >>> gathered = dcpack.run_ranks(1, lambda c: gather_samples(c, [{"input_ids": [1, 2, 3]}]))[0]
        >>> plan = dcpack.plan(gathered.table.lengths, num_ranks=1, capacity=4)
        >>> routes = build_routes(plan, gathered.table, num_processes=1)
        >>> routes.send_counts(0).tolist(), routes.bytes_moved, routes.delivery.size       # two fields, which stay
        ([0], 0, 2)
    """

    deliveries: Deliveries
    whole: bool
    delivery: Int64Array
    field: Int64Array
    num_bytes: Int64Array
    source: Int64Array
    destination: Int64Array
    start: Int64Array
    num_processes: int

    @cached_property
    def _aligned(self) -> Int64Array:
        return -(-self.num_bytes // ALIGNMENT) * ALIGNMENT

    def send_counts(self, process: int) -> Int64Array:
        """Return int64[num_processes]: bytes that `process` sends to each; nothing to itself."""
        process = check_int("process", process, minimum=0, maximum=self.num_processes - 1)
        mine = (self.source == process) & (self.destination != process)
        return self._sizes(self.destination[mine], self._aligned[mine])

    def receive_counts(self, process: int) -> Int64Array:
        """Return int64[num_processes]: bytes that `process` receives from each."""
        process = check_int("process", process, minimum=0, maximum=self.num_processes - 1)
        mine = (self.destination == process) & (self.source != process)
        return self._sizes(self.source[mine], self._aligned[mine])

    def _sizes(self, peers: Int64Array, sizes: Int64Array) -> Int64Array:
        return np.bincount(peers, weights=sizes, minlength=self.num_processes).astype(np.int64)

    @property
    def bytes_moved(self) -> int:
        """Bytes that leave their process, over all messages, alignment included."""
        return int(self._aligned[self.source != self.destination].sum())


def build_routes(
    plan: Plan,
    table: SampleTable,
    *,
    num_processes: int,
    process_of_rank: Any = None,
    node_of_process: Any = None,
    sharding: str = "zigzag",
    routing: str = "sliced",
) -> Routes:
    """Return the routes of one step.

    Each delivery comes from the nearest holder of its sample: the process itself, then one on the same node, then any;
    among equally near ones the deliveries are dealt in turn. A field with rows of its own goes with the first piece of
    a sequence that was cut, a scalar with every piece, each once to every process.

    Args:
        plan: the plan; sequence i is sample i of the table.
        table: what the samples are and who holds them.
        num_processes: processes of the group.
        process_of_rank: int64[num_ranks], group-local process of each plan rank; None is the identity.
        node_of_process: int64[num_processes]; None puts all on one node.
        sharding: the CP slicing, one of ``dcpack.sharding.SHARDINGS``.
        routing: one of `ROUTINGS`.

    Returns:
        The same routes on every process.

    Raises:
        ArgumentError: the plan is for other samples or ranks, or the sharding cannot divide it.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import gather_samples
        >>> def step(communicator):
        ...     samples = [{"input_ids": [5, 6]}, {"input_ids": [7, 8]}] if communicator.rank == 0 else []
        ...     table = gather_samples(communicator, samples).table
        ...     return build_routes(dcpack.plan(table.lengths, num_ranks=2, capacity=2), table, num_processes=2)
        >>> routes = dcpack.run_ranks(2, step)[0]
        >>> routes.source.tolist(), routes.destination.tolist()            # ids and labels of a sample go to 1
        ([0, 0, 0, 0], [0, 0, 1, 1])
    """
    check_kinds(plan=(plan, Plan), table=(table, SampleTable))
    check_choice("routing", routing, ROUTINGS)
    num_processes = check_int("num_processes", num_processes, minimum=1, maximum=2**24)
    if plan.num_ranks == 0:
        raise ArgumentError("a plan without ranks cannot be carried out; make it with dcpack.plan")
    if not np.array_equal(plan.lengths, table.lengths):
        raise ArgumentError(
            f"the plan is for other samples: {plan.num_sequences} sequences of {plan.lengths.sum()} tokens, "
            f"{table.num_samples} samples of {table.lengths.sum()}"
        )
    processes = _process_numbers("process_of_rank", process_of_rank, plan.num_ranks, num_processes)
    deliveries = deliveries_of(plan, sharding)
    destination = processes[deliveries.rank]
    source = _nearest_holders(plan, table, deliveries, destination, node_of_process, num_processes)
    first = _first_of_process(deliveries.entry, destination, num_processes)
    whole = routing == "whole"
    segments = _segments(plan, table, deliveries, first, whole)
    delivery, field, num_bytes = segments
    start = _message_starts(source[delivery], destination[delivery], num_bytes, num_processes)
    return Routes(
        deliveries=deliveries,
        whole=whole,
        delivery=delivery,
        field=field,
        num_bytes=num_bytes,
        source=source[delivery],
        destination=destination[delivery],
        start=start,
        num_processes=num_processes,
    )


def _process_numbers(name: str, values: Any, count: int, num_processes: int) -> Int64Array:
    numbers = np.arange(count) if values is None else as_lengths(name, values)
    if numbers.size != count or numbers.max(initial=0) >= num_processes:
        raise ArgumentError(
            f"{name} must hold {count} numbers below {num_processes}, got {numbers.size} up to {numbers.max(initial=0)}"
        )
    return numbers


def _nearest_holders(
    plan: Plan,
    table: SampleTable,
    deliveries: Deliveries,
    destination: Int64Array,
    node_of_process: Any,
    num_processes: int,
) -> Int64Array:
    """Return the process that sends each delivery."""
    if node_of_process is None:
        nodes = np.zeros(num_processes, np.int64)
    else:
        nodes = as_lengths("node_of_process", node_of_process)
        if nodes.size != num_processes:
            raise ArgumentError(f"node_of_process must have {num_processes} elements, got {nodes.size}")
    sample = plan.sequence_ids[deliveries.entry]
    if sample.size == 0:
        return sample
    first, last = table.holder_offsets[sample], table.holder_offsets[sample + 1]
    counts = last - first
    starts = np.cumsum(counts) - counts
    of_delivery = np.repeat(np.arange(sample.size), counts)
    holder = table.holders[first[of_delivery] + np.arange(int(counts.sum())) - starts[of_delivery]]
    target = destination[of_delivery]
    distance = np.where(holder == target, 0, np.where(nodes[holder] == nodes[target], 1, 2))
    is_near = distance == np.minimum.reduceat(distance, starts)[of_delivery]
    turn = _turns(holder, is_near, starts) % np.add.reduceat(is_near.astype(np.int64), starts)
    upto = np.cumsum(is_near)
    number = upto - 1 - (upto[starts] - is_near[starts])[of_delivery]  # of each near holder in its delivery
    return holder[is_near & (number == turn[of_delivery])]


def _turns(holder: Int64Array, is_near: BoolArray, starts: Int64Array) -> Int64Array:
    """Return for each delivery how many before it could choose among the same near holders.

    Sets of holders are told apart by a sum of hashes; a collision would only make the turns less even.
    """
    mixed = (holder.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    sets = np.add.reduceat(np.where(is_near, mixed, np.uint64(0)), starts)
    _, number, counts = np.unique(sets, return_inverse=True, return_counts=True)
    order = np.argsort(number, kind="stable")
    turns = np.empty(sets.size, np.int64)
    turns[order] = np.arange(sets.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return turns


def _first_of_process(entry: Int64Array, destination: Int64Array, num_processes: int) -> BoolArray:
    """Tell which deliveries are the first of their entry to their process."""
    first = np.zeros(entry.size, np.bool_)
    first[np.unique(entry * num_processes + destination, return_index=True)[1]] = True
    return first


def _segments(
    plan: Plan, table: SampleTable, deliveries: Deliveries, first: BoolArray, whole: bool
) -> tuple[Int64Array, Int64Array, Int64Array]:
    entry = deliveries.entry
    sample = plan.sequence_ids[entry]
    tokens = plan.entry_lengths[entry] if whole else deliveries.num_tokens
    row_bytes = np.array([kind.row_bytes for kind in table.kinds] + [0], np.int64)
    per_token = np.array([kind.per_token for kind in table.kinds] + [False], np.bool_)
    scalar = np.array([kind.is_scalar for kind in table.kinds] + [False], np.bool_)
    kind = table.kind_of[sample]  # [d, f]
    is_token_field = per_token[kind]
    rows = np.where(is_token_field, tokens[:, np.newaxis], table.rows[sample])
    goes_along = first[:, np.newaxis] & (scalar[kind] | (plan.starts[entry] == 0)[:, np.newaxis])
    sent = np.where(is_token_field, first[:, np.newaxis] | (not whole), goes_along) & (kind >= 0)
    delivery, field = np.nonzero(sent)
    return delivery, field, (rows * row_bytes[kind])[delivery, field]


def _message_starts(
    source: Int64Array, destination: Int64Array, num_bytes: Int64Array, num_processes: int
) -> Int64Array:
    """Return where each segment starts in its message: a running sum of aligned sizes that restarts per message."""
    aligned = -(-num_bytes // ALIGNMENT) * ALIGNMENT
    message = source * num_processes + destination
    order = np.argsort(message, kind="stable")
    running = np.cumsum(aligned[order]) - aligned[order]
    is_new = np.concatenate([[True], np.diff(message[order]) != 0]) if order.size else np.zeros(0, np.bool_)
    base = np.maximum.accumulate(np.where(is_new, running, 0)) if order.size else running
    start = np.empty_like(running)
    start[order] = running - base
    return start
