"""What all packers share: the bins they give, the contract they keep, the checks and the first-fit search.

A packer sees lengths and a capacity and nothing else. Its lengths are *padded* lengths of items (whole sequences, or
the pieces that an overlong policy made of them); which sequence an item belongs to is the caller's business.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dcpack._checks import BoolArray, Int64Array, as_lengths, check_int, frozen, list_offenders
from dcpack.errors import ArgumentError, InfeasibleError

__all__ = [
    "Bins",
    "Packer",
    "check_packing",
    "check_total",
    "decreasing_order",
    "place_first_fit",
]

# Sums of lengths stay below this, so that a sum plus one capacity cannot leave int64.
_MAX_TOTAL = 2**62


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Bins:
    """Which items lie in which bin, in compressed form.

    Bin b holds ``items[offsets[b]:offsets[b + 1]]``; no bin is empty, and a packer puts no item in two bins.

    Attributes:
        items: int64[k], read-only, the item numbers, bin after bin.
        offsets: int64[b + 1], read-only, from 0 to k, where each bin starts.

    Raises:
        ArgumentError: offsets that do not rise from 0 to the number of items.

    Example:
        >>> bins = Bins(items=[0, 2, 1], offsets=[0, 2, 3])
        >>> bins.num_bins, bins.lists()
        (2, [[0, 2], [1]])
    """

    items: Int64Array
    offsets: Int64Array

    def __post_init__(self) -> None:
        items = as_lengths("items", self.items)
        offsets = as_lengths("offsets", self.offsets)
        if offsets.size == 0 or offsets[0] != 0 or offsets[-1] != items.size or np.any(np.diff(offsets) < 1):
            raise ArgumentError(
                f"offsets must rise from 0 to the number of items ({items.size}) with no empty bin, got {offsets}"
            )
        object.__setattr__(self, "items", items)
        object.__setattr__(self, "offsets", offsets)

    @classmethod
    def from_bin_of(cls, bin_of: npt.ArrayLike) -> Bins:
        """Build the bins from the bin number of each item; inside a bin the items stand in ascending order.

        Args:
            bin_of: int64[n], the bin of item i; every number from 0 to the largest must occur.

        Returns:
            The bins; bin b holds the items whose number is b.

        Raises:
            ArgumentError: a negative number, or numbers with gaps (the missing ones are named).

        Example:
            >>> Bins.from_bin_of([0, 1, 0]).lists()
            [[0, 2], [1]]
        """
        numbers = as_lengths("bin_of", bin_of)
        largest = int(numbers.max(initial=-1))
        if largest >= numbers.size:  # more bins than items: name no more gaps than there can be without a huge table
            raise ArgumentError(f"bin_of must number {numbers.size} items without gaps, got bin {largest}")
        counts = np.bincount(numbers, minlength=largest + 1)
        if gaps := np.flatnonzero(counts == 0).tolist():
            raise ArgumentError(
                f"bin_of must number the bins without gaps, missing: {list_offenders(list(map(str, gaps)))}"
            )
        offsets = np.concatenate([[0], np.cumsum(counts)])
        return cls(items=np.argsort(numbers, kind="stable"), offsets=offsets)

    @property
    def num_bins(self) -> int:
        """Number of bins.

        Example:
            >>> Bins.from_bin_of([0, 1, 0]).num_bins
            2
        """
        return self.offsets.size - 1

    def bin_of(self, num_items: int) -> Int64Array:
        """Return the bin of each item, the inverse of `from_bin_of`.

        Args:
            num_items: n, the number of items; more than the largest item number.

        Returns:
            int64[n], read-only; -1 for an item that is in no bin.

        Raises:
            ArgumentError: `num_items` does not cover the items of the bins.

        Example:
            >>> Bins(items=[0, 3, 1], offsets=[0, 2, 3]).bin_of(4)
            array([ 0,  1, -1,  0])
        """
        num_items = check_int("num_items", num_items, minimum=int(self.items.max(initial=-1)) + 1)
        numbers = np.full(num_items, -1, np.int64)
        numbers[self.items] = np.repeat(np.arange(self.num_bins), np.diff(self.offsets))
        return frozen(numbers)

    def lists(self) -> list[list[int]]:
        """Return the items of each bin as nested lists of Python ints.

        Example:
            >>> Bins.from_bin_of([1, 0, 1]).lists()
            [[1], [0, 2]]
        """
        items, bounds = self.items.tolist(), self.offsets.tolist()
        return [items[start:stop] for start, stop in pairwise(bounds)]


class Packer(Protocol):
    """What a packer is: a pure function from padded lengths to bins.

    Every packer is deterministic, puts each item in exactly one bin, numbers its bins in the order in which it opened
    them, and breaks ties by the lower index.

    Example:
        >>> def one_each(lengths, capacity, *, max_sequences=None, alone=None):
        ...     return Bins.from_bin_of(range(len(lengths)))
        >>> packer: Packer = one_each
        >>> packer([3, 1], 4).lists()
        [[0], [1]]
    """

    def __call__(
        self,
        lengths: npt.ArrayLike,
        capacity: int,
        *,
        max_sequences: int | None = None,
        alone: npt.ArrayLike | None = None,
    ) -> Bins:
        """Pack the items into bins.

        Args:
            lengths: int64[n], padded tokens of each item, at least 1.
            capacity: padded tokens that a bin holds at most, at least 1.
            max_sequences: items that a bin holds at most; None is no limit.
            alone: bool[n], items that get a bin of their own, whatever their length; None is none.

        Returns:
            The bins. No bin is over the capacity, except that of an item in `alone`.
        """
        ...


def check_total(name: str, lengths: Int64Array) -> None:
    """Refuse lengths whose sum is so large that sums in int64 would not be exact.

    Raises:
        ArgumentError: the sum is 2**62 or more.

    Example:
        >>> check_total("lengths", np.array([2**61, 2**61]))
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: lengths must sum to less than 2**62 tokens, got about 4.61e+18
    """
    total = lengths.sum(dtype=np.float64)
    if total >= _MAX_TOTAL:
        raise ArgumentError(f"{name} must sum to less than 2**62 tokens, got about {total:.3g}")


def check_packing(
    lengths: npt.ArrayLike, capacity: int, max_sequences: int | None, alone: npt.ArrayLike | None
) -> tuple[Int64Array, int, int, BoolArray]:
    """Check the arguments of a packer and fill in what was left out.

    Args:
        lengths: int64[n], padded tokens of each item, at least 1.
        capacity: padded tokens of a bin, at least 1.
        max_sequences: items a bin may hold, at least 1; None is no limit.
        alone: bool[n], items that get a bin of their own; None is none.

    Returns:
        The lengths as read-only int64[n], the capacity, the number of items a bin may hold (n without a limit), and
        `alone` as bool[n].

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.
        InfeasibleError: items over the capacity that are not alone; all are named.

    Example:
        >>> check_packing([3, 5, 9], 4, None, [False, False, True])
        Traceback (most recent call last):
        ...
        dcpack.errors.InfeasibleError: 1 length is over the capacity of 4 tokens: lengths[1] = 5
    """
    checked = as_lengths("lengths", lengths, minimum=1)
    check_total("lengths", checked)
    capacity = check_int("capacity", capacity, minimum=1)
    limit = checked.size if max_sequences is None else check_int("max_sequences", max_sequences, minimum=1)
    flags = np.zeros(checked.size, np.bool_) if alone is None else np.asarray(alone)
    if flags.size == 0 and checked.size == 0:
        flags = flags.astype(np.bool_)  # an empty list has no type of its own
    if flags.dtype != np.bool_ or flags.shape != checked.shape:
        raise ArgumentError(f"alone must be bool[{checked.size}], got {flags.dtype} of shape {flags.shape}")
    if over := np.flatnonzero((checked > capacity) & ~flags).tolist():
        listed = list_offenders([f"lengths[{i}] = {checked[i]}" for i in over])
        text = "1 length is" if len(over) == 1 else f"{len(over)} lengths are"
        raise InfeasibleError(f"{text} over the capacity of {capacity} tokens: {listed}")
    return checked, capacity, limit, flags


def decreasing_order(lengths: Int64Array) -> Int64Array:
    """Return the item numbers from the longest item to the shortest; equal lengths keep their order.

    Example:
        >>> decreasing_order(np.array([3, 5, 3, 7]))
        array([3, 1, 0, 2])
    """
    return np.argsort(-lengths, kind="stable")


def place_first_fit(
    lengths: Int64Array, order: Int64Array, capacity: int, max_sequences: int, alone: BoolArray
) -> Bins:
    """Put each item, in the given order, into the lowest-numbered bin that has room for it.

    A max-tree over the room of the bins finds that bin in O(log b) steps. Bins that are not open yet stand in the tree
    with their whole capacity, so that opening one is the same search. Example with capacity 10 and room 2, 7 in the
    open bins 0 and 1 (10 in the unopened ones): the tree is ``[-, 10, 7, 10, 2, 7, 10, 10]``. Length 5 goes from the
    root (1) left to node 2 (7 >= 5), there right to node 5 (2 < 5), which is the leaf of bin 1.

    Args:
        lengths: int64[n], padded tokens, checked by `check_packing`.
        order: int64[n], the item numbers in the order of their placing.
        capacity: padded tokens of a bin.
        max_sequences: items a bin may hold.
        alone: bool[n], items that get a bin of their own.

    Returns:
        The bins, numbered in the order they were opened.

    Example:
        >>> lengths = np.array([6, 5, 4])
        >>> place_first_fit(lengths, np.arange(3), 10, 3, np.zeros(3, bool)).lists()
        [[0, 2], [1]]
    """
    num_leaves = 1 << max(lengths.size - 1, 0).bit_length()  # one bin an item is always enough
    room = [capacity] * (2 * num_leaves)
    counts = [0] * lengths.size
    bin_of = np.empty(lengths.size, np.int64)
    num_bins = 0
    top, reach = num_leaves, 1  # the search starts at the smallest subtree that covers the open bins and one more
    values, is_alone = lengths.tolist(), alone.tolist()
    for item in order.tolist():
        while reach <= num_bins:
            top, reach = top // 2, reach * 2
        node = num_leaves + num_bins if is_alone[item] else top
        while node < num_leaves:
            node *= 2
            if room[node] < values[item]:
                node += 1
        number = node - num_leaves
        bin_of[item] = number
        num_bins = max(num_bins, number + 1)
        counts[number] += 1
        closed = is_alone[item] or counts[number] == max_sequences
        room[node] = 0 if closed else room[node] - values[item]  # lengths are at least 1: nothing fits into 0
        while node > top:
            node //= 2
            room[node] = max(room[2 * node], room[2 * node + 1])
    return Bins.from_bin_of(bin_of)
