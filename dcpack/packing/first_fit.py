"""First fit: the lowest-numbered bin with room, in the order of arrival."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dcpack.packing.base import Bins, check_packing, place_first_fit

__all__ = ["first_fit"]


def first_fit(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    max_sequences: int | None = None,
    alone: npt.ArrayLike | None = None,
) -> Bins:
    """Pack items in order, each into the lowest-numbered bin that has room for it.

    It needs no sorting, so items can be packed as they come, at no more than 1.7 times the optimal number of bins
    (Dosa and Sgall, "First Fit bin packing: a tight analysis", 2013). O(n log b) for n items and b bins.

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
        >>> first_fit([6, 5, 4, 1], 10).lists()
        [[0, 2], [1, 3]]
    """
    checked, capacity, limit, flags = check_packing(lengths, capacity, max_sequences, alone)
    return place_first_fit(checked, np.arange(checked.size), capacity, limit, flags)
