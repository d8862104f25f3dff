"""Checks of the arguments that all packers take."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dcpack._checks import BoolArray, Int64Array, as_array, as_lengths, check_int, list_offenders
from dcpack.errors import ArgumentError, InfeasibleError

__all__ = ["Checked", "check_packing", "check_total"]

# Sums of lengths stay below this, so that a sum plus one capacity cannot leave int64.
_MAX_TOTAL = 2**62


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
    if lengths.size * int(lengths.max(initial=0)) < _MAX_TOTAL:
        return
    total = lengths.sum(dtype=np.float64)
    if total >= _MAX_TOTAL:
        raise ArgumentError(f"{name} must sum to less than 2**62 tokens, got about {total:.3g}")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Checked:
    """The arguments of a packer, checked, with everything filled in that was left out; see `Packer`.

    Attributes:
        lengths: int64[n], read-only, padded tokens of each item.
        capacity: padded tokens of a bin, at most one more than all items together: what is beyond is no limit.
        max_sequences: sequences that a bin holds at most; all of them where there is no limit.
        alone: bool[n], items that get a bin of their own.
        sizes: int64[n], read-only, sequences that each item stands for; None where each is 1.

    Example:
        >>> checked = check_packing([3, 1], 4)
        >>> checked.max_sequences, checked.sizes is None
        (2, True)
    """

    lengths: Int64Array
    capacity: int
    max_sequences: int
    alone: BoolArray
    sizes: Int64Array | None

    @property
    def size_of_each(self) -> Int64Array:
        """Sequences that each item stands for, int64[n].

        Example:
            >>> check_packing([3, 1], 4).size_of_each
            array([1, 1])
        """
        return np.ones_like(self.lengths) if self.sizes is None else self.sizes


def check_packing(
    lengths: npt.ArrayLike,
    capacity: int,
    max_sequences: int | None = None,
    alone: npt.ArrayLike | None = None,
    sizes: npt.ArrayLike | None = None,
) -> Checked:
    """Check the arguments of a packer and fill in what was left out.

    Args:
        lengths: int64[n], padded tokens of each item, at least 1.
        capacity: padded tokens of a bin, at least 1.
        max_sequences: sequences a bin may hold, at least 1; None is no limit.
        alone: bool[n], items that get a bin of their own; None is none.
        sizes: int64[n], sequences that each item stands for, at least 1; None is 1 each.

    Returns:
        The arguments.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.
        InfeasibleError: items over the capacity or over `max_sequences` that are not alone; all are named.

    Example:
        >>> check_packing([3, 5, 9], 4, None, [False, False, True])
        Traceback (most recent call last):
        ...
        dcpack.errors.InfeasibleError: 1 length is over the capacity of 4 tokens: lengths[1] = 5
    """
    checked = as_lengths("lengths", lengths, minimum=1)
    check_total("lengths", checked)
    capacity = check_int("capacity", capacity, minimum=1)
    flags = np.zeros(checked.size, np.bool_) if alone is None else as_array("alone", alone)
    if flags.size == 0 and checked.size == 0:
        flags = flags.astype(np.bool_)  # an empty list has no type of its own
    if flags.dtype != np.bool_ or flags.shape != checked.shape:
        raise ArgumentError(f"alone must be bool[{checked.size}], got {flags.dtype} of shape {flags.shape}")
    limit = checked.size if max_sequences is None else check_int("max_sequences", max_sequences, minimum=1)
    num_sequences = checked.size
    _refuse_over("lengths", checked, capacity, f"the capacity of {capacity} tokens", flags)
    counts = None if sizes is None else as_lengths("sizes", sizes, minimum=1)
    if counts is not None:
        if counts.shape != checked.shape:
            raise ArgumentError(f"sizes must be int64[{checked.size}], got {counts.size} of them")
        check_total("sizes", counts)
        num_sequences = int(counts.sum())
        limit = num_sequences if max_sequences is None else limit
        _refuse_over("sizes", counts, limit, f"max_sequences = {limit}", flags)
    return Checked(
        lengths=checked,
        capacity=min(capacity, int(checked.sum()) + 1),
        max_sequences=min(limit, num_sequences),
        alone=flags,
        sizes=counts,
    )


def _refuse_over(name: str, values: Int64Array, limit: int, limit_text: str, exempt: BoolArray) -> None:
    if values.max(initial=0) <= limit:
        return
    if over := np.flatnonzero((values > limit) & ~exempt).tolist():
        listed = list_offenders([f"{name}[{i}] = {values[i]}" for i in over])
        text = f"1 {name[:-1]} is" if len(over) == 1 else f"{len(over)} {name} are"
        raise InfeasibleError(f"{text} over {limit_text}: {listed}")
