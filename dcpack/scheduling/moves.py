"""Move and swap items between groups while the simulated time of the step falls."""

from __future__ import annotations

import numpy as np

from dcpack._checks import BoolArray, Float64Array, Int64Array
from dcpack.scheduling.base import Group, MicroBatch
from dcpack.scheduling.timing import GroupTimes

__all__ = ["improve_by_moves"]

_GAIN = 1e-4  # of the slowest group's time: less is not worth a move
_MOST_SWAPS = 1 << 13  # pairs that are looked at for one group


def improve_by_moves(times: GroupTimes, microbatches: list[MicroBatch], most: int) -> list[MicroBatch]:
    """Return micro-batches that take no longer, after at most `most` moves or swaps of single items.

    In each round the groups that a meeting of the ranks waits for give an item to another group, or swap one, where
    both are done earlier than it was. With ``sync="microbatch"`` the ranks meet in every micro-batch, else once. Items
    change the micro-batch only where no option ties them to one. CP sizes stay as they are, and no group is emptied.

    Args:
        times: times of the problem.
        microbatches: groups that fill all ranks. They are not changed.
        most: moves and swaps together.
    """
    table = _Table(times, microbatches)
    stuck: set[int] = set()
    for _ in range(most):
        g = table.slowest(stuck)
        if g is None:
            break
        if not table.relieve(g):
            stuck.add(int(table.meeting[g]))
    return table.microbatches()


