"""Pack items into one micro-batch so that every rank is done by a target time.

The target decides the CP size of each item: the smallest that memory allows and that is fast enough. Items that need
more than the smallest legal size open groups, or share one that has time and room left. All others go, longest first,
to whichever group is done first. Then spare ranks widen the slowest groups (`level`).
"""

from __future__ import annotations

import bisect
import heapq

import numpy as np

from dcpack._checks import Int64Array
from dcpack.scheduling.base import MicroBatch, Spares
from dcpack.scheduling.size_table import SizeTable
from dcpack.scheduling.timing import GroupTimes, as_groups

__all__ = ["at_target", "best_target", "level"]

_FEW_ITEMS = 512
_TRIES_FEW, _TRIES_MANY = 5, 3
_NEAR = 1.005
_EASIER = 1.02
_LEVEL_ROUNDS = 9
_LOWEST_TARGET = 0.9  # of the lower bound


def best_target(
    times: GroupTimes, items: Int64Array, num_ranks: int, start: MicroBatch | None = None, *, aim: float = 0.0
) -> MicroBatch | None:
    """Return the fastest groups found for `items` on `num_ranks` ranks, or None where no target worked out.

    Args:
        times: times of the problem.
        items: int64[n], longest first.
        num_ranks: ranks to share; the groups may leave some of them free.
        start: groups of the same items to begin with, or None.
        aim: the target that is tried first, where it is above the lower bound.
    """
    packer = _TargetPacker(times, items, num_ranks)
    best: MicroBatch | None = None
    reached = score = np.inf
    if start is not None:
        best = level(times, start, num_ranks)
        reached = times.slowest(best)
        score = times.score(reached, best)
    missed, factor = 1.0, max(1.0, aim / packer.bound if packer.bound else 1.0)
    met = reached / packer.bound if packer.bound else 1.0
    tries = _TRIES_FEW if items.size <= _FEW_ITEMS and not aim else _TRIES_MANY
    for _ in range(tries):
        if met <= _NEAR * missed:
            break
        target = float(np.rint(factor * packer.bound))
        slowest = np.inf
        if (groups := packer.pack_level(target)) is not None:
            slowest = times.slowest(groups)
            if (found := times.score(slowest, groups)) < score:
                best, score = groups, found
            met = min(met, slowest / packer.bound if packer.bound else 1.0)
        if slowest > _NEAR * target:
            missed = max(missed, factor)
        factor = (missed + met) / 2 if met < np.inf else 1.5 * factor - 0.4
    if not aim and met < np.inf:  # nearly as fast, and it may need much less CP; with an aim that was weighed before
        groups = packer.pack_level(float(np.rint(_EASIER * met * packer.bound)))
        if groups is not None and times.score(times.slowest(groups), groups) < score:
            best = groups
    return best


def at_target(times: GroupTimes, items: Int64Array, num_ranks: int, factor: float) -> MicroBatch | None:
    """Return groups that aim at `factor` times the lower bound, or None where that did not work out."""
    packer = _TargetPacker(times, items, num_ranks)
    return packer.pack(factor * packer.bound)


def level(times: GroupTimes, groups: MicroBatch, num_ranks: int) -> MicroBatch:
    """Widen the slowest groups with the ranks that are free, by bisection over the time that all can reach."""
    index, counts, items = times.flat(groups)
    now, _ = times.of_groups(index, counts, items)
    if int(times.sizes[index].sum()) >= num_ranks:
        return groups
    fast, slow, best = 0.9 * float((now * times.sizes[index]).sum()) / num_ranks, float(now.max()), index
    table = SizeTable(times, index, now, counts, items, fast)
    for _ in range(_LEVEL_ROUNDS):
        target = (fast + slow) / 2
        wider = table.within(target)
        if np.all(wider >= 0) and int(times.sizes[wider].sum()) <= num_ranks:
            best, slow = wider, target
        else:
            fast = target
    return as_groups(times, best, [group.items for group in groups])


