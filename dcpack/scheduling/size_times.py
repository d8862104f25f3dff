"""Times of bins where all groups of a micro-batch have one CP size, in whole numbers of a small unit."""

from __future__ import annotations

import math

import numpy as np

from dcpack._checks import BoolArray, Float64Array, Int64Array
from dcpack.scheduling.base import Problem
from dcpack.topology import crosses_node

__all__ = ["SizeTimes"]

_BITS = 40


class SizeTimes:
    """The cost model of a problem, asked for bins of one CP size; rounded, so that every machine decides alike.

    Attributes:
        problem: the problem; every legal CP size divides its ranks.
        fits: bool[k, p], whether each item fits at each legal size, oversized ones alone at the largest.
        columns: float64[k][p, c], the cost model's columns of each item at each legal size.
        crosses: bool[k][r / cp], whether each group of a micro-batch crosses nodes.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.fits: BoolArray = (problem.padded <= problem.limits[:, np.newaxis]) & ~problem.oversized
        self.fits[-1] |= problem.oversized
        self.columns = [problem.cost.columns(padded) for padded in problem.padded]
        self.crosses = [self._crossing(size) for size in problem.cp_sizes]
        self._scale = 1.0
        longest = float(self.of_sums(0, self.columns[0]).max(initial=0.0))
        self._scale = 2.0 ** (_BITS - math.frexp(longest)[1]) if longest > 0 else 1.0

    def _crossing(self, size: int) -> BoolArray:
        firsts = np.arange(0, self.problem.num_ranks, size)
        return crosses_node(firsts, np.full_like(firsts, size), self.problem.cost.node_size)

    def width(self, size_index: int) -> int:
        """Return how many groups of a size share the ranks."""
        return self.problem.num_ranks // self.problem.cp_sizes[size_index]

    def of_sums(self, size_index: int, sums: Float64Array, crosses: BoolArray | None = None) -> Float64Array:
        """Return float64[...]: times of bins of one size.

        Args:
            size_index: which legal CP size.
            sums: float64[..., c], summed columns of each bin.
            crosses: bool[...], whether the group of each crosses nodes; None where it is not known yet: as the slowest.
        """
        flat = sums.reshape(-1, sums.shape[-1])
        sizes = np.full(len(flat), self.problem.cp_sizes[size_index])
        if crosses is None:
            crosses = np.full(len(flat), self.crosses[size_index].any())
        times = self.problem.cost.bin_time(flat, sizes, crosses.reshape(-1))
        return np.rint(self._scale * times).reshape(sums.shape[:-1])

    def added(self, size_index: int, items: Int64Array, share: Float64Array) -> Float64Array:
        """Return float64[n]: what each of `items` (int64[n]) adds to the time of a bin that holds `share` already."""
        base = self.of_sums(size_index, share[np.newaxis])
        return np.maximum(self.of_sums(size_index, share + self.columns[size_index][items]) - base, 0.0)
