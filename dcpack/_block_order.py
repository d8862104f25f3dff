"""In which order blocks of ranks lie so that few of them cross nodes."""

from __future__ import annotations

import numpy as np

from dcpack._checks import Int64Array

__all__ = ["fewest_crossings", "fill_nodes"]

_MAX_STATES = 4096


def fewest_crossings(descending_sizes: Int64Array, node_size: int) -> Int64Array | None:
    """Return the order with the fewest blocks that cross nodes, or None where that takes too long to find.

    Blocks of one size are alike, so what is left is a count for each size, and the counts say where the next block
    starts. The best order of what is left is worked out once for each such state, all states of as many blocks at once.
    """
    distinct, counts = np.unique(-descending_sizes, return_counts=True)
    sizes = -distinct
    if np.prod(counts + 1.0) > _MAX_STATES:
        return None
    left = np.indices((counts + 1).tolist()).reshape(sizes.size, -1)  # [size, state], states in C order
    num_states = left.shape[1]
    steps = num_states // np.cumprod(counts + 1)  # to the state with one block of a size less
    starts = int(descending_sizes.sum()) - sizes @ left
    crosses = starts // node_size != (starts + sizes[:, np.newaxis] - 1) // node_size
    after = np.where(left > 0, np.arange(num_states) - steps[:, np.newaxis], num_states)
    crossings = np.full(num_states + 1, descending_sizes.size + 1)
    crossings[0] = 0
    chosen = np.zeros(num_states, np.int64)
    blocks = left.sum(axis=0)
    by_blocks = np.argsort(blocks, kind="stable")
    for states in np.split(by_blocks, np.cumsum(np.bincount(blocks))[:-1])[1:]:
        candidates = crossings[after[:, states]] + crosses[:, states]
        chosen[states] = candidates.argmin(axis=0)  # of equal ones the largest size
        crossings[states] = candidates.min(axis=0)
    waiting = [np.flatnonzero(descending_sizes == size).tolist()[::-1] for size in sizes]
    order: list[int] = []
    state = num_states - 1
    while state:
        k = int(chosen[state])
        order.append(waiting[k].pop())
        state -= int(steps[k])
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
