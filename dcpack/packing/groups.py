"""Groups of items that must share a bin: each becomes one item, and comes apart again after packing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dcpack._checks import BoolArray, Int64Array, as_lengths, frozen, list_offenders
from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.packing.base import Bins, Checked, check_packing

__all__ = ["ItemGroups", "merge_groups"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ItemGroups:
    """Groups as items of their own, in the order of their first members; what a packer takes.

    Attributes:
        lengths: int64[g], padded tokens of each group.
        sizes: int64[g], members of each group.
        alone: bool[g], groups of one item that must be alone.
        group_of: int64[n], the place of each item's group in the arrays above.

    Example:
        >>> merged = merge_groups([4, 3, 2], [7, 5, 7], 10)
        >>> merged.lengths, merged.sizes, merged.group_of
        (array([6, 3]), array([2, 1]), array([0, 1, 0]))
    """

    lengths: Int64Array
    sizes: Int64Array
    alone: BoolArray
    group_of: Int64Array

    def apart(self, bins: Bins) -> Bins:
        """Return the bins of the members from the bins of the groups.

        Example:
            >>> merge_groups([4, 3, 2], [7, 5, 7], 10).apart(Bins.from_bin_of([1, 0])).lists()
            [[1], [0, 2]]
        """
        return Bins.from_bin_of(bins.bin_of(self.lengths.size)[self.group_of])


def merge_groups(
    lengths: npt.ArrayLike,
    groups: npt.ArrayLike,
    capacity: int,
    *,
    max_sequences: int | None = None,
    alone: npt.ArrayLike | None = None,
) -> ItemGroups:
    """Make one item of each group.

    Args:
        lengths: int64[n], padded tokens of each item, at least 1.
        groups: int64[n], the group of each item: any numbers from 0 on.
        capacity: padded tokens that a bin holds at most.
        max_sequences: items that a bin holds at most; None is no limit.
        alone: bool[n], items that must have a bin of their own; None is none.

    Returns:
        The groups as items.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.
        InfeasibleError: groups that fit in no bin: over the capacity, of more than `max_sequences` items, or with an
            item that must be alone. All are named.

    Example:
        >>> merge_groups([6, 3, 5], [7, 5, 7], 10)
        Traceback (most recent call last):
        ...
        dcpack.errors.InfeasibleError: 1 group does not fit in a bin of 10 tokens: group 7 has 11 tokens in 2 entries
    """
    checked = check_packing(lengths, capacity, max_sequences, alone)
    names = as_lengths("groups", groups)
    if names.shape != checked.lengths.shape:
        raise ArgumentError(f"groups must name a group for each of {checked.lengths.size} items, got {names.size}")
    distinct, first, inverse = np.unique(names, return_index=True, return_inverse=True)
    by_first = np.argsort(first)
    place = np.empty_like(by_first)
    place[by_first] = np.arange(by_first.size)
    group_of = place[inverse]
    sizes = np.bincount(group_of, minlength=distinct.size)
    totals = np.zeros(distinct.size, np.int64)
    np.add.at(totals, group_of, checked.lengths)
    has_lonely = np.zeros(distinct.size, np.bool_)
    has_lonely[group_of[checked.alone]] = True
    _refuse_unfit(distinct[by_first], totals, sizes, has_lonely, checked, capacity)
    return ItemGroups(lengths=frozen(totals), sizes=frozen(sizes), alone=frozen(has_lonely), group_of=frozen(group_of))


def _refuse_unfit(
    names: Int64Array, totals: Int64Array, sizes: Int64Array, has_lonely: BoolArray, checked: Checked, capacity: int
) -> None:
    shared = sizes > 1
    unfit = shared & ((totals > checked.capacity) | (sizes > checked.max_sequences) | has_lonely)
    if not unfit.any():
        return
    offenders = [f"group {names[g]} has {totals[g]} tokens in {sizes[g]} entries" for g in np.flatnonzero(unfit)]
    limits = f"{capacity} tokens"
    if np.any(shared & (sizes > checked.max_sequences)):
        limits += f" and {checked.max_sequences} sequence{'' if checked.max_sequences == 1 else 's'}"
    text = "1 group does" if len(offenders) == 1 else f"{len(offenders)} groups do"
    raise InfeasibleError(f"{text} not fit in a bin of {limits}: {list_offenders(offenders)}")
