"""Times of groups at every larger CP size, worked out once and asked for many target times."""

from __future__ import annotations

import functools

import numpy as np

from dcpack._checks import Float64Array, Int64Array
from dcpack.scheduling.timing import GroupTimes

__all__ = ["SizeTable", "size_grid"]

_ALL_UP_TO = 32  # ranks
_STEP = 1.03  # from one larger size to the next


class SizeTable:
    """For groups of fixed items: the smallest size whose time is within a target.

    Beyond 32 ranks sizes are looked at in steps of 3%, which is far less than what they gain.

    Args:
        times: times of the problem.
        size_index: int64[g], present size of each group; only larger ones are looked at.
        now: float64[g], time at that.
        counts: int64[g], items of each.
        items: int64[sum(counts)], group after group.
        above: no target will be below this time, so that groups that are within it need no row.
    """

    def __init__(
        self,
        times: GroupTimes,
        size_index: Int64Array,
        now: Float64Array,
        counts: Int64Array,
        items: Int64Array,
        above: float,
    ) -> None:
        self.size_index, self.now = size_index, now
        self.grid = size_grid(times.problem.cp_sizes)
        self.rows = np.flatnonzero(now > above)
        self.table: Float64Array = np.full((self.rows.size, self.grid.size), np.inf)
        if self.rows.size:
            self._fill(times, counts, items)

    def _fill(self, times: GroupTimes, counts: Int64Array, items: Int64Array) -> None:
        problem, rows, grid = times.problem, self.rows, self.grid
        starts = np.cumsum(counts) - counts
        inside = np.cumsum(counts[rows]) - counts[rows]
        members = items[np.repeat(starts[rows] - inside, counts[rows]) + np.arange(int(counts[rows].sum()))]
        lengths = problem.lengths[members]
        if problem.padding is None:  # what fits at the present size fits at larger ones
            self.table = times.table(np.add.reduceat(problem.cost.columns(lengths), inside, axis=0), grid)
        else:
            for k, g in enumerate(grid):
                padded = problem.padded_to(lengths, int(times.sizes[g]))
                sums = np.add.reduceat(problem.cost.columns(padded), inside, axis=0)
                fits = np.add.reduceat(padded, inside) <= problem.limits[g]
                self.table[:, k] = np.where(fits, times.table(sums, np.array([g]))[:, 0], np.inf)
        self.table[grid <= self.size_index[rows][:, np.newaxis]] = np.inf

    def within(self, target: float) -> Int64Array:
        """Return int64[g], the index of the smallest size, from the present one, within `target`; -1 where none is."""
        found = np.where(self.now <= target, self.size_index, -1)
        slow = np.flatnonzero(self.now[self.rows] > target)
        if slow.size:
            fast = self.table[slow] <= target
            first = fast.argmax(axis=1)
            some = fast[np.arange(slow.size), first]
            found[self.rows[slow[some]]] = self.grid[first[some]]
        return found


def size_grid(cp_sizes: tuple[int, ...]) -> Int64Array:
    """Return int64[k], the indices of the sizes to look at: all up to 32 ranks, then in steps of 3%.

    Example:
        >>> size_grid((1, 2, 3)).tolist(), size_grid(tuple(range(1, 257))).size
        ([0, 1, 2], 91)
    """
    return _grid(cp_sizes)


@functools.lru_cache(maxsize=64)
def _grid(cp_sizes: tuple[int, ...]) -> Int64Array:
    sizes = np.array(cp_sizes, np.int64)
    small = int(np.searchsorted(sizes, _ALL_UP_TO, side="right"))
    chosen = list(range(small))
    while not chosen or chosen[-1] < sizes.size - 1:
        at = chosen[-1] if chosen else -1
        wanted = int(np.searchsorted(sizes, sizes[at] * _STEP)) if chosen else 0
        chosen.append(min(max(at + 1, wanted), sizes.size - 1))
    grid = np.array(chosen, np.int64)
    grid.flags.writeable = False
    return grid
