"""First fit: the lowest-numbered bin with room, in the order of arrival."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dcpack.packing.base import Bins, check_packing

__all__ = ["first_fit"]


def first_fit(
    lengths: npt.ArrayLike,
    capacity: int,
    *,
    max_sequences: int | None = None,
    alone: npt.ArrayLike | None = None,
    sizes: npt.ArrayLike | None = None,
) -> Bins:
    """Pack items in order, each into the lowest-numbered bin that has room for it.

    It needs no sorting, so items can be packed as they come, at no more than 1.7 times the optimal number of bins
    (Dosa and Sgall, "First Fit bin packing: a tight analysis", 2013).

    A max-tree over the room of the bins finds that bin in O(log b) steps for b bins. Bins that are not open yet stand
    in the tree with their whole capacity, so that opening one is the same search. Example with capacity 10 and room 2,
    7 in the open bins 0 and 1 (10 in the unopened ones): the tree is ``[-, 10, 7, 10, 2, 7, 10, 10]``. Length 5 goes
    from the root (1) left to node 2 (7 >= 5), there on to its left child 4 (2 < 5), and so right to node 5 (7 >= 5),
    the leaf of bin 1. A second tree holds how many sequences bins may still take.

    Args:
        lengths: int64[n], padded tokens of each item, at least 1.
        capacity: padded tokens that a bin holds at most.
        max_sequences: sequences that a bin holds at most; None is no limit.
        alone: bool[n], items that get a bin of their own and may exceed the capacity; None is none.
        sizes: int64[n], sequences that each item stands for; None is 1 each.

    Returns:
        The bins, numbered in the order they were opened, items ascending in each.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.
        InfeasibleError: items over the capacity that are not alone; all are named.

    Example:
        >>> first_fit([6, 5, 4, 1], 10).lists()
        [[0, 2], [1, 3]]
    """
    checked = check_packing(lengths, capacity, max_sequences, alone, sizes)
    num_items = checked.lengths.size
    num_leaves = 1 << max(num_items - 1, 0).bit_length()  # one bin an item is always enough
    room = [checked.capacity] * (2 * num_leaves)
    left = [checked.max_sequences] * (2 * num_leaves)
    bin_of = np.empty(num_items, np.int64)
    num_bins = 0
    top, reach = num_leaves, 1  # the search starts at the smallest subtree that covers the open bins and one more
    rows = zip(checked.lengths.tolist(), checked.size_of_each.tolist(), checked.alone.tolist(), strict=True)
    for item, (length, size, is_alone) in enumerate(rows):
        while reach <= num_bins:
            top, reach = top // 2, reach * 2
        node = num_leaves + num_bins if is_alone else top
        while not is_alone:
            if room[node] < length or left[node] < size:
                while node % 2:  # a right child: all below its parent was looked at
                    node //= 2
                node += 1
            elif node < num_leaves:
                node *= 2
            else:
                break
        number = node - num_leaves
        bin_of[item] = number
        num_bins = max(num_bins, number + 1)
        room[node] = 0 if is_alone else room[node] - length  # lengths are at least 1: nothing fits into 0
        left[node] -= size
        while node > top:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
            left[node] = max(left[2 * node], left[2 * node + 1])
    return Bins.from_bin_of(bin_of)
