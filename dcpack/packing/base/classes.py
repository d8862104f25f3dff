"""Items of equal length as one class, and the moves that put classes into runs of bins.

Packing longest items first treats equal items alike: where one goes, the next of its class goes too, until that bin is
full. So a class of c items and a run of b bins with equal room r meet once: each bin takes ``r // length`` items. What
is left per item is one sort before and one sort after.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from dcpack._checks import Int64Array
from dcpack.packing.base.bins import Bins, bins_from_numbers
from dcpack.packing.base.checks import Checked

__all__ = ["LengthClasses", "Moves", "Run"]

Run = tuple[int, int, int, int]
"""Bins of equal room: (room of each, number of the first, how many, sequences that each may still take)."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LengthClasses:
    """The items that may share bins, from the longest class to the shortest; then by number of sequences, descending.

    Attributes:
        lengths: int64[d], padded tokens of each item of class j.
        sizes: int64[d], sequences that each item of class j stands for.
        counts: int64[d], items of class j.
        items: int64[m], the item numbers, class after class, ascending in each.
        lonely: int64[n - m], the items that must be alone, ascending.
        num_long: classes above half the capacity. Their items never share a bin with one another, so each opens its
            own: item i of `items` bin i, behind the bins of `lonely`.

    Example:
        >>> from dcpack.packing.base.checks import check_packing
        >>> classes = LengthClasses.of(check_packing([3, 7, 3, 9], 10))
        >>> classes.lengths, classes.counts, classes.items, classes.num_long
        (array([9, 7, 3]), array([1, 1, 2]), array([3, 1, 0, 2]), 2)
    """

    lengths: Int64Array
    sizes: Int64Array
    counts: Int64Array
    items: Int64Array
    lonely: Int64Array
    num_long: int

    @classmethod
    def of(cls, checked: Checked) -> LengthClasses:
        """Sort the items into classes.

        Example:
            >>> from dcpack.packing.base.checks import check_packing
            >>> LengthClasses.of(check_packing([3, 3, 3], 10, sizes=[1, 2, 1])).sizes
            array([2, 1])
        """
        lonely = np.flatnonzero(checked.alone)
        shared = np.flatnonzero(~checked.alone) if lonely.size else None
        lengths = checked.lengths if shared is None else checked.lengths[shared]
        if checked.sizes is None:
            items, lengths = _sort_decreasing(lengths)
            is_first = np.ones(lengths.size, np.bool_)
            np.not_equal(lengths[1:], lengths[:-1], out=is_first[1:])
            starts = np.flatnonzero(is_first)
            sizes = np.ones_like(starts)
        else:
            sizes = checked.sizes if shared is None else checked.sizes[shared]
            items = np.lexsort((-sizes, -lengths))
            lengths, sizes = lengths[items], sizes[items]
            is_first = np.ones(lengths.size, np.bool_)
            is_first[1:] = (lengths[1:] != lengths[:-1]) | (sizes[1:] != sizes[:-1])
            starts = np.flatnonzero(is_first)
            sizes = sizes[starts]
        counts = np.diff(starts, append=lengths.size)
        lengths = lengths[starts]
        return cls(
            lengths=lengths,
            sizes=sizes,
            counts=counts,
            items=items if shared is None else shared[items],
            lonely=lonely,
            num_long=int(np.count_nonzero(lengths > checked.capacity // 2)),
        )

    def open_long(self, capacity: int, limit: int) -> tuple[Int64Array, Moves]:
        """Open the bins of the long classes.

        Args:
            capacity: padded tokens of a bin.
            limit: sequences a bin may hold.

        Returns:
            The runs that others may still fit into, by falling room, of equal room by falling number, as int64[4, r]:
            the room of each bin, the number of the first, how many, the sequences that each may still take; and the
            moves, none yet.

        Example:
            >>> from dcpack.packing.base.checks import check_packing
            >>> runs, moves = LengthClasses.of(check_packing([3, 7, 3, 9, 3], 10)).open_long(10, 5)
            >>> runs.tolist(), moves
            ([[3], [1], [1], [4]], Moves(num_opened=2, flat=[]))
        """
        lengths, sizes, counts = (a[: self.num_long] for a in (self.lengths, self.sizes, self.counts))
        starts = np.cumsum(counts) - counts
        runs = np.stack([capacity - lengths, starts, counts, limit - sizes])[:, ::-1]
        useful = (runs[0] >= self.lengths.min(initial=capacity)) & (runs[3] >= self.sizes.min(initial=limit))
        return runs[:, useful], Moves(num_opened=int(counts.sum()))

    def num_ready(self, long_rooms: Int64Array) -> list[int]:
        """Return how many of the rooms, which fall, are enough for each class that is not long.

        Example:
            >>> from dcpack.packing.base.checks import check_packing
            >>> LengthClasses.of(check_packing([3, 7, 3, 9, 2], 10)).num_ready(np.array([3, 1]))
            [1, 1]
        """
        return np.searchsorted(-long_rooms, -self.lengths[self.num_long :], side="right").tolist()

    def short(self) -> tuple[list[int], list[int], list[int]]:
        """Return lengths, sizes and counts of the classes that are not long.

        Example:
            >>> from dcpack.packing.base.checks import check_packing
            >>> LengthClasses.of(check_packing([3, 7, 3, 9, 2], 10)).short()
            ([3, 2], [1, 1], [2, 1])
        """
        lengths, sizes, counts = (a[self.num_long :].tolist() for a in (self.lengths, self.sizes, self.counts))
        return lengths, sizes, counts


def _sort_decreasing(lengths: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return positions by falling length, then rising position, and the lengths in that order."""
    longest, num_bits = int(lengths.max(initial=0)), lengths.size.bit_length()
    if longest.bit_length() + num_bits > 62:
        order = np.argsort(-lengths, kind="stable")
        return order, lengths[order]
    # Length and position in one whole number: NumPy sorts plain int64 with vector instructions. In place, as fresh
    # memory for a million items costs as much as a pass over them.
    keys = longest - lengths
    keys <<= num_bits
    keys |= np.arange(lengths.size)
    keys.sort()
    order = keys & ((1 << num_bits) - 1)
    keys >>= num_bits
    return order, np.subtract(longest, keys, out=keys)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Moves:
    """What a packer did with its classes, as a flat list that grows by three whole numbers a move.

    A move (start, num_bins, copies) puts `copies` of the next items into each of the bins from `start` on. Example:
    item 4 opens bin 0, and items 1, 0, 2, 3 follow in class order. The moves (0, 1, 2), (1, 2, 1) put 1 and 0 into
    bin 0, 2 into bin 1, 3 into bin 2.

    Attributes:
        num_opened: items at the front that open a bin of their own each, bin 0 and so on, before all moves.
        flat: list of ints, three a move; the packer appends.

    Example:
        >>> moves = Moves(num_opened=1)
        >>> moves.flat.extend((0, 1, 2))
        >>> moves.flat.extend((1, 2, 1))
        >>> moves.bins(np.array([4, 1, 0, 2, 3]), np.arange(0)).lists()
        [[0, 1, 4], [2], [3]]
    """

    num_opened: int
    flat: list[int] = field(default_factory=list)

    def bins(self, items: Int64Array, lonely: Int64Array) -> Bins:
        """Return the bins after all moves.

        Args:
            items: int64[m], the item numbers in the order in which the moves used them up.
            lonely: int64[k], items that have a bin of their own; these bins come first, and no move counts them.

        Returns:
            The bins: those of `lonely`, then bin 0 of the moves, and so on.

        Example:
            >>> Moves(num_opened=0, flat=[0, 1, 2]).bins(np.array([2, 0]), np.array([1])).lists()
            [[1], [0, 2]]
        """
        start, num_bins, copies = np.fromiter(self.flat, np.int64, len(self.flat)).reshape(-1, 3).T
        before = np.cumsum(num_bins) - num_bins
        visited = np.repeat(start + lonely.size - before, num_bins)  # bin after bin, move after move
        visited += np.arange(visited.size)
        moved = np.repeat(visited, np.repeat(copies, num_bins))
        numbers = np.concatenate([np.arange(lonely.size + self.num_opened), moved])
        return bins_from_numbers(numbers, np.concatenate([lonely, items]) if lonely.size else items)
