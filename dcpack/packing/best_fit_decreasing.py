"""Best fit decreasing: the tightest bin that fits, longest items first."""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from dcpack.packing.base import Bins, check_packing, decreasing_order

__all__ = ["best_fit_decreasing"]


def best_fit_decreasing(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    max_sequences: int | None = None,
    alone: npt.ArrayLike | None = None,
) -> Bins:
    """Pack items from the longest to the shortest, each into the bin that it fills best.

    The bin with the least room that still fits is taken, of equal ones the oldest. At most 11/9 of the optimal number
    of bins plus a constant (Johnson et al., "Worst-case performance bounds for simple one-dimensional packing
    algorithms", 1974); on usual length data it is within a fraction of a percent of the lower bound. Equal lengths keep
    their order.

    The open bins hang on the sorted list of the different amounts of room that occur, which `bisect` searches; bins of
    equal room are a heap by number.

    Args:
        lengths: int64[n], padded tokens of each item, at least 1.
        capacity: padded tokens that a bin holds at most.
        max_sequences: items that a bin holds at most; None is no limit.
        alone: bool[n], items that get a bin of their own and may exceed the capacity; None is none.

    Returns:
        The bins, numbered in the order they were opened, items ascending in each.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.
        InfeasibleError: items over the capacity that are not alone; all are named.

    Example:
        >>> best_fit_decreasing([2, 7, 3, 6], 10).lists()
        [[1, 2], [0, 3]]
    """
    checked, capacity, limit, flags = check_packing(lengths, capacity, max_sequences, alone)
    values, is_alone = checked.tolist(), flags.tolist()
    shortest = min(values, default=0)
    rooms: list[int] = []  # ascending, each amount once
    bins_with: dict[int, list[int]] = {}  # room -> heap of bin numbers
    counts: list[int] = []
    bin_of = np.empty(checked.size, np.int64)
    for item in decreasing_order(checked).tolist():
        at = len(rooms) if is_alone[item] else bisect_left(rooms, values[item])
        if at == len(rooms):
            number, room = len(counts), capacity
            counts.append(0)
        else:
            room = rooms[at]
            number = heappop(bins_with[room])
            if not bins_with[room]:
                del rooms[at], bins_with[room]
        bin_of[item] = number
        counts[number] += 1
        room -= values[item]
        # A bin that can take nothing more is forgotten, which keeps the list short.
        if room >= shortest and counts[number] < limit and not is_alone[item]:
            if room not in bins_with:
                bins_with[room] = []
                insort(rooms, room)
            heappush(bins_with[room], number)
    return Bins.from_bin_of(bin_of)
