"""Bins, and the contract of the packers that give them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_lengths, check_int, frozen, list_offenders
from dcpack.errors import ArgumentError

__all__ = ["Bins", "Packer", "bins_from_numbers"]


_MOST_ITEMS = 2**40


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
        if gaps := np.flatnonzero(np.bincount(numbers, minlength=largest + 1) == 0).tolist():
            raise ArgumentError(
                f"bin_of must number the bins without gaps, missing: {list_offenders(list(map(str, gaps)))}"
            )
        return bins_from_numbers(numbers, np.arange(numbers.size))

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
        if num_items > _MOST_ITEMS:
            raise ArgumentError(f"num_items must be at most {_MOST_ITEMS}, got {num_items}")
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
    them, lists the items of a bin in ascending order, and breaks ties by the lower index.

    Example:
        >>> def one_each(lengths, capacity, *, max_sequences=None, alone=None, sizes=None):
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
        sizes: npt.ArrayLike | None = None,
    ) -> Bins:
        """Pack the items into bins.

        Args:
            lengths: int64[n], padded tokens of each item, at least 1.
            capacity: padded tokens that a bin holds at most, at least 1.
            max_sequences: sequences that a bin holds at most; None is no limit.
            alone: bool[n], items that get a bin of their own, whatever their length; None is none.
            sizes: int64[n], sequences that each item stands for, at least 1; None is 1 each. They count towards
                `max_sequences` only.

        Returns:
            The bins. No bin is over the capacity, except that of an item in `alone`.
        """
        ...


def bins_from_numbers(numbers: Int64Array, items: Int64Array) -> Bins:
    """Build the bins from pairs of a bin number and an item; both may stand in any order.

    One sort of whole numbers that hold bin and item side by side: several times faster than sorting by the bin number
    and gathering the items, as NumPy sorts plain int64 with vector instructions.

    Args:
        numbers: int64[k], from 0 without gaps.
        items: int64[k], item numbers, each once.

    Returns:
        The bins, items ascending in each.

    Example:
        >>> bins_from_numbers(np.array([1, 0, 1]), np.array([7, 5, 3])).lists()
        [[5], [3, 7]]
    """
    if numbers.size == 0:
        return Bins(items=items, offsets=np.zeros(1, np.int64))
    num_bits = int(items.max()).bit_length()
    offsets = np.concatenate([[0], np.cumsum(np.bincount(numbers))])
    keys = numbers << num_bits
    keys |= items
    keys.sort()
    keys &= (1 << num_bits) - 1
    bins = object.__new__(Bins)  # right as it was made: the checks would only cost time
    object.__setattr__(bins, "items", frozen(keys))
    object.__setattr__(bins, "offsets", frozen(offsets))
    return bins
