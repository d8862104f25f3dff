"""Times of items and of groups under a cost model, for schedulers that minimise them.

Sizes are given by their index in ``Problem.cp_sizes``. Times are rounded to whole numbers of a small unit, so that
every machine compares them alike.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from dcpack._checks import BoolArray, Float64Array, Int64Array
from dcpack.padding import longest_fitting_length
from dcpack.scheduling.base import Group, MicroBatch, Problem
from dcpack.scheduling.price_of_cp import doublings, priced
from dcpack.topology import crosses_node, place_blocks

__all__ = ["GroupTimes", "as_groups", "mean_cp"]

_BITS = 40
_PRICE_BEYOND = 0.2  # what each doubling beyond the usual mean CP must gain on top of that
_STEEP, _STEP = 0.5, 0.1  # what a first part of a doubling beyond it must gain: steeply, up to that much


class GroupTimes:
    """The cost model of a problem, asked in arrays.

    Attributes:
        problem: the problem.
        sizes: int64[k], the legal CP sizes.
        smallest: int64[p], index of the smallest size that holds each item.
        work: time of all items, each alone at its smallest size, times the ranks of that.
        even_time: that work shared out evenly.
        usual_mean_cp: a mean CP beyond which more of it must gain far more.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.usual_mean_cp = math.inf
        self._places: dict[tuple[int, ...], tuple[Int64Array, BoolArray]] = {}
        self.sizes = np.array(problem.cp_sizes, np.int64)
        node_size = problem.cost.node_size
        # Where a group will sit is not known yet; aligned blocks up to the size of a node do not cross one.
        self._crosses = np.zeros(self.sizes.size, np.bool_) if node_size is None else self.sizes > node_size
        longest = np.maximum.accumulate(longest_fitting_length(problem.capacity, self.sizes, problem.padding))
        self.smallest = np.minimum(np.searchsorted(longest, problem.lengths), self.sizes.size - 1)
        self._scale = 1.0
        items = np.arange(problem.lengths.size)
        slowest = float(self.alone(self.smallest, items).max(initial=0.0))
        self._scale = 2.0 ** (_BITS - math.frexp(slowest)[1]) if slowest > 0 else 1.0
        self.work = float(self.alone_work(items).sum())
        self.even_time = self.work / problem.num_ranks

    def padded(self, size_index: Int64Array, items: Int64Array) -> Int64Array:
        """Return int64[n]: padded length of each item at its size."""
        return self.problem.padded_to(self.problem.lengths[items], self.sizes[size_index])

    def alone(self, size_index: Int64Array, items: Int64Array) -> Float64Array:
        """Return float64[n]: time of each item alone on a group of its size."""
        columns = self.problem.cost.columns(self.padded(size_index, items))
        return self._times(columns, size_index, self._crosses[size_index])

    def alone_work(self, items: Int64Array) -> Float64Array:
        """Return float64[n]: time of each item alone at its smallest size, times the ranks of that."""
        smallest = self.smallest[items]
        return self.alone(smallest, items) * self.sizes[smallest]

    def _times(self, sums: Float64Array, size_index: Int64Array, crosses: np.ndarray) -> Float64Array:
        return self.at_sizes(sums, self.sizes[size_index], crosses)

    def table(self, sums: Float64Array, size_index: Int64Array) -> Float64Array:
        """Return float64[g, k]: time of groups of these summed columns (float64[g, c]) at each of these sizes."""
        every = np.tile(size_index, len(sums))
        flat = self._times(np.repeat(sums, size_index.size, axis=0), every, self._crosses[every])
        return flat.reshape(len(sums), size_index.size)

    def alone_table(self, items: Int64Array, size_index: Int64Array) -> Float64Array:
        """Return float64[n, k]: time of each item alone at each of these sizes."""
        if self.problem.padding is None:
            return self.table(self.problem.cost.columns(self.problem.lengths[items]), size_index)
        flat = self.alone(np.tile(size_index, items.size), np.repeat(items, size_index.size))
        return flat.reshape(items.size, size_index.size)

    def at_sizes(self, sums: Float64Array, cp_size: Int64Array, crosses: np.ndarray) -> Float64Array:
        """Return float64[g]: time of groups of these summed columns (float64[g, k]), sizes and places."""
        return np.rint(self._scale * self.problem.cost.bin_time(sums, cp_size, crosses))

    def of_groups(
        self, size_index: Int64Array, counts: Int64Array, items: Int64Array
    ) -> tuple[Float64Array, Int64Array]:
        """Return float64[g] and int64[g]: time and padded tokens of groups, at least one item in each.

        Args:
            size_index: int64[g], size of each group.
            counts: int64[g], items of each.
            items: int64[sum(counts)], group after group.
        """
        padded = self.padded(np.repeat(size_index, counts), items)
        starts = np.cumsum(counts) - counts
        sums = np.add.reduceat(self.problem.cost.columns(padded), starts, axis=0)
        return self._times(sums, size_index, self._crosses[size_index]), np.add.reduceat(padded, starts)

    def slowest(self, groups: MicroBatch) -> float:
        """Return the time of the slowest of `groups`, none of them empty."""
        return float(self.of_groups(*self.flat(groups))[0].max())

    def score(self, time: float, groups: Iterable[Group]) -> float:
        """Return `time` plus the price of the mean CP of `groups`, at least one of them with items."""
        sized = [(group.cp_size, group.items) for group in groups if group.items]
        items = np.array([item for _, members in sized for item in members], np.int64)
        ranks = np.repeat([size for size, _ in sized], [len(members) for _, members in sized])
        lengths = self.problem.lengths[items]
        mean = int((lengths * ranks).sum()) / int(lengths.sum())
        return float(self.priced(np.array([time]), np.array([mean]))[0])

    def priced(self, times: Float64Array, mean_cp: Float64Array) -> Float64Array:
        """Return float64[n]: `times` plus the price of a mean CP (float64[n]) each; see docs/decisions/0010."""
        beyond = np.maximum(doublings(mean_cp) - doublings(self.usual_mean_cp), 0.0)
        excess = np.maximum(_PRICE_BEYOND * beyond, np.minimum(_STEEP * beyond, _STEP))
        return priced(times, mean_cp, excess)

    def fit(self, microbatches: list[MicroBatch]) -> bool:
        """Tell whether groups, none empty, are within the ranks of each micro-batch and the capacity of a rank.

        Oversized items must be alone.
        """
        problem = self.problem
        index, counts, items = self.flat([group for groups in microbatches for group in groups])
        _, tokens = self.of_groups(index, counts, items)
        oversized = np.add.reduceat(problem.oversized[items].astype(np.int64), np.cumsum(counts) - counts) > 0
        inside = np.where(oversized, counts == 1, tokens <= problem.limits[index])
        starts = np.cumsum([0, *(len(groups) for groups in microbatches)])[:-1]
        return bool(inside.all() and np.all(np.add.reduceat(self.sizes[index], starts) <= problem.num_ranks))

    def flat(self, groups: MicroBatch) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return int64[g], int64[g] and int64[n]: index of the size of each group, its items' number, all items."""
        index = np.searchsorted(self.sizes, [group.cp_size for group in groups])
        counts = np.array([len(group.items) for group in groups], np.int64)
        return index, counts, np.array([item for group in groups for item in group.items], np.int64)

    def placed(self, groups: MicroBatch) -> tuple[Float64Array, Int64Array]:
        """Return float64[g] and int64[g]: time and first rank of groups as they will sit; dummies take no time."""
        first, crosses = self.places(groups)
        return self._times_there(groups, crosses), first

    def places(self, groups: MicroBatch) -> tuple[Int64Array, BoolArray]:
        """Return int64[g] and bool[g]: first rank of groups as they will sit, and whether each crosses nodes."""
        sizes = tuple(group.cp_size for group in groups)
        if sizes not in self._places:
            node_size = self.problem.cost.node_size
            first = place_blocks(sizes, node_size)
            self._places[sizes] = first, crosses_node(first, sizes, node_size)
        return self._places[sizes]

    def _times_there(self, groups: MicroBatch, crosses: BoolArray) -> Float64Array:
        times = np.zeros(len(groups))
        filled = [group for group in groups if group.items]
        if filled:
            real = np.array([bool(group.items) for group in groups])
            index, counts, items = self.flat(filled)
            columns = self.problem.cost.columns(self.padded(np.repeat(index, counts), items))
            sums = np.add.reduceat(columns, np.cumsum(counts) - counts, axis=0)
            times[real] = self._times(sums, index, crosses[real])
        return times

    def step_time(self, microbatches: list[MicroBatch]) -> float:
        """Return the time of a step, whose groups fill all ranks, in the problem's sync mode."""
        places = [self.places(groups) for groups in microbatches]
        flat = [group for groups in microbatches for group in groups]
        times = self._times_there(flat, np.concatenate([crosses for _, crosses in places]))
        starts = np.cumsum([0, *(len(groups) for groups in microbatches)])
        if self.problem.sync == "microbatch":
            return float(np.maximum.reduceat(times, starts[:-1]).sum())
        sizes = np.array([group.cp_size for group in flat])
        total = np.zeros(self.problem.num_ranks)
        for (first, _), start in zip(places, starts[:-1].tolist(), strict=True):
            by_rank = start + np.argsort(first)
            total += np.repeat(times[by_rank], sizes[by_rank])
        return float(total.max(initial=0.0))


def mean_cp(problem: Problem, microbatches: list[MicroBatch]) -> float:
    """Return the CP size that a token of micro-batches, at least one item in them, meets on average."""
    sized = [(group.cp_size, int(problem.lengths[group.items].sum())) for groups in microbatches for group in groups]
    return sum(size * tokens for size, tokens in sized) / sum(tokens for _, tokens in sized)


def as_groups(times: GroupTimes, size_index: Int64Array, items: list[list[int]]) -> MicroBatch:
    """Return groups of the sizes and items given, without the empty ones."""
    sizes = times.sizes[size_index].tolist()
    return [Group(size, members) for size, members in zip(sizes, items, strict=True) if members]
