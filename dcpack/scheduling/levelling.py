"""From items to slots: bins within their limits, so that the cells that wait for each other cost alike.

Two ways to fill the bins are tried, by cost (`dcpack.scheduling.least_loaded`) and by tokens (the packer's bins, the
dearest ones split until every slot has one). Then bins of similar cost are put together in a meeting, dealt evenly to
its cells, and single items exchanged (`dcpack.scheduling.exchanges`). The better result stays.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np

from dcpack._checks import Int64Array
from dcpack.balancing import get_balancer
from dcpack.packing import get_packer
from dcpack.packing.base import Bins
from dcpack.scheduling.exchanges import exchange_items
from dcpack.scheduling.least_loaded import cell_targets, make_room, place_least_loaded
from dcpack.scheduling.workload import Slots, Workload

__all__ = ["ROUNDS", "fill_slots", "makespan", "pack_items"]

ROUNDS = 100
"""Tables of exchanges that the search looks at."""

# It stops this close, relative, to an even share.
_CLOSE_ENOUGH = 2e-4
# Items up to which both ways to fill the bins are followed to the end, and level capacities are tried.
_FEW_ITEMS = 4096
# Without a bin for more items than this, bins by cost are given up: tokens are too tight for them.
_MOST_HOMELESS = 32


def pack_items(work: Workload, capacity: int | None = None) -> Bins:
    """Return the items in few bins, by tokens and (in column 1, where there is one) counts.

    Args:
        work: the items; no limits beside tokens and the count.
        capacity: tokens of a bin; longer items are alone. None is the limit of the workload.

    Example:
        >>> work = Workload(costs=np.array([1, 1, 1]), amounts=np.array([[4], [3], [2]]), limits=np.array([6]))
        >>> pack_items(work).lists()
        [[0, 2], [1]]
    """
    tokens = work.amounts[:, 0]
    level = int(work.limits[0]) if capacity is None else capacity
    most = int(work.limits[1]) if work.limits.size > 1 else None
    return get_packer("best_fit_decreasing")(tokens, level, max_sequences=most, alone=tokens > level)


def makespan(loads: Int64Array) -> int:
    """Return the cost of a step: the sum over meetings of the dearest cell.

    Example:
        >>> makespan(np.array([[3, 5], [2, 1]]))
        7
    """
    return sum(loads.max(axis=1).tolist())


def fill_slots(work: Workload, slots: Slots, packed: Bins | None) -> Int64Array | None:
    """Return int64[n], the slot of each item, levelled; every slot has one where there are items enough.

    Args:
        work: the items.
        slots: the slots.
        packed: the items in at most as many bins as there are slots, or None where no such bins are known.

    Returns:
        The slots, or None where items find no room by cost and there is no packing to fall back on.

    Example:
        >>> work = Workload(costs=np.array([5, 4, 3, 2]), amounts=np.array([[5], [4], [3], [2]]), limits=np.array([8]))
        >>> slots = Slots(num_microbatches=1, num_ranks=2, num_rows=1, sync="microbatch")
        >>> fill_slots(work, slots, pack_items(work))
        array([0, 1, 1, 0])
    """
    by_cost = _fill_by_cost(work, slots)
    found = [] if by_cost is None else [by_cost]
    is_small = slots.num_slots <= work.num_items <= _FEW_ITEMS
    if packed is not None and (by_cost is None or is_small):
        found.append(_fill_by_tokens(work, slots, packed))
    levelled = [_level(work, slots, bin_of) for bin_of in found]
    return min(levelled, key=lambda slot_of: makespan(slots.cell_loads(work.costs, slot_of)), default=None)


def _fill_by_cost(work: Workload, slots: Slots) -> Int64Array | None:
    """Return int64[n], the bin of each item, by cost; None where some items find no room."""
    best = None
    targets = cell_targets(work, slots)
    tried = [targets]
    if work.num_items <= _FEW_ITEMS and targets.min() != targets.max():
        tried.append(np.full_like(targets, int(targets.sum()) // targets.size))
    for target in tried:
        bin_of = place_least_loaded(work, slots, target, most_homeless=_MOST_HOMELESS)
        if bin_of is None or not make_room(work, bin_of, slots.num_slots):
            continue
        slot_of = _slots_of(work, slots, bin_of, _cells(work, slots, bin_of))
        cost = makespan(slots.cell_loads(work.costs, slot_of))
        if best is None or cost < best[0]:
            best = cost, bin_of
    return None if best is None else best[1]


def _fill_by_tokens(work: Workload, slots: Slots, packed: Bins) -> Int64Array:
    """Return int64[n], the bin of each item: bins as evenly full as so many bins allow, dear ones split up."""
    if work.num_items <= _FEW_ITEMS:
        packed = _pack_evenly(work, slots.num_slots, packed)
    bins = packed.lists()
    costs = work.costs.tolist()
    heap = [(-sum(costs[i] for i in items), number) for number, items in enumerate(bins) if len(items) > 1]
    heapify(heap)
    while len(bins) < slots.num_slots and heap:
        _, number = heappop(heap)
        halves: list[list[int]] = [[], []]
        sums = [0, 0]
        for item in sorted(bins[number], key=lambda i: -costs[i]):
            lighter = int(sums[1] < sums[0]) if halves[0] else 0
            lighter = 1 if halves[0] and not halves[1] else lighter
            halves[lighter].append(item)
            sums[lighter] += costs[item]
        bins[number] = halves[0]
        bins.append(halves[1])
        for new, half, total in ((number, halves[0], sums[0]), (len(bins) - 1, halves[1], sums[1])):
            if len(half) > 1:
                heappush(heap, (-total, new))
    bin_of = np.empty(work.num_items, np.int64)
    for number, items in enumerate(bins):
        bin_of[items] = number
    return bin_of


def _pack_evenly(work: Workload, num_bins: int, packed: Bins) -> Bins:
    """Return at most `num_bins` bins packed to about the least capacity that allows it, by bisection."""
    high = int(work.limits[0])
    low = int(work.amounts[:, 0].sum()) // num_bins
    for _ in range(4):
        if high - low <= high // 128:
            break
        level = (low + high) // 2
        tighter = pack_items(work, level)
        if tighter.num_bins <= num_bins:
            packed, high = tighter, level
        else:
            low = level
    return packed


def _level(work: Workload, slots: Slots, bin_of: Int64Array) -> Int64Array:
    """Return the slot of each item after dealing the bins to cells and exchanging items."""
    cell_of_bin = _cells(work, slots, bin_of)
    rounds = ROUNDS if work.num_items <= _FEW_ITEMS else ROUNDS // 2
    bin_of = exchange_items(work, slots, bin_of, cell_of_bin, rounds=rounds, close_enough=_CLOSE_ENOUGH)
    return _slots_of(work, slots, bin_of, cell_of_bin)


def _loads(costs: Int64Array, part_of: Int64Array, num_parts: int) -> Int64Array:
    loads = np.zeros(num_parts, np.int64)
    np.add.at(loads, part_of, costs)
    return loads


def _cells(work: Workload, slots: Slots, bin_of: Int64Array) -> Int64Array:
    """Return int64[b], the cell of each bin: by decreasing cost, each meeting takes the next ones, dealt evenly."""
    loads = _loads(work.costs, bin_of, slots.num_slots)
    order = np.argsort(-loads, kind="stable")
    cell_of_bin = np.empty(slots.num_slots, np.int64)
    size = slots.num_ranks * slots.rows_per_cell
    for meeting in range(slots.num_meetings):
        bins = order[meeting * size : (meeting + 1) * size]
        if slots.rows_per_cell == 1:
            ranks = np.arange(slots.num_ranks)
        else:
            ranks = get_balancer("karmarkar_karp")(loads[bins], slots.num_ranks, equal_size=True)
        cell_of_bin[bins] = meeting * slots.num_ranks + ranks
    return cell_of_bin


def _slots_of(work: Workload, slots: Slots, bin_of: Int64Array, cell_of_bin: Int64Array) -> Int64Array:
    """Return the slot of each item: cells of similar cost meet, the bins of a cell by decreasing cost."""
    bin_loads = _loads(work.costs, bin_of, slots.num_slots)
    cell_loads = _loads(bin_loads, cell_of_bin, slots.num_cells)
    place_of_cell = np.empty(slots.num_cells, np.int64)
    place_of_cell[np.argsort(-cell_loads, kind="stable")] = np.arange(slots.num_cells)
    place = place_of_cell[cell_of_bin]
    order = np.lexsort((-bin_loads, place))
    slot_of_bin = np.empty(slots.num_slots, np.int64)
    # In cell order bin k of a cell is k-th: row k of its micro-batch, or of the step.
    meeting, rank = np.divmod(place[order], slots.num_ranks)
    # Every other meeting the other way round, so that no rank always has the most.
    rank = np.where(meeting % 2, slots.num_ranks - 1 - rank, rank)
    row = np.arange(slots.num_slots) % slots.rows_per_cell
    slot_of_bin[order] = (meeting * slots.rows_per_cell + row) * slots.num_ranks + rank
    return slot_of_bin[bin_of]
