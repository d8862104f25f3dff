"""Dynamic CP that minimises the simulated step time itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dcpack._checks import Int64Array
from dcpack.errors import InfeasibleError
from dcpack.scheduling.align import align_microbatches
from dcpack.scheduling.base import Group, MicroBatch, Problem
from dcpack.scheduling.fill import fill_ranks
from dcpack.scheduling.free_ranks import use_free_ranks
from dcpack.scheduling.longest_first import place_longest_first
from dcpack.scheduling.speeds import deal_speeds
from dcpack.scheduling.target_time import at_target, best_target, level
from dcpack.scheduling.timing import GroupTimes
from dcpack.scheduling.token_bins import pack_tokens, slice_ranks

__all__ = ["DynamicCP"]

_MAX_POOLED = 8  # micro-batches
_MAX_SPEEDS = 3  # micro-batches
_DEALS = 3
_POOLED_TARGETS = (1.15, 1.35, 1.6)
_FEW_SIZES = 16
_LARGE = 1 << 26  # sequences times ranks from which the rule of `packing_aware` takes too long
_NEAR = 1.01
_GOOD = 1.02


class DynamicCP:
    """Finds micro-batches whose slowest ranks are fast, under any cost model.

    Items are first packed into the fewest ranks that memory allows, which gives the number of micro-batches. They are
    then dealt to the micro-batches in several ways, by their number:

    * *speeds* (2 or 3): each micro-batch aims at a time of its own (`dcpack.scheduling.speeds`);
    * *pooled* (2 to 8): all are planned as one of many times the ranks, by time, then cut;
    * *full* and *spread* (1, more than 8, or where the others find nothing good): groups by decreasing time, each
      micro-batch filled to all ranks, or the spare ranks spread over all.

    Within a micro-batch a target time decides the CP size of each item (`dcpack.scheduling.target_time`). Ranks that
    are left over split bins and widen light ones (`dcpack.scheduling.free_ranks`). The rule of `packing_aware` on the
    powers of two (and on all legal sizes, where they are few) is one more candidate. Of those that are no slower than
    that, the lowest time wins, where each doubling of the mean CP must gain 4% (`GroupTimes.score`). Beyond 2**26
    sequences times ranks that rule takes too long; it is then used only where nothing else works.

    Example:
        >>> import dcpack
        >>> cost = dcpack.RingCost()
        >>> lengths = [6000, 3000, 2000, 1000, 900, 800, 700, 600]
        >>> [round(dcpack.plan(lengths, num_ranks=8, capacity=4096, cost=cost, scheduler=name).simulate(cost) / 1e6)
        ...  for name in ("packing_aware", "dynamic_cp")]
        [92, 54]
    """

    name = "dynamic_cp"

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        """Return all legal sizes."""
        return legal

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        """Return the micro-batches; see `dcpack.scheduling.base.Scheduler`."""
        if problem.lengths.size == 0:
            return []
        times = GroupTimes(problem)
        choice = _Choice(times)
        large = problem.lengths.size * problem.num_ranks > _LARGE
        if not large:
            choice.offer_rule()
        for deal in _deals(times, choice):
            finished = _finish(times, deal)
            if finished is not None:
                choice.offer(finished)
            if choice.time <= _NEAR * times.even_time:
                break
        if not choice.best:
            choice.offer_rule()
        return choice.best


class _Choice:
    """The best plan so far."""

    def __init__(self, times: GroupTimes) -> None:
        self.times = times
        self.best: list[MicroBatch] = []
        self.time = self.score = self.limit = np.inf

    def offer_rule(self) -> None:
        """Take what the rule of `packing_aware` gives; nothing slower than the fastest of that is ever taken."""
        timed = [pair for candidate in _longest_first(self.times.problem) for pair in self._timed(candidate)]
        self.limit = min(time for time, _ in timed)
        for time, ordered in timed:
            self._take(time, ordered)

    def offer(self, candidate: list[MicroBatch]) -> None:
        """Take `candidate` if its score is better."""
        for time, ordered in self._timed(candidate):
            self._take(time, ordered)

    def _timed(self, candidate: list[MicroBatch]) -> list[tuple[float, list[MicroBatch]]]:
        """Return `candidate` and, where ranks meet once a step, the same with its ranks levelled, with their times."""
        orders = [candidate]
        if self.times.problem.sync == "step":
            orders.append(_level_ranks(self.times, candidate))
        return [(self.times.step_time(ordered), ordered) for ordered in orders]

    def _take(self, time: float, ordered: list[MicroBatch]) -> None:
        score = self.times.score(time, itertools.chain.from_iterable(ordered))
        if score < self.score and time <= self.limit:
            self.best, self.time, self.score = ordered, time, score


def _longest_first(problem: Problem) -> Iterator[list[MicroBatch]]:
    """Yield what `packing_aware` does with all legal sizes, and with the powers of two among them.

    With many sizes the first takes long and gains little, so it is left out where the second works.

    Raises:
        InfeasibleError: neither finds anything.
    """
    legal = problem.cp_sizes
    powers = tuple(size for size in legal if size & (size - 1) == 0 or size == problem.num_ranks)
    tries = [problem]
    if 0 < len(powers) < len(legal):
        narrowed = replace(problem, cp_sizes=powers)
        if np.any(narrowed.padded <= narrowed.limits[:, np.newaxis], axis=0).all():
            tries.insert(0, narrowed)
    found = False
    failure: InfeasibleError | None = None
    for attempt in tries:
        if found and len(legal) > _FEW_SIZES:
            continue
        try:
            yield place_longest_first(attempt)
            found = True
        except InfeasibleError as error:
            failure = error
    if not found and failure is not None:
        raise failure


def _deals(times: GroupTimes, choice: _Choice) -> Iterator[list[MicroBatch]]:
    """Yield micro-batches dealt in the ways that suit their number; ranks may still be free in them."""
    bins = _slowest_first(times, pack_tokens(times))
    full = slice_ranks(bins, times.problem.num_ranks)
    some = False
    if 1 < len(full) <= _MAX_SPEEDS:
        for dealt in _speeds(times, len(full)):
            some = True
            yield dealt
    if 1 < len(full) <= _MAX_POOLED:
        for dealt in _pooled(times, bins, len(full), () if some else _POOLED_TARGETS):
            some = True
            yield dealt
    if not some:
        yield [_improve(times, groups) for groups in full]
    if not some or (len(full) > _MAX_SPEEDS and choice.time > _GOOD * times.even_time):
        yield from _spread(times, bins, len(full))


def _spread(times: GroupTimes, bins: MicroBatch, count: int) -> Iterator[list[MicroBatch]]:
    """Yield the bins dealt so that all micro-batches have about the same number of ranks to spare."""
    used = sum(group.cp_size for group in bins)
    width = max(max(group.cp_size for group in bins), -(-used // count))
    if count > 1 and width < times.problem.num_ranks:
        spread = slice_ranks(bins, width)
        if len(spread) == count:
            yield [_improve(times, groups) for groups in spread]


def _pooled(times: GroupTimes, bins: MicroBatch, count: int, factors: tuple[float, ...]) -> Iterator[list[MicroBatch]]:
    """Yield all micro-batches planned as one of `count` times the ranks, then cut."""
    problem = times.problem
    ranks = count * problem.num_ranks
    start = bins if sum(group.cp_size for group in bins) <= ranks else None
    pooled = best_target(times, problem.longest_first, ranks, start)
    if pooled is not None:
        yield slice_ranks(_slowest_first(times, pooled), problem.num_ranks)
    for factor in factors:
        aimed = at_target(times, problem.longest_first, ranks, factor)
        if aimed is not None:
            slices = slice_ranks(_slowest_first(times, aimed), problem.num_ranks)
            yield [level(times, groups, problem.num_ranks) for groups in slices]


def _speeds(times: GroupTimes, count: int) -> Iterator[list[MicroBatch]]:
    """Yield micro-batches of different target times."""
    for dealt in deal_speeds(times, count, _DEALS):
        packed = [best_target(times, items, times.problem.num_ranks, aim=target) for items, target in dealt]
        whole = [groups for groups in packed if groups is not None]
        if len(whole) == len(packed):
            yield whole


def _slowest_first(times: GroupTimes, groups: MicroBatch) -> MicroBatch:
    counts = np.array([len(group.items) for group in groups], np.int64)
    items = np.array([item for group in groups for item in group.items], np.int64)
    taken, _ = times.of_groups(times.index_of(groups), counts, items)
    return [groups[g] for g in np.argsort(-taken, kind="stable")]


def _improve(times: GroupTimes, groups: MicroBatch) -> MicroBatch:
    """Return the fastest groups found for the items of one micro-batch."""
    items = np.array([item for group in groups for item in group.items], np.int64)
    order: Int64Array = np.lexsort((items, -times.problem.lengths[items]))
    found = best_target(times, items[order], times.problem.num_ranks, groups)
    return level(times, groups, times.problem.num_ranks) if found is None else found


def _finish(times: GroupTimes, candidate: list[MicroBatch]) -> list[MicroBatch] | None:
    """Fill the ranks that are still free and align the number of micro-batches; None where that cannot be."""
    problem = times.problem
    if not all(times.fit(groups) for groups in candidate):
        return None
    filled: list[MicroBatch] = []
    for groups in candidate:
        copied = [Group(group.cp_size, list(group.items)) for group in groups]  # candidates share groups
        spread = use_free_ranks(times, copied, problem.num_ranks)
        whole = spread if sum(group.cp_size for group in spread) == problem.num_ranks else fill_ranks(problem, spread)
        if whole is None:
            return None
        filled.append(whole)
    try:
        return align_microbatches(problem, filled)
    except InfeasibleError:
        return None


def _level_ranks(times: GroupTimes, microbatches: list[MicroBatch]) -> list[MicroBatch]:
    """Give slow groups to the ranks that have the least so far, size by size."""
    total = np.zeros(times.problem.num_ranks)
    ordered: list[MicroBatch] = []
    for groups in microbatches:
        taken, first = times.placed(groups)
        result: list[Group | None] = [None] * len(groups)
        for size in sorted({group.cp_size for group in groups}):
            same = [g for g, group in enumerate(groups) if group.cp_size == size]
            busy = {g: float(total[first[g] : first[g] + size].max()) for g in same}
            places = sorted(same, key=lambda g: (busy[g], first[g]))
            for place, g in zip(places, sorted(same, key=lambda g: (-taken[g], g)), strict=True):
                result[place] = groups[g]
                total[first[place] : first[place] + size] += taken[g]
        ordered.append([group for group in result if group is not None])
    return ordered