class _TargetPacker:
    """Packs the same items for one target after another."""

    def __init__(self, times: GroupTimes, items: Int64Array, num_ranks: int) -> None:
        self.times, self.items, self.num_ranks = times, items, num_ranks
        problem = times.problem
        self.oversized = problem.oversized[items].tolist()
        self.most = items.size if problem.max_sequences is None else problem.max_sequences
        self.sizes: list[int] = times.sizes.tolist()
        self.limits: list[int] = problem.limits.tolist()
        self.smallest = times.smallest[items]
        self.alone = times.alone(self.smallest, items)
        self.ids: list[int] = items.tolist()
        self.alone_at: list[float] = self.alone.tolist()
        self.work = self.alone * times.sizes[self.smallest]
        self.bound = max(float(self.work.sum()) / num_ranks, self._longest())
        ones = np.ones_like(items)
        self.table = SizeTable(times, self.smallest, self.alone, ones, items, self.bound * _LOWEST_TARGET)
        self._times_at: dict[int, list[float]] = {}
        self._padded_at: dict[int, list[int]] = {}

    def _longest(self) -> float:
        """Return the time of the item with the most work on the size that suits it best."""
        if self.items.size == 0:
            return 0.0
        top = int(np.argmax(self.work))
        sizes = np.arange(self.smallest[top], self.times.sizes.size)
        return float(self.times.alone(sizes, np.full(sizes.size, self.items[top])).min())

    def time_at(self, size_index: int) -> list[float]:
        """Time of every item alone at a size."""
        if size_index not in self._times_at:
            self._times_at[size_index] = self.times.alone(size_index + 0 * self.items, self.items).tolist()
        return self._times_at[size_index]

    def padded_at(self, size_index: int) -> list[int]:
        """Padded length of every item at a size."""
        if self.times.problem.padding is None:
            size_index = 0
        if size_index not in self._padded_at:
            self._padded_at[size_index] = self.times.padded(size_index + 0 * self.items, self.items).tolist()
        return self._padded_at[size_index]

    def pack_level(self, target: float) -> MicroBatch | None:
        """Return groups that aim at `target`, spare ranks given to the slowest, or None where that did not work out."""
        packed = self.pack(target)
        return None if packed is None else level(self.times, packed, self.num_ranks)

    def pack(self, target: float) -> MicroBatch | None:
        """Return groups that aim at `target`, or None where ranks or room run out."""
        sizes = self.table.within(target)
        if np.any(sizes < 0):
            return None
        table = _OpenGroups(self, target)
        wide = np.flatnonzero(sizes > 0)
        for at in wide[np.argsort(-self.work[wide], kind="stable")].tolist():
            if not table.place_wide(at, int(sizes[at])):
                return None
        if not table.place_narrow(np.flatnonzero(sizes == 0).tolist()):
            return None
        return as_groups(self.times, np.array(table.kinds, np.int64), table.members)


