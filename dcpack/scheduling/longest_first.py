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
    waiting = problem.longest_first
    microbatches: list[MicroBatch] = []
    while waiting.size:
        groups, left = _OpenMicroBatch(problem, waiting).place_all()
        filled = fill_ranks(problem, groups)
        if filled is None:
            whole = whole_domain(problem, waiting.tolist())
            filled, left = (groups, left) if whole is None else (whole[0], np.array(whole[1], np.int64))
        microbatches.append(filled)
        waiting = left
    repair(problem, microbatches)
    return align_microbatches(problem, microbatches)


class _OpenMicroBatch:
    """The groups of one micro-batch while sequences are placed, as arrays with one element a group, oldest first."""

    def __init__(self, problem: Problem, waiting: Int64Array) -> None:
        self.problem = problem
        self.waiting = waiting
        self.negated_lengths = -problem.lengths[waiting]  # ascending
        self.sizes = np.array(problem.cp_sizes, np.int64)
        self.padded = problem.padded[:, waiting]
        self.work = np.square(self.padded.astype(np.float64)) / self.sizes[:, np.newaxis]
        self.most_items = waiting.size if problem.max_sequences is None else problem.max_sequences
        self.count = 0
        self.free = problem.num_ranks
        self.slowest = 0.0
        self.cap = 0.0
        self.size_index = np.zeros(problem.num_ranks, np.int64)
        self.room = np.zeros(problem.num_ranks, np.int64)
        self.load: Float64Array = np.zeros(problem.num_ranks)
        self.places = np.zeros(problem.num_ranks, np.int64)
        self.items: list[list[int]] = []

    def place_all(self) -> tuple[MicroBatch, Int64Array]:
        """Place what can be placed; return the groups and the items that wait for the next micro-batch."""
        first = self._smallest_fit(0)
        tallest = int(self.padded[first, 0])
        self.cap = float(tallest) * float(self.problem.capacity) * _CAP_SLACK
        self._open(first, 0)
        left = np.ones(self.waiting.size, np.bool_)
        left[0] = False
        at = 1
        while at < self.waiting.size:
            if self._place(at):
                left[at] = False
                at += 1
            else:
                at = self._next_that_may_fit(at)
        groups = [
            Group(int(self.sizes[k]), items) for k, items in zip(self.size_index[: self.count], self.items, strict=True)
        ]
        return groups, self.waiting[left]

    def _smallest_fit(self, at: int) -> int:
        """Return the index of the smallest legal CP size that holds item `at`; the largest for an oversized one."""
        fits = np.flatnonzero(self.padded[:, at] <= self.problem.limits)
        return int(fits[0]) if fits.size else len(self.sizes) - 1

    def _place(self, at: int) -> bool:
        """Put item `at` where the projected maximum is lowest; False where no placement is within the cap."""
        if self.problem.oversized[self.waiting[at]]:
            return False
        n = self.count
        padded, work = self.padded[:, at], self.work[:, at]
        index = self.size_index[:n]
        joined = np.maximum(self.load[:n] + work[index], self.slowest)
        joined[(padded[index] > self.room[:n]) | (self.places[:n] == 0)] = np.inf
        opened = np.maximum(work, self.slowest)
        opened[(padded > self.problem.limits) | (self.sizes > self.free)] = np.inf
        best = min(float(joined.min()), float(opened.min()))
        if best > self.cap:
            return False
        equal_groups = np.flatnonzero(joined == best)
        equal_new = np.flatnonzero(opened == best)
        group = int(equal_groups[np.argmin(index[equal_groups])]) if equal_groups.size else -1
        if group >= 0 and (equal_new.size == 0 or index[group] <= equal_new[0]):
            self._join(group, at)
        else:
            self._open(int(equal_new[0]), at)
        return True

    def _join(self, group: int, at: int) -> None:
        k = self.size_index[group]
        self.room[group] -= self.padded[k, at]
        self.load[group] += self.work[k, at]
        self.places[group] -= 1
        self.slowest = max(self.slowest, float(self.load[group]))
        self.items[group].append(int(self.waiting[at]))

    def _open(self, size_index: int, at: int) -> None:
        n = self.count
        self.count += 1
        self.free -= int(self.sizes[size_index])
        self.size_index[n] = size_index
        self.room[n] = self.problem.limits[size_index]
        self.places[n] = 1 if self.problem.oversized[self.waiting[at]] else self.most_items
        self.items.append([])
        self._join(n, at)

    def _next_that_may_fit(self, at: int) -> int:
        """Return the next item that some group could take, by an upper bound on its length.

        Nothing changes while items fail, and they become shorter, so all that are longer than the bound fail too.
        """
        n = self.count
        sizes = self.sizes[self.size_index[:n]]
        by_work = np.sqrt(np.maximum(self.cap - self.load[:n], 0) * sizes)
        joinable = np.where(self.places[:n] > 0, np.minimum(self.room[:n], by_work), 0)
        affordable = np.minimum(self.problem.limits, np.sqrt(self.cap * self.sizes))
        openable = affordable[self.sizes <= self.free]
        longest = max(float(joinable.max()), float(openable.max(initial=0))) + 1
        return max(at + 1, int(np.searchsorted(self.negated_lengths, -longest)))
