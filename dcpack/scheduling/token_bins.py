"""The fewest ranks by memory: items in bins of the smallest CP size that holds them, best fit by tokens."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from dcpack._checks import Int64Array
from dcpack.scheduling.base import Group, MicroBatch, Spares
from dcpack.scheduling.timing import GroupTimes

__all__ = ["pack_tokens", "slice_ranks"]


def pack_tokens(times: GroupTimes, order: Int64Array | None = None) -> MicroBatch:
    """Return groups of the smallest sizes, filled by best fit decreasing.

    An item that needs more than the smallest legal size opens a group of its own; the others go where the least room
    is left behind.

    Args:
        times: times of the problem.
        order: int64[n], the items to pack, longest first; None is all.
    """
    problem = times.problem
    order = problem.longest_first if order is None else order
    most = order.size if problem.max_sequences is None else problem.max_sequences
    groups: list[Group] = []
    rooms: list[tuple[int, int]] = []  # (free tokens, group), ascending
    needed = {0: times.padded(times.smallest[order], order).tolist()}
    smallest = times.smallest[order].tolist()
    index_of_group: list[int] = []
    budgets = Spares(problem, order)
    for at, (item, k) in enumerate(zip(order.tolist(), smallest, strict=True)):
        place = bisect.bisect_left(rooms, (needed[0][at], -1)) if k == 0 else len(rooms)
        while place < len(rooms):
            room, g = rooms[place]
            kind = index_of_group[g]
            if kind not in needed:
                needed[kind] = times.padded(kind + 0 * order, order).tolist()
            if needed[kind][at] <= room and len(groups[g].items) < most and budgets.affords(g, at):
                budgets.take(g, at)
                del rooms[place]
                groups[g].items.append(item)
                bisect.insort(rooms, (room - needed[kind][at], g))
                break
            place += 1
        else:
            groups.append(Group(int(times.sizes[k]), [item]))
            budgets.take(len(groups) - 1, at)
            index_of_group.append(k)
            room = 0 if problem.oversized[item] else int(problem.limits[k]) - needed[0][at]
            bisect.insort(rooms, (room, len(groups) - 1))
    return groups


def slice_ranks(groups: Sequence[Group], width: int) -> list[MicroBatch]:
    """Deal groups, in the order given, to micro-batches of at most `width` ranks; what does not fit waits."""
    waiting: dict[int, list[int]] = {}  # places of the groups of each size, last first
    for at in range(len(groups) - 1, -1, -1):
        waiting.setdefault(groups[at].cp_size, []).append(at)
    slices: list[MicroBatch] = []
    while waiting:
        free, taken = width, []
        # Ranks only become fewer, so of every size that still fits none was passed over.
        while fitting := [size for size in waiting if size <= free]:
            size = min(fitting, key=lambda size: waiting[size][-1])
            taken.append(groups[waiting[size].pop()])
            free -= size
            if not waiting[size]:
                del waiting[size]
        slices.append(taken)
    return slices
