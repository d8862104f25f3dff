"""What all balancers share: the contract they keep and the integers that they compare.

A balancer sees costs and a number of parts and nothing else.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_int, list_offenders
from dcpack.errors import ArgumentError

__all__ = ["Balancer", "check_balancing", "integer_costs"]

# Integer costs sum to less than 2**62, so that the sum of two parts cannot leave int64.
_SUM_BITS = 62
# The largest float cost becomes a number of about this many bits: finer than any cost is known.
_FLOAT_BITS = 40


class Balancer(Protocol):
    """What a balancer is: a pure function from costs to the part of each item.

    Every balancer is deterministic, breaks ties by the lower index, and leaves no part empty where there are at least
    as many items as parts, items that cost nothing included. With fewer items than parts each item has a part of its
    own and the surplus parts stay empty.

    Example:
        >>> def round_robin(costs, num_parts, *, equal_size=False):
        ...     return np.arange(len(costs)) % num_parts
        >>> balancer: Balancer = round_robin
        >>> balancer([3, 1, 2], 2)
        array([0, 1, 0])
    """

    def __call__(self, costs: npt.ArrayLike, num_parts: int, *, equal_size: bool = False) -> Int64Array:
        """Deal the items to the parts.

        Args:
            costs: [n], integers or floats, finite and at least 0, in any unit.
            num_parts: number of parts, at least 1.
            equal_size: whether the numbers of items of any two parts differ by at most 1.

        Returns:
            int64[n], the part of each item, from 0 to `num_parts` - 1.
        """
        ...


def integer_costs(costs: npt.ArrayLike) -> Int64Array:
    """Round costs to integers, so that every machine compares and adds them alike.

    Integers stay as they are. Floats are multiplied by the power of two that gives the largest of them 40 bits, and
    rounded: the error is at most 2**-40 of the largest cost, and costs far below that become 0. Where integers sum to
    2**62 or more, or so many floats would (from 2**22 of them), all are scaled to fewer bits in the same way, so that
    no sum of costs leaves int64.

    Args:
        costs: [n], integers or floats, finite and at least 0.

    Returns:
        int64[n], costs in a unit of their own; their sum is less than 2**62.

    Raises:
        ArgumentError: not one-dimensional, not numbers, or some value negative, infinite or NaN (all are named).

    Example:
        >>> integer_costs([3, 0, 7])
        array([3, 0, 7])
        >>> integer_costs([0.5, 0.25, 0.0]) / 2**39
        array([1. , 0.5, 0. ])
        >>> integer_costs([1.0, float("nan"), -2.0])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: costs must be finite and at least 0: costs[1] = nan, costs[2] = -2.0
    """
    array = _as_costs(costs)
    if array.size == 0:
        return np.zeros(0, np.int64)
    bits = _SUM_BITS - array.size.bit_length()  # n values of at most 2**bits sum to less than 2**62
    if array.dtype.kind == "f":
        bits = min(bits, _FLOAT_BITS)
        _, exponent = np.frexp(array.max())  # the largest cost is below 2**exponent
        return np.rint(np.ldexp(array, bits - int(exponent))).astype(np.int64)
    largest = int(array.max())
    if largest * array.size < 2**_SUM_BITS or sum(array.tolist()) < 2**_SUM_BITS:
        return array.astype(np.int64)
    shift = largest.bit_length() - bits
    wide = array.astype(np.uint64)
    last_bit_lost = (wide >> np.uint64(shift - 1)) & np.uint64(1)
    return ((wide >> np.uint64(shift)) + last_bit_lost).astype(np.int64)


def check_balancing(costs: npt.ArrayLike, num_parts: int) -> tuple[Int64Array, int]:
    """Check the arguments of a balancer.

    Args:
        costs: [n], integers or floats, finite and at least 0.
        num_parts: number of parts, at least 1.

    Returns:
        The costs as `integer_costs` gives them, and the number of parts.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.

    Example:
        >>> check_balancing([3, 1], 0)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: num_parts must be at least 1, got 0
    """
    return integer_costs(costs), check_int("num_parts", num_parts, minimum=1)


def _as_costs(costs: npt.ArrayLike) -> npt.NDArray[Any]:
    """Return the costs as an array of integers, or of float64; what is no cost is an error."""
    try:
        array = np.asarray(costs)
    except (ValueError, OverflowError) as error:
        raise ArgumentError(f"costs must be a one-dimensional array of numbers: {error}") from error
    if array.ndim != 1:
        raise ArgumentError(f"costs must be one-dimensional, got shape {array.shape}")
    if array.dtype.kind not in "iuf":
        raise ArgumentError(f"costs must hold integers or floats, got dtype {array.dtype}")
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
    if bad := np.flatnonzero(~np.isfinite(array) | (array < 0)).tolist():
        listed = list_offenders([f"costs[{i}] = {array[i]}" for i in bad])
        raise ArgumentError(f"costs must be finite and at least 0: {listed}")
    return array
