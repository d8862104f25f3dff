"""Best fit decreasing: the tightest bin that fits, longest items first."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy.typing as npt

from dcpack.packing.base import Bins, LengthClasses, Moves, Run, check_packing

__all__ = ["best_fit_decreasing"]


def best_fit_decreasing(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    max_sequences: int | None = None,
    alone: npt.ArrayLike | None = None,
    sizes: npt.ArrayLike | None = None,
) -> Bins:
    """Pack items from the longest to the shortest, each into the bin that it fills best.

    The bin with the least room that still fits is taken, of equal ones the oldest. At most 11/9 of the optimal number
    of bins plus a constant (Johnson et al., "Worst-case performance bounds for simple one-dimensional packing
    algorithms", 1974); on usual length data it is within a fraction of a percent of the lower bound.

    The bins are those of the plain algorithm, item by item, but equal items are placed together, a class of them into a
    run of bins with equal room at a time. Bins that have room for the present class lie on a stack, the tightest on
    top: a class that goes by takes all that it can from the top, and leaves there less room than its own length. Such
    bins wait for the first class that fits, so nothing is ever searched for but the class they wait for. That makes
    O(m log d) for m such moves and d different lengths, and one sort each of the items before and after.

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
        >>> best_fit_decreasing([2, 7, 3, 6], 10).lists()
        [[1, 2], [0, 3]]
    """
    checked = check_packing(lengths, capacity, max_sequences, alone, sizes)
    classes = LengthClasses.of(checked)
    if checked.sizes is None:
        cap_matters = checked.max_sequences < checked.capacity // int(classes.lengths.min(initial=checked.capacity))
    else:
        cap_matters = checked.max_sequences < int(checked.sizes.sum())
    place = _place_capped if cap_matters else _place
    moves = place(classes, checked.capacity, checked.max_sequences)
    return moves.bins(classes.items, classes.lonely)


def _place(classes: LengthClasses, capacity: int, limit: int) -> Moves:
    """Put every class into bins that may hold any number of items.

    Numbers of bins start behind those of the lonely items. A run is (room of each bin, number of the first, how many).
    """
    long_runs, moves = classes.open_long(capacity, limit)
    runs = list(zip(*long_runs[:3].tolist(), strict=True))
    lengths, _, counts = classes.short()
    if not lengths:
        return moves
    record = moves.flat.extend
    num_bins = moves.num_opened
    shortest = lengths[-1]
    rising = [-length for length in lengths]  # bisect_left(rising, -room) is the first class that fits into the room
    waiting: list[list[tuple[int, int, int]] | None] = [None] * len(lengths)  # by the class they wait for
    taken = 0  # how many of the long runs went to the stack
    stack: list[tuple[int, int, int]] = []  # falling room; of equal room falling number

    # `waiting` grows ahead of this loop: what a class leaves is shorter than itself.
    for length, todo, ready, queue in zip(lengths, counts, classes.num_ready(long_runs[0]), waiting, strict=True):
        if queue is not None:
            queue += runs[taken:ready]
            if len(queue) > 1:
                queue.sort(reverse=True)
            stack += queue
        elif taken < ready:
            stack += runs[taken:ready]
        taken = ready
        while todo:
            if stack:
                room, start, count = stack.pop()
            else:
                room, start = capacity, num_bins
                count = -(-todo // (room // length))
                num_bins += count
            copies = room // length
            if copies * count > todo:  # the class ends in this run: bins that it fills, or a last one that it begins
                used, copies = (todo // copies, copies) if todo >= copies else (1, todo)
                if used < count:
                    stack.append((room, start + used, count - used))
                    count = used
            todo -= copies * count
            record((start, count, copies))
            room -= copies * length
            if room < shortest:
                continue  # nothing will ever fit
            if room >= length:  # begun and room for more: tighter than all on the stack
                stack.append((room, start, count))
                continue
            at = bisect_left(rising, -room)
            if (others := waiting[at]) is None:
                waiting[at] = [(room, start, count)]
            else:
                others.append((room, start, count))
    return moves


def _place_capped(classes: LengthClasses, capacity: int, limit: int) -> Moves:
    """Put every class into bins that may hold `limit` sequences; as `_place`, and kept apart as that is faster.

    A run is (room of each bin, number of the first, how many, sequences that each may still take).
    """
    long_runs, moves = classes.open_long(capacity, limit)
    runs: list[Run] = list(zip(*long_runs.tolist(), strict=True))
    lengths, sizes, counts = classes.short()
    record = moves.flat.extend
    num_bins = moves.num_opened
    shortest, smallest = int(classes.lengths.min(initial=capacity)), int(classes.sizes.min(initial=limit))
    rising = [-length for length in lengths]
    waiting: list[list[Run]] = [[] for _ in lengths]
    taken = 0
    stack: list[Run] = []
    crowded: list[Run] = []  # have room for the class, but may not take that many sequences

    rows = zip(lengths, sizes, counts, classes.num_ready(long_runs[0]), waiting, strict=True)
    for length, size, todo, ready, queue in rows:
        queue += runs[taken:ready]
        taken = ready
        queue.sort(reverse=True)
        stack += queue
        while todo:
            if stack:
                room, start, count, left = stack.pop()
            else:
                room, start, left = capacity, num_bins, limit
                count = -(-todo // min(room // length, left // size))
                num_bins += count
            copies = min(room // length, left // size)
            if copies == 0:
                crowded.append((room, start, count, left))
                continue
            if copies * count > todo:
                used, copies = (todo // copies, copies) if todo >= copies else (1, todo)
                if used < count:
                    stack.append((room, start + used, count - used, left))
                    count = used
            todo -= copies * count
            record((start, count, copies))
            room -= copies * length
            left -= copies * size
            if room < shortest or left < smallest:
                continue
            if room < length:
                waiting[bisect_left(rising, -room)].append((room, start, count, left))
            elif left >= size:
                stack.append((room, start, count, left))
            else:  # room for smaller sizes only
                crowded.append((room, start, count, left))
        for run in crowded:
            insort(stack, run, key=_stack_key)
        crowded.clear()
    return moves


def _stack_key(run: Run) -> tuple[int, int]:
    return -run[0], -run[1]
