"""The same sequences under several strategies, side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dcpack._checks import (
    Float64Array,
    Int64Array,
    as_lengths,
    check_choice,
    check_cost,
    check_int,
    check_items,
    check_kinds,
    check_names,
)
from dcpack.api import plan
from dcpack.cost import CostModel
from dcpack.errors import InfeasibleError
from dcpack.metrics import mean_cp_size, num_cut_sequences
from dcpack.packing import OVERLONG_POLICIES, apply_overlong
from dcpack.padding import PaddingRule, check_capacity, longest_fitting_length
from dcpack.plans import SYNC_MODES, Plan
from dcpack.scheduling import ON_EMPTY
from dcpack.topology import legal_cp_sizes

__all__ = [
    "STRATEGIES",
    "Cluster",
    "Planned",
    "StepFigures",
    "StrategyResult",
    "compare_strategies",
]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What the strategies plan for.

    Attributes:
        num_ranks: ranks of the DPxCP domain.
        capacity: padded tokens of one row on one rank.
        padding: the padding rule, or None.
        cost: the cost model that times the plans.
        overlong: the policy for sequences that fit on no CP size of a strategy.
        max_cp_size: largest CP size, or None.
        sync: ``"microbatch"`` or ``"step"``.
        cp_sizes: legal CP sizes of the strategies that choose them, as in `dcpack.plan`.
        min_cp_size: smallest CP size of those.
        microbatch_multiple: the number of micro-batches is a multiple of it.
        max_sequences: most sequences in a bin, or None.
        on_empty: where sequences are too few: ``"dummy"`` or ``"error"``.

    Example:
        >>> import dcpack
        >>> cluster = Cluster(num_ranks=2, capacity=8, padding=None, cost=dcpack.QuadraticCost())
        >>> cluster.plan([5, 3, 4, 4]).num_microbatches
        1
    """

    num_ranks: int
    capacity: int
    padding: PaddingRule | None
    cost: CostModel
    overlong: str = "split"
    max_cp_size: int | None = None
    sync: str = "microbatch"
    cp_sizes: str | tuple[int, ...] = "powers_of_two"
    min_cp_size: int = 1
    microbatch_multiple: int = 1
    max_sequences: int | None = None
    on_empty: str = "dummy"

    def __post_init__(self) -> None:
        check_capacity(self.capacity, self.padding)
        check_int("num_ranks", self.num_ranks, minimum=1, maximum=2**24)
        legal_cp_sizes(self.num_ranks, max_cp_size=self.max_cp_size)
        if isinstance(self.cp_sizes, str):
            legal_cp_sizes(1, self.cp_sizes)
        else:
            as_lengths("cp_sizes", self.cp_sizes, minimum=1)
        for name in ("min_cp_size", "microbatch_multiple"):
            check_int(name, getattr(self, name), minimum=1)
        if self.max_sequences is not None:
            check_int("max_sequences", self.max_sequences, minimum=1)
        check_cost(self.cost)
        check_choice("overlong", self.overlong, OVERLONG_POLICIES)
        check_choice("sync", self.sync, SYNC_MODES)
        check_choice("on_empty", self.on_empty, ON_EMPTY)

    def plan(self, lengths: Any, **options: Any) -> Plan:
        """Return a plan for this cluster; `options` win over what it says of CP sizes and bins."""
        chosen: dict[str, Any] = {
            "cp_sizes": self.cp_sizes,
            "min_cp_size": self.min_cp_size,
            "max_sequences": self.max_sequences,
            **options,
        }
        return plan(
            lengths,
            num_ranks=self.num_ranks,
            capacity=self.capacity,
            padding=self.padding,
            cost=self.cost,
            sync=self.sync,
            max_cp_size=self.max_cp_size,
            overlong=self.overlong,
            on_empty=self.on_empty,
            microbatch_multiple=self.microbatch_multiple,
            **chosen,
        )

    def static(self, lengths: Any, cp_size: int, **options: Any) -> Plan:
        """Return an `in_order` plan with one CP size for all."""
        return self.plan(lengths, scheduler="in_order", cp_sizes=(cp_size,), min_cp_size=1, **options)

    def static_cp_size(self, lengths: Int64Array) -> int:
        """Return the smallest legal CP size that divides the ranks and holds the longest sequence, else the largest."""
        sizes = legal_cp_sizes(self.num_ranks, max_cp_size=self.max_cp_size)
        sizes = [size for size in sizes if self.num_ranks % size == 0]
        longest = int(as_lengths("lengths", lengths).max(initial=0))
        return next((s for s in sizes if longest_fitting_length(self.capacity, s, self.padding) >= longest), sizes[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What a strategy makes of one step.

    Attributes:
        plan: what the ranks compute.
        num_tokens: real tokens in it.
        num_cut_sequences: sequences that the overlong policy cut.
        bound: lower bound of the step time of those tokens, in the unit of the cost model.

    Example:
        >>> import dcpack
        >>> Planned.of(dcpack.plan([5, 3, 4, 4], num_ranks=2, capacity=8)).num_tokens
        16
    """

    plan: Plan
    num_tokens: int
    num_cut_sequences: int
    bound: float

    @classmethod
    def of(cls, plan: Plan) -> Planned:
        """Return a plan of the sequences as they are."""
        check_kinds(plan=(plan, Plan))
        return cls(
            plan=plan,
            num_tokens=int(plan.entry_lengths.sum()),
            num_cut_sequences=num_cut_sequences(plan),
            bound=plan.bounds["step_time"],
        )


def _pad_to_longest(cluster: Cluster, lengths: Int64Array) -> Planned:
    """One sequence a rank group, each padded to the longest of its micro-batch; static CP that holds the longest."""
    cp_size = cluster.static_cp_size(lengths)
    limit = longest_fitting_length(cluster.capacity, cp_size, cluster.padding)
    cut = apply_overlong(lengths, limit, cluster.overlong)
    pieces = cut.lengths
    groups = cluster.num_ranks // cp_size
    starts = np.arange(0, pieces.size, groups)
    longest = np.repeat(np.maximum.reduceat(pieces, starts) if starts.size else pieces, groups)[: pieces.size]
    return Planned(
        plan=cluster.static(longest, cp_size, max_sequences=1),
        num_tokens=int(pieces.sum()),
        num_cut_sequences=cut.num_cut,
        bound=cluster.static(pieces, cp_size, max_sequences=1).bounds["step_time"],
    )


def _static_cp(cluster: Cluster, lengths: Int64Array) -> Planned:
    return Planned.of(cluster.static(lengths, cluster.static_cp_size(lengths)))


def _in_order(cluster: Cluster, lengths: Int64Array) -> Planned:
    return Planned.of(cluster.static(lengths, 1))


def _packing_aware(cluster: Cluster, lengths: Int64Array) -> Planned:
    return Planned.of(cluster.plan(lengths, scheduler="packing_aware"))


def _uniform_cp(cluster: Cluster, lengths: Int64Array) -> Planned:
    return Planned.of(cluster.plan(lengths, scheduler="uniform_cp"))


def _dynamic_cp(cluster: Cluster, lengths: Int64Array) -> Planned:
    return Planned.of(cluster.plan(lengths, scheduler="dynamic_cp"))


STRATEGIES: dict[str, Callable[[Cluster, Int64Array], Planned]] = {
    "pad to longest": _pad_to_longest,
    "static CP": _static_cp,
    "in_order": _in_order,
    "packing_aware": _packing_aware,
    "uniform_cp": _uniform_cp,
    "dynamic_cp": _dynamic_cp,
}
"""The strategies by name, from the wasteful to the best."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFigures:
    """What one strategy makes of one step, in numbers; times are in the unit of the cost model.

    Attributes:
        num_microbatches: micro-batches.
        num_tokens: real tokens.
        num_padded_tokens: tokens of all bins, padding included.
        num_slots: tokens that the rows of all ranks in all micro-batches could hold.
        num_cut_sequences: sequences that the overlong policy cut.
        mean_cp_size: CP size that a token meets on average.
        step_time: simulated time of the step.
        bound: lower bound of the step time of the same pieces.
        planning_seconds: wall time that planning took.

    Example:
        >>> import dcpack
        >>> cluster = Cluster(num_ranks=2, capacity=8, padding=None, cost=dcpack.QuadraticCost())
        >>> steps = [[5, 3, 4, 4], [8, 2, 6]]
        >>> names = ["dynamic_cp"]
        >>> first, _ = compare_strategies(cluster, steps, done=lambda: None, names=names)[0].steps
        >>> first.num_microbatches, first.num_tokens, first.num_slots
        (1, 16, 16)
    """

    num_microbatches: int
    num_tokens: int
    num_padded_tokens: int
    num_slots: int
    num_cut_sequences: int
    mean_cp_size: float
    step_time: float
    bound: float
    planning_seconds: float


@dataclass(slots=True)
class StrategyResult:
    """One strategy, over steps.

    Attributes:
        name: the strategy.
        steps: what it makes of each step.
        totals: sums and means over the steps, by name; empty where a step could not be planned.
        failure: why the strategy cannot plan these lengths, or None.
        bytes_moved: bytes between processes, or None where not worked out.
        bytes_whole: bytes that whole sequences, field by field, would have moved, or None.

    Example:
        >>> import dcpack
        >>> cluster = Cluster(num_ranks=2, capacity=8, padding=None, cost=dcpack.QuadraticCost())
        >>> steps = [[5, 3, 4, 4], [8, 2, 6]]
        >>> names = ["pad to longest", "dynamic_cp"]
        >>> padded, dynamic = compare_strategies(cluster, steps, done=lambda: None, names=names)
        >>> dynamic.name, dynamic.failure, len(dynamic.steps)
        ('dynamic_cp', None, 2)
    """

    name: str
    steps: list[StepFigures] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    bytes_moved: int | None = None
    bytes_whole: int | None = None

    @property
    def planning_seconds(self) -> float:
        """Wall time of planning all steps."""
        return sum(step.planning_seconds for step in self.steps)


def compare_strategies(
    cluster: Cluster,
    steps: Iterable[Any],
    *,
    done: Callable[[], object],
    names: Sequence[str] = tuple(STRATEGIES),
    inspect: Callable[[str, int, Planned], object] | None = None,
) -> list[StrategyResult]:
    """Plan every step under every strategy. Plans are not kept, so any number of steps fits in memory.

    Args:
        cluster: ranks, capacity, cost.
        steps: int64[n] lengths of each step; may be made as they are asked for.
        done: called after each plan, for progress.
        names: the strategies, out of `STRATEGIES`.
        inspect: called with the strategy, the number of the step and what was planned.

    Returns:
        One result a strategy. A strategy that cannot plan some step has a `failure`, and no totals.

    Raises:
        ArgumentError: an unknown strategy, or lengths that are none.

    Example:
        >>> import dcpack
        >>> cluster = Cluster(num_ranks=2, capacity=8, padding=None, cost=dcpack.QuadraticCost())
        >>> steps = [[5, 3, 4, 4], [8, 2, 6]]
        >>> names = ["pad to longest", "dynamic_cp"]
        >>> padded, dynamic = compare_strategies(cluster, steps, done=lambda: None, names=names)
        >>> [step.step_time for step in padded.steps] > [step.step_time for step in dynamic.steps]
        True
    """
    check_kinds(cluster=(cluster, Cluster), done=(done, Callable), inspect=(inspect, Callable | None))
    names = check_names("names", names)
    results = [StrategyResult(name=check_choice("strategy", name, STRATEGIES)) for name in names]
    work = {name: np.zeros(cluster.num_ranks) for name in names}
    for number, given in enumerate(check_items("steps", steps)):
        lengths = as_lengths(f"steps[{number}]", given)
        for result in results:
            if result.failure is None:
                planned = _plan_step(result, cluster, lengths, number)
                if planned is not None:
                    work[result.name] += planned.plan.rank_times(cluster.cost).sum(axis=0)
                    if inspect is not None:
                        inspect(result.name, number, planned)
            done()
    for result in results:
        if result.failure is None:
            result.totals = _totals(result.steps, work[result.name])
    return results


def _plan_step(result: StrategyResult, cluster: Cluster, lengths: Int64Array, number: int) -> Planned | None:
    """Plan one step and note its figures; None where the strategy cannot, and `failure` says at which step."""
    start = time.perf_counter()
    try:
        planned = STRATEGIES[result.name](cluster, lengths)
    except InfeasibleError as error:
        result.failure = f"step {number}: {error}"
        return None
    seconds = time.perf_counter() - start
    plan = planned.plan
    figures = StepFigures(
        num_microbatches=plan.num_microbatches,
        num_tokens=planned.num_tokens,
        num_padded_tokens=int(plan.bin_padded_tokens.sum()),
        num_slots=plan.num_microbatches * plan.num_ranks * plan.capacity,
        num_cut_sequences=planned.num_cut_sequences,
        mean_cp_size=mean_cp_size(plan),
        step_time=plan.simulate(cluster.cost, sync=cluster.sync),
        bound=planned.bound,
        planning_seconds=seconds,
    )
    result.steps.append(figures)
    return planned


def _totals(steps: Sequence[StepFigures], work: Float64Array) -> dict[str, float]:
    def total(name: str) -> float:
        return float(sum(getattr(step, name) for step in steps))

    tokens, padded, slots = total("num_tokens"), total("num_padded_tokens"), total("num_slots")
    weighted_cp = sum(step.num_tokens * step.mean_cp_size for step in steps)
    return {
        "num_microbatches": total("num_microbatches"),
        "num_cut_sequences": total("num_cut_sequences"),
        "padding_share": 1.0 - tokens / padded if padded else 0.0,
        "utilization": tokens / slots if slots else 0.0,
        "imbalance": float(work.max() / work.mean()) if np.any(work) else 1.0,
        "mean_cp_size": weighted_cp / tokens if tokens else 1.0,
        "step_time": total("step_time") / max(len(steps), 1),
        "bound": total("bound") / max(len(steps), 1),
    }
