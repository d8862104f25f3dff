"""First fit decreasing: first fit, longest items first."""

from __future__ import annotations

from bisect import bisect_left
from heapq import heappop, heappush

import numpy.typing as npt

from dcpack.packing.base import Bins, LengthClasses, Moves, Run, check_packing

__all__ = ["first_fit_decreasing"]


def first_fit_decreasing(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    max_sequences: int | None = None,
    alone: npt.ArrayLike | None = None,
    sizes: npt.ArrayLike | None = None,
) -> Bins:
    """Pack items from the longest to the shortest, each into the lowest-numbered bin that has room for it.

    At most 11/9 of the optimal number of bins plus 6/9 (Dosa, "The tight bound of first fit decreasing", 2007).

    The bins are those of the plain algorithm, item by item, but equal items are placed together, a class of them into a
    run of bins with equal room at a time. Bins that have room for the present class lie on a heap by number; what a
    class leaves in a bin is shorter than itself, and waits for the first class that fits. O(m log b) for m such moves
    and b runs of bins, and one sort each of the items before and after.

    Args:
        lengths: int64[n], padded tokens of each item, at least 1.
        capacity: padded tokens that a bin holds at most.
        max_sequences: sequences that a bin holds at most; None is no limit.
        alone: bool[n], items that get a bin of their own and may exceed the capacity; None is none.
        sizes: int64[n], sequences that each item stands for; None is 1 each. Of equal lengths the larger ones come
            first.

    Returns:
        The bins, numbered in the order they were opened: items in `alone` first, then by falling length. Equal items
        are taken in ascending order, and stand so in each bin.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.
        InfeasibleError: items over the capacity that are not alone; all are named.

    Example:
        >>> first_fit_decreasing([1, 5, 4, 6], 10).lists()
        [[2, 3], [0, 1]]
    """
    checked = check_packing(lengths, capacity, max_sequences, alone, sizes)
    classes = LengthClasses.of(checked)
    moves = _place(classes, checked.capacity, checked.max_sequences)
    return moves.bins(classes.items, classes.lonely)


def _place(classes: LengthClasses, capacity: int, limit: int) -> Moves:
    """Put every class into bins; numbers of bins start behind those of the lonely items."""
    long_runs, moves = classes.open_long(capacity, limit)
    runs: list[Run] = list(zip(*long_runs.tolist(), strict=True))
    lengths, sizes, counts = classes.short()
    record = moves.flat.extend
    num_bins = moves.num_opened
    shortest, smallest = int(classes.lengths.min(initial=capacity)), int(classes.sizes.min(initial=limit))
    rising = [-length for length in lengths]  # bisect_left(rising, -room) is the first class that fits into the room
    waiting: list[list[Run]] = [[] for _ in lengths]  # by the class they wait for
    taken = 0  # how many of the long runs went to the heap
    heap: list[tuple[int, Run]] = []  # by number, each with room for the class
    crowded: list[tuple[int, Run]] = []  # have room for the class, but may not take that many sequences

    # `waiting` grows ahead of this loop: what a class leaves is shorter than itself.
    rows = zip(lengths, sizes, counts, classes.num_ready(long_runs[0]), waiting, strict=True)
    for length, size, todo, ready, queue in rows:
        for run in (*queue, *runs[taken:ready]):
            heappush(heap, (run[1], run))
        taken = ready
        while todo:
            if heap:
                room, start, count, left = heappop(heap)[1]
            else:
                room, start, left = capacity, num_bins, limit
                count = -(-todo // min(room // length, left // size))
                num_bins += count
            copies = min(room // length, left // size)
            if copies == 0:
                crowded.append((start, (room, start, count, left)))
                continue
            if copies * count > todo:  # the class ends in this run: bins that it fills, or a last one that it begins
                used, copies = (todo // copies, copies) if todo >= copies else (1, todo)
                if used < count:
                    heappush(heap, (start + used, (room, start + used, count - used, left)))
                    count = used
            todo -= copies * count
            record((start, count, copies))
            room -= copies * length
            left -= copies * size
            if room < shortest or left < smallest:
                continue  # nothing will ever fit
            if room >= length:  # begun, or with room for smaller sizes only
                crowded.append((start, (room, start, count, left)))
            else:
                waiting[bisect_left(rising, -room)].append((room, start, count, left))
        for entry in crowded:
            heappush(heap, entry)
        crowded.clear()
    return moves
