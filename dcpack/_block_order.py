"""In which order blocks of ranks lie so that few of them cross nodes."""

from __future__ import annotations

import numpy as np

from dcpack._checks import Int64Array

__all__ = ["fewest_crossings", "fill_nodes"]

_MAX_STATES = 4096


def fewest_crossings(descending_sizes: Int64Array, node_size: int) -> Int64Array | None:
    """Return the order with the fewest blocks that cross nodes, or None where that takes too long to find.

    Blocks of one size are alike, so what is left is a count for each size, and the counts say where the next block
    starts. The best order of what is left is worked out once for each such state.
    """
    distinct, counts = np.unique(-descending_sizes, return_counts=True)
    sizes = (-distinct).tolist()
    if np.prod(counts + 1.0) > _MAX_STATES:
        return None
    total = int(descending_sizes.sum())
    best: dict[tuple[int, ...], tuple[int, int]] = {(0,) * len(sizes): (0, -1)}  # left -> (crossings, size to take)
    for left in np.ndindex(*(counts + 1).tolist()):
        start = total - sum(n * size for n, size in zip(left, sizes, strict=True))
        for k, size in enumerate(sizes):
            if left[k]:
                rest = best[(*left[:k], left[k] - 1, *left[k + 1 :])][0]
                crossings = rest + (start // node_size != (start + size - 1) // node_size)
                if left not in best or crossings < best[left][0]:
                    best[left] = (crossings, k)
    waiting = [np.flatnonzero(descending_sizes == size).tolist()[::-1] for size in sizes]
    order: list[int] = []
    left = tuple(counts.tolist())
    while any(left):
        k = best[left][1]
        order.append(waiting[k].pop())
        left = (*left[:k], left[k] - 1, *left[k + 1 :])
    return np.array(order, np.int64)


def fill_nodes(descending_sizes: Int64Array, node_size: int) -> Int64Array:
    """Order blocks so that each next one is the largest that fits in what is left of the current node."""
    waiting = list(enumerate(descending_sizes.tolist()))
    chosen: list[int] = []
    offset = 0
    while waiting:
        room = node_size - offset % node_size
        pick = next((i for i, (_, size) in enumerate(waiting) if size <= room), 0)
        block, size = waiting.pop(pick)
        chosen.append(block)
        offset += size
    return np.array(chosen, np.int64)
