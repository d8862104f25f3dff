"""Place sequences by decreasing length where the slowest rank stays fastest: the rule of `packing_aware`.

It stands here because `dynamic_cp` tries it too.
"""

from __future__ import annotations

import numpy as np

from dcpack._checks import Float64Array, Int64Array
from dcpack.scheduling.align import align_microbatches
from dcpack.scheduling.base import Group, MicroBatch, Problem
from dcpack.scheduling.fill import fill_ranks, repair, whole_domain

__all__ = ["place_longest_first"]

_CAP_SLACK = 1.05


def place_longest_first(problem: Problem) -> list[MicroBatch]:
    """Return micro-batches by the rule that `dcpack.scheduling.PackingAware` describes.

    Raises:
        InfeasibleError: none was found.
    """
    items = _Items(problem)
    waiting = np.arange(problem.lengths.size)
    microbatches: list[MicroBatch] = []
    while waiting.size:
        groups, left = _OpenMicroBatch(items, waiting).place_all()
        filled = fill_ranks(problem, groups)
        if filled is None:
            whole = whole_domain(problem, problem.longest_first[waiting].tolist())
            if whole is None:
                filled = groups
            else:
                filled, left = whole[0], np.flatnonzero(np.isin(problem.longest_first, whole[1]))
        microbatches.append(filled)
        waiting = left
    repair(problem, microbatches)
    return align_microbatches(problem, microbatches)


