"""Karmarkar and Karp's largest differencing method, for any number of parts.

The method keeps a heap of partial partitions, each a tuple of part sums. It takes the two with the largest spread
(largest sum minus smallest) and merges them with the large parts of one on the small parts of the other, until one
partition is left.

Here a partition is one NumPy row of sums in descending order, without the parts that are still empty: a partition of
three items has at most three sums, however many parts there are. Merging rows a and b of p and q sums gives
``min(num_parts, p + q)`` sums: a's lie at the front, b's reversed at the back, overlapping where the room is too small.
For num_parts 4, a = [9, 4, 1], b = [6, 5]::

    a            9  4  1  .
    b reversed   .  .  5  6
    merged       9  4  6  6    -> sorted 9 6 6 4, order [0, 2, 3, 1]

No part of a merged row is empty: both rows have only non-empty parts, and together they cover the whole width. So at
least as many items as parts leave no part empty, also where items cost nothing.

Which item is in which part is not carried along. Each merge remembers its two children and its order, and the parts are
dealt out from the last merge down to the items.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array
from dcpack.balancing.base import check_balancing

__all__ = ["karmarkar_karp"]


def karmarkar_karp(costs: npt.ArrayLike, num_parts: int, *, equal_size: bool = False) -> Int64Array:
    """Deal the items so that the sums of the parts are nearly equal, by largest differencing.

    Much closer to equal than `lpt` where there are many items a part, and slower. Sources: Karmarkar and Karp, "The
    differencing method of set partitioning", 1982; with `equal_size`, the balanced form that starts from blocks of
    `num_parts` items each: Michiels, Korst, Aarts and van Leeuwen, "Performance ratios for the differencing method
    applied to the balanced multiway number partitioning problem", 2003. Of equal spreads the older partition is merged
    first. n merges, each O(num_parts log num_parts) in NumPy.

    Args:
        costs: [n], integers or floats, finite and at least 0, in any unit.
        num_parts: number of parts, at least 1.
        equal_size: whether the numbers of items of any two parts differ by at most 1.

    Returns:
        int64[n], the part of each item, parts from the dearest to the cheapest. With fewer items than parts the last
        parts stay empty.

    Raises:
        ArgumentError: costs that are no costs (all are named), or fewer than 1 part.

    Example:
        >>> karmarkar_karp([8, 7, 6, 5, 4], 2)
        array([1, 0, 1, 0, 0])
        >>> karmarkar_karp([9, 1, 1, 1], 2, equal_size=True)
        array([0, 1, 1, 0])
    """
    loads, num_parts = check_balancing(costs, num_parts)
    part_of = np.empty(loads.size, np.int64)
    if loads.size == 0:
        return part_of
    order = np.argsort(-loads, kind="stable")
    if equal_size:
        # Every block gives each part one item. The items that are missing in the last block cost nothing, stand behind
        # all others and are cut off again below, so that no part misses more than one.
        num_blocks = -(-loads.size // num_parts)
        padded = np.zeros(num_blocks * num_parts, np.int64)
        padded[: loads.size] = loads[order]
        rows = list(padded.reshape(num_blocks, num_parts))
    else:
        rows = list(loads[order].reshape(-1, 1))
    part_of[order] = np.concatenate(_difference(rows, num_parts))[: loads.size]
    return part_of


def _difference(rows: list[Int64Array], num_parts: int) -> list[Int64Array]:
    """Merge rows of sums until one is left, and return for each given row the part of each of its sums.

    Args:
        rows: the first partitions, each int64[at most num_parts] in descending order; the list is used up.
        num_parts: number of parts.

    Returns:
        For each given row int64[same length], the part that each sum ended up in.
    """
    num_given = len(rows)
    heap = [(-_spread(row, num_parts), node) for node, row in enumerate(rows)]
    heapify(heap)
    merges: list[
        tuple[int, int, int, int, npt.NDArray[np.unsignedinteger]]
    ] = []  # children, their widths, the order of the merged sums
    nothing = np.zeros(0, np.int64)
    narrow = np.min_scalar_type(num_parts)  # the orders are most of the memory
    while len(heap) > 1:
        _, first = heappop(heap)
        _, second = heappop(heap)
        ahead, behind = rows[first], rows[second]
        rows[first] = rows[second] = nothing  # sums of merged rows are not needed again: memory stays at O(n)
        sums = np.zeros(min(num_parts, ahead.size + behind.size), np.int64)
        sums[: ahead.size] += ahead
        sums[sums.size - behind.size :] += behind[::-1]
        order = np.argsort(-sums, kind="stable")
        merges.append((first, second, ahead.size, behind.size, order.astype(narrow)))
        row = sums[order]
        heappush(heap, (-_spread(row, num_parts), len(rows)))
        rows.append(row)

    parts = [nothing] * len(rows)
    parts[-1] = np.arange(rows[-1].size)
    for node in range(len(rows) - 1, num_given - 1, -1):
        first, second, width_first, width_second, order = merges[node - num_given]
        at_position = np.empty(order.size, np.int64)
        at_position[order] = parts[node]
        parts[first] = at_position[:width_first]
        parts[second] = at_position[::-1][:width_second]
        parts[node] = nothing
    return parts[:num_given]


def _spread(row: Int64Array, num_parts: int) -> int:
    """Return the largest sum minus the smallest; a row narrower than `num_parts` has empty parts of sum 0."""
    return int(row[0]) - (int(row[-1]) if row.size == num_parts else 0)
