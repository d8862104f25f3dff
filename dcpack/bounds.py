"""Lower bounds: what no packing and no balance can be better than.

A plan is judged by its distance from them, so they must be sound; they need not be reached.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_costs, as_lengths, check_cost, check_int
from dcpack.errors import ArgumentError
from dcpack.padding import PaddingRule, check_capacity, longest_fitting_length, padded_lengths, row_capacity

if TYPE_CHECKING:
    from dcpack.cost import CostModel

__all__ = ["balance_lower_bound", "packing_lower_bound", "step_bounds"]

# Below this sum every product and sum in the bound stays within int64.
_MAX_TOTAL = 2**62


def packing_lower_bound(lengths: npt.ArrayLike, capacity: int, *, max_sequences: int | None = None) -> int:
    """Return a number of bins that no packing of whole sequences can do with less than.

    Bound L2 of Martello and Toth ("Lower bounds and reduction procedures for the bin packing problem", 1990): two
    lengths above half the capacity never share a bin; for each threshold K, lengths above capacity - K share one with
    nothing of K or more, so that what the lengths from K to half the capacity do not find room for beside the other
    long ones needs bins of its own. K = 0 is the plain bound by the sum, so L2 is never below it. All thresholds are
    looked at together, in O(n log n).

    Args:
        lengths: int64[n], padded tokens of each sequence. A length of 0 needs no bin; one over the capacity can only be
            oversized and alone, and counts one bin.
        capacity: padded tokens that a bin holds at most, at least 1.
        max_sequences: sequences that a bin holds at most; None is no limit.

    Returns:
        The least number of bins there may be.

    Raises:
        ArgumentError: an argument of the wrong type, shape or range, or lengths that sum to 2**62 or more.

    Example:
        >>> packing_lower_bound([6, 6, 6], 10)  # the sum alone would say 2
        3
        >>> packing_lower_bound([6, 6, 5, 5, 5], 10)  # no 5 fits beside a 6
        4
    """
    checked = as_lengths("lengths", lengths)
    capacity = check_int("capacity", capacity, minimum=1)
    total = checked.sum(dtype=np.float64)
    if total >= _MAX_TOTAL:
        raise ArgumentError(f"lengths must sum to less than 2**62 tokens, got about {total:.3g}")
    limit = checked.size if max_sequences is None else check_int("max_sequences", max_sequences, minimum=1)
    num_oversized = int(np.count_nonzero(checked > capacity))
    fitting = checked[(checked > 0) & (checked <= capacity)]
    if fitting.size == 0:
        return num_oversized
    # A capacity beyond all tokens is one bin at most, and stays within int64 so.
    least = _martello_toth(np.sort(fitting), min(capacity, int(fitting.sum())))
    return num_oversized + max(least, -(-fitting.size // limit))


def _martello_toth(ascending: Int64Array, capacity: int) -> int:
    """Return bound L2 of lengths from 1 to the capacity, given in ascending order."""
    num_short = int(np.searchsorted(ascending, capacity // 2, side="right"))
    short, long = ascending[:num_short], ascending[num_short:]
    short_before = np.concatenate([[0], np.cumsum(short)])
    long_before = np.concatenate([[0], np.cumsum(long)])
    thresholds = np.concatenate([[0], short])
    # Long ones that may share a bin with a length of K, and the room they leave.
    num_sharing = np.searchsorted(long, capacity - thresholds, side="right")
    room = num_sharing * capacity - long_before[num_sharing]
    # Lengths from K to half the capacity.
    tokens = short_before[-1] - short_before[np.searchsorted(short, thresholds)]
    extra = -(-(tokens - room) // capacity)
    return long.size + max(0, int(extra.max()))


def balance_lower_bound(costs: npt.ArrayLike, num_parts: int) -> int | float:
    """Return a cost that the dearest part of no partition can be below: the mean part, or the dearest item.

    Integer costs give an exact integer, the mean rounded up.

    Args:
        costs: [n], integers or floats, finite and at least 0, in any unit.
        num_parts: number of parts, at least 1.

    Returns:
        The bound in the unit of the costs: an int for integers, a float for floats.

    Raises:
        ArgumentError: costs that are no costs (all are named), or fewer than 1 part.

    Example:
        >>> balance_lower_bound([3, 3, 3], 2), balance_lower_bound([9, 1, 1], 2), balance_lower_bound([1.5, 1.5], 2)
        (5, 9, 1.5)
    """
    num_parts = check_int("num_parts", num_parts, minimum=1)
    array = as_costs("costs", costs)
    values = array.tolist()  # Python numbers: sums of integers are exact, and fsum rounds only once
    largest = max(values, default=0)
    if array.dtype.kind == "f":
        return max(math.fsum(values) / num_parts, float(largest))
    return max(-(-sum(values) // num_parts), largest)


def step_bounds(
    lengths: npt.ArrayLike,
    *,
    num_ranks: int,
    capacity: int,
    cp_sizes: tuple[int, ...],
    padding: PaddingRule | None,
    cost: CostModel,
) -> dict[str, float]:
    """Return what no plan of one step can be below, in both sync modes.

    Assumes what every sensible cost model holds: splitting a sequence never lowers the total work of its ranks, a
    longer bin never takes less time, and crossing nodes never saves any.

    Args:
        lengths: int64[n], real tokens of each sequence, at least 1.
        num_ranks: ranks of the DPxCP domain.
        capacity: padded tokens of one row on one rank.
        cp_sizes: legal CP sizes, ascending.
        padding: the padding rule, or None.
        cost: the cost model.

    Returns:
        ``"work"``: all work, unsplit, shared evenly by the ranks; ``"longest"``: the sequence that takes longest on
        the CP size that suits it best; ``"step_time"``: the larger of the two, all in the unit of `cost`; and
        ``"num_microbatches"``: all tokens over all capacity.

    Raises:
        ArgumentError: no legal size, or a number, a rule or a cost model that is none.

    Example:
        >>> from dcpack.cost import QuadraticCost
        >>> step_bounds([8, 4], num_ranks=2, capacity=8, cp_sizes=(1, 2), padding=None, cost=QuadraticCost())
        {'work': 40.0, 'longest': 32.0, 'step_time': 40.0, 'num_microbatches': 1.0}
    """
    num_ranks = check_int("num_ranks", num_ranks, minimum=1)
    check_capacity(capacity, padding)
    check_cost(cost)
    cp_sizes = tuple(as_lengths("cp_sizes", cp_sizes, minimum=1).tolist())
    if not cp_sizes:
        raise ArgumentError("cp_sizes must hold at least one size")
    checked = as_lengths("lengths", lengths, minimum=1)
    if checked.size == 0:
        return {"work": 0.0, "longest": 0.0, "step_time": 0.0, "num_microbatches": 0.0}
    distinct, counts = np.unique(checked, return_counts=True)
    sizes = np.array(cp_sizes, np.int64)
    fitting = longest_fitting_length(capacity, sizes, padding)
    # No shorter sequence takes longer: at every size it is padded to no more, and it fits on no fewer sizes.
    usable = sizes[(fitting >= distinct[-1]) | (np.arange(sizes.size) == sizes.size - 1)]
    alone = cost.columns(padded_lengths(np.full_like(usable, distinct[-1]), usable, padding))
    # More ranks than a node has lie on several, wherever the group sits.
    crosses = np.zeros(usable.size, np.bool_) if cost.node_size is None else usable > cost.node_size
    longest = float(cost.bin_time(alone, usable, crosses).min())
    fewest_tokens = distinct if padding is None else padded_lengths(distinct, cp_sizes[0], padding)
    for size in cp_sizes[1:] if padding is not None else ():
        fewest_tokens = np.minimum(fewest_tokens, padded_lengths(distinct, size, padding))
    rows = row_capacity(capacity, padding)
    oversized = distinct > int(fitting.max())
    fewest_tokens = np.where(
        oversized, rows * cp_sizes[0], fewest_tokens
    )  # whatever its length, it takes one row on at least so many ranks
    columns = cost.columns(distinct) * counts[:, np.newaxis]
    whole = cost.bin_time(columns.sum(axis=0, keepdims=True), np.ones(1, np.int64), np.zeros(1, np.bool_))
    work = float(whole[0]) / num_ranks
    microbatches = float(-(-int((fewest_tokens * counts).sum()) // (rows * num_ranks)))
    return {"work": work, "longest": longest, "step_time": max(work, longest), "num_microbatches": microbatches}
