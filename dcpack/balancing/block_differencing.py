"""Karmarkar and Karp's method from blocks of one item a part, for few parts.

`karmarkar_karp` with `equal_size` starts from rows of `num_parts` items each, so that all rows have the same width and
no item comes later. With few parts such a row is so short that an array of it costs more than what is done with it.
Here rows are lists of Python integers, which hold two numbers each: the sum, and in the lowest bits the place where it
stood before its row was sorted. So sorting the row sorts the places with it, later place first among equal sums, and
the sorted row is all that must be remembered to deal the parts out again. For num_parts 2 and blocks [9 5] and [4 2]::

    sums with places      9+2 at 0   5+4 at 1
    sorted                11 (0)     9 (1)

The result is that of the rows of arrays, item by item. A sum below 2**59 and a place fit an int64.
"""

from __future__ import annotations

from heapq import heapify, heappop, heapreplace

import numpy as np

from dcpack._checks import Int64Array

__all__ = ["MAX_PARTS", "deal_blocks"]

MAX_PARTS = 8
"""Up to so many parts `deal_blocks` takes less time than rows of arrays."""

_PLACE_BITS = 4
_LAST_PLACE = 2**_PLACE_BITS - 1
_SUM = ~_LAST_PLACE  # the bits that hold the sum
_Merge = tuple[int, int, list[int]]


def deal_blocks(costs: Int64Array, num_parts: int) -> Int64Array:
    """Deal whole blocks of items, each of which gives every part one item, by largest differencing.

    Args:
        costs: int64[n], descending, of a sum below 2**59; n is a multiple of `num_parts`, at least `num_parts`.
        num_parts: number of parts, from 1 to `MAX_PARTS`.

    Returns:
        int64[n], the part of each item.

    Example:
        >>> deal_blocks(np.array([9, 5, 4, 2]), 2)  # 9 + 2 and 5 + 4
        array([0, 1, 1, 0])
    """
    blocks = (costs << _PLACE_BITS).reshape(-1, num_parts)
    places = range(num_parts)
    # Minus the spread, minus the number, and the row, so that the youngest of equal spreads comes first.
    heap = [(row[-1] - row[0], -number, row) for number, row in enumerate(blocks.tolist())]
    heapify(heap)
    merges: list[_Merge] = []
    while len(heap) > 1:
        _, first, ahead = heappop(heap)
        _, second, behind = heap[0]
        # Two places, of at most 7, add up to less than the bits for a place hold, and are cut off again.
        row = [(a + b) & _SUM | place for a, b, place in zip(ahead, behind[::-1], places, strict=True)]
        row.sort(reverse=True)
        heapreplace(heap, ((row[-1] & _SUM) - (row[0] & _SUM), -len(blocks) - len(merges), row))
        merges.append((-first, -second, row))
    return _trace_back(merges, len(blocks), num_parts)


def _trace_back(merges: list[_Merge], num_blocks: int, num_parts: int) -> Int64Array:
    """Follow the merges from the last row, whose sums are the parts, back to the items of the blocks.

    The parts at the places of a row are bytes, so that a translation table sets them out in the order before sorting.
    """
    rows = np.array([row for _, _, row in merges], np.int64).reshape(-1, num_parts)
    orders = [order.tobytes() for order in (rows & _LAST_PLACE).astype(np.uint8)]
    parts = [bytes(range(num_parts))] * (num_blocks + len(merges))
    for number in range(len(merges) - 1, -1, -1):
        first, second, _ = merges[number]
        at_place = bytes.maketrans(orders[number], parts[num_blocks + number])[:num_parts]
        parts[first] = at_place
        parts[second] = at_place[::-1]
    return np.frombuffer(b"".join(parts[:num_blocks]), np.uint8).astype(np.int64)