class _OpenGroups:
    """The groups of a micro-batch while items are placed."""

    def __init__(self, packer: _TargetPacker, target: float) -> None:
        self.packer = packer
        self.target = target
        self.free = packer.num_ranks
        self.kinds: list[int] = []  # index of the size of each group
        self.loads: list[float] = []
        self.rooms: list[int] = []
        self.members: list[list[int]] = []
        self.spares = Spares(packer.times.problem, packer.items)
        self.in_use: list[int] = []  # indices of sizes, ascending
        self.by_kind: dict[int, list[tuple[float, int]]] = {}  # (load, group) of each size in use, ascending

    def place_wide(self, at: int, kind: int) -> bool:
        """Place an item that needs size `kind`: in the fullest group that is still in time, else in a new one."""
        if not self.packer.oversized[at]:
            for other in self.in_use[bisect.bisect_left(self.in_use, kind) :]:
                time = self.packer.time_at(other)[at]
                if self.by_kind[other][0][0] + time <= self.target and self._join_in_time(at, other, time):
                    return True
        if self.packer.sizes[kind] <= self.free:
            self._open(at, kind)
            return True
        return not self.packer.oversized[at] and self._join_first_done(at)

    def _join_in_time(self, at: int, kind: int, time: float) -> bool:
        groups = self.by_kind[kind]
        place = bisect.bisect_right(groups, (self.target - time, len(self.kinds))) - 1
        while place >= 0:
            if self._has_room(groups[place][1], at):
                self._join(kind, place, at, time)
                return True
            place -= 1
        return False

    def _join_first_done(self, at: int) -> bool:
        """Without ranks for a new group: join the group that is done first with it, late as that may be."""
        best: tuple[float, int, int] | None = None
        for kind in self.in_use[bisect.bisect_left(self.in_use, int(self.packer.smallest[at])) :]:
            groups = self.by_kind[kind]
            place = next((p for p, (_, g) in enumerate(groups) if self._has_room(g, at)), None)
            if place is not None:
                done = groups[place][0] + self.packer.time_at(kind)[at]
                best = min(best or (np.inf, 0, 0), (done, kind, place))
        if best is None:
            return False
        _, kind, place = best
        self._join(kind, place, at, self.packer.time_at(kind)[at])
        return True

    def _has_room(self, group: int, at: int) -> bool:
        fits = self.packer.padded_at(self.kinds[group])[at] <= self.rooms[group]
        return fits and len(self.members[group]) < self.packer.most and self.spares.affords(group, at)

    def _open(self, at: int, kind: int) -> None:
        packer = self.packer
        self.free -= packer.sizes[kind]
        group = len(self.kinds)
        self.kinds.append(kind)
        self.loads.append(packer.time_at(kind)[at])
        used = packer.padded_at(kind)[at]
        self.rooms.append(0 if packer.oversized[at] else packer.limits[kind] - used)
        self.members.append([packer.ids[at]])
        self.spares.take(group, at)
        if kind not in self.by_kind:
            self.by_kind[kind] = []
            bisect.insort(self.in_use, kind)
        bisect.insort(self.by_kind[kind], (self.loads[group], group))

    def _join(self, kind: int, place: int, at: int, time: float) -> None:
        _, group = self.by_kind[kind].pop(place)
        self.loads[group] += time
        self.rooms[group] -= self.packer.padded_at(kind)[at]
        self.members[group].append(self.packer.ids[at])
        self.spares.take(group, at)
        bisect.insort(self.by_kind[kind], (self.loads[group], group))

    def place_narrow(self, order: list[int]) -> bool:
        """Place the items of the smallest size, longest first, each in the group that is done first and has room."""
        packer = self.packer
        base = packer.sizes[0]
        new = self.free // base
        self.kinds += [0] * new
        self.loads += [0.0] * new
        self.rooms += [packer.limits[0]] * new
        self.members += [[] for _ in range(new)]
        if not order:
            return True
        of_kind = {kind: (base / packer.sizes[kind], packer.padded_at(kind)) for kind in {0, *self.kinds}}
        share, needed = zip(*(of_kind[kind] for kind in self.kinds), strict=True)
        shortest, alone, ids = packer.padded_at(0), packer.alone_at, packer.ids
        rooms, members, most = self.rooms, self.members, packer.most
        limited = self.spares.is_limited
        waiting = [(load, group) for group, load in enumerate(self.loads) if len(members[group]) < most]
        heapq.heapify(waiting)
        full: list[tuple[int, float, int]] = []  # (-room, load, group): too full for the items so far
        passed: list[tuple[float, int]] = []  # have no budget for the present item
        for at in order:
            while full and -full[0][0] >= shortest[at]:
                _, load, group = heapq.heappop(full)
                heapq.heappush(waiting, (load, group))
            while waiting:
                load, group = waiting[0]
                if needed[group][at] > rooms[group]:
                    heapq.heappop(waiting)
                    heapq.heappush(full, (-rooms[group], load, group))
                elif limited and not self.spares.affords(group, at):
                    passed.append(heapq.heappop(waiting))
                else:
                    break
            else:
                return False
            rooms[group] -= needed[group][at]
            members[group].append(ids[at])
            if len(members[group]) < most:
                heapq.heapreplace(waiting, (load + alone[at] * share[group], group))
            else:
                heapq.heappop(waiting)
            if limited:
                self.spares.take(group, at)
                while passed:
                    heapq.heappush(waiting, passed.pop())
        return True
