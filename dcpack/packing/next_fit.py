"""Next fit: fill one bin at a time, in the order of arrival."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np
import numpy.typing as npt

from dcpack.packing.base import Bins, check_packing

__all__ = ["next_fit"]


def next_fit(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    max_sequences: int | None = None,
    alone: npt.ArrayLike | None = None,
) -> Bins:
    """Pack items in order into one open bin; an item that does not fit closes it and opens the next.

    Each bin is a run of consecutive items, so the order of arrival is kept. That costs tokens: up to twice the bins of
    an optimal packing (Johnson, "Near-optimal bin packing algorithms", 1973). An item in `alone` closes the open bin
    too, since bins would not be runs otherwise. The loop is over bins, not over items.

    Args:
        lengths: int64[n], padded tokens of each item, at least 1.
        capacity: padded tokens that a bin holds at most.
        max_sequences: items that a bin holds at most; None is no limit.
        alone: bool[n], items that get a bin of their own and may exceed the capacity; None is none.

    Returns:
        The bins, in order.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.
        InfeasibleError: items over the capacity that are not alone; all are named.

    Example:
        >>> next_fit([6, 5, 4, 1], 10).lists()
        [[0], [1, 2, 3]]
    """
    checked, capacity, limit, flags = check_packing(lengths, capacity, max_sequences, alone)
    num_items = checked.size
    filled = np.concatenate([[0], np.cumsum(checked)]).tolist()  # filled[i]: tokens before item i
    lonely = np.flatnonzero(flags).tolist()
    offsets = [0]
    while (first := offsets[-1]) < num_items:
        at = bisect_left(lonely, first)
        next_alone = lonely[at] if at < len(lonely) else num_items
        if next_alone == first:
            offsets.append(first + 1)
        else:
            stop = bisect_right(filled, filled[first] + capacity, first) - 1
            offsets.append(min(stop, first + limit, next_alone))
    return Bins(items=np.arange(num_items), offsets=np.array(offsets))
