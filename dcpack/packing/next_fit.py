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
    sizes: npt.ArrayLike | None = None,
) -> Bins:
    """Pack items in order into one open bin; an item that does not fit closes it and opens the next.

    Each bin is a run of consecutive items, so the order of arrival is kept. That costs tokens: up to twice the bins of
    an optimal packing (Johnson, "Near-optimal bin packing algorithms", 1973). An item in `alone` closes the open bin
    too, since bins would not be runs otherwise. The loop is over bins, not over items.

    Args:
        lengths: int64[n], padded tokens of each item, at least 1.
        capacity: padded tokens that a bin holds at most.
        max_sequences: sequences that a bin holds at most; None is no limit.
        alone: bool[n], items that get a bin of their own and may exceed the capacity; None is none.
        sizes: int64[n], sequences that each item stands for; None is 1 each.

    Returns:
        The bins, in order.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.
        InfeasibleError: items over the capacity that are not alone; all are named.

    Example:
        >>> next_fit([6, 5, 4, 1], 10).lists()
        [[0], [1, 2, 3]]
    """
    checked = check_packing(lengths, capacity, max_sequences, alone, sizes)
    num_items = checked.lengths.size
    filled = np.concatenate([[0], np.cumsum(checked.lengths)]).tolist()  # filled[i]: tokens before item i
    counted = np.concatenate([[0], np.cumsum(checked.size_of_each)]).tolist()  # counted[i]: sequences before item i
    lonely = np.flatnonzero(checked.alone).tolist()
    offsets = [0]
    while (first := offsets[-1]) < num_items:
        at = bisect_left(lonely, first)
        next_alone = lonely[at] if at < len(lonely) else num_items
        if next_alone == first:
            offsets.append(first + 1)
        else:
            by_tokens = bisect_right(filled, filled[first] + checked.capacity, first) - 1
            by_count = bisect_right(counted, counted[first] + checked.max_sequences, first) - 1
            offsets.append(min(by_tokens, by_count, next_alone))
    return Bins(items=np.arange(num_items), offsets=np.array(offsets))