class _Table:
    """All groups of a step as arrays.

    Attributes:
        meeting: int64[g], the meeting at which other ranks wait for the group.
        finish: float64[g], when the ranks of a group are done by that meeting.
    """

    def __init__(self, times: GroupTimes, microbatches: list[MicroBatch]) -> None:
        problem = times.problem
        self.times, self.problem, self.given = times, problem, microbatches
        flat = [group for groups in microbatches for group in groups]
        self.items = [list(group.items) for group in flat]
        self.sizes = np.array([group.cp_size for group in flat], np.int64)
        self.microbatch = np.repeat(np.arange(len(microbatches)), [len(groups) for groups in microbatches])
        places = [times.places(groups) for groups in microbatches]
        self.first = np.concatenate([first for first, _ in places])
        self.crosses = np.concatenate([crosses for _, crosses in places])
        self.limit = problem.limits[np.searchsorted(times.sizes, self.sizes)]
        self.columns = self._columns_of(problem.lengths[:0], self.sizes[:0]).shape[1]
        self.sums = np.zeros((len(flat), self.columns))
        self.tokens = np.zeros(len(flat), np.int64)
        self.taken = np.zeros(len(flat))
        amounts = np.zeros((0, problem.lengths.size), np.int64) if problem.amounts is None else problem.amounts
        self.amounts = amounts
        self.held = np.zeros((len(amounts), len(flat)), np.int64)
        self._fill()
        # Oversized items stay alone, dummies stay empty.
        self.closed = np.array([not items or bool(problem.oversized[items].any()) for items in self.items])
        one_meeting = problem.sync == "step"
        self.meeting = np.zeros_like(self.microbatch) if one_meeting else self.microbatch
        self.finish = self._finish()

    def _fill(self) -> None:
        """Work out the sums of all groups."""
        real = np.array([g for g, items in enumerate(self.items) if items], np.int64)
        counts = np.array([len(self.items[g]) for g in real.tolist()], np.int64)
        members = np.array([item for items in self.items for item in items], np.int64)
        starts = np.cumsum(counts) - counts
        padded = self.problem.padded_to(self.problem.lengths[members], np.repeat(self.sizes[real], counts))
        self.sums[real] = np.add.reduceat(self.problem.cost.columns(padded), starts, axis=0)
        self.tokens[real] = np.add.reduceat(padded, starts)
        self.taken[real] = self._time(self.sums[real], real)
        self.held[:, real] = np.add.reduceat(self.amounts[:, members], starts, axis=1)

    def _columns_of(self, lengths: Int64Array, sizes: Int64Array) -> Float64Array:
        return self.times.problem.cost.columns(self.problem.padded_to(lengths, sizes))

    def _renew(self, g: int) -> None:
        """Work out the sums of a group from its items."""
        items = self.items[g]
        if not items:
            return
        lengths = self.problem.lengths[items]
        self.sums[g] = self._columns_of(lengths, self.sizes[g]).sum(axis=0)
        self.tokens[g] = self.problem.padded_to(lengths, self.sizes[g]).sum()
        self.taken[g] = self._time(self.sums[g : g + 1], np.array([g]))[0]
        self.held[:, g] = self.amounts[:, items].sum(axis=1)

    def _time(self, sums: Float64Array, groups: Int64Array) -> Float64Array:
        return self.times.at_sizes(sums, self.sizes[groups], self.crosses[groups])

    def _finish(self) -> Float64Array:
        if self.problem.sync != "step":
            return self.taken.copy()
        rank = np.repeat(self.first - np.cumsum(self.sizes) + self.sizes, self.sizes) + np.arange(self.sizes.sum())
        busy = np.bincount(rank, weights=np.repeat(self.taken, self.sizes), minlength=self.problem.num_ranks)
        return np.maximum.reduceat(busy[rank], np.cumsum(self.sizes) - self.sizes)

    def slowest(self, stuck: set[int]) -> int | None:
        """Return the group that its meeting waits for, of a meeting that is not stuck; None where all are."""
        open_ = ~np.isin(self.meeting, list(stuck)) & ~self.closed
        if not open_.any():
            return None
        # The meeting that could gain most: the farthest from its mean.
        ends = np.zeros(int(self.meeting.max()) + 1)
        np.maximum.at(ends, self.meeting, self.finish)
        mean = np.bincount(self.meeting, weights=self.finish * self.sizes, minlength=ends.size)
        mean /= np.maximum(np.bincount(self.meeting, weights=self.sizes, minlength=ends.size), 1)
        behind = open_ & (self.finish == ends[self.meeting])
        for m in set(range(ends.size)) - stuck:
            if not np.any(behind & (self.meeting == m)):
                stuck.add(m)  # what it waits for cannot be changed
        if not behind.any():
            return None
        candidates = np.flatnonzero(behind)
        return int(candidates[np.argmax((ends - mean)[self.meeting[candidates]])])

    def relieve(self, g: int) -> bool:
        """Make one move or swap after which group `g` is done earlier and nobody is late; False where none is."""
        late = self.finish[g]
        own = np.array(self.items[g], np.int64)
        others = np.flatnonzero((np.arange(self.sizes.size) != g) & ~self.closed)
        if self.problem.ties_microbatches:
            others = others[self.microbatch[others] == self.microbatch[g]]
        if own.size == 0 or others.size == 0:
            return False
        ends = np.zeros(int(self.meeting.max()) + 1)
        np.maximum.at(ends, self.meeting, self.finish)
        # In its own meeting a group must be done before `late`; elsewhere it must not make others wait.
        by = np.where(self.meeting == self.meeting[g], late * (1 - _GAIN), ends[self.meeting])
        best = self._best_move(g, own, others, by) if own.size > 1 else None
        swap = self._best_swap(g, own, others, by)
        if swap is not None and (best is None or swap[0] < best[0]):
            best = swap
        if best is None:
            return False
        _, item, h, back = best
        self.items[g].remove(item)
        self.items[h].append(item)
        if back >= 0:
            self.items[h].remove(back)
            self.items[g].append(back)
        self._renew(g)
        self._renew(h)
        self.finish = self._finish()
        return True

    def _best_move(
        self, g: int, own: Int64Array, others: Int64Array, by: Float64Array
    ) -> tuple[float, int, int, int] | None:
        """Return (later of the two groups' ends, item, group, -1) of the best move."""
        i = np.repeat(np.arange(own.size), others.size)
        h = np.tile(others, own.size)
        room = np.array([len(self.items[k]) for k in others]) < self._most_items()
        fine = np.tile(room, own.size)
        return self._best(g, own[i[fine]], h[fine], np.full(int(fine.sum()), -1), by)

    def _best_swap(
        self, g: int, own: Int64Array, others: Int64Array, by: Float64Array
    ) -> tuple[float, int, int, int] | None:
        """Return (later of the two groups' ends, item, group, item back) of the best swap."""
        held = [self.items[k] for k in others]
        theirs = np.array([item for items in held for item in items], np.int64)
        of = np.repeat(others, [len(items) for items in held])
        wanted = self.problem.lengths[theirs] < self.problem.lengths[own].max()
        theirs, of = theirs[wanted], of[wanted]
        if theirs.size * own.size > _MOST_SWAPS:  # those that are done first have most to offer
            order = np.argsort(self.finish[of], kind="stable")[: max(_MOST_SWAPS // own.size, 1)]
            theirs, of = theirs[order], of[order]
        i = np.repeat(np.arange(own.size), theirs.size)
        j = np.tile(np.arange(theirs.size), own.size)
        longer = self.problem.lengths[own[i]] > self.problem.lengths[theirs[j]]
        i, j = i[longer], j[longer]
        return self._best(g, own[i], of[j], theirs[j], by)

    def _most_items(self) -> int:
        most = self.problem.max_sequences
        return self.problem.lengths.size if most is None else most

    def _best(
        self, g: int, item: Int64Array, h: Int64Array, back: Int64Array, by: Float64Array
    ) -> tuple[float, int, int, int] | None:
        if item.size == 0:
            return None
        lengths = self.problem.lengths
        at_g, at_h = np.full(h.size, self.sizes[g]), self.sizes[h]
        into_h = self.problem.padded_to(lengths[item], at_h)
        out_of_g = self.problem.padded_to(lengths[item], at_g)
        given = lengths[back] * (back >= 0)
        into_g = self.problem.padded_to(given, at_g)
        out_of_h = self.problem.padded_to(given, at_h)
        fits = self.tokens[h] + into_h - out_of_h <= self.limit[h]
        fits &= self.tokens[g] - out_of_g + into_g <= self.limit[g]
        fits &= self._within_budgets(g, item, h, back)
        kept = np.flatnonzero(fits)
        if kept.size == 0:
            return None
        cost = self.problem.cost
        swapped = (back[kept] >= 0)[:, np.newaxis]
        sums_h = self.sums[h[kept]] + cost.columns(into_h[kept]) - swapped * cost.columns(out_of_h[kept])
        sums_g = self.sums[g] - cost.columns(out_of_g[kept]) + swapped * cost.columns(into_g[kept])
        end_h = self.finish[h[kept]] - self.taken[h[kept]] + self._time(sums_h, h[kept])
        end_g = self.finish[g] - self.taken[g] + self._time(sums_g, np.full(kept.size, g))
        works = (end_h <= by[h[kept]]) & (end_g <= self.finish[g] * (1 - _GAIN))
        if not works.any():
            return None
        same = self.meeting[h[kept]] == self.meeting[g]
        later = np.where(works, np.where(same, np.maximum(end_g, end_h), end_g), np.inf)
        at = int(np.argmin(later))
        chosen = kept[at]
        return float(later[at]), int(item[chosen]), int(h[chosen]), int(back[chosen])

    def _within_budgets(self, g: int, item: Int64Array, h: Int64Array, back: Int64Array) -> BoolArray:
        inside: BoolArray = np.ones(item.size, np.bool_)
        for amount, held, limit in zip(self.amounts, self.held, self.problem.amount_limits, strict=True):
            change = amount[item] - amount[back] * (back >= 0)
            inside &= (held[h] + change <= limit) & (held[g] - change <= limit)
        return inside

    def microbatches(self) -> list[MicroBatch]:
        """Return the groups as they are now."""
        result: list[MicroBatch] = [[] for _ in self.given]
        for m, size, items in zip(self.microbatch.tolist(), self.sizes.tolist(), self.items, strict=True):
            result[m].append(Group(size, items))
        return result
