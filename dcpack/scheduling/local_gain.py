"""Keep a given placement unless another one is clearly better, and then move as few samples as possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcpack._checks import (
    Float64Array,
    Int64Array,
    as_lengths,
    as_real,
    check_choice,
    check_int,
    frozen,
    list_offenders,
)
from dcpack.balancing import integer_costs
from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.scheduling.base import MicroBatch, Problem, Scheduler
from dcpack.scheduling.budgets import Budget, amounts_of_items, check_budgets, values_of_items
from dcpack.scheduling.exchanges import exchange_items
from dcpack.scheduling.levelling import ROUNDS, fill_slots, makespan, pack_items
from dcpack.scheduling.overlap import stay_where_possible
from dcpack.scheduling.reference import slots_of_microbatches, slots_of_rows
from dcpack.scheduling.returned import check_microbatches
from dcpack.scheduling.workload import (
    Slots,
    Workload,
    data_parallel_size,
    item_times,
    make_microbatches,
    workload_of,
)

__all__ = ["OBJECTIVES", "Decision", "LocalGain"]

OBJECTIVES = ("makespan", "variance")
"""What is compared: the time of the step, or how far ranks that wait for each other are apart."""

# A placement from scratch moves most samples. It is taken where it beats the one with few moves by this part of what
# the reference costs.
_WORTH_MOVING = 0.01
# Ids are int64.
_MOST = 2**60
# Exchanges stop this close, relative, to an even share: the rest is not worth moving samples for.
_CLOSE_ENOUGH = 0.005


@dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What was decided for one group of ranks, for a log.

    Attributes:
        first_rank: first data-parallel rank of the group.
        objective_before: objective of the reference. Makespan: in the unit of the costs. Variance: of rank loads over
            their mean, no unit.
        objective_candidate: objective of the best other placement found; never above that of the reference.
        objective_after: objective of the placement that is used.
        gain: (before - candidate) / before; 0 where the reference costs nothing.
        accepted: whether the candidate is used.
        moved: for each rank of the group, how many samples it gets that another rank had.

    Example:
        >>> Decision(first_rank=0, objective_before=18.0, objective_candidate=10.0, objective_after=10.0, gain=4 / 9,
        ...     accepted=True, moved=(1, 1)).accepted
        True
    """

    first_rank: int
    objective_before: float
    objective_candidate: float
    objective_after: float
    gain: float
    accepted: bool
    moved: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LocalGain:
    """HyperParallel's rule: the reference placement stays unless the objective falls by more than `min_balance_gain`.

    The candidate starts from the reference: micro-batches of each rank are put in order of cost, and single sequences
    exchanged while that helps. A placement from scratch (dearest first, to the rank that lacks most) takes its place
    where it is better by more than 1% of the reference's objective; then ranks are named so that most sequences stay
    where they are. Where sequences find no room in it, room is made for them; where that fails too, the candidate from
    the reference is still there.

    Every bin keeps capacity, `max_sequences` and budgets; the reference is checked too. Overlong sequences are an error
    or, with ``overlong="single"``, alone in their bin. The CP size is static: the smallest legal one.

    Args:
        reference: the placement to start from: ``[rank][row] -> sequence ids`` over the data-parallel ranks, or a
            scheduler whose micro-batches are taken. Sequences without tokens may be left out.
        costs: [n], cost of each sequence, additive over a bin, finite and at least 0; None is its time alone by the
            cost model. They are rounded to integers before they are compared.
        min_balance_gain: in [0, 1); the candidate is used where (before - after) / before is strictly greater.
        objective: ``"makespan"``, the sum over meetings of the slowest rank, or ``"variance"``, the mean square of how
            far rank loads are from the mean of their meeting, over the mean load. Ranks meet in every micro-batch or
            once a step, as `sync` says.
        balance_group_size: consecutive data-parallel ranks that exchange sequences only among each other; it must
            divide their number. ``"node"`` is the ranks of a node by the cost model. None is all ranks.
        rows_per_rank: with rows as reference: how many make up a micro-batch; None is all of a rank.
        budgets: further limits of every bin.

    Raises:
        ArgumentError: an option of the wrong type or range.

    Example:
        >>> import dcpack
        >>> local = LocalGain(reference=[[[0], [1]], [[2], [3]]], costs=[9, 9, 1, 1])
        >>> plan = dcpack.plan([5, 5, 5, 5], num_ranks=2, capacity=10, scheduler=local)
        >>> [plan.sequence_ids[plan.first_rank == rank].tolist() for rank in range(2)]
        [[2, 1], [0, 3]]
    """

    name = "local_gain"

    reference: Scheduler | Sequence[Sequence[Sequence[int]]]
    costs: Any = None
    min_balance_gain: float = 0.0
    objective: str = "makespan"
    balance_group_size: int | str | None = None
    rows_per_rank: int | None = None
    budgets: tuple[Budget, ...] = ()

    def __post_init__(self) -> None:
        self._check_reference_type()
        if self.costs is not None:
            integer_costs(self.costs)  # refuses what is no cost
            object.__setattr__(self, "costs", frozen(np.asarray(self.costs).copy()))
        gain = as_real("min_balance_gain", self.min_balance_gain, below=1)
        object.__setattr__(self, "min_balance_gain", gain)
        check_choice("objective", self.objective, OBJECTIVES)
        if isinstance(self.balance_group_size, str):
            check_choice("balance_group_size", self.balance_group_size, ("node",))
        elif self.balance_group_size is not None:
            check_int("balance_group_size", self.balance_group_size, minimum=1)
        if self.rows_per_rank is not None:
            check_int("rows_per_rank", self.rows_per_rank, minimum=1)
            if not isinstance(self.reference, Sequence):
                raise ArgumentError("rows_per_rank goes with rows as reference, not with a scheduler")
        object.__setattr__(self, "budgets", check_budgets(self.budgets))

    def _check_reference_type(self) -> None:
        if callable(getattr(self.reference, "schedule", None)) and not isinstance(self.reference, type):
            return
        rows = self.reference
        if isinstance(rows, str) or not isinstance(rows, Sequence) or not rows:
            raise ArgumentError(f"reference must be a scheduler or rows of sequence ids of each rank, got {rows!r}")
        if wrong := [f"reference[{r}] = {given!r}" for r, given in enumerate(rows) if not isinstance(given, Sequence)]:
            raise ArgumentError(f"reference must hold the rows of each rank: {list_offenders(wrong)}")
        # A copy: the caller may change its own lists later.
        copied = tuple(tuple(_as_ids(r, k, row) for k, row in enumerate(given)) for r, given in enumerate(rows))
        object.__setattr__(self, "reference", copied)

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        """Return the smallest legal size alone."""
        return legal[:1]

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        """Return the micro-batches; see `dcpack.scheduling.base.Scheduler`."""
        return self.solve(problem)[0]

    def decide(self, problem: Problem) -> tuple[Decision, ...]:
        """Return what `schedule` decides on the same problem, one decision for each group of ranks."""
        return self.solve(problem)[1]

    def solve(self, problem: Problem) -> tuple[list[MicroBatch], tuple[Decision, ...]]:
        """Return the micro-batches and the decisions behind them, planned once.

        Raises:
            ArgumentError: a reference, costs or budgets that do not fit the sequences or the ranks.
            InfeasibleError: a reference that breaks a limit, or leaves a row empty that no dummy may fill.
        """
        num_ranks = data_parallel_size(self.name, problem)
        if isinstance(self.reference, Sequence):
            slots, slot_of = slots_of_rows(problem, self.reference, num_ranks, self.rows_per_rank)
        else:
            given = check_microbatches(self.reference, problem, self.reference.schedule(problem))
            slots, slot_of = slots_of_microbatches(problem, given, num_ranks)
        result, decisions = self.improve(problem, slots, slot_of)
        return make_microbatches(slots, result, problem.cp_sizes[0]), decisions

    def improve(self, problem: Problem, slots: Slots, slot_of: Int64Array) -> tuple[Int64Array, tuple[Decision, ...]]:
        """Return what `solve` does as slots, from a reference that is given as slots, int64[p], too.

        Raises:
            ArgumentError: costs or budgets that do not fit the sequences, or groups that do not fit the ranks.
            InfeasibleError: as in `solve`.
        """
        costs = self._costs(problem)
        work = self._workload(problem, integer_costs(costs))
        self._check_reference(problem, work, slots, slot_of)
        unit = float(costs.max()) / int(work.costs.max()) if work.costs.any() else 0.0
        num_ranks = slots.num_ranks
        size = self._group_size(problem, num_ranks)
        local = Slots(num_microbatches=slots.num_microbatches, num_ranks=size, num_rows=slots.num_rows, sync=slots.sync)
        decisions, result = [], slot_of.copy()
        for first in range(0, num_ranks, size):
            rank = slot_of % num_ranks
            items = np.flatnonzero((rank >= first) & (rank < first + size))
            before = slot_of[items] // num_ranks * size + rank[items] - first
            after, decision = self._decide_group(work.take(items), local, before, unit, first)
            result[items] = after // size * num_ranks + after % size + first
            decisions.append(decision)
        return result, tuple(decisions)

    # ---- one group of ranks --------------------------------------------------------------------------------------

    def _decide_group(
        self, work: Workload, slots: Slots, reference: Int64Array, unit: float, first_rank: int
    ) -> tuple[Int64Array, Decision]:
        before = self._objective(work, slots, reference)
        candidate = self._candidate(work, slots, reference, before) if before > 0 else reference
        reached = self._objective(work, slots, candidate)
        gain = (before - reached) / before if before > 0 else 0.0
        accepted = gain > self.min_balance_gain
        chosen = candidate if accepted else reference
        new_rank = chosen % slots.num_ranks
        moved = np.bincount(new_rank[new_rank != reference % slots.num_ranks], minlength=slots.num_ranks)
        scale = self._scale(work, slots, unit)
        return chosen, Decision(
            first_rank=first_rank,
            objective_before=before * scale,
            objective_candidate=reached * scale,
            objective_after=(reached if accepted else before) * scale,
            gain=gain,
            accepted=accepted,
            moved=tuple(moved.tolist()),
        )

    def _candidate(self, work: Workload, slots: Slots, reference: Int64Array, before: int) -> Int64Array:
        """Return the best placement found, or the reference where none is better."""
        start = _dear_microbatches_together(work, slots, reference)
        if self._objective(work, slots, start) > before:
            start = reference
        few_moves = exchange_items(
            work,
            slots,
            start,
            slots.cell_of(np.arange(slots.num_slots)),
            rounds=2 * ROUNDS,
            close_enough=_CLOSE_ENOUGH,
            every_cell=self.objective == "variance",
        )
        found = [reference, start, few_moves]
        best = min(found, key=lambda slot_of: self._objective(work, slots, slot_of))
        reached = self._objective(work, slots, best)
        could_pay = reached - self._least(work, slots) > before * _WORTH_MOVING  # else nothing from scratch does
        if could_pay and work.num_items >= slots.num_slots:
            packed = None if self.budgets else pack_items(work)
            fits = packed is not None and packed.num_bins <= slots.num_slots
            anew = fill_slots(work, slots, packed if fits else None)
            if anew is not None:
                if reached - self._objective(work, slots, anew) > before * _WORTH_MOVING:
                    return stay_where_possible(slots, anew, reference % slots.num_ranks)
        return best

    def _objective(self, work: Workload, slots: Slots, slot_of: Int64Array) -> int:
        """Return the objective as an integer that orders placements; exact, however large the loads are."""
        loads = slots.cell_loads(work.costs, slot_of)
        if self.objective == "makespan":
            return makespan(loads)
        return sum(slots.num_ranks * sum(x * x for x in meeting) - sum(meeting) ** 2 for meeting in loads.tolist())

    def _least(self, work: Workload, slots: Slots) -> int:
        """Return a lower bound of the objective of any placement: all ranks alike."""
        return -(-int(work.costs.sum()) // slots.num_ranks) if self.objective == "makespan" else 0

    def _scale(self, work: Workload, slots: Slots, unit: float) -> float:
        """Return what turns an integer objective into the reported one."""
        if self.objective == "makespan":
            return unit
        total = sum(work.costs.tolist())
        return slots.num_meetings / total**2 if total else 0.0

    # ---- what the options come to --------------------------------------------------------------------------------

    def _costs(self, problem: Problem) -> Float64Array | Int64Array:
        """Return the cost of each item."""
        if self.costs is None:
            return item_times(problem)
        return values_of_items("costs", self.costs, problem.sequence_ids, problem.num_sequences)

    def _workload(self, problem: Problem, costs: Int64Array) -> Workload:
        amounts = amounts_of_items(self.budgets, problem.sequence_ids, problem.num_sequences)
        return workload_of(problem, costs, list(amounts), [budget.limit for budget in self.budgets])

    def _group_size(self, problem: Problem, num_ranks: int) -> int:
        size = self.balance_group_size
        if size == "node":
            node = problem.cost.node_size
            size = num_ranks if node is None else min(max(node // problem.cp_sizes[0], 1), num_ranks)
        elif size is None:
            size = num_ranks
        if num_ranks % int(size):
            raise ArgumentError(f"balance_group_size must divide {num_ranks} data-parallel ranks, got {size}")
        return int(size)

    def _check_reference(self, problem: Problem, work: Workload, slots: Slots, slot_of: Int64Array) -> None:
        if slots.num_microbatches % problem.microbatch_multiple:
            raise InfeasibleError(
                f"reference has {slots.num_microbatches} micro-batches, not a multiple of microbatch_multiple, "
                f"{problem.microbatch_multiple}"
            )
        what = ["padded tokens", *(["sequences"] if problem.max_sequences is not None else [])]
        what += [f"of budget {budget.name!r}" for budget in self.budgets]
        used = np.zeros((slots.num_slots, work.limits.size), np.int64)
        np.add.at(used, slot_of, work.amounts)
        if over := np.argwhere(used > work.limits).tolist():
            texts = [f"{_place(slots, s)} holds {used[s, k]} {what[k]}, limit {work.limits[k]}" for s, k in over]
            raise InfeasibleError(f"reference breaks limits: {list_offenders(texts)}")
        if problem.on_empty == "error":
            empty = np.flatnonzero(np.bincount(slot_of, minlength=slots.num_slots) == 0).tolist()
            if empty:
                texts = [_place(slots, s) for s in empty]
                raise InfeasibleError(
                    f"reference leaves bins empty: {list_offenders(texts)}; on_empty='dummy' fills up with empty "
                    "sequences"
                )


def _as_ids(rank: int, index: int, row: Any) -> tuple[int, ...]:
    if type(row) is tuple and all(type(i) is int and abs(i) <= _MOST for i in row):
        return row
    try:
        ids = as_lengths("ids", row, minimum=-_MOST).tolist()
    except ArgumentError as error:
        raise ArgumentError(f"reference[{rank}][{index}] must be a list of sequence ids, got {row!r}") from error
    if over := [str(i) for i in ids if i > _MOST]:
        raise ArgumentError(f"reference[{rank}][{index}] must hold ids up to {_MOST}, got {list_offenders(over)}")
    return tuple(ids)


def _place(slots: Slots, slot: int) -> str:
    row = slot // slots.num_ranks
    return f"rank {slot % slots.num_ranks} row {row % slots.num_rows} of micro-batch {row // slots.num_rows}"


def _dear_microbatches_together(work: Workload, slots: Slots, slot_of: Int64Array) -> Int64Array:
    """Return the slots with the micro-batches of each rank by decreasing cost: no sample changes its rank."""
    size = slots.num_ranks * slots.num_rows
    microbatch, inside = slot_of // size, slot_of % size
    loads = np.zeros((slots.num_microbatches, slots.num_ranks), np.int64)
    np.add.at(loads, (microbatch, inside % slots.num_ranks), work.costs)
    place = np.argsort(np.argsort(-loads, axis=0, kind="stable"), axis=0, kind="stable")
    return place[microbatch, inside % slots.num_ranks] * size + inside
