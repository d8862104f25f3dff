"""Dynamic CP that minimises the simulated step time itself."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from dcpack._checks import list_offenders
from dcpack.errors import InfeasibleError
from dcpack.scheduling.align import align_microbatches
from dcpack.scheduling.base import OPTIONS, Group, MicroBatch, Problem
from dcpack.scheduling.choice import Choice
from dcpack.scheduling.deals import deals_of
from dcpack.scheduling.exhaustive import is_small, plan_exhaustively
from dcpack.scheduling.fill import fill_ranks, repair, whole_domain
from dcpack.scheduling.free_ranks import use_free_ranks
from dcpack.scheduling.moves import improve_by_moves
from dcpack.scheduling.search import search_any_plan, why_impossible
from dcpack.scheduling.timing import GroupTimes

__all__ = ["DynamicCP"]

_LARGE = 1 << 26  # sequences times ranks from which the rule of `packing_aware` takes too long
_NEAR = 1.01


@dataclass(frozen=True, kw_only=True)
class _Effort:
    """What may be tried.

    Attributes:
        deals: deals of different speeds.
        looser: more micro-batches than memory asks for.
        with_rule: whether the rule of `packing_aware` is a candidate.
        moves: moves and swaps.
        exact: whether all plans of small problems are looked at.
    """

    deals: int
    looser: int
    with_rule: bool
    moves: int
    exact: bool


_EFFORTS = {
    "fast": _Effort(deals=1, looser=0, with_rule=False, moves=0, exact=False),
    "balanced": _Effort(deals=3, looser=1, with_rule=True, moves=16, exact=False),
    "best": _Effort(deals=12, looser=8, with_rule=True, moves=512, exact=True),
}


class DynamicCP:
    """Finds micro-batches whose slowest ranks are fast, under any cost model.

    Items are first packed into the fewest ranks that memory allows, which gives the number of micro-batches. They are
    then dealt to the micro-batches in several ways, by their number:

    * *speeds* (2 or 3): each micro-batch aims at a time of its own (`dcpack.scheduling.speeds`);
    * *pooled* (2 to 8): all are planned as one of many times the ranks, by time, then cut;
    * *full* and *spread* (1, more than 8, or where the others find nothing good): groups by decreasing time, each
      micro-batch filled to all ranks, or the spare ranks spread over all;
    * one micro-batch more (with ``effort="best"`` up to a quarter more) where the fewest are so full that they leave
      no room to balance;
    * *members* instead of these, where groups or `max_displacement` tie items to micro-batches
      (`dcpack.scheduling.deal_members`).

    Within a micro-batch a target time decides the CP size of each item (`dcpack.scheduling.target_time`). Ranks that
    are left over split bins and widen light ones (`dcpack.scheduling.free_ranks`). The rule of `packing_aware` on the
    powers of two (and on all legal sizes, where they are few) is one more candidate. Of those that are no slower than
    that, the lowest time wins, where more CP must gain something (`GroupTimes.priced`). Then single items
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
        choice = Choice(times)
        failure: InfeasibleError | None = None
        large = problem.lengths.size * problem.num_ranks > _LARGE
        if effort.with_rule and not large and not problem.is_restricted:
            failure = choice.offer_rule()
        for deal in deals_of(times, choice, effort.deals, effort.looser):
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
        if effort.moves and (effort.exact or choice.is_over(_NEAR)):
            choice.offer(improve_by_moves(times, choice.best, effort.moves))
        return choice.best


def _search(choice: Choice) -> None:
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
