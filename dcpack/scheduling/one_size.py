"""Micro-batches that all have one CP size: filled, levelled, and given what else they have time for.

A micro-batch with one long item waits for it, and its other groups have time left. `SizedPart.absorb` gives them items
that else would need micro-batches of their own. Example, one micro-batch of 2 groups, time in tokens:

    group 0   [80]        80               [80]             80
    group 1   [50]        50    absorb     [50] [25] [5]    80
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dcpack._checks import BoolArray, Float64Array, Int64Array
from dcpack.balancing import integer_costs
from dcpack.scheduling.base import MicroBatch
from dcpack.scheduling.levelling import fill_slots, pack_items
from dcpack.scheduling.size_times import SizeTimes
from dcpack.scheduling.workload import Slots, Workload, make_microbatches, workload_of

__all__ = ["SizedPart"]

_ROUNDS = 400
_FULL = 1e-3  # a group with less time left than this part of its micro-batch is full
_WORSE = 1.05  # at least so much smaller is the next item tried after one that took too long


class SizedPart:
    """Micro-batches of one CP size, and the bin of each item.

    Attributes:
        times: times of the problem.
        size_index: which legal CP size.
        items: int64[n], items of the problem.
        slots: the bins.
        slot_of: int64[n], the bin of each of `items`.
    """

    def __init__(self, times: SizeTimes, size_index: int, items: Int64Array) -> None:
        self.times = times
        self.size_index = size_index
        self.items = items
        packed = pack_items(self._workload(1))
        self.refill(-(-packed.num_bins // times.width(size_index)))

    @property
    def num_empty(self) -> int:
        """Number of bins without items."""
        return self.slots.num_slots - np.unique(self.slot_of).size

    def refill(self, num_microbatches: int) -> None:
        """Spread the items over so many micro-batches, at least as many as they need."""
        width = self.times.width(self.size_index)
        sync = self.times.problem.sync
        self.slots = Slots(num_microbatches=num_microbatches, num_ranks=width, num_rows=1, sync=sync)
        work = self._workload(self.slots.num_slots)
        slot_of = fill_slots(work, self.slots, pack_items(work))
        assert slot_of is not None, "a packing into few enough bins can always be spread over all slots"
        self.slot_of = slot_of

    def _workload(self, num_bins: int) -> Workload:
        """Return the items with what each adds to the time of a bin with an even share of all."""
        problem, k = self.times.problem, self.size_index
        part = replace(
            problem,
            cp_sizes=problem.cp_sizes[k : k + 1],
            lengths=problem.lengths[self.items],
            oversized=problem.oversized[self.items],
        )
        share = self.times.columns[k][self.items].sum(axis=0) / num_bins
        return workload_of(part, integer_costs(self.times.added(k, self.items, share)))

    def bin_times(self) -> Float64Array:
        """Return float64[num_microbatches, groups]: the time of each bin."""
        shape = (self.slots.num_microbatches, self.slots.num_ranks)
        return self._times(self._sums(), np.arange(self.slots.num_slots)).reshape(shape)

    def _sums(self) -> Float64Array:
        columns = self.times.columns[self.size_index][self.items]
        sums = np.zeros((self.slots.num_slots, columns.shape[1]))
        np.add.at(sums, self.slot_of, columns)
        return sums

    def _times(self, sums: Float64Array, slots: Int64Array) -> Float64Array:
        """Return float64[n]: times of bins `slots` (int64[n]) that hold `sums` (float64[n, c]); of nothing 0."""
        crosses = self.times.crosses[self.size_index][slots % self.slots.num_ranks]
        filled = sums.any(axis=1)
        return np.where(filled, self.times.of_sums(self.size_index, sums, crosses), 0.0)

    def absorb(self, later: Int64Array) -> BoolArray:
        """Give each group the longest of the `later` items that it has time and room for.

        No group becomes slower than the slowest that it meets. Bins that are still empty then get one item each, the
        shortest first, whatever time it takes.

        Args:
            later: int64[m], items of the problem, longest first.

        Returns:
            bool[m]: which of them were taken.
        """
        problem, k = self.times.problem, self.size_index
        usable = np.flatnonzero(self.times.fits[k, later] & ~problem.oversized[later])
        state = _Filling(self, later[usable])
        state.fill_in_time()
        state.fill_empty()
        taken = np.zeros(later.size, np.bool_)
        taken[usable[state.slot_of >= 0]] = True
        self.items = np.concatenate([self.items, later[taken]])
        self.slot_of = np.concatenate([self.slot_of, state.slot_of[state.slot_of >= 0]])
        return taken

    def microbatches(self) -> list[MicroBatch]:
        """Return the micro-batches, groups by rank."""
        planned = make_microbatches(self.slots, self.slot_of, self.times.problem.cp_sizes[self.size_index])
        for group in (group for groups in planned for group in groups):
            group.items = self.items[group.items].tolist()
        return planned


class _Filling:
    """Bins of a part, and items that may go to them; all bins are looked at together, one item each a round."""

    def __init__(self, part: SizedPart, items: Int64Array) -> None:
        times, k, slots = part.times, part.size_index, part.slots
        problem = times.problem
        self.part, self.slots = part, slots
        self.columns, self.padded = times.columns[k][items], problem.padded[k, items]
        self.slot_of = np.full(items.size, -1, np.int64)
        self.waiting = np.arange(items.size)  # longest first
        self.sums = part._sums()
        used = np.zeros(slots.num_slots, np.int64)
        own = np.where(problem.oversized[part.items], problem.limits[k], problem.padded[k, part.items])
        np.add.at(used, part.slot_of, own)
        self.room = problem.limits[k] - used
        self.counts = np.bincount(part.slot_of, minlength=slots.num_slots)
        self.most = items.size + part.items.size if problem.max_sequences is None else problem.max_sequences
        self.cell_of = slots.cell_of(np.arange(slots.num_slots))
        self.bin_times = part._times(self.sums, np.arange(slots.num_slots))
        share = self.sums.sum(axis=0) / slots.num_slots
        # Cheaper items are shorter under any sensible model; this holds for every model.
        self.added = np.minimum.accumulate(times.added(k, items, share))

    def fill_in_time(self) -> None:
        slots = self.slots
        cells = np.bincount(self.cell_of, weights=self.bin_times, minlength=slots.num_cells)
        longest = np.repeat(cells.reshape(slots.num_meetings, -1).max(axis=1, initial=0.0), slots.num_ranks)
        dearer = np.ones(slots.num_cells)  # how much more than `added` items turn out to add
        is_open = np.ones(slots.num_cells, np.bool_)
        for _ in range(_ROUNDS):
            bins = self._roomiest()
            left = longest - cells
            is_open &= (left > _FULL * longest) & (self.counts[bins] < self.most)
            open_cells = np.flatnonzero(is_open)
            if open_cells.size == 0 or self.waiting.size == 0:
                return
            first = np.maximum(
                np.searchsorted(-self.padded[self.waiting], -self.room[bins[open_cells]]),
                np.searchsorted(-self.added[self.waiting], -(left / dearer)[open_cells]),
            )
            is_open[open_cells[first >= self.waiting.size]] = False
            open_cells, picks = _distinct(open_cells, first, self.waiting.size)
            items, chosen = self.waiting[picks], bins[open_cells]
            now = self.part._times(self.sums[chosen] + self.columns[items], chosen)
            extra = now - self.bin_times[chosen]
            fits = cells[open_cells] + extra <= longest[open_cells]
            over = open_cells[~fits]
            dearer[over] = np.maximum(_WORSE * dearer[over], extra[~fits] / np.maximum(self.added[items[~fits]], 1.0))
            self._put(items[fits], chosen[fits], now[fits])
            cells[open_cells[fits]] += extra[fits]

    def _roomiest(self) -> Int64Array:
        """Return int64[num_cells]: of each cell the bin with most room."""
        order = np.lexsort((self.room, self.cell_of))
        return order[np.cumsum(np.bincount(self.cell_of, minlength=self.slots.num_cells)) - 1]

    def fill_empty(self) -> None:
        empty = np.flatnonzero(self.counts == 0)
        items = self.waiting[::-1][: empty.size]
        empty = empty[: items.size]
        self._put(items, empty, self.part._times(self.columns[items], empty))

    def _put(self, items: Int64Array, bins: Int64Array, times: Float64Array) -> None:
        self.slot_of[items] = bins
        self.sums[bins] += self.columns[items]
        self.room[bins] -= self.padded[items]
        self.counts[bins] += 1
        self.bin_times[bins] = times
        self.waiting = self.waiting[self.slot_of[self.waiting] < 0]


def _distinct(owners: Int64Array, first: Int64Array, count: int) -> tuple[Int64Array, Int64Array]:
    """Give each owner the first number from its `first` on that no other has; those without one below `count` go.

    Example:
        >>> _distinct(np.array([7, 8, 9]), np.array([2, 0, 0]), 4)
        (array([8, 9, 7]), array([0, 1, 2]))
    """
    order = np.argsort(first, kind="stable")
    steps = np.arange(order.size)
    given = np.maximum.accumulate(first[order] - steps) + steps
    inside = given < count
    return owners[order[inside]], given[inside]
