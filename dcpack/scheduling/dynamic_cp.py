"""Dynamic CP that minimises the simulated step time itself."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from dcpack._checks import Int64Array, list_offenders
from dcpack.errors import InfeasibleError
from dcpack.scheduling.align import align_microbatches
from dcpack.scheduling.base import OPTIONS, Group, MicroBatch, Problem
from dcpack.scheduling.deal_members import deal_members
from dcpack.scheduling.exhaustive import is_small, plan_exhaustively
from dcpack.scheduling.fill import fill_ranks, repair, whole_domain
from dcpack.scheduling.free_ranks import use_free_ranks
from dcpack.scheduling.longest_first import place_longest_first
from dcpack.scheduling.moves import improve_by_moves
from dcpack.scheduling.options import option_faults
from dcpack.scheduling.search import search_any_plan, why_impossible
from dcpack.scheduling.speeds import deal_speeds
from dcpack.scheduling.target_time import at_target, best_target, level
from dcpack.scheduling.timing import GroupTimes, mean_cp
from dcpack.scheduling.token_bins import pack_tokens, slice_ranks

__all__ = ["DynamicCP"]

_MAX_POOLED, _MAX_SPEEDS = 8, 3  # micro-batches
_POOLED_TARGETS = (1.15, 1.35, 1.6)
_FEW_SIZES = 16
_LARGE = 1 << 26  # sequences times ranks from which the rule of `packing_aware` takes too long
_EVEN, _NEAR, _GOOD = 1.005, 1.01, 1.02
_USUAL_CP = 1.45  # times the mean CP of the rule
_LITTLE_CP = 0.02  # added price of the mean CP over that of the rule: 1.4 times its mean CP


@dataclass(frozen=True, kw_only=True)
class _Effort:
    """What may be tried: deals of different speeds, the rule of `packing_aware`, moves and swaps, all small plans."""

    deals: int
    with_rule: bool
    moves: int
    exact: bool


_EFFORTS = {
    "fast": _Effort(deals=1, with_rule=False, moves=0, exact=False),
    "balanced": _Effort(deals=3, with_rule=True, moves=16, exact=False),
    "best": _Effort(deals=12, with_rule=True, moves=512, exact=True),
}


class DynamicCP:
    """Finds micro-batches whose slowest ranks are fast, under any cost model.

    Items are first packed into the fewest ranks that memory allows, which gives the number of micro-batches. They are
    then dealt to the micro-batches in several ways, by their number:

    * *speeds* (2 or 3): each micro-batch aims at a time of its own (`dcpack.scheduling.speeds`);
    * *pooled* (2 to 8): all are planned as one of many times the ranks, by time, then cut;
    * *full* and *spread* (1, more than 8, or where the others find nothing good): groups by decreasing time, each
      micro-batch filled to all ranks, or the spare ranks spread over all;
    * *members* instead of these, where groups or `max_displacement` tie items to micro-batches
      (`dcpack.scheduling.deal_members`).

    Within a micro-batch a target time decides the CP size of each item (`dcpack.scheduling.target_time`). Ranks that
    are left over split bins and widen light ones (`dcpack.scheduling.free_ranks`). The rule of `packing_aware` on the
    powers of two (and on all legal sizes, where they are few) is one more candidate. Of those that are no slower than
    that, the lowest time wins, where each doubling of the mean CP must gain 4% (`GroupTimes.score`). Then single items
    are moved and swapped while the time falls (`dcpack.scheduling.moves`). Beyond 2**26 sequences times ranks that rule
    takes too long; it is then used only where nothing else works, as with ``effort="fast"``. With
    ``effort="best"``, or where nothing else was found, all plans of up to 8 items on up to 8 ranks are looked at
    (`dcpack.scheduling.exhaustive`).

    Example:
        >>> import dcpack
        >>> cost = dcpack.RingCost()
        >>> lengths = [6000, 3000, 2000, 1000, 900, 800, 700, 600]
        >>> [round(dcpack.plan(lengths, num_ranks=8, capacity=4096, cost=cost, scheduler=name).simulate(cost) / 1e6)
        ...  for name in ("packing_aware", "dynamic_cp")]
        [92, 54]
    """

    name = "dynamic_cp"
    options = frozenset(OPTIONS)

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        """Return all legal sizes."""
        return legal

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        """Return the micro-batches; see `dcpack.scheduling.base.Scheduler`."""
        if problem.lengths.size == 0:
            return []
        effort = _EFFORTS[problem.effort]
        times = GroupTimes(problem)
        choice = _Choice(times)
        failure: InfeasibleError | None = None
        large = problem.lengths.size * problem.num_ranks > _LARGE
        if effort.with_rule and not large and not problem.is_restricted:
            failure = choice.offer_rule()
        for deal in _deals_of(times, choice, effort):
            finished = _finish(times, deal)
            if finished is not None:
                choice.offer(finished)
            if choice.is_good and not effort.exact:
                break
        if not choice.best and failure is None and not problem.is_restricted:
            choice.offer_rule()
        if is_small(problem) and (effort.exact or not choice.best):
            choice.offer(plan_exhaustively(times) or [])
            if not choice.best:
                raise _infeasible(problem, "no plan exists")
        if not choice.best:
            _search(choice)
        if effort.moves and (effort.exact or choice.time > _NEAR * times.even_time):
            choice.offer(improve_by_moves(times, choice.best, effort.moves))
        return choice.best


def _search(choice: _Choice) -> None:
    """Take any plan that a search finds.

    Raises:
        InfeasibleError: none was found; says whether none exists.
    """
    problem = choice.times.problem
    if reason := why_impossible(problem):
        raise _infeasible(problem, "no plan exists", f"; {reason}")
    searched = search_any_plan(problem)
    choice.offer(searched.plan or [])
    if not choice.best:
        raise _infeasible(problem, "no plan exists" if searched.is_proof else "no plan found")


def _infeasible(problem: Problem, what: str, reason: str = "") -> InfeasibleError:
    limits = [f"CP sizes {problem.cp_sizes}", f"capacity {problem.capacity}"]
    limits += [f"max_sequences {problem.max_sequences}"] if problem.max_sequences is not None else []
    limits += [f"microbatch_multiple {problem.microbatch_multiple}"] if problem.microbatch_multiple > 1 else []
    limits += [f"{len(problem.amount_limits)} budgets"] if problem.amounts is not None else []
    limits += ["groups that share a micro-batch"] if problem.groups is not None else []
    limits += [f"max_displacement {problem.max_displacement}"] if problem.reference is not None else []
    items = problem.longest_first.tolist()
    hint = "" if problem.on_empty == "dummy" else "; on_empty='dummy' would allow ranks without work"
    return InfeasibleError(
        f"{what} for {len(items)} sequences on {problem.num_ranks} ranks with {', '.join(limits)}: "
        f"{list_offenders(problem.describe(items))}"
        f"{reason}{hint}"
    )


class _Choice:
    """The best plan so far."""

    def __init__(self, times: GroupTimes) -> None:
        self.times = times
        self.best: list[MicroBatch] = []
        self.time = self.score = self.limit = np.inf
        self.rule_price = 0.0

    @property
    def is_good(self) -> bool:
        """Whether the best plan is as near the bound as is worth the search, for no more CP than is sensible."""
        even = self.times.even_time
        if not self.best or self.time > _GOOD * even:
            return False
        return self.time <= _NEAR * even or self.score <= self.time * (self.rule_price + _LITTLE_CP)

    def offer_rule(self) -> InfeasibleError | None:
        """Take what the rule of `packing_aware` gives; nothing slower than the fastest of that is ever taken."""
        try:
            timed = [pair for candidate in _longest_first(self.times.problem) for pair in self._timed(candidate)]
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
            orders.append(_level_ranks(self.times, candidate))
        return [(self.times.step_time(ordered), ordered) for ordered in orders]

    def _take(self, time: float, ordered: list[MicroBatch]) -> None:
        score = self.times.score(time, itertools.chain.from_iterable(ordered))
        better = score < self.score or (score == self.score and len(ordered) < len(self.best))
        if better and time <= self.limit:
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


def _deals_of(times: GroupTimes, choice: _Choice, effort: _Effort) -> Iterator[list[MicroBatch]]:
    """Yield micro-batches dealt in the ways that suit the problem; ranks may still be free in them."""
    problem = times.problem
    bins = _slowest_first(times, pack_tokens(times))
    full = slice_ranks(bins, problem.num_ranks)
    if not problem.ties_microbatches:
        yield from _deals(times, choice, effort, bins, full)
    if problem.ties_microbatches or (problem.amounts is not None and not choice.best):
        for number, members in enumerate(deal_members(times, len(full))):
            if choice.best and number >= effort.deals:
                break
            packed = [_pack_members(times, items) for items in members]
            whole = [groups for groups in packed if groups is not None]
            if len(whole) == len(packed):
                yield whole
    if problem.reference is not None:
        yield problem.reference


def _pack_members(times: GroupTimes, items: Int64Array) -> MicroBatch | None:
    """Return the items of one micro-batch in groups, or None where they do not fit."""
    if items.size == 0:
        return []
    num_ranks = times.problem.num_ranks
    bins = pack_tokens(times, items)
    start = bins if sum(group.cp_size for group in bins) <= num_ranks else None
    return best_target(times, items, num_ranks, start)


def _deals(
    times: GroupTimes, choice: _Choice, effort: _Effort, bins: MicroBatch, full: list[MicroBatch]
) -> Iterator[list[MicroBatch]]:
    """Yield `bins`, which fill the micro-batches `full`, dealt in the ways that suit their number."""
    some = False
    if 1 < len(full) <= _MAX_SPEEDS:
        for dealt in _speeds(times, len(full), effort.deals):
            some = True
            yield dealt
    if 1 < len(full) <= _MAX_POOLED:
        for dealt in _pooled(times, bins, len(full), () if some else _POOLED_TARGETS):
            some = True
            yield dealt
    if not some:
        yield _improve_all(times, full)
    if not some or (len(full) > _MAX_SPEEDS and choice.time > _GOOD * times.even_time):
        yield from _spread(times, bins, len(full))


def _spread(times: GroupTimes, bins: MicroBatch, count: int) -> Iterator[list[MicroBatch]]:
    """Yield the bins dealt so that all micro-batches have about the same number of ranks to spare."""
    used = sum(group.cp_size for group in bins)
    width = max(max(group.cp_size for group in bins), -(-used // count))
    if count > 1 and width < times.problem.num_ranks:
        spread = slice_ranks(bins, width)
        if len(spread) == count:
            yield _improve_all(times, spread)


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


def _speeds(times: GroupTimes, count: int, most: int) -> Iterator[list[MicroBatch]]:
    """Yield micro-batches of different target times."""
    for dealt in deal_speeds(times, count, most):
        packed = [best_target(times, items, times.problem.num_ranks, aim=target) for items, target in dealt]
        whole = [groups for groups in packed if groups is not None]
        if len(whole) == len(packed):
            yield whole


def _slowest_first(times: GroupTimes, groups: MicroBatch) -> MicroBatch:
    taken, _ = times.of_groups(*times.flat(groups))
    return [groups[g] for g in np.argsort(-taken, kind="stable")]


def _improve_all(times: GroupTimes, microbatches: list[MicroBatch]) -> list[MicroBatch]:
    """Improve each micro-batch that fills no ranks evenly yet."""
    index, counts, items = times.flat([group for groups in microbatches for group in groups])
    taken, _ = times.of_groups(index, counts, items)
    starts = np.cumsum([0, *(len(groups) for groups in microbatches)])[:-1]
    least = np.add.reduceat(times.alone_work(items), (np.cumsum(counts) - counts)[starts]) / times.problem.num_ranks
    done = np.maximum.reduceat(taken, starts) <= _EVEN * least
    return [
        groups if is_done else _improve(times, groups)
        for groups, is_done in zip(microbatches, done.tolist(), strict=True)
    ]


def _improve(times: GroupTimes, groups: MicroBatch) -> MicroBatch:
    """Return the fastest groups found for the items of one micro-batch."""
    items = np.array([item for group in groups for item in group.items], np.int64)
    order: Int64Array = np.lexsort((items, -times.problem.lengths[items]))
    found = best_target(times, items[order], times.problem.num_ranks, groups)
    return level(times, groups, times.problem.num_ranks) if found is None else found


def _finish(times: GroupTimes, candidate: list[MicroBatch]) -> list[MicroBatch] | None:
    """Fill the ranks that are still free and align the number of micro-batches; None where that cannot be."""
    problem = times.problem
    real = [[group for group in groups if group.items] for groups in candidate]
    if not times.fit([groups for groups in real if groups]):
        return None
    filled: list[MicroBatch] = []
    for groups in real:
        copied = [Group(group.cp_size, list(group.items)) for group in groups]  # candidates share groups
        spread = use_free_ranks(times, copied, problem.num_ranks) if copied else []
        whole = spread if sum(group.cp_size for group in spread) == problem.num_ranks else None
        if whole is None and spread:
            whole = fill_ranks(problem, spread)
        if whole is None and not problem.is_restricted:
            return None  # the rule of `packing_aware` does no worse then
        filled.append(spread if whole is None else whole)
    try:
        if problem.ties_microbatches:
            alone = [[groups] for groups in filled]
            for one in alone:
                _fill_alone(problem, one)
            return list(itertools.chain.from_iterable(alone))
        repair(problem, filled)
        return align_microbatches(problem, filled)
    except InfeasibleError:
        return None


def _fill_alone(problem: Problem, one: list[MicroBatch]) -> None:
    """Fill, in place, a single micro-batch: with what `repair` does, or as one group of all ranks."""
    items = [item for group in one[0] for item in group.items]
    try:
        repair(problem, one)
    except InfeasibleError:
        whole = whole_domain(problem, items) if items else None
        if whole is None or whole[1]:
            raise
        one[0] = whole[0]


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
