"""Longest processing time first, under limits: the dearest item to the cell that lacks most, into its tightest bin.

Bin b belongs to cell ``b // rows_per_cell``. Cells of one meeting have one target, but meetings need not be equal:
where the dearest item costs more than an even share, the meeting that holds it takes that long anyway, so it is given
as much other work as it can hold and the others share the rest (`cell_targets`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heapify, heappop, heappush

import numpy as np

from dcpack._checks import Int64Array
from dcpack.scheduling.workload import Slots, Workload

__all__ = ["cell_targets", "dearest_first", "make_room", "place_least_loaded"]

# Bins of whole sequences are rarely fuller than this, so no meeting is planned fuller.
_FILL = 0.98
# How many items are tried for one without a bin: where the shortest find no place, longer ones hardly do.
_MOVERS = 8


def dearest_first(work: Workload) -> Int64Array:
    """Return the items by decreasing cost, of equal cost the longer one first, then in the order given.

    Example:
        >>> dearest_first(Workload(costs=np.array([1, 5, 5]), amounts=np.array([[1], [2], [3]]), limits=np.array([9])))
        array([2, 1, 0])
    """
    return np.lexsort((-work.amounts[:, 0], -work.costs))


def cell_targets(work: Workload, slots: Slots) -> Int64Array:
    """Return the cost that each cell should reach, the same for all cells of a meeting, meetings descending.

    As long as the dearest item left costs more than an even share of what is left, a meeting is opened for it and given
    the dearest items that its ranks can hold in that time and in their tokens. The other meetings share the rest.

    Args:
        work: the items.
        slots: the slots.

    Returns:
        int64[num_cells].

    Example:
        >>> work = Workload(costs=np.array([9, 2, 2, 2]), amounts=np.array([[9], [2], [2], [2]]), limits=np.array([9]))
        >>> cell_targets(work, Slots(num_microbatches=2, num_ranks=2, num_rows=1, sync="microbatch")).tolist()
        [7, 7, 0, 0]
    """
    order = dearest_first(work)
    cost = np.concatenate([[0], np.cumsum(work.costs[order])])
    tokens = np.concatenate([[0], np.cumsum(work.amounts[order, 0])])
    bins_of_meeting = slots.num_ranks * slots.rows_per_cell
    room = min(int(bins_of_meeting * int(work.limits[0]) * _FILL), int(tokens[-1]))
    total = int(cost[-1])
    at, targets = 0, []
    for left in range(slots.num_meetings, 0, -1):
        even = (total - int(cost[at])) // (slots.num_ranks * left)
        dearest = int(cost[at + 1] - cost[at]) if at < work.num_items else 0
        if dearest <= even or left == 1:
            targets += [even] * left
            break
        in_time = np.searchsorted(cost, min(int(cost[at]) + slots.num_ranks * dearest, total), side="right") - 1
        in_room = np.searchsorted(tokens, tokens[at] + room, side="right") - 1
        end = max(int(min(in_time, in_room)), min(at + bins_of_meeting, work.num_items))
        targets.append(int(cost[end] - cost[at]) // slots.num_ranks)
        at = end
    return np.repeat(np.array(targets, np.int64), slots.num_ranks)


def place_least_loaded(work: Workload, slots: Slots, targets: Int64Array, *, most_homeless: int) -> Int64Array | None:
    """Put each item, dearest first, into the cell that is farthest below its target and has room.

    Inside the cell the bin is taken that the item fills best. As soon as there are only as many items left as empty
    bins, each opens one, so that no bin stays empty where items are enough. Cells without room for the present item are
    set aside, by the room they have, until an item comes that may fit: O(n log n) where cheaper items are shorter.

    Args:
        work: the items.
        slots: the slots.
        targets: int64[num_cells], cost that each cell should reach.
        most_homeless: items without room at most.

    Returns:
        int64[n], the bin of each item, -1 where no bin has room; None where more items than `most_homeless` have none.

    Example:
        >>> work = Workload(costs=np.array([5, 4, 3, 2]), amounts=np.array([[5], [4], [3], [2]]), limits=np.array([8]))
        >>> slots = Slots(num_microbatches=1, num_ranks=2, num_rows=1, sync="microbatch")
        >>> place_least_loaded(work, slots, np.array([7, 7]), most_homeless=0)
        array([0, 1, 1, 0])
    """
    per_cell = slots.rows_per_cell
    rooms = [[(int(work.limits[0]), cell * per_cell + k) for k in range(per_cell)] for cell in range(slots.num_cells)]
    has_others = work.limits.size > 1
    others = [work.limits[1:].tolist() for _ in range(slots.num_slots)]
    is_empty = [True] * slots.num_slots
    waiting = [(-target, cell) for cell, target in enumerate(targets.tolist())]
    heapify(waiting)
    aside: list[tuple[int, int, int]] = []  # -most room, then as in `waiting`
    costs, tokens, further = work.costs.tolist(), work.amounts[:, 0].tolist(), work.amounts[:, 1:].tolist()
    bin_of = np.full(work.num_items, -1, np.int64)
    num_left, num_empty = work.num_items, slots.num_slots
    for item in dearest_first(work).tolist():
        must_open = num_left <= num_empty
        num_left -= 1
        while aside and -aside[0][0] >= tokens[item]:
            heappush(waiting, heappop(aside)[1:])
        passed_over = []
        while waiting:
            lack, cell = heappop(waiting)
            bins = rooms[cell]
            if bins[-1][0] < tokens[item]:
                heappush(aside, (-bins[-1][0], lack, cell))
                continue
            at = bisect_left(bins, (tokens[item], -1))
            if must_open or has_others:
                while at < len(bins) and not (
                    (is_empty[bins[at][1]] or not must_open)
                    and all(left >= taken for left, taken in zip(others[bins[at][1]], further[item], strict=True))
                ):
                    at += 1
            if at == len(bins):
                if not must_open:  # else the cell has no empty bin and its turn does not come again
                    passed_over.append((lack, cell))
                continue
            room, number = bins.pop(at)
            insort(bins, (room - tokens[item], number))
            if has_others:
                others[number] = [left - taken for left, taken in zip(others[number], further[item], strict=True)]
            num_empty -= is_empty[number]
            is_empty[number] = False
            bin_of[item] = number
            heappush(waiting, (lack + costs[item], cell))
            break
        else:
            most_homeless -= 1
            if most_homeless < 0:
                return None
        for entry in passed_over:
            heappush(waiting, entry)
    return bin_of


def make_room(work: Workload, bin_of: Int64Array, num_bins: int) -> bool:
    """Place the items that found no room, in place, by moving one other item out of the way for each.

    Of all items whose leaving makes enough room, and that some other bin can take, the shortest moves.

    Args:
        work: the items.
        bin_of: int64[n], the bin of each item, -1 for those without; changed where that succeeds.
        num_bins: number of bins.

    Returns:
        Whether every item has a bin now.

    Example:
        >>> work = Workload(costs=np.array([6, 3, 5, 2]), amounts=np.array([[6], [3], [5], [2]]), limits=np.array([8]))
        >>> bins = np.array([0, 1, -1, 0])
        >>> make_room(work, bins, 2), bins.tolist()
        (True, [0, 1, 1, 0])
    """
    used = np.zeros((num_bins, work.limits.size), np.int64)
    np.add.at(used, bin_of[bin_of >= 0], work.amounts[bin_of >= 0])
    homeless = np.flatnonzero(bin_of < 0)
    for item in homeless[np.argsort(-work.amounts[homeless, 0], kind="stable")].tolist():
        wanted = work.amounts[item]
        fitting = np.flatnonzero(np.all(used + wanted <= work.limits, axis=1))
        if fitting.size:
            target = int(fitting[np.argmax(used[fitting, 0])])
        else:
            move = _item_to_move(work, bin_of, used, wanted)
            if move is None:
                return False
            mover, refuge = move
            target = int(bin_of[mover])
            used[target] -= work.amounts[mover]
            used[refuge] += work.amounts[mover]
            bin_of[mover] = refuge
        bin_of[item] = target
        used[target] += wanted
    return True


def _item_to_move(work: Workload, bin_of: Int64Array, used: Int64Array, wanted: Int64Array) -> tuple[int, int] | None:
    """Return the shortest item that makes room for `wanted` by moving to another bin, and that bin."""
    placed = np.flatnonzero(bin_of >= 0)
    makes_room = np.all(used[bin_of[placed]] - work.amounts[placed] + wanted <= work.limits, axis=1)
    movable = placed[makes_room]
    for mover in movable[np.argsort(work.amounts[movable, 0], kind="stable")][:_MOVERS].tolist():
        fitting = np.all(used + work.amounts[mover] <= work.limits, axis=1)
        fitting[bin_of[mover]] = False
        if fitting.any():
            return mover, int(np.argmax(np.where(fitting, used[:, 0], -1)))
    return None
