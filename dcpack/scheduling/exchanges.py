"""Local search on bins: exchange a few items between two bins so that a meeting ends earlier.

Each round takes the dearest cell of the meeting that loses most by it, and looks for the best exchange of up to two of
its items for up to two (or none) of another cell. Inside the meeting the dearer of the two cells must get cheaper; a
cell of another meeting may get dearer as long as it stays within the time its own meeting takes anyway. So no meeting
ever gets longer, and the search ends. Example, one meeting, limits aside:

    cell 0  [9] [4]   13   exchange 9 of cell 0      [6] [4]   10
    cell 1  [6] [1]    7   for 6 of cell 1     ->    [9] [1]   10
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, combinations

import numpy as np
import numpy.typing as npt

from dcpack._checks import BoolArray, Int64Array
from dcpack.scheduling.workload import Slots, Workload

__all__ = ["exchange_items"]

# Of so many bundles of items (none, one or two of a bin) the dear cell offers at most, and of so many exchanges at most
# the best is taken in one round: larger tables take longer and find little more.
_MOST_OFFERS = 256
_MOST_EXCHANGES = 16384
# Pairs are looked at among so many items of a bin.
_MOST_PAIRED = 12
# The other cells that are tried first, and then, those with the most time left.
_PARTNERS = ((0, 4), (4, 16))
# A gain below this part of an even share is none.
_LEAST_GAIN = 1e-6


def exchange_items(
    work: Workload,
    slots: Slots,
    bin_of: Int64Array,
    cell_of_bin: Int64Array,
    *,
    rounds: int,
    close_enough: float,
    every_cell: bool = False,
) -> Int64Array:
    """Return the bins of the items after exchanges that make the meetings shorter.

    Every bin keeps its limits, and none becomes empty.

    Args:
        work: the items.
        slots: how cells wait for each other.
        bin_of: int64[n], the bin of each item.
        cell_of_bin: int64[b], the cell of each bin.
        rounds: rounds of the search at most, so that its time is bounded whatever the input.
        close_enough: stop where the meetings together take at most this much, relative, above an even share.
        every_cell: go on with the next dearest cell of a meeting where nothing helps the dearest one, and stay inside
            the meeting. The makespan gains nothing from that, the variance does.

    Example:
        >>> work = Workload(costs=np.array([9, 4, 6, 1]), amounts=np.ones((4, 1), np.int64), limits=np.array([1]))
        >>> slots = Slots(num_microbatches=1, num_ranks=2, num_rows=2, sync="microbatch")
        >>> bins, cells = np.array([0, 1, 2, 3]), np.array([0, 0, 1, 1])
        >>> exchange_items(work, slots, bins, cells, rounds=9, close_enough=0.0)
        array([2, 1, 0, 3])
    """
    search = _Search(work, slots, bin_of, cell_of_bin, every_cell)
    search.run(rounds, close_enough)
    return search.bins_of_items()


@dataclass(frozen=True, slots=True)
class _Bundles:
    """Sets of at most two items that may leave their bin together."""

    first: Int64Array  # [k], an item or -1
    second: Int64Array  # [k], an item or -1
    bin: Int64Array  # [k]
    cost: Int64Array  # [k]
    amounts: Int64Array  # [k, d]
    count: Int64Array  # [k]


class _Search:
    """The state of a search: what lies in each bin, and what each cell and meeting comes to."""

    def __init__(
        self, work: Workload, slots: Slots, bin_of: Int64Array, cell_of_bin: Int64Array, every_cell: bool
    ) -> None:
        num_bins = cell_of_bin.size
        self.slots = slots
        self.every_cell = every_cell
        self.limits = work.limits
        # One row more than there are items, of zeros: item -1 is nothing.
        self.costs = np.concatenate([work.costs, [0]])
        self.amounts = np.concatenate([work.amounts, np.zeros((1, work.limits.size), np.int64)])
        self.cell_of_bin = cell_of_bin
        self.items: list[list[int]] = [[] for _ in range(num_bins)]
        for item, number in enumerate(bin_of.tolist()):
            self.items[number].append(item)
        self.bins: list[list[int]] = [[] for _ in range(slots.num_cells)]
        for number, cell in enumerate(cell_of_bin.tolist()):
            self.bins[cell].append(number)
        self.used = np.zeros((num_bins, work.limits.size), np.int64)
        np.add.at(self.used, bin_of, work.amounts)
        self.counts = np.bincount(bin_of, minlength=num_bins)
        self.loads = np.zeros(slots.num_cells, np.int64)
        np.add.at(self.loads, cell_of_bin[bin_of], work.costs)
        self.meeting_of = np.arange(slots.num_cells) // slots.num_ranks
        self.is_stuck = np.zeros(slots.num_cells, np.bool_)
        by_meeting = self.loads.reshape(slots.num_meetings, slots.num_ranks)
        self.longest, self.even = by_meeting.max(axis=1), by_meeting.sum(axis=1) // slots.num_ranks

    def run(self, rounds: int, close_enough: float) -> None:
        share = int(self.loads.sum()) / self.slots.num_ranks
        least = int(share * _LEAST_GAIN)
        while rounds > 0 and float(self.longest.sum()) > share * (1 + close_enough):
            cell = self._next_cell()
            if cell is None:
                return
            spent = self._improve(cell, least)
            self.is_stuck[cell] |= spent < 0
            rounds -= abs(spent)

    def _next_cell(self) -> int | None:
        """Return the dearest cell that is not stuck, of the meeting that loses most by its dearest cell."""
        loads = self.loads.reshape(self.slots.num_meetings, self.slots.num_ranks)
        stuck = self.is_stuck.reshape(loads.shape)
        if self.every_cell:
            top = np.where(stuck, -1, loads)
            loss = top.max(axis=1) - loads.min(axis=1)
        else:
            top = loads
            loss = np.where(stuck[np.arange(len(loads)), loads.argmax(axis=1)], 0, self.longest - self.even)
        meeting = int(loss.argmax())
        return None if loss[meeting] <= 0 else meeting * self.slots.num_ranks + int(top[meeting].argmax())

    def _improve(self, cell: int, least: int) -> int:
        """Make the best exchange found, and return the tables looked at, negative where none of them had one."""
        meeting = self.meeting_of[cell]
        ends = np.where(self.meeting_of == meeting, self.loads[cell], self.longest[self.meeting_of])
        slack = ends - self.loads
        if self.every_cell:
            slack[self.meeting_of != meeting] = 0
        slack[cell] = 0
        order = np.argsort(-slack, kind="stable")[: _PARTNERS[-1][-1]]
        order = order[slack[order] > 0]
        looked_at = 0
        for with_pairs in (False, True):
            offers = self._bundles([cell], with_pairs, _MOST_OFFERS, with_none=False)
            for start, stop in _PARTNERS:
                partners = order[start:stop].tolist()
                if not partners or not offers.bin.size:
                    continue
                looked_at += 1
                returns = self._bundles(partners, with_pairs, _MOST_EXCHANGES // offers.bin.size, with_none=True)
                if self._exchange_best(cell, offers, returns, least):
                    return looked_at
        return -max(looked_at, 1)

    def _bundles(self, cells: list[int], with_pairs: bool, most: int, *, with_none: bool) -> _Bundles:
        bins = [number for cell in cells for number in self.bins[cell]]
        held = [self.items[number] for number in bins]
        if with_pairs and max(map(len, held), default=0) > 1:
            table = _with_pairs(bins, held, with_none)
        else:
            table = _singles(bins, held, with_none)
        if len(table) > most:
            table = table[np.linspace(0, len(table) - 1, most).astype(np.int64)]
        first, second = table[:, 0], table[:, 1]
        return _Bundles(
            first=first,
            second=second,
            bin=table[:, 2],
            cost=self.costs[first] + self.costs[second],
            amounts=self.amounts[first] + self.amounts[second],
            count=(first >= 0).astype(np.int64) + (second >= 0),
        )

    def _exchange_best(self, cell: int, offers: _Bundles, returns: _Bundles, least: int) -> bool:
        gains = self._gains(cell, offers, returns)
        gains[~self._is_possible(offers, returns)] = -1
        best = int(gains.argmax())
        i, j = divmod(best, gains.shape[1])
        if gains[i, j] <= least:
            return False
        self._carry_out(offers, i, returns, j)
        return True

    def _gains(self, cell: int, offers: _Bundles, returns: _Bundles) -> npt.NDArray[np.int64]:
        """Return int64[i, j]: how much the dearer of the two cells gets cheaper; not positive where nothing is won."""
        load, partner = self.loads[cell], self.cell_of_bin[returns.bin]
        moved = offers.cost[:, np.newaxis] - returns.cost
        risen = self.loads[partner] + moved
        meeting = self.meeting_of[partner]
        inside = load - np.maximum(load - moved, risen)
        # Getting cheaper than an even share of the meeting wins nothing more.
        outside = np.minimum(moved, load - self.even[self.meeting_of[cell]])
        outside = np.where(risen <= self.longest[meeting], outside, -1)
        return np.where(meeting == self.meeting_of[cell], inside, outside)

    def _is_possible(self, offers: _Bundles, returns: _Bundles) -> BoolArray:
        """Return bool[i, j]: whether both bins keep their limits and at least one item."""
        fewer = offers.count[:, np.newaxis] - returns.count
        possible = (self.counts[offers.bin][:, np.newaxis] - fewer >= 1) & (self.counts[returns.bin] + fewer >= 1)
        for k, limit in enumerate(self.limits.tolist()):
            less = offers.amounts[:, k, np.newaxis] - returns.amounts[:, k]
            possible &= self.used[returns.bin, k] + less <= limit
            possible &= self.used[offers.bin, k][:, np.newaxis] - less <= limit
        return possible

    def _carry_out(self, offers: _Bundles, i: int, returns: _Bundles, j: int) -> None:
        one, two = int(offers.bin[i]), int(returns.bin[j])
        self._move(offers, i, one, two)
        self._move(returns, j, two, one)
        for meeting in {int(self.meeting_of[self.cell_of_bin[number]]) for number in (one, two)}:
            loads = self.loads[meeting * self.slots.num_ranks : (meeting + 1) * self.slots.num_ranks]
            self.longest[meeting], self.even[meeting] = loads.max(), loads.sum() // self.slots.num_ranks

    def _move(self, bundles: _Bundles, k: int, source: int, target: int) -> None:
        for item in (int(bundles.first[k]), int(bundles.second[k])):
            if item >= 0:
                self.items[source].remove(item)
                self.items[target].append(item)
        for number, sign in ((source, -1), (target, 1)):
            self.used[number] += sign * bundles.amounts[k]
            self.counts[number] += sign * bundles.count[k]
            self.loads[self.cell_of_bin[number]] += sign * bundles.cost[k]

    def bins_of_items(self) -> Int64Array:
        result = np.empty(self.costs.size - 1, np.int64)
        for number, items in enumerate(self.items):
            result[items] = number
        return result


def _singles(bins: list[int], held: list[list[int]], with_none: bool) -> Int64Array:
    """Return int64[k, 3], item, -1 and bin: bin after bin nothing, if `with_none`, and each of its items.

    Example:
        >>> _singles([4, 2], [[7], [5, 6]], True).tolist()
        [[-1, -1, 4], [7, -1, 4], [-1, -1, 2], [5, -1, 2], [6, -1, 2]]
    """
    sizes = np.fromiter(map(len, held), np.int64, len(held))
    before = np.arange(1, len(held) + 1) if with_none else np.zeros(len(held), np.int64)  # lines of nothing
    table = np.full((int(sizes.sum()) + len(held) * with_none, 3), -1, np.int64)
    items = np.fromiter(chain.from_iterable(held), np.int64, int(sizes.sum()))
    table[np.arange(items.size) + np.repeat(before, sizes), 0] = items
    table[:, 2] = np.repeat(np.array(bins, np.int64), sizes + with_none)
    return table


def _with_pairs(bins: list[int], held: list[list[int]], with_none: bool) -> Int64Array:
    """Return the same with the pairs of each bin behind its items."""
    members: list[tuple[int, int, int]] = []
    for number, items in zip(bins, held, strict=True):
        if with_none:
            members.append((-1, -1, number))
        members += [(item, -1, number) for item in items]
        members += [(one, two, number) for one, two in combinations(items[:_MOST_PAIRED], 2)]
    return np.array(members, np.int64).reshape(-1, 3)
