"""Give free ranks of a micro-batch work without splitting sequences more than need be."""

from __future__ import annotations

import heapq

import numpy as np

from dcpack.scheduling.base import Group, MicroBatch
from dcpack.scheduling.timing import GroupTimes

__all__ = ["use_free_ranks"]


def use_free_ranks(times: GroupTimes, groups: MicroBatch, num_ranks: int) -> MicroBatch:
    """Return groups, none slower than the slowest of `groups`, on as many of `num_ranks` as is cheap.

    Groups that hold several items are split first, as that widens none. Then those with the fewest tokens are widened,
    each to twice its size at most before the next one is.

    Args:
        times: times of the problem.
        groups: groups with items, within the capacity. They are not changed.
        num_ranks: ranks to use.
    """
    free = num_ranks - sum(group.cp_size for group in groups)
    if free <= 0:
        return groups
    return _widen_lightest(times, _split_fullest(times, groups, free), num_ranks)


def _split_fullest(times: GroupTimes, groups: MicroBatch, free: int) -> MicroBatch:
    """Move every second item of the slowest groups of the smallest size to new groups."""
    base = int(times.sizes[0])
    result = [Group(group.cp_size, list(group.items)) for group in groups]
    taken = _taken(times, result)
    waiting = [(-float(taken[g]), g) for g, group in enumerate(result) if group.cp_size == base]
    heapq.heapify(waiting)
    while free >= base and waiting:
        _, g = heapq.heappop(waiting)
        if len(result[g].items) == 1:
            continue
        halves = [Group(base, result[g].items[start::2]) for start in (0, 1)]
        result[g] = halves[0]
        result.append(halves[1])
        free -= base
        for at, time in zip((g, len(result) - 1), _taken(times, halves).tolist(), strict=True):
            heapq.heappush(waiting, (-time, at))
    return result


def _widen_lightest(times: GroupTimes, groups: MicroBatch, num_ranks: int) -> MicroBatch:
    index, counts, items = times.flat(groups)
    taken, tokens = times.of_groups(index, counts, items)
    slowest = float(taken.max())
    order = np.argsort(tokens, kind="stable").tolist()
    free = num_ranks - int(times.sizes[index].sum())
    sizes = times.sizes.tolist()
    while free:
        twice = np.searchsorted(times.sizes, 2 * times.sizes[index], side="right") - 1
        twice = np.maximum(twice, np.minimum(index + 1, times.sizes.size - 1))
        later, needed = times.of_groups(twice, counts, items)
        fits = ((later <= slowest) & (needed <= times.problem.limits[twice]) & (twice > index)).tolist()
        before = free
        for g in order:
            extra = sizes[twice[g]] - sizes[index[g]]
            if fits[g] and extra <= free:
                index[g] = twice[g]
                free -= extra
        if free == before:
            break
    if free:
        _widen_one(times, groups, index, order, slowest, free)
    return [Group(sizes[k], group.items) for k, group in zip(index.tolist(), groups, strict=True)]


def _widen_one(
    times: GroupTimes, groups: MicroBatch, index: np.ndarray, order: list[int], slowest: float, free: int
) -> None:
    """Widen, in place, the lightest group that can take all `free` ranks."""
    for g in order:
        wanted = int(np.searchsorted(times.sizes, times.sizes[index[g]] + free))
        if wanted == times.sizes.size or times.sizes[wanted] != times.sizes[index[g]] + free:
            continue
        wider = Group(int(times.sizes[wanted]), groups[g].items)
        if times.slowest([wider]) <= slowest and times.fit([[wider]]):
            index[g] = wanted
            return


def _taken(times: GroupTimes, groups: MicroBatch) -> np.ndarray:
    return times.of_groups(*times.flat(groups))[0]
