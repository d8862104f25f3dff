"""Refilling bins to the last token, where best fit decreasing leaves more of them than the lower bound asks for."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_int, check_kinds
from dcpack.errors import ArgumentError
from dcpack.packing.base import Bins, Checked, check_packing

__all__ = ["refill"]

# Limits of the effort, in counts and not in seconds, so that every machine decides alike.
_MAX_ITEMS = 20_000  # items that are taken out of their bins
_POOL = 400  # items that are tried for one bin
_MAX_SUM = 2**17  # sums that are told apart; a larger capacity is looked at in coarser units


def refill(
    bins: Bins,
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    enough: int = 1,
    max_sequences: int | None = None,
    alone: npt.ArrayLike | None = None,
    sizes: npt.ArrayLike | None = None,
) -> Bins:
    """Pack the emptiest bins again, each filled as far as a subset of items can fill it; keep what is better.

    Fit heuristics leave a few tokens free in many bins, and a bin too many at the end. Here each bin takes the longest
    item left and then that subset of the others that leaves the least room ("minimum bin slack", Gupta and Ho, "A new
    heuristic algorithm for the one-dimensional bin-packing problem", 1999). The subset is found among up to 400 items,
    spread evenly over all that fit, from the set of all their sums, which is one Python integer with a bit for each
    sum: adding an item is a shift and an or. Long items come first, so that short ones are left for later bins.

    At most 20,000 items are taken out of their bins at a time, those of the bins with most room, which takes up to a
    second or so; as long as that saves bins it is done again.

    Args:
        bins: the bins to start from, every item in one of them.
        lengths: int64[n], padded tokens of each item, at least 1.
        capacity: padded tokens that a bin holds at most.
        enough: so many bins are as good as it gets, a lower bound; nothing is done where there are no more.
        max_sequences: sequences that a bin holds at most; None is no limit.
        alone: bool[n], items that have a bin of their own; their bins stay as they are.
        sizes: int64[n], sequences that each item stands for; None is 1 each.

    Returns:
        Fewer bins, or `bins` itself. Those that stay come first, in their order.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range, or an item that is in no bin.
        InfeasibleError: items over the capacity that are not alone; all are named.

    Example:
        >>> from dcpack.packing import best_fit_decreasing
        >>> lengths = [5, 5, 4, 4, 3, 3, 3, 3]
        >>> bins = best_fit_decreasing(lengths, 15)
        >>> bins.lists()
        [[0, 1, 2], [3, 4, 5, 6], [7]]
        >>> refill(bins, lengths, 15).lists()
        [[0, 2, 4, 5], [1, 3, 6, 7]]
    """
    check_kinds(bins=(bins, Bins))
    checked = check_packing(lengths, capacity, max_sequences, alone, sizes)
    if bins.items.size != checked.lengths.size:
        raise ArgumentError(f"bins must hold all {checked.lengths.size} items, got {bins.items.size} of them")
    enough = check_int("enough", enough, minimum=0)
    while bins.num_bins > enough and (better := _refill_emptiest(bins, checked)) is not None:
        bins = better
    return bins


def _refill_emptiest(bins: Bins, checked: Checked) -> Bins | None:
    """Return fewer bins, or None where this does not help."""
    bin_of = bins.bin_of(checked.lengths.size)
    loads = np.add.reduceat(checked.lengths[bins.items], bins.offsets[:-1])
    emptiest = np.argsort(loads, kind="stable")
    emptiest = emptiest[~checked.alone[bins.items[bins.offsets[emptiest]]]]
    num_items = np.cumsum(np.diff(bins.offsets)[emptiest])
    chosen = emptiest[: int(np.searchsorted(num_items, _MAX_ITEMS, side="right"))]
    if chosen.size < 2:
        return None
    is_chosen = np.zeros(bins.num_bins, np.bool_)
    is_chosen[chosen] = True
    items = np.flatnonzero(is_chosen[bin_of])
    unit = -(-checked.capacity // _MAX_SUM)
    units = checked.capacity // unit
    # An item that fits is never longer than a bin, whatever the rounding: nothing joins it there.
    lengths = np.minimum(-(-checked.lengths[items] // unit), units)
    refilled = _fill(items, lengths, checked.size_of_each[items], units, checked.max_sequences)
    if len(refilled) >= chosen.size:
        return None
    numbers = np.cumsum(~is_chosen)[bin_of] - 1
    for number, members in enumerate(refilled, bins.num_bins - chosen.size):
        numbers[members] = number
    return Bins.from_bin_of(numbers)


def _fill(items: Int64Array, lengths: Int64Array, sizes: Int64Array, capacity: int, limit: int) -> list[list[int]]:
    """Return the items of each bin, filled one bin after another."""
    order = np.lexsort((-items, lengths))  # the longest and, of these, the lowest item at the end
    left, values, counts = items[order].tolist(), lengths[order].tolist(), sizes[order].tolist()
    refilled = []
    while left:
        members = [left.pop()]
        num_sequences = counts.pop()
        room = capacity - values.pop()
        num_fitting = bisect_right(values, room)
        if num_fitting <= _POOL:
            pool = list(range(num_fitting - 1, -1, -1))
        else:
            pool = [rank * (num_fitting - 1) // (_POOL - 1) for rank in range(_POOL - 1, -1, -1)]
        for at in _fullest([values[at] for at in pool], room):
            at = pool[at]
            if num_sequences + counts[at] <= limit:
                num_sequences += counts[at]
                members.append(left[at])
                # `pool` falls, so what is still to be looked at lies before `at` and stays in place.
                del left[at], values[at], counts[at]
        refilled.append(members)
    return refilled


def _fullest(lengths: list[int], room: int) -> list[int]:
    """Return ascending places of a subset with the largest sum within `room`, of the first places that reach it.

    Example: lengths 4, 3, 2 and room 5. Bit s of a set stands for sum s: {0}, {0, 4}, {0, 3, 4}, {0, 2, 3, 4, 5}. The
    largest sum, 5, is not yet in the set before the 2, so the 2 is taken; the rest, 3, is not yet in that before the 3.

    Example:
        >>> _fullest([4, 3, 2], 5)
        [1, 2]
    """
    mask = (2 << room) - 1
    sums, before = 1, []
    for length in lengths:
        before.append(sums)
        sums = (sums | (sums << length)) & mask
        if sums >> room:
            break
    rest = sums.bit_length() - 1
    taken = []
    for place in range(len(before) - 1, -1, -1):
        if not before[place] >> rest & 1:
            taken.append(place)
            rest -= lengths[place]
    return taken[::-1]
