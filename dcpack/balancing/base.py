"""What all balancers share: the contract they keep and the integers that they compare.

A balancer sees costs and a number of parts and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_costs, check_choice, check_flag, check_int
from dcpack.balancing.refine import refine

__all__ = ["EFFORTS", "Balancer", "deal_in_order", "integer_costs"]

EFFORTS = ("fast", "best")
"""What `effort` may be: the method alone, or the method and then `dcpack.balancing.refine.refine`."""

# Integer costs sum to less than 2**59, so that a few times the sum does not leave int64.
_SUM_BITS = 59
# The largest float cost becomes a number of about this many bits: finer than any cost is known.
_FLOAT_BITS = 40


class Balancer(Protocol):
    """What a balancer is: a pure function from costs to the part of each item.

    Every balancer is deterministic, breaks ties by the lower index, and leaves no part empty where there are at least
    as many items as parts, items that cost nothing included. With fewer items than parts each item has a part of its
    own and the surplus parts stay empty.

    Example:
        >>> def round_robin(costs, num_parts, *, equal_size=False, effort="best"):
        ...     return np.arange(len(costs)) % num_parts
        >>> balancer: Balancer = round_robin
        >>> balancer([3, 1, 2], 2)
        array([0, 1, 0])
    """

    def __call__(
        self, costs: npt.ArrayLike, num_parts: int, *, equal_size: bool = False, effort: str = "best"
    ) -> Int64Array:
        """Deal the items to the parts.

        Args:
            costs: [n], integers or floats, finite and at least 0, in any unit.
            num_parts: number of parts, at least 1.
            equal_size: whether the numbers of items of any two parts differ by at most 1.
            effort: ``"fast"`` or ``"best"``, as in `EFFORTS`; the dearest part never costs more with the second.

        Returns:
            int64[n], the part of each item, from 0 to `num_parts` - 1.
        """
        ...


def integer_costs(costs: npt.ArrayLike) -> Int64Array:
    """Round costs to integers, so that every machine compares and adds them alike.

    Integers stay as they are. Floats are multiplied by the power of two that gives the largest of them 40 bits, and
    rounded: the error is at most 2**-40 of the largest cost, and costs far below that become 0. Where integers sum to
    2**59 or more, or so many floats would (from 2**19 of them), all are scaled to fewer bits in the same way, so that
    no sum of costs leaves int64.

    Args:
        costs: [n], integers or floats, finite and at least 0.

    Returns:
        int64[n], costs in a unit of their own; their sum is less than 2**59.

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
    array = as_costs("costs", costs)
    if array.size == 0:
        return np.zeros(0, np.int64)
    bits = _SUM_BITS - array.size.bit_length()  # n values of at most 2**bits sum to less than 2**59
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


def deal_in_order(
    costs: npt.ArrayLike,
    num_parts: int,
    *,
    equal_size: bool,
    effort: str,
    deal: Callable[[Int64Array, int, bool], Int64Array],
) -> Int64Array:
    """Run a method on checked costs in descending order, refine what it made, and put the items back in their order.

    A method that sees costs in descending order only, equal ones in the order of their items, cannot depend on the
    order in which the items came.

    Args:
        costs: [n], integers or floats, finite and at least 0.
        num_parts: number of parts, at least 1.
        equal_size: whether the numbers of items of any two parts differ by at most 1.
        effort: one of `EFFORTS`.
        deal: the method, from (descending integer costs int64[n], number of parts, `equal_size`) to the part of each.
            It is asked only for 2 to n parts.

    Returns:
        int64[n], the part of each item.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range.

    Example:
        >>> def snake(costs, num_parts, equal_size):
        ...     rounds, at = np.divmod(np.arange(costs.size), num_parts)
        ...     return np.where(rounds % 2, num_parts - 1 - at, at)
        >>> deal_in_order([1, 9, 4, 2], 2, equal_size=True, effort="fast", deal=snake)
        array([0, 0, 1, 1])
        >>> deal_in_order([3, 1], 0, equal_size=False, effort="fast", deal=snake)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: num_parts must be at least 1, got 0
    """
    loads = integer_costs(costs)
    # Where items are fewer than parts, each has a part of its own; the surplus parts cost neither time nor memory.
    num_parts = min(check_int("num_parts", num_parts, minimum=1), loads.size)
    equal_size = check_flag("equal_size", equal_size)
    refined = check_choice("effort", effort, EFFORTS) == "best"
    if num_parts < 2:
        return np.zeros(loads.size, np.int64)
    order = np.argsort(-loads, kind="stable")
    descending = loads[order]
    dealt = deal(descending, num_parts, equal_size)
    part_of = np.empty(loads.size, np.int64)
    part_of[order] = refine(descending, dealt, num_parts, equal_size=equal_size) if refined else dealt
    return part_of
