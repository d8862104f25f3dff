"""Longest processing time first: the dearest item to the least loaded part."""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array
from dcpack.balancing.base import deal_in_order

__all__ = ["lpt"]


def lpt(costs: npt.ArrayLike, num_parts: int, *, equal_size: bool = False, effort: str = "best") -> Int64Array:
    """Give the items, dearest first, to the part with the least cost so far, then refine.

    Of equally loaded parts the one with the fewest items is taken, then the lowest; so empty parts come first and none
    stays empty where there are items enough, even if items cost nothing. The largest part costs at most
    4/3 - 1/(3 num_parts) times the optimum (Graham, "Bounds on multiprocessing timing anomalies", 1969), on usual costs
    a few thousandths. O(n log n).

    With `equal_size` a part closes at n // num_parts items; the first n % num_parts of them to be the least loaded once
    more take one item on top. Graham's bound does not hold then.

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
        >>> lpt([7, 5, 4, 4, 2], 2)
        array([0, 1, 1, 0, 1])
        >>> lpt([9, 1, 1, 1], 2), lpt([9, 1, 1, 1], 2, equal_size=True)
        (array([0, 1, 1, 1]), array([0, 1, 1, 0]))
        >>> lpt([8, 7, 6, 5, 4], 2, effort="fast"), lpt([8, 7, 6, 5, 4], 2)  # 17 and 13, 15 and 15
        (array([0, 1, 1, 0, 0]), array([1, 1, 0, 0, 0]))
    """
    return deal_in_order(costs, num_parts, equal_size=equal_size, effort=effort, deal=_deal)


def _deal(costs: Int64Array, num_parts: int, equal_size: bool) -> Int64Array:
    """Deal descending costs to at most as many parts."""
    small_size, num_larger = divmod(costs.size, num_parts) if equal_size else (costs.size, 0)
    limit = small_size + (num_larger > 0)  # parts of so many items are closed; it never rises
    part_of = list(range(num_parts))  # while a part is empty, it is the next
    values = costs.tolist()
    heap = [(values[part], 1, part) for part in range(num_parts)]  # load, items, part
    heapify(heap)
    for value in values[num_parts:]:
        load, count, part = heap[0]
        while count >= limit:
            heappop(heap)
            load, count, part = heap[0]
        if count == small_size:
            num_larger -= 1
            limit = small_size + (num_larger > 0)
        part_of.append(part)
        heapreplace(heap, (load + value, count + 1, part))
    return np.array(part_of, np.int64)
