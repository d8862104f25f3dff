"""First fit decreasing: first fit, longest items first."""

from __future__ import annotations

import numpy.typing as npt

from dcpack.packing.base import Bins, check_packing, decreasing_order, place_first_fit

__all__ = ["first_fit_decreasing"]


def first_fit_decreasing(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    max_sequences: int | None = None,
    alone: npt.ArrayLike | None = None,
) -> Bins:
    """Pack items from the longest to the shortest, each into the lowest-numbered bin that has room for it.

    At most 11/9 of the optimal number of bins plus 6/9 (Dosa, "The tight bound of first fit decreasing", 2007).
    Equal lengths keep their order. O(n log n).

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
        >>> first_fit_decreasing([1, 5, 4, 6], 10).lists()
        [[2, 3], [0, 1]]
    """
    checked, capacity, limit, flags = check_packing(lengths, capacity, max_sequences, alone)
    return place_first_fit(checked, decreasing_order(checked), capacity, limit, flags)
