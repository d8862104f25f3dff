"""Policies: what proposes another placement of the samples of a window."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from dcpack._checks import BoolArray, Float64Array, Int64Array, as_real
from dcpack.errors import ArgumentError, InfeasibleError, PlanError
from dcpack.loader.protocols import BalancingAlgorithm
from dcpack.loader.types import PackingConstraints, WorkloadCost
from dcpack.loader.windows import Placement, Policy, Window, makespan_of, rows_of_plan
from dcpack.scheduling import Scheduler
from dcpack.scheduling.balanced import Balanced
from dcpack.scheduling.base import Problem
from dcpack.scheduling.driver import get_scheduler, make_plan
from dcpack.scheduling.local_gain import Budget, LocalGain
from dcpack.scheduling.workload import Slots

__all__ = ["DATA_PARALLEL_SCHEDULERS", "OwnAlgorithm", "SchedulerPolicy", "choose_policy", "plans_cp"]

DATA_PARALLEL_SCHEDULERS = ("local_gain", "balanced")
"""What `balancing_algorithm` may name; `scheduler` may be them, too."""

_LLM = WorkloadCost(llm=1.0).parts().index(1.0)
_FINE = 2**20  # steps that a budget that is no whole number is cut into


class SchedulerPolicy:
    """Asks one of the data-parallel schedulers.

    Args:
        scheduler: `LocalGain`, whose options but reference, costs and budgets are kept; or any other one, which must
            come out with as many micro-batches and rows as the window has, or its proposal is left.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    def candidate(self, window: Window) -> Int64Array | None:
        """Return the scheduler's rows; None where it finds none that are as many as they must be."""
        if window.num_ranks == 1 and window.one_a_row:
            return None  # no order of whole samples on one rank costs less than another
        if isinstance(self.scheduler, LocalGain):
            return _by_local_gain(self.scheduler, window)
        try:
            plan = make_plan(
                window.tokens,
                num_ranks=window.num_ranks,
                capacity=window.seq_len,
                scheduler=self.scheduler,
                cost=_ItemCosts(window),
                cp_sizes=(1,),
                min_cp_size=1,
                max_cp_size=None,
                padding=None,
                sync=window.sync,
                microbatch_multiple=window.num_rows // window.rows_per_rank,
                max_sequences=1 if window.one_a_row else None,
                on_empty="dummy" if window.may_be_empty else "error",
                overlong="single" if window.keeps_oversized else "error",
            )
        except InfeasibleError:
            return None  # the placement as it is does fit
        num_rows = plan.num_microbatches * plan.rows_per_rank
        if num_rows != window.num_rows or plan.rows_per_rank != window.rows_per_rank:
            return None
        rows = rows_of_plan(plan)
        return None if window.row_faults(rows) else rows

    def objective(self, window: Window, placement: Placement) -> float:
        """Return the makespan, or how far ranks are apart where the scheduler minimises that."""
        return makespan_of(window, placement) if self.counts_costs else _variance(window, placement)

    @property
    def counts_costs(self) -> bool:
        """Whether the objective is the makespan."""
        return not isinstance(self.scheduler, LocalGain) or self.scheduler.objective == "makespan"


def _by_local_gain(scheduler: LocalGain, window: Window) -> Int64Array:
    """Return its rows, without a plan around them: what is proposed is proven when it is taken."""
    scheduler = replace(scheduler, costs=window.costs.items, min_balance_gain=0.0, budgets=_whole_budgets(window))
    problem = Problem(
        sequence_ids=np.arange(window.tokens.size),
        lengths=window.tokens,
        oversized=window.tokens > window.seq_len,
        num_ranks=window.num_ranks,
        capacity=window.seq_len,
        cp_sizes=(1,),
        padding=None,
        microbatch_multiple=window.num_rows // window.rows_per_rank,
        max_sequences=1 if window.one_a_row else None,
        on_empty="dummy" if window.may_be_empty else "error",
        cost=_ItemCosts(window),
        sync=window.sync,
        num_sequences=window.tokens.size,
    )
    slots = Slots(
        num_microbatches=window.num_rows // window.rows_per_rank,
        num_ranks=window.num_ranks,
        num_rows=window.rows_per_rank,
        sync=window.sync,
    )
    rank, row = np.divmod(window.reference, window.num_rows)
    slot_of, _ = scheduler.improve(problem, slots, row * window.num_ranks + rank)
    new_row, new_rank = np.divmod(slot_of, window.num_ranks)
    return new_rank * window.num_rows + new_row


def _variance(window: Window, placement: Placement) -> float:
    loads = placement.costs.reshape(window.num_ranks, -1, window.rows_per_rank).sum(axis=2).astype(np.float64)
    loads = loads.sum(axis=1, keepdims=True) if window.sync == "step" else loads
    mean = np.maximum(loads.mean(axis=0), 1.0)
    return float(np.mean(np.square(loads / mean - (loads.sum(axis=0) > 0))))


