"""The best plan so far, and the rule that none may be slower than."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from dcpack.errors import InfeasibleError
from dcpack.scheduling.base import Group, MicroBatch, Problem
from dcpack.scheduling.longest_first import place_longest_first
from dcpack.scheduling.options import option_faults
from dcpack.scheduling.timing import GroupTimes, mean_cp

__all__ = ["Choice", "level_ranks", "rule_candidates"]

_FEW_SIZES = 16
_NEAR, _GOOD = 1.01, 1.02
_USUAL_CP = 1.45  # times the mean CP of the rule
_LITTLE_CP = 0.02  # added price of the mean CP over that of the rule: 1.4 times its mean CP


class Choice:
    """The best plan so far.

    Attributes:
        times: times of the problem.
        best: the micro-batches, none where nothing was offered yet.
        time: of that plan.
        score: that time with the price of the mean CP.
        limit: a time that nothing taken is above.
        rule_price: score of the rule of `packing_aware` over its time.
    """

    def __init__(self, times: GroupTimes) -> None:
        self.times = times
        self.best: list[MicroBatch] = []
        self.time = self.score = self.limit = np.inf
        self.rule_price = 0.0

    @property
    def is_good(self) -> bool:
        """Whether the best plan is as near the bound as is worth the search, for no more CP than is sensible."""
        if not self.best or self.is_over(_GOOD):
            return False
        return not self.is_over(_NEAR) or self.score <= self.time * (self.rule_price + _LITTLE_CP)

    def is_over(self, factor: float) -> bool:
        """Whether the best plan takes longer than `factor` times the work shared out evenly."""
        return self.time > factor * self.times.even_time

    def offer_rule(self) -> InfeasibleError | None:
        """Take what the rule of `packing_aware` gives; nothing slower than the fastest of that is ever taken."""
        try:
            timed = [pair for candidate in rule_candidates(self.times.problem) for pair in self._timed(candidate)]
        except InfeasibleError as error:
            return error
        self.limit = min(time for time, _ in timed)
        self.times.usual_mean_cp = _USUAL_CP * mean_cp(self.times.problem, timed[0][1])
        for time, ordered in timed:
            self._take(time, ordered)
        self.rule_price = self.score / self.time if self.time else 1.0
        return None

    def offer(self, candidate: list[MicroBatch]) -> None:
        """Take `candidate` if it holds all options and its score is better; no micro-batches are no candidate."""
        if not candidate:
            return
        if self.times.problem.is_restricted and option_faults(self.times.problem, candidate):
            return
        for time, ordered in self._timed(candidate):
            self._take(time, ordered)

    def _timed(self, candidate: list[MicroBatch]) -> list[tuple[float, list[MicroBatch]]]:
        """Return `candidate` and, where ranks meet once a step, the same with its ranks levelled, with their times."""
        orders = [candidate]
        if self.times.problem.sync == "step":
            orders.append(level_ranks(self.times, candidate))
        return [(self.times.step_time(ordered), ordered) for ordered in orders]

    def _take(self, time: float, ordered: list[MicroBatch]) -> None:
        score = self.times.score(time, itertools.chain.from_iterable(ordered))
        better = score < self.score or (score == self.score and len(ordered) < len(self.best))
        if better and time <= self.limit:
            self.best, self.time, self.score = ordered, time, score


def rule_candidates(problem: Problem) -> Iterator[list[MicroBatch]]:
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


def level_ranks(times: GroupTimes, microbatches: list[MicroBatch]) -> list[MicroBatch]:
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