class _Items:
    """The items of a problem by decreasing length, as they are asked for in every micro-batch.

    Attributes:
        ids: int64[p], the items.
        negated_lengths: int64[p], ascending.
        padded: int64[k, p], padded length at each legal size.
        work: float64[k, p], what each adds to the time of a group of each legal size.
        oversized: whether each must be alone.
        smallest: index of the smallest legal size that holds each, of the largest for an oversized one.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.ids = problem.longest_first
        self.negated_lengths = -problem.lengths[self.ids]
        self.sizes = np.array(problem.cp_sizes, np.int64)
        self.padded = problem.padded[:, self.ids]
        self.work = np.square(self.padded.astype(np.float64)) / self.sizes[:, np.newaxis]
        self.oversized: list[bool] = problem.oversized[self.ids].tolist()
        fits = self.padded <= problem.limits[:, np.newaxis]
        self.smallest = np.where(fits.any(axis=0), fits.argmax(axis=0), self.sizes.size - 1).tolist()


class _OpenMicroBatch:
    """The groups of one micro-batch while sequences are placed, as arrays: one element a group, by size, then by age.

    In that order the first of equally good groups is the one that the rule takes. ``at`` is a place in `_Items`.
    """

    def __init__(self, items: _Items, waiting: Int64Array) -> None:
        problem = items.problem
        self.problem = problem
        self.waiting = waiting
        self.ids, self.sizes, self.padded, self.work = items.ids, items.sizes, items.padded, items.work
        self.oversized, self.smallest, self.negated_lengths = items.oversized, items.smallest, items.negated_lengths
        self.most_items = self.ids.size if problem.max_sequences is None else problem.max_sequences
        self.count = 0
        self.free = problem.num_ranks
        self.slowest = 0.0
        self.cap = 0.0
        self.size_index = np.zeros(problem.num_ranks, np.int64)
        self.room = np.zeros(problem.num_ranks, np.int64)  # -1 where no further item may join
        self.load: Float64Array = np.zeros(problem.num_ranks)
        self.age: list[int] = []
        self.items: list[list[int]] = []

    def place_all(self) -> tuple[MicroBatch, Int64Array]:
        """Place what can be placed; return the groups, oldest first, and the places that wait for the next one."""
        tallest = int(self.waiting[0])
        size_index = self.smallest[tallest]
        self.cap = float(self.padded[size_index, tallest]) * float(self.problem.capacity) * _CAP_SLACK
        self._open(size_index, tallest)
        left = np.ones(self.waiting.size, np.bool_)
        left[0] = False
        turn = 1
        while turn < self.waiting.size:
            if self._place(int(self.waiting[turn])):
                left[turn] = False
                turn += 1
            else:
                turn = max(turn + 1, int(np.searchsorted(self.waiting, self._next_that_may_fit())))
        by_age = np.argsort(self.age).tolist()
        groups = [Group(int(self.sizes[self.size_index[g]]), self.items[g]) for g in by_age]
        return groups, self.waiting[left]

    def _place(self, at: int) -> bool:
        """Put item `at` where the projected maximum is lowest; False where no placement is within the cap."""
        if self.oversized[at]:
            return False
        index = self.size_index[: self.count]
        padded, work = self.padded[:, at], self.work[:, at]
        later = self.load[: self.count] + work[index]
        has_room = padded[index] <= self.room[: self.count]
        unseen = has_room & (later <= self.slowest)
        group = int(unseen.argmax())
        if unseen[group]:
            # Nobody waits for this item there; a new group of a smaller size would be as good, and preferred.
            for k in range(self.smallest[at], int(index[group])):
                if self._can_open(k, at) and work[k] <= self.slowest:
                    self._open(k, at)
                    return True
            self._join(group, at)
            return True
        return self._place_lowest(at, np.where(has_room, np.maximum(later, self.slowest), np.inf))

    def _can_open(self, size_index: int, at: int) -> bool:
        fits = self.padded[size_index, at] <= self.problem.limits[size_index]
        return bool(fits and self.sizes[size_index] <= self.free)

    def _place_lowest(self, at: int, joined: Float64Array) -> bool:
        """Put item `at` into the group or the new group that is done first, `joined` being the time of each group."""
        opened = np.maximum(self.work[:, at], self.slowest)
        opened[(self.padded[:, at] > self.problem.limits) | (self.sizes > self.free)] = np.inf
        group, new = int(joined.argmin()), int(opened.argmin())
        if min(joined[group], opened[new]) > self.cap:
            return False
        if joined[group] < opened[new] or (joined[group] == opened[new] and self.size_index[group] <= new):
            self._join(group, at)
        else:
            self._open(new, at)
        return True

    def _join(self, group: int, at: int) -> None:
        k = self.size_index[group]
        self.items[group].append(int(self.ids[at]))
        self.load[group] += self.work[k, at]
        self.slowest = max(self.slowest, float(self.load[group]))
        full = self.oversized[at] or len(self.items[group]) >= self.most_items
        self.room[group] = -1 if full else self.room[group] - self.padded[k, at]

    def _open(self, size_index: int, at: int) -> None:
        n = self.count
        group = int(np.searchsorted(self.size_index[:n], size_index, side="right"))
        for column, value in (
            (self.size_index, size_index),
            (self.room, self.problem.limits[size_index]),
            (self.load, 0.0),
        ):
            column[group + 1 : n + 1] = column[group:n].copy()
            column[group] = value
        self.count += 1
        self.free -= int(self.sizes[size_index])
        self.age.insert(group, n)
        self.items.insert(group, [])
        self._join(group, at)

    def _next_that_may_fit(self) -> int:
        """Return the first place of items that some group could take, by an upper bound on their length.

        Nothing changes while items fail, and they become shorter, so all that are longer than the bound fail too.
        """
        n = self.count
        sizes = self.sizes[self.size_index[:n]]
        by_work = np.sqrt(np.maximum(self.cap - self.load[:n], 0) * sizes)
        joinable = np.minimum(self.room[:n], by_work)
        affordable = np.minimum(self.problem.limits, np.sqrt(self.cap * self.sizes))
        openable = affordable[self.sizes <= self.free]
        longest = max(float(joinable.max()), float(openable.max(initial=0))) + 1
        return int(np.searchsorted(self.negated_lengths, -longest))