class _ItemCosts:
    """The costs of a window's samples, as a scheduler asks for them: by length, all samples in order."""

    node_size = None
    unit = "cost"

    def __init__(self, window: Window) -> None:
        self.tokens, self.items = window.tokens, window.costs.items

    def columns(self, padded_lengths: Any) -> Float64Array:
        lengths = np.asarray(padded_lengths, np.int64)
        is_window = lengths.shape == self.tokens.shape and np.array_equal(lengths, self.tokens)
        # Anything else is asked for lower bounds alone, which the plan of the proposal does not keep.
        return (self.items if is_window else lengths.astype(np.float64))[:, np.newaxis]

    def bin_time(self, column_sums: Float64Array, cp_size: Int64Array, crosses_node: BoolArray) -> Float64Array:
        del crosses_node
        return column_sums[:, 0] / cp_size


def _whole_budgets(window: Window) -> tuple[Budget, ...]:
    """Return the budgets in whole numbers, rounded so that whatever keeps them keeps the real ones."""
    budgets = []
    for name, limit in window.limits.items():
        amounts = window.amounts[name]
        is_whole = limit == int(limit) and bool(np.all(amounts == np.floor(amounts))) and amounts.sum() < 2**53
        scale = 1.0 if is_whole else _FINE / limit if limit else 1.0
        whole = np.ceil(amounts * scale).astype(np.int64)
        budgets.append(Budget(name=name, amounts=whole, limit=math.floor(limit * scale)))
    return tuple(budgets)


class OwnAlgorithm:
    """Asks a `BalancingAlgorithm` of the user's.

    Args:
        algorithm: what proposes.
    """

    def __init__(self, algorithm: BalancingAlgorithm) -> None:
        self.algorithm = algorithm

    def candidate(self, window: Window) -> Int64Array:
        """Return the rows that the algorithm assigns."""
        policy = "single" if window.keeps_oversized else "error"
        bins = self.algorithm.assign(
            window.metadata,
            reference_bins=window.rows(),
            constraints=PackingConstraints(
                seq_len=window.seq_len, oversized_policy=policy, packing_budgets=window.limits
            ),
            data_parallel_size=window.num_ranks,
            local_batch_size=window.num_rows,
        )
        try:
            flat = [tuple(int(item) for item in row) for row in bins]
        except (TypeError, ValueError) as error:
            raise PlanError(f"balancing_algorithm.assign must return rows of indices: {error}") from error
        if len(flat) != window.num_rows_in_all:
            raise PlanError(
                f"balancing_algorithm.assign must return {window.num_ranks} x {window.num_rows} rows, got {len(flat)}"
            )
        return window.row_of(flat)

    def objective(self, window: Window, placement: Placement) -> float:
        """Return the algorithm's objective."""
        parts = np.array([sample.cost.parts() for sample in window.metadata if sample.cost is not None])
        by_rank = np.zeros((window.num_ranks, len(WorkloadCost().parts())))
        if len(parts) == placement.row_of.size:
            np.add.at(by_rank, placement.row_of // window.num_rows, parts)
        # Rows may cost more than their samples do.
        by_rank[:, _LLM] = placement.costs.reshape(window.num_ranks, -1).sum(axis=1) * placement.unit
        value = self.algorithm.objective([WorkloadCost.of_parts(row) for row in by_rank.tolist()])
        return as_real("balancing_algorithm.objective", value)

    @property
    def counts_costs(self) -> bool:
        """The objective is the algorithm's own."""
        return False


def plans_cp(scheduler: Scheduler) -> bool:
    """Tell whether a scheduler assigns CP sizes.

    Example:
        >>> plans_cp(get_scheduler("dynamic_cp")), plans_cp(get_scheduler("balanced"))
        (True, False)
    """
    return tuple(scheduler.usable_cp_sizes((1, 2))) != (1,)


def choose_policy(scheduler: Any, balancing_algorithm: Any, rows_per_rank: int) -> Policy:
    """Return the policy for the arguments of `build_distributed_dataloader`; `scheduler` assigns no CP.

    Raises:
        ArgumentError: both are given, or one is none that can be.
    """
    if scheduler is not None and balancing_algorithm is not None:
        raise ArgumentError("scheduler and balancing_algorithm exclude each other: scheduler says all, give one")
    chosen = scheduler if scheduler is not None else balancing_algorithm
    if chosen is None or (isinstance(chosen, str) and chosen == "local_gain"):
        return SchedulerPolicy(LocalGain(reference=get_scheduler("in_order")))
    if isinstance(chosen, str) and chosen == "balanced":
        return SchedulerPolicy(Balanced(rows_per_rank=rows_per_rank))
    if scheduler is not None:
        return SchedulerPolicy(get_scheduler(scheduler))
    if not all(callable(getattr(chosen, name, None)) for name in ("assign", "objective")):
        names = " or ".join(map(repr, DATA_PARALLEL_SCHEDULERS))
        raise ArgumentError(f"balancing_algorithm must be {names} or have assign() and objective(), got {chosen!r}")
    algorithm: Any = chosen
    return OwnAlgorithm(algorithm)
