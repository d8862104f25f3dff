"""The fastest plan of a few items on a few ranks, by looking at all there are; so it also knows where there is none."""

from __future__ import annotations

import numpy as np

from dcpack._checks import BoolArray, Float64Array
from dcpack.scheduling.base import Group, MicroBatch, Problem
from dcpack.scheduling.timing import GroupTimes

__all__ = ["is_small", "plan_exhaustively"]

_MAX_ITEMS = 8
_MAX_RANKS = 8


def is_small(problem: Problem) -> bool:
    """Tell whether `plan_exhaustively` can look at all plans of `problem`."""
    return problem.lengths.size <= _MAX_ITEMS and problem.num_ranks <= _MAX_RANKS


def plan_exhaustively(times: GroupTimes) -> list[MicroBatch] | None:
    """Return the plan with the least sum of the slowest groups of its micro-batches, or None where no plan exists.

    Sets of items are bit masks. The best time of every set on 1, 2, ... ranks comes from that of its subsets on fewer
    ranks, and the best plan of the first m micro-batches from that of the first m - 1. All options of the problem
    hold. A group is taken to cross nodes where it is larger than one.

    Args:
        times: times of a problem that `is_small`.
    """
    search = _Subsets(times)
    found = search.deal()
    return None if found is None else [search.groups_of(mask) for mask in found]


class _Subsets:
    """Best times of all sets of items.

    Attributes:
        of_group: float64[k, 2**p], time of each set as one group of each legal size; inf where it does not fit.
        on_ranks: float64[r + 1, 2**p], best time of each set as groups that fill so many ranks.
    """

    def __init__(self, times: GroupTimes) -> None:
        problem = times.problem
        self.times, self.problem = times, problem
        count = problem.lengths.size
        masks = np.arange(1 << count)
        self.bits = (masks[:, np.newaxis] >> np.arange(count) & 1).astype(np.int64)
        self.masks, self.subs = np.nonzero((masks[np.newaxis, :] & ~masks[:, np.newaxis]) == 0)
        lowest = self.masks & -self.masks
        self.with_lowest = np.flatnonzero((self.masks > 0) & ((self.subs & lowest) != 0))
        self.of_group = self._group_times()
        self.on_ranks = self._fill()

    def _group_times(self) -> Float64Array:
        problem, bits = self.problem, self.bits
        result = np.full((len(problem.cp_sizes), len(bits)), np.inf)
        held = bits.sum(axis=1)
        fits = held > 0
        if problem.max_sequences is not None:
            fits &= held <= problem.max_sequences
        if problem.amounts is not None:
            fits &= np.all(bits @ problem.amounts.T <= np.array(problem.amount_limits), axis=1)
        oversized = bits @ problem.oversized > 0
        last = len(problem.cp_sizes) - 1
        for k in range(last + 1):
            inside = fits & ~oversized & (bits @ problem.padded[k] <= problem.limits[k])
            if k == last:
                inside |= fits & oversized & (held == 1)
            chosen = np.flatnonzero(inside)
            if chosen.size:
                counts = held[chosen]
                members = np.nonzero(bits[chosen])[1]
                result[k, chosen], _ = self.times.of_groups(np.full(chosen.size, k), counts, members)
        return result

    def _fill(self) -> Float64Array:
        problem = self.problem
        best = np.full((problem.num_ranks + 1, len(self.bits)), np.inf)
        best[0, 0] = 0.0
        masks, subs = self.masks[self.with_lowest], self.subs[self.with_lowest]
        starts = np.searchsorted(masks, np.arange(1, len(self.bits)))
        for ranks in range(1, problem.num_ranks + 1):
            for k, size in enumerate(problem.cp_sizes):
                if size > ranks:
                    break
                if problem.on_empty == "dummy":
                    best[ranks, 0] = min(best[ranks, 0], best[ranks - size, 0])
                if starts.size:
                    both = np.maximum(self.of_group[k, subs], best[ranks - size, masks ^ subs])
                    best[ranks, 1:] = np.minimum(best[ranks, 1:], np.minimum.reduceat(both, starts))
        return best

    def deal(self) -> list[int] | None:
        """Return the set of each micro-batch, or None where no plan exists."""
        problem = self.problem
        whole = self._whole_groups()
        step = problem.microbatch_multiple
        latest = problem.lengths.size
        if problem.homes is not None:
            latest = int(problem.homes.max(initial=-1)) + problem.max_displacement + 1
        if problem.on_empty == "dummy":
            latest = -(-latest // step) * step
        one = np.where(whole, self.on_ranks[-1], np.inf)
        placed = np.full((latest + 1, len(self.bits)), np.inf)
        placed[0, 0] = 0.0
        starts = np.searchsorted(self.masks, np.arange(len(self.bits)))
        for m in range(latest):
            both = placed[m, self.masks ^ self.subs] + self._allowed(one, m)[self.subs]
            placed[m + 1] = np.minimum.reduceat(both, starts)
        ends = np.arange(0, latest + 1, step)
        count = int(ends[np.argmin(placed[ends, -1])])
        if placed[count, -1] == np.inf:
            return None
        chosen: list[int] = []
        left = len(self.bits) - 1
        for m in range(count - 1, -1, -1):
            own = slice(*np.searchsorted(self.masks, [left, left + 1]))
            subs = self.subs[own]
            chosen.append(int(subs[np.argmin(placed[m, left ^ subs] + self._allowed(one, m)[subs])]))
            left ^= chosen[-1]
        return chosen[::-1]

    def _whole_groups(self) -> BoolArray:
        """Tell for each set whether it holds all or nothing of every group of items."""
        whole = np.ones(len(self.bits), np.bool_)
        if self.problem.groups is not None:
            _, of_item = np.unique(self.problem.groups, return_inverse=True)
            for group in range(int(of_item.max(initial=-1)) + 1):
                members = self.bits[:, of_item == group].sum(axis=1)
                whole &= (members == 0) | (members == np.count_nonzero(of_item == group))
        return whole

    def _allowed(self, time_of_set: Float64Array, microbatch: int) -> Float64Array:
        """Return `time_of_set`, infinite where an item is too far from its place in the reference."""
        homes = self.problem.homes
        if homes is None:
            return time_of_set
        far = np.abs(homes - microbatch) > self.problem.max_displacement
        return np.where(self.bits[:, far].any(axis=1), np.inf, time_of_set)

    def groups_of(self, mask: int) -> MicroBatch:
        """Return the best groups of a set on all ranks."""
        groups: MicroBatch = []
        ranks = self.problem.num_ranks
        while ranks:
            own = self.with_lowest[slice(*np.searchsorted(self.masks[self.with_lowest], [mask, mask + 1]))]
            subs = self.subs[own] if mask else np.zeros(1, np.int64)
            best, size, taken = np.inf, 0, 0
            for k, wanted in enumerate(self.problem.cp_sizes):
                if wanted > ranks:
                    break
                alone = self.of_group[k, subs] if mask else np.zeros(1)
                both = np.maximum(alone, self.on_ranks[ranks - wanted, mask ^ subs])
                if both.min() < best:
                    best, size, taken = float(both.min()), wanted, int(subs[np.argmin(both)])
            groups.append(Group(size, np.flatnonzero(self.bits[taken]).tolist()))
            mask ^= taken
            ranks -= size
        return groups
