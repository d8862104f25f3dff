"""Which CP size for which items: cut the items, longest first, into ranges, one for each CP size that is used.

A range becomes micro-batches that all have its CP size. Its time is estimated by sums: as many micro-batches as its
tokens need, each as long as an even share of its work, and together no shorter than its longest item alone. Longer
items get larger sizes, so the best cut is found by going from the largest size to the smallest and, for each, over
where its range starts and stops. Example, capacity 100, 4 ranks, time in tokens a rank: [300, 90, 90, 90, 90] is cut
into [300] on CP size 4 and the rest on size 1, which takes 75 + 90.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Float64Array, Int64Array
from dcpack.scheduling.price_of_cp import priced
from dcpack.scheduling.size_times import SizeTimes

__all__ = ["SizeRange", "cut_by_size"]

_MOST_CUTS = 96  # places where a range may start or stop


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The items ``start:stop``, longest first, at the `size_index`-th legal CP size."""

    size_index: int
    start: int
    stop: int


def cut_by_size(times: SizeTimes, *, fill: float, range_price: float) -> list[SizeRange] | None:
    """Return the ranges whose estimated time is least, largest size first, or None where no cut works out.

    Args:
        times: times of the problem.
        fill: part of the tokens of its micro-batches that a range is expected to fill.
        range_price: what each range costs beside its time, in parts of the time of the best single range: the last
            micro-batches of a range are seldom as good as the others.
    """
    problem = times.problem
    order = problem.longest_first
    cuts = _places_to_cut(times, order)
    estimates = np.stack([_estimates(times, k, order, cuts, fill) for k in range(len(problem.cp_sizes))])
    if not np.isfinite(estimates).any():
        return None
    whole = estimates[:, 0, -1].min()
    estimates += np.rint(range_price * whole) if np.isfinite(whole) else 0.0
    best = np.full(cuts.size, np.inf)  # of the items before each cut, with the sizes so far
    best[0] = 0.0
    came_from = np.empty((len(problem.cp_sizes), cuts.size), np.int64)
    for k in range(len(problem.cp_sizes) - 1, -1, -1):
        totals = best[:, np.newaxis] + estimates[k]
        start = totals.argmin(axis=0)
        reached = totals[start, np.arange(cuts.size)]
        is_better = reached < best
        came_from[k] = np.where(is_better, start, np.arange(cuts.size))
        best = np.where(is_better, reached, best)
    return _follow_back(came_from, cuts) if np.isfinite(best[-1]) else None


def _follow_back(came_from: Int64Array, cuts: Int64Array) -> list[SizeRange]:
    ranges: list[SizeRange] = []
    at = cuts.size - 1
    for k, before in enumerate(came_from):
        if before[at] != at:
            ranges.append(SizeRange(k, int(cuts[before[at]]), int(cuts[at])))
        at = before[at]
    return ranges[::-1]


def _places_to_cut(times: SizeTimes, order: Int64Array) -> Int64Array:
    """Return where ranges may start or stop, ascending, from 0 to the number of items."""
    if order.size <= _MOST_CUTS:
        return np.arange(order.size + 1)
    fits = times.fits[:, order]
    changes = np.flatnonzero((fits[:, 1:] != fits[:, :-1]).any(axis=0)) + 1
    tokens = np.cumsum(times.problem.lengths[order])
    shares = np.arange(1, _MOST_CUTS // 2) / (_MOST_CUTS // 2)
    by_tokens = np.searchsorted(tokens, shares * float(tokens[-1]))
    by_count = np.rint(shares * order.size).astype(np.int64)
    return np.unique(np.concatenate([[0, order.size], changes[:_MOST_CUTS], by_tokens, by_count]))


def _estimates(times: SizeTimes, k: int, order: Int64Array, cuts: Int64Array, fill: float) -> Float64Array:
    """Return float64[i, j]: the priced time of the items between cuts i and j at size k, inf where it cannot be."""
    problem = times.problem
    limit, width = int(problem.limits[k]), times.width(k)
    padded = np.where(problem.oversized, limit, problem.padded[k])[order]
    columns = times.columns[k][order]

    def between(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        nothing = np.zeros((1, *values.shape[1:]), values.dtype)
        running = np.concatenate([nothing, np.cumsum(values, axis=0)])[cuts]
        return running[np.newaxis] - running[:, np.newaxis]

    count = between(np.ones_like(order))
    halves = between((2 * padded > limit).astype(np.int64))  # no two of these share a bin
    bins = np.maximum(halves, np.ceil(between(padded) / (fill * limit)))
    if problem.max_sequences is not None:
        bins = np.maximum(bins, -(-count // problem.max_sequences))
    microbatches = np.maximum(np.ceil(bins / width), 1.0)
    shares = np.maximum(between(columns), 0.0) / (microbatches * width)[:, :, np.newaxis]
    longest = np.append(times.of_sums(k, columns), 0.0)[cuts]
    taken = np.maximum(microbatches * times.of_sums(k, shares), longest[:, np.newaxis])
    possible = (count > 0) & (between((~times.fits[k, order]).astype(np.int64)) == 0)
    if problem.on_empty == "error":
        possible &= count >= microbatches * width
    return np.where(possible, priced(taken, problem.cp_sizes[k]), np.inf)
