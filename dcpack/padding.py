"""The padding rule: how long a sequence becomes before it is packed.

Kernels and parallelisms ask for lengths that divide evenly. Zigzag slicing over `cp` ranks cuts a sequence into
``2 * cp`` chunks, tensor parallelism with sequence parallelism cuts each chunk over `tp` ranks, and fp8 kernels want
blocks of 16 (32 for mxfp8) tokens on every rank. The rule per sequence is therefore the least common multiple

    multiple(cp) = lcm(2 * cp * tp if cp > 1 else tp, block * cp)

with `cp` the CP size that is *assigned* to the sequence, so padding follows scheduling. Sources: verl and NeMo-RL
(``2 * cp * tp``), Megatron-Core's ``get_fp8_align_size`` (the block).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, as_integers, check_flag, check_int, check_kinds
from dcpack.errors import ArgumentError

__all__ = [
    "MAX_CAPACITY",
    "MAX_CP_SIZE",
    "PaddingRule",
    "check_capacity",
    "longest_fitting_length",
    "padded_lengths",
    "padding_multiple",
    "row_capacity",
]

MAX_CAPACITY = 2**40
"""The largest capacity that is taken, in tokens: beyond it sums over ranks could leave int64."""

MAX_CP_SIZE = 2**24
"""The largest CP size that is taken: with it a multiple stays below 2**57."""

_MAX_SIZE = 2**16  # of tp and block


@dataclass(frozen=True, kw_only=True, slots=True)
class PaddingRule:
    """What each padded length, and each packed row, must be a multiple of.

    Args:
        tp: tensor-parallel size, at least 1.
        block: tokens of one kernel block on each rank: 1, 16 for fp8, 32 for mxfp8, or what a kernel asks for.
        sequence_parallel: the total of a bin is padded too, to a multiple of ``block * cp * tp``.

    Raises:
        ArgumentError: a size that is not an integer from 1 to 65536, or a flag that is not a bool.

    Example:
        >>> PaddingRule(tp=2, block=16).multiple(2)
        32
        >>> PaddingRule(tp=4, block=32, sequence_parallel=True).padded_total(31936)
        32000
    """

    tp: int = 1
    block: int = 1
    sequence_parallel: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "block"):
            object.__setattr__(self, name, check_int(name, getattr(self, name), minimum=1))
            if getattr(self, name) > _MAX_SIZE:
                raise ArgumentError(f"{name} must be at most {_MAX_SIZE}, got {getattr(self, name)}")
        object.__setattr__(self, "sequence_parallel", check_flag("sequence_parallel", self.sequence_parallel))

    def multiple(self, cp_size: Any) -> Any:
        """Return the number that the padded length of a sequence is a multiple of.

        Args:
            cp_size: CP size assigned to the sequence; an int, or int64[...] for many at once.

        Returns:
            An int, or int64[...] of the same shape.

        Example:
            >>> rule = PaddingRule(tp=2)
            >>> rule.multiple(1), rule.multiple(np.array([1, 2, 4])).tolist()
            (2, [2, 8, 16])
        """
        cp = _as_cp_sizes(cp_size)
        result = np.lcm(np.where(cp > 1, 2 * cp * self.tp, self.tp), self.block * cp)
        return int(result) if result.ndim == 0 else result

    def row_multiple(self) -> int:
        """Return the number that the tokens of one packed row on one rank are a multiple of.

        Example:
            >>> PaddingRule(tp=4, block=32, sequence_parallel=True).row_multiple(), PaddingRule(tp=4).row_multiple()
            (128, 1)
        """
        return self.block * self.tp if self.sequence_parallel else 1

    def padded_total(self, total: Any, cp_size: Any = 1) -> Any:
        """Return the padded tokens of a whole bin, given the sum of its padded lengths.

        Args:
            total: sum of the padded lengths of a bin, in tokens; an int or int64[...].
            cp_size: CP size of the bin; an int or int64[...].

        Example:
            >>> PaddingRule(tp=2, block=1, sequence_parallel=True).padded_total(9, 2)
            12
        """
        result = _round_up("total", total, self.row_multiple() * _as_cp_sizes(cp_size))
        return int(result) if result.ndim == 0 else result


def _as_cp_sizes(values: Any) -> Int64Array:
    sizes = as_integers("cp_size", values, minimum=1)
    if sizes.size and sizes.max() > MAX_CP_SIZE:
        raise ArgumentError(f"cp_size must be at most {MAX_CP_SIZE}, got {sizes.max()}")
    return sizes


def _round_up(name: str, values: Any, multiple: Any) -> Int64Array:
    numbers = as_integers(name, values)
    try:
        np.broadcast_shapes(numbers.shape, np.shape(multiple))
    except ValueError as error:
        shapes = f"{numbers.shape} and {np.shape(multiple)}"
        raise ArgumentError(f"{name} and cp_size must have shapes that go together, got {shapes}") from error
    if np.any(numbers > np.iinfo(np.int64).max - multiple):
        raise ArgumentError(f"{name} must leave room for padding within int64, got {numbers.max()}")
    return -(-numbers // multiple) * multiple


def padding_multiple(padding: PaddingRule | None, cp_size: Any) -> Any:
    """Return `padding.multiple(cp_size)`, or ones where there is no rule.

    Args:
        padding: the rule, or None.
        cp_size: an int, or int64[k] for many sizes at once.

    Example:
        >>> padding_multiple(None, 4), padding_multiple(PaddingRule(), 4)
        (1, 8)
    """
    check_kinds(padding=(padding, PaddingRule | None))
    if padding is None:
        ones = np.ones_like(_as_cp_sizes(cp_size))
        return 1 if ones.ndim == 0 else ones
    return padding.multiple(cp_size)


def padded_lengths(lengths: Any, cp_size: Any = 1, padding: PaddingRule | None = None) -> Int64Array:
    """Return the padded length of each sequence at the CP size assigned to it.

    Args:
        lengths: int64[n], real tokens.
        cp_size: int, or int64[n] with one CP size a sequence.
        padding: the rule; None pads nothing.

    Returns:
        int64[n], padded tokens of the whole sequence (not of one rank's share).

    Example:
        >>> padded_lengths(np.array([3, 8, 9]), 2, PaddingRule()).tolist()
        [4, 8, 12]
    """
    return _round_up("lengths", lengths, padding_multiple(padding, cp_size))


def check_capacity(capacity: Any, padding: Any) -> int:
    """Return `capacity` as an int if it and the padding rule can go together.

    Args:
        capacity: padded tokens of one row on one rank.
        padding: the rule, or None.

    Raises:
        ArgumentError: no integer of at least 1, no padding rule, or rows padded to more than the capacity.

    Example:
        >>> check_capacity(64, PaddingRule(tp=8, block=16, sequence_parallel=True))
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: capacity must be at least 128, to which the padding rule pads each row, got 64
    """
    capacity = check_int("capacity", capacity, minimum=1)
    if capacity > MAX_CAPACITY:
        raise ArgumentError(f"capacity must be at most {MAX_CAPACITY}, got {capacity}")
    if padding is not None and not isinstance(padding, PaddingRule):
        raise ArgumentError(f"padding must be a PaddingRule or None, got {padding!r}")
    multiple = 1 if padding is None else padding.row_multiple()
    if capacity < multiple:
        raise ArgumentError(
            f"capacity must be at least {multiple}, to which the padding rule pads each row, got {capacity}"
        )
    return capacity


def row_capacity(capacity: int, padding: PaddingRule | None) -> int:
    """Return the part of `capacity` that padded rows can fill, in tokens of one rank.

    A row that is padded to a multiple of m fits in `capacity` exactly if the sum of its padded lengths fits in the
    largest multiple of m below it.

    Args:
        capacity: padded tokens of one row on one rank.
        padding: the rule, or None.

    Example:
        >>> row_capacity(100, PaddingRule(tp=8, sequence_parallel=True)), row_capacity(100, None)
        (96, 100)
    """
    check_kinds(padding=(padding, PaddingRule | None))
    capacity = check_int("capacity", capacity, minimum=0)
    multiple = 1 if padding is None else padding.row_multiple()
    return capacity // multiple * multiple


def longest_fitting_length(capacity: int, cp_size: Any, padding: PaddingRule | None = None) -> Any:
    """Return the longest real length that fits alone in a bin of `cp_size` ranks (0 if none does).

    Args:
        capacity: padded tokens of one row on one rank.
        cp_size: an int, or int64[k] for many sizes at once.
        padding: the rule; None pads nothing.

    Returns:
        An int, or int64[k], in tokens of the whole sequence.

    Raises:
        ArgumentError: an argument out of range, or a bin of more tokens than int64 holds.

    Example:
        >>> longest_fitting_length(100, 1, PaddingRule(block=8)), longest_fitting_length(100, 2)
        (96, 200)
    """
    cp = _as_cp_sizes(cp_size)
    multiple = padding_multiple(padding, cp)
    row = row_capacity(check_int("capacity", capacity, minimum=1), padding)
    if row * int(cp.max(initial=0)) > np.iinfo(np.int64).max:
        raise ArgumentError(f"capacity x cp_size must be within int64, got {capacity} x {cp.max()}")
    result = row * cp // multiple * multiple
    return int(result) if result.ndim == 0 else result
