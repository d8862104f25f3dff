"""Longest processing time first: the dearest item to the least loaded part."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array
from dcpack.balancing.base import check_balancing

__all__ = ["lpt"]


def lpt(costs: npt.ArrayLike, num_parts: int, *, equal_size: bool = False) -> Int64Array:
    """Give the items, dearest first, to the part with the least cost so far.

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

    Returns:
        int64[n], the part of each item. With fewer items than parts the last parts stay empty.

    Raises:
        ArgumentError: costs that are no costs (all are named), or fewer than 1 part.

    Example:
        >>> lpt([7, 5, 4, 4, 2], 2)
        array([0, 1, 1, 0, 1])
        >>> lpt([9, 1, 1, 1], 2), lpt([9, 1, 1, 1], 2, equal_size=True)
        (array([0, 1, 1, 1]), array([0, 1, 1, 0]))
    """
    loads, num_parts = check_balancing(costs, num_parts)
    small_size, num_larger = divmod(loads.size, num_parts) if equal_size else (loads.size, 0)
    heap = [(0, 0, part) for part in range(num_parts)]  # sorted, hence a heap: load, items, part
    part_of = np.empty(loads.size, np.int64)
    values = loads.tolist()
    for item in np.argsort(-loads, kind="stable").tolist():
        load, count, part = heappop(heap)
        # A part of the small size is closed unless some part may still be larger; its turn does not come again, since
        # that number never rises.
        while count > small_size or (count == small_size and num_larger == 0):
            load, count, part = heappop(heap)
        if count == small_size:
            num_larger -= 1
        part_of[item] = part
        heappush(heap, (load + values[item], count + 1, part))
    return part_of
