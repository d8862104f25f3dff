"""From lengths to a plan: the one place that strings overlong policy, scheduler, placement and proof together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dcpack._checks import as_lengths, check_choice, check_cost, check_flag, check_int, frozen, shorten
from dcpack._plan_faults import refuse_huge_bins
from dcpack.bounds import step_bounds
from dcpack.cost import CostModel
from dcpack.cost.checks import try_cost
from dcpack.errors import ArgumentError, InfeasibleError, PlanError
from dcpack.layout import MAX_OFFSET
from dcpack.packing.overlong import OVERLONG_POLICIES, Pieces, apply_overlong
from dcpack.padding import PaddingRule, check_capacity, longest_fitting_length
from dcpack.plans import SYNC_MODES, Plan
from dcpack.scheduling.balanced import Balanced
from dcpack.scheduling.base import MicroBatch, Problem, Scheduler
from dcpack.scheduling.budgets import Budget
from dcpack.scheduling.dynamic_cp import DynamicCP
from dcpack.scheduling.in_order import InOrder
from dcpack.scheduling.local_gain import LocalGain
from dcpack.scheduling.options import item_options, option_faults, refuse_foreign_options
from dcpack.scheduling.packing_aware import PackingAware
from dcpack.scheduling.returned import check_microbatches, name_of, usable_sizes
from dcpack.scheduling.uniform_cp import UniformCP
from dcpack.topology import legal_cp_sizes, limit_cp_groups, place_blocks

__all__ = ["ON_EMPTY", "SCHEDULERS", "get_scheduler", "make_plan"]

SCHEDULERS: dict[str, Scheduler] = {
    scheduler.name: scheduler
    for scheduler in (
        InOrder(),
        PackingAware(),
        DynamicCP(),
        Balanced(),
        LocalGain(reference=InOrder()),
        UniformCP(),
    )
}
"""The schedulers by name."""

ON_EMPTY = ("error", "dummy")
"""What to do where sequences are too few to give each rank work."""

_MAX_MULTIPLE = 2**16


def get_scheduler(scheduler: str | Scheduler) -> Scheduler:
    """Return the scheduler of that name; an object that is one already is returned as it is.

    Args:
        scheduler: a name out of `SCHEDULERS`, or a scheduler.

    Raises:
        ArgumentError: an unknown name, or an object that is no scheduler.

    Example:
        >>> get_scheduler("in_order").name
        'in_order'
    """
    if isinstance(scheduler, str):
        return SCHEDULERS[check_choice("scheduler", scheduler, SCHEDULERS)]
    is_class = isinstance(scheduler, type)
    if is_class or not all(callable(getattr(scheduler, name, None)) for name in ("usable_cp_sizes", "schedule")):
        got = f"the class {scheduler.__name__}: make one of it" if is_class else shorten(scheduler)
        raise ArgumentError(f"scheduler must be a name or an object with usable_cp_sizes() and schedule(), got {got}")
    return scheduler


def make_plan(
    lengths: Any,
    *,
    num_ranks: int,
    capacity: int,
    scheduler: str | Scheduler,
    cost: CostModel,
    cp_sizes: str | Sequence[int],
    min_cp_size: int,
    max_cp_size: int | None,
    padding: PaddingRule | None,
    sync: str,
    microbatch_multiple: int,
    max_sequences: int | None,
    on_empty: str,
    overlong: str,
    num_heads: int | Sequence[int] | None = None,
    max_groups: int | None = None,
    budgets: Sequence[Budget] = (),
    groups: Any = None,
    max_displacement: int | None = None,
    effort: str | None = None,
) -> Plan:
    """Plan one step; the arguments, results and errors are those of `dcpack.plan`.

    Example:
        >>> from dcpack.cost import QuadraticCost
        >>> options = {"cp_sizes": (1, 2), "min_cp_size": 1, "max_cp_size": None, "padding": None, "sync": "microbatch"}
        >>> options |= {"microbatch_multiple": 1, "max_sequences": None, "on_empty": "error", "overlong": "error"}
        >>> plan = make_plan([9, 5], num_ranks=2, capacity=8, scheduler="dynamic_cp", cost=QuadraticCost(), **options)
        >>> plan.to_sample_id_groups()
        [[[0, 1], [0, 1]]]
    """
    lengths = as_lengths("lengths", lengths)
    capacity = check_capacity(capacity, padding)
    check_choice("sync", sync, SYNC_MODES)
    check_choice("on_empty", on_empty, ON_EMPTY)
    if check_int("microbatch_multiple", microbatch_multiple, minimum=1) > _MAX_MULTIPLE:
        raise ArgumentError(f"microbatch_multiple must be at most {_MAX_MULTIPLE}, got {microbatch_multiple}")
    if max_sequences is not None:
        max_sequences = min(check_int("max_sequences", max_sequences, minimum=1), MAX_OFFSET)  # no bin holds more
    check_cost(cost)
    if cost.node_size is not None:
        check_int("cost.node_size", cost.node_size, minimum=1)
    check_choice("overlong", overlong, OVERLONG_POLICIES)
    chosen = get_scheduler(scheduler)
    tied = {"budgets": budgets, "groups": groups, "max_displacement": max_displacement, "effort": effort}
    refuse_foreign_options(chosen, tied)
    legal = legal_cp_sizes(num_ranks, cp_sizes, min_cp_size=min_cp_size, max_cp_size=max_cp_size, num_heads=num_heads)
    if max_groups is not None:
        legal = limit_cp_groups(int(num_ranks), legal, max_groups, node_size=cost.node_size)
    usable = _usable_sizes(chosen, legal, int(num_ranks))
    pieces = _cut_overlong(lengths, capacity, usable, padding, overlong)
    problem = Problem(
        sequence_ids=pieces.sequence_ids,
        lengths=pieces.lengths,
        oversized=pieces.oversized,
        num_ranks=int(num_ranks),
        capacity=capacity,
        cp_sizes=usable,
        padding=padding,
        microbatch_multiple=int(microbatch_multiple),
        max_sequences=max_sequences,
        on_empty=on_empty,
        cost=cost,
        sync=sync,
        num_sequences=lengths.size,
        **item_options(pieces, lengths.size, **tied),
    )
    if problem.lengths.size:
        largest = problem.padded[-1]  # the size that holds all of them
        try_cost(cost, np.array([largest.min(), largest.max()]), usable[-1])
    if max_displacement is not None:
        problem = replace(problem, reference=_in_order(problem))
    microbatches = check_microbatches(chosen, problem, chosen.schedule(problem))
    if faults := option_faults(problem, microbatches):
        raise PlanError(f"{name_of(chosen)} broke its limits: {'; '.join(faults)}")
    plan = _build_plan(lengths, pieces, problem, microbatches)
    refuse_huge_bins(plan)
    plan.validate()
    return plan


def _usable_sizes(scheduler: Scheduler, legal: tuple[int, ...], num_ranks: int) -> tuple[int, ...]:
    usable = usable_sizes(scheduler, legal)
    if not check_flag(f"equal_groups of {name_of(scheduler)}", getattr(scheduler, "equal_groups", False)):
        return usable
    dividing = tuple(size for size in usable if num_ranks % size == 0)
    if not dividing:
        raise InfeasibleError(f"no CP size is left of {usable} that divides the {num_ranks} ranks")
    return dividing


def _in_order(problem: Problem) -> list[MicroBatch]:
    """Return where `in_order` puts the items, at the smallest legal CP size that can hold them all."""
    whole = ~problem.oversized
    for k, size in enumerate(problem.cp_sizes):
        if problem.num_ranks % size == 0 and np.all(problem.padded[k, whole] <= problem.limits[k]):
            return InOrder().schedule(replace(problem, cp_sizes=(size,), on_empty="dummy"))
    longest = int(np.argmax(np.where(whole, problem.lengths, 0)))
    raise InfeasibleError(
        f"max_displacement counts from where in_order puts sequences, and no CP size of {problem.cp_sizes} divides "
        f"{problem.num_ranks} ranks and holds {problem.describe([longest])[0]}"
    )


def _cut_overlong(
    lengths: Any, capacity: int, cp_sizes: tuple[int, ...], padding: PaddingRule | None, policy: str
) -> Pieces:
    longest = int(longest_fitting_length(capacity, np.array(cp_sizes), padding).max())
    rule = "" if padding is None else f", {padding}"
    return apply_overlong(lengths, longest, policy, where=f" ({capacity} x {cp_sizes[-1]} ranks{rule})")


def _build_plan(lengths: Any, pieces: Pieces, problem: Problem, microbatches: list[MicroBatch]) -> Plan:
    node_size = problem.cost.node_size
    rows_per_rank = 1 + max((group.row for groups in microbatches for group in groups), default=0)
    groups, microbatch, first_rank = [], [], []
    for m, row in np.ndindex(len(microbatches), rows_per_rank):
        unordered = [group for group in microbatches[m] if group.row == row]
        firsts = place_blocks([group.cp_size for group in unordered], node_size)
        order = np.argsort(firsts)
        groups += [unordered[g] for g in order]
        first_rank.append(firsts[order])
        microbatch.append(np.full(len(unordered), m, np.int64))
    items = np.array([item for group in groups for item in group.items], np.int64)
    sizes = np.array([len(group.items) for group in groups], np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    cp_size = np.array([group.cp_size for group in groups], np.int64)
    oversized = np.zeros(len(groups), np.bool_)
    oversized[np.repeat(np.arange(len(groups)), sizes)[pieces.oversized[items]]] = True
    bounds = step_bounds(
        pieces.lengths,
        num_ranks=problem.num_ranks,
        capacity=problem.capacity,
        cp_sizes=problem.cp_sizes,
        padding=problem.padding,
        cost=problem.cost,
    )
    bounds["num_microbatches"] = float(-(-bounds["num_microbatches"] // rows_per_rank))
    return Plan(
        microbatch=np.concatenate([np.zeros(0, np.int64), *microbatch]),
        first_rank=np.concatenate([np.zeros(0, np.int64), *first_rank]),
        cp_size=cp_size,
        row=np.array([group.row for group in groups], np.int64),
        oversized=oversized,
        dummy=sizes == 0,
        offsets=offsets,
        sequence_ids=pieces.sequence_ids[items],
        starts=pieces.starts[items],
        entry_lengths=pieces.lengths[items],
        lengths=frozen(lengths),
        dropped=pieces.dropped,
        num_ranks=problem.num_ranks,
        num_microbatches=len(microbatches),
        rows_per_rank=rows_per_rank,
        capacity=problem.capacity,
        padding=problem.padding,
        cp_sizes=problem.cp_sizes,
        bounds=bounds,
    )
