"""Karmarkar and Karp's largest differencing method, for any number of parts.

The method keeps a heap of partial partitions, each a tuple of part sums, at first one for each item. It takes the two
with the largest spread (largest sum minus smallest) and merges them with the large parts of one on the small parts of
the other, until one partition is left.

Here a partition is a row of sums in descending order, without the parts that are still empty: a partition of three
items has at most three sums, however many parts there are. Merging rows a and b of p and q sums gives
``min(num_parts, p + q)`` sums: a's lie at the front, b's reversed at the back, overlapping where the room is too small.
For num_parts 4, a = [9, 4, 1], b = [6, 5]::

    a            9  4  1  .
    b reversed   .  .  5  6
    merged       9  4  6  6    -> sorted 9 6 6 4, order [0, 3, 2, 1]

No part of a merged row is empty: both rows have only non-empty parts, and together they cover the whole width. So at
least as many items as parts leave no part empty, also where items cost nothing.

Nearly all merges are of a row and one item, since a row that was just merged tends to keep the largest spread. They
need no sorting. While the row has empty parts, the item gets one, and the row stays sorted: whole blocks of items are
appended at once. When it has none left, the item goes to the smallest sum, which a heap of the sums tells. Such a run
of items goes on for as long as the row and the next item are the two largest spreads, so it gives what merging them one
by one gives. About n / num_parts rows are left to be merged in NumPy, or in `block_differencing` where they are short
from the start.

Which item is in which part is not carried along. Each step remembers its children and its order, and the parts are
dealt out from the last step down to the items.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array
from dcpack.balancing.base import deal_in_order
from dcpack.balancing.block_differencing import MAX_PARTS, deal_blocks

__all__ = ["karmarkar_karp"]

_FEW_PARTS = 16
_NOTHING = np.zeros(0, np.int64)
_Order = npt.NDArray[np.integer]
_Row = tuple[int, int, Int64Array]


def karmarkar_karp(
    costs: npt.ArrayLike, num_parts: int, *, equal_size: bool = False, effort: str = "best"
) -> Int64Array:
    """Deal the items so that the sums of the parts are nearly equal, by largest differencing, then refine.

    Much closer to equal than `lpt` where there are many items a part. Sources: Karmarkar and Karp, "The differencing
    method of set partitioning", 1982; with `equal_size`, the balanced form that starts from blocks of `num_parts` items
    each: Michiels, Korst, Aarts and van Leeuwen, "Performance ratios for the differencing method applied to the
    balanced multiway number partitioning problem", 2003. Of equal spreads the younger partition is merged first, and
    items are older than all that was merged. O(n log num_parts) for the items and O(num_parts log num_parts) for each
    of about n / num_parts merges of rows.

    Args:
        costs: [n], integers or floats, finite and at least 0, in any unit.
        num_parts: number of parts, at least 1.
        equal_size: whether the numbers of items of any two parts differ by at most 1.
        effort: ``"fast"`` is the method alone; ``"best"`` then moves and swaps items between parts
            (`dcpack.balancing.refine.refine`), which never makes the dearest part dearer.

    Returns:
        int64[n], the part of each item. With fewer items than parts the last parts stay empty.

    Raises:
        ArgumentError: costs that are no costs (all are named), fewer than 1 part, or an unknown effort.

    Example:
        >>> karmarkar_karp([8, 7, 6, 5, 4], 2, effort="fast")  # 16 and 14
        array([1, 0, 1, 0, 0])
        >>> karmarkar_karp([8, 7, 6, 5, 4], 2)  # 15 and 15
        array([1, 1, 0, 0, 0])
        >>> karmarkar_karp([9, 1, 1, 1], 2, equal_size=True)
        array([0, 1, 1, 0])
    """
    return deal_in_order(costs, num_parts, equal_size=equal_size, effort=effort, deal=_deal)


def _deal(costs: Int64Array, num_parts: int, equal_size: bool) -> Int64Array:
    """Deal descending costs to at most as many parts."""
    if not equal_size:
        return _Differencing(costs, num_parts).deal()
    # Every block gives each part one item. The items that are missing in the last block cost nothing, stand behind
    # all others and are cut off again below, so that no part misses more than one.
    padded = np.zeros(-(-costs.size // num_parts) * num_parts, np.int64)
    padded[: costs.size] = costs
    if num_parts <= MAX_PARTS:
        return deal_blocks(padded, num_parts)[: costs.size]
    differencing = _Differencing(padded, num_parts)
    differencing.start_from_blocks()
    return differencing.deal()[: costs.size]


class _Merge(NamedTuple):
    """Two rows became one."""

    first: int
    second: int
    width_first: int
    width_second: int
    order: _Order
    """Where each sum of the merged row, in descending order, stood before it was sorted."""


class _Run(NamedTuple):
    """Items from `start` on were added to the row `child` (None: to nothing) one after the other."""

    child: int | None
    child_width: int
    start: int
    slots: Int64Array | None
    """The place of each item in the row before it was sorted again; None where all were appended."""
    order: _Order | None
    """As in `_Merge`; None where the row needed no sorting."""


class _Differencing:
    """The state of the method: rows of sums, and how each was made.

    `heap` holds (-spread, -number, row) of the rows that are not merged yet. Rows are numbered as they are made, so the
    youngest of equal spreads comes first. The items that are in no row yet are those from `next_item` on.
    """

    def __init__(self, costs: Int64Array, num_parts: int) -> None:
        self.costs = costs
        self.num_parts = num_parts
        self.items: list[int] = [*costs.tolist(), -1, -1]  # behind the last: cheaper than anything
        self.next_item = 0
        self.steps: list[_Merge | _Run] = []  # how the row of each number was made
        self.heap: list[_Row] = []
        # The orders are most of the memory; those of few parts take less time as they are.
        self.narrow = np.min_scalar_type(num_parts) if num_parts > _FEW_PARTS else np.dtype(np.intp)

    def start_from_blocks(self) -> None:
        """Make rows of `num_parts` items each of all items."""
        blocks = self.costs.reshape(-1, self.num_parts)
        spreads = (blocks[:, 0] - blocks[:, -1]).tolist()
        self.steps.extend(_Run(None, 0, start, None, None) for start in range(0, self.costs.size, self.num_parts))
        self.heap.extend((-spread, -number, blocks[number]) for number, spread in enumerate(spreads))
        heapify(self.heap)
        self.next_item = self.costs.size

    def deal(self) -> Int64Array:
        """Merge until one row is left, and return the part of each item."""
        heap = self.heap
        while True:
            if not heap or -heap[0][0] < self.items[self.next_item + 1]:
                self._absorb(None, _NOTHING)
                continue
            _, first, row = heappop(heap)
            if self._largest_spread() < self.items[self.next_item]:
                self._absorb(-first, row)
            elif heap:
                _, second, other = heappop(heap)
                self._merge(-first, row, -second, other)
            else:
                return self._trace_back()

    def _largest_spread(self) -> int:
        """Return the largest spread of all rows, -1 where there is none."""
        return -self.heap[0][0] if self.heap else -1

    def _push(self, row: Int64Array, step: _Merge | _Run) -> None:
        smallest = row.item(-1) if row.size == self.num_parts else 0  # a narrower row has empty parts
        heappush(self.heap, (smallest - row.item(0), -len(self.steps), row))
        self.steps.append(step)

    def _merge(self, first: int, ahead: Int64Array, second: int, behind: Int64Array) -> None:
        """Merge two rows, given by their numbers and sums."""
        if ahead.size == behind.size == self.num_parts:
            sums = ahead + behind[::-1]
        else:
            sums = np.zeros(min(self.num_parts, ahead.size + behind.size), np.int64)
            sums[: ahead.size] += ahead
            sums[sums.size - behind.size :] += behind[::-1]
        order = sums.argsort(kind="stable")[::-1]
        self._push(sums[order], _Merge(first, second, ahead.size, behind.size, order.astype(self.narrow)))

    def _absorb(self, child: int | None, row: Int64Array) -> None:
        """Add items to a row, while it and the next item are the two largest spreads.

        Args:
            child: the number of the row, None to start one.
            row: its sums.
        """
        start, rival, child_width = self.next_item, self._largest_spread(), row.size
        slots = order = None
        # Up to the width of num_parts the spread is the first sum, which no item left exceeds.
        if free := min(self.num_parts - child_width, self.costs.size - start):
            appended = self.costs[start : start + free]
            if self.items[start + free - 1] <= rival:  # another row comes before an item of equal spread
                appended = appended[: np.searchsorted(-appended, -rival)]
            row = np.concatenate([row, appended]) if child_width else appended
            self.next_item += appended.size
        item, after = self.items[self.next_item : self.next_item + 2]
        if row.size == self.num_parts and item > rival and row.item(0) - row.item(-1) >= max(rival, after):
            row, added, order = self._absorb_into_smallest(row, rival)
            slots = np.concatenate([np.arange(child_width, row.size), added])
        self._push(row, _Run(child, child_width, start, slots, order))

    def _absorb_into_smallest(self, row: Int64Array, rival: int) -> tuple[Int64Array, list[int], _Order]:
        """Add items to the smallest sum of a row without empty parts while both come before all else.

        Args:
            row: int64[num_parts], descending.
            rival: the largest spread of the other rows.

        Returns:
            The row sorted again, the place in the given row that each item was added to, and the order of the sums.
        """
        smallest_first = [(total, slot) for slot, total in enumerate(row.tolist())][::-1]  # sorted, hence a heap
        largest = smallest_first[-1][0]
        added: list[int] = []
        items, at = self.items, self.next_item
        while items[at] > rival:
            total, slot = smallest_first[0]
            spread = largest - total
            if spread < rival or spread < items[at + 1]:
                break
            total += items[at]
            heapreplace(smallest_first, (total, slot))
            largest = max(largest, total)
            added.append(slot)
            at += 1
        self.next_item = at
        smallest_first.sort(reverse=True)
        order = np.array([slot for _, slot in smallest_first], self.narrow)
        return np.array([total for total, _ in smallest_first], np.int64), added, order

    def _trace_back(self) -> Int64Array:
        """Follow the steps from the last row, whose sums are the parts, back to the items."""
        part_of = np.empty(self.costs.size, np.int64)
        parts = [_NOTHING] * len(self.steps)
        parts[-1] = np.arange(self.num_parts)
        for number in range(len(self.steps) - 1, -1, -1):
            step, at_place = self.steps[number], parts[number]
            parts[number] = _NOTHING
            if step.order is not None:
                in_order = at_place
                at_place = np.empty(in_order.size, np.int64)
                at_place[step.order] = in_order
            if isinstance(step, _Merge):
                parts[step.first] = at_place[: step.width_first]
                parts[step.second] = at_place[::-1][: step.width_second]
                continue
            if step.child is not None:
                parts[step.child] = at_place[: step.child_width]
            dealt = at_place[step.child_width :] if step.slots is None else at_place[step.slots]
            part_of[step.start : step.start + dealt.size] = dealt
        return part_of
