"""Planning a window: samples that lie in rows already, and whether to put them in others.

A window is some consecutive micro-batches. Its samples stay in it; which rank, micro-batch and row each goes to may
change, where a candidate's objective is lower by more than `min_balance_gain`. What proposes the candidate is a policy
(`dcpack.loader.policies`); what may be proposed, and whether it pays, is decided here.

Rows are numbered rank after rank, those of a rank micro-batch after micro-batch: row k of rank d is number
``d * num_rows + k``. A placement is the number of the row of each sample, int64[n].
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, Protocol

import numpy as np

from dcpack._checks import Float64Array, Int64Array, list_offenders
from dcpack._plan_faults import refuse_huge_bins
from dcpack.balancing import integer_costs
from dcpack.bounds import step_bounds
from dcpack.cost import QuadraticCost
from dcpack.errors import InfeasibleError, PlanError
from dcpack.loader.costs import RowCosts
from dcpack.loader.types import SampleMetadata
from dcpack.plans import Plan
from dcpack.scheduling.local_gain import Decision

__all__ = [
    "Placement",
    "PlannedWindow",
    "Policy",
    "Window",
    "makespan_of",
    "plan_of_rows",
    "plan_window",
    "rows_of_plan",
]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Window:
    """Samples, limits, and the rows that the samples lie in.

    Attributes:
        tokens: int64[n], tokens of each sample.
        costs: their costs.
        amounts: float64[n] by budget, what each sample takes of it.
        limits: limit by budget.
        reference: int64[n], the row that each sample lies in.
        num_ranks: data-parallel ranks.
        num_rows: rows of a rank in the window.
        rows_per_rank: rows of a rank in a micro-batch.
        seq_len: tokens of a row.
        one_a_row: whether a row is one sample.
        may_be_empty: whether rows may stay empty (and become dummies).
        keeps_oversized: whether a sample longer than `seq_len` may be alone in a row.
        sync: ``"microbatch"`` or ``"step"``, when ranks meet.
        metadata: of the samples, for policies that ask for it.
    """

    tokens: Int64Array
    costs: RowCosts
    amounts: Mapping[str, Float64Array]
    limits: Mapping[str, float]
    reference: Int64Array
    num_ranks: int
    num_rows: int
    rows_per_rank: int
    seq_len: int
    one_a_row: bool = False
    may_be_empty: bool = False
    keeps_oversized: bool = False
    sync: str = "microbatch"
    metadata: tuple[SampleMetadata, ...] = ()

    @property
    def num_rows_in_all(self) -> int:
        """Rows of all ranks."""
        return self.num_ranks * self.num_rows

    def rows(self) -> list[list[int]]:
        """Return the samples that lie in each row."""
        rows: list[list[int]] = [[] for _ in range(self.num_rows_in_all)]
        for sample, row in enumerate(self.reference.tolist()):
            rows[row].append(sample)
        return rows

    def row_of(self, rows: Sequence[Sequence[int]]) -> Int64Array:
        """Return int64[n]: the row of each sample, from the samples of each row.

        Raises:
            PlanError: rows that do not hold every sample once; names all.
        """
        sizes = list(map(len, rows))
        items = np.fromiter(chain.from_iterable(rows), np.int64, sum(sizes))
        size = self.tokens.size
        faults = [f"unknown sample {i}" for i in items[(items < 0) | (items >= size)].tolist()]
        times = np.bincount(items[(items >= 0) & (items < size)], minlength=size)
        faults += [f"sample {i} {times[i]} times" for i in np.flatnonzero(times != 1).tolist()]
        if faults:
            raise PlanError(f"a placement must hold every sample of the window once: {list_offenders(faults)}")
        row_of = np.empty(size, np.int64)
        row_of[items] = np.repeat(np.arange(len(rows)), sizes)
        return row_of

    def row_faults(self, row_of: Int64Array) -> list[str]:
        """Return which rows break a limit, in words."""
        num_rows = self.num_rows_in_all
        counts = np.bincount(row_of, minlength=num_rows)
        used = np.bincount(row_of, weights=self.tokens, minlength=num_rows)
        longest = np.zeros(num_rows, np.int64)
        np.maximum.at(longest, row_of, self.tokens)
        over = used > self.seq_len
        if self.keeps_oversized:
            over &= counts > 1
        place = self._place
        faults = [
            f"{place(r)} holds {used[r]:.0f} tokens, more than {self.seq_len}" for r in np.flatnonzero(over).tolist()
        ]
        if not self.may_be_empty:
            faults += [f"{place(r)} is empty" for r in np.flatnonzero(counts == 0).tolist()]
        if self.one_a_row:
            faults += [f"{place(r)} holds {counts[r]} samples, not 1" for r in np.flatnonzero(counts > 1).tolist()]
        for name, limit in self.limits.items():
            taken = np.bincount(row_of, weights=self.amounts[name], minlength=num_rows)
            # A sum of floats may come out a hair above a limit that it keeps exactly.
            bad = np.flatnonzero(taken > limit * (1 + 1e-12)).tolist()
            faults += [f"{place(r)} takes {taken[r]:g} of budget {name!r}, more than {limit:g}" for r in bad]
        return faults

    def _place(self, row: int) -> str:
        return f"rank {row // self.num_rows}, row {row % self.num_rows}"


class Policy(Protocol):
    """What proposes another placement."""

    def candidate(self, window: Window) -> Int64Array | None:
        """Return int64[n], other rows for the samples of the window, or None to leave them."""
        ...

    def objective(self, window: Window, placement: Placement) -> float:
        """Return what should be small: at least 0."""
        ...

    @property
    def counts_costs(self) -> bool:
        """Whether the objective is a sum of `Placement.costs`; it is then reported in the unit of the costs."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Placement:
    """Where the samples of a window are, and what the rows cost.

    Attributes:
        row_of: int64[n], row of each sample, numbered rank after rank.
        costs: int64[ranks * rows], cost of each row, whole numbers that are comparable between placements.
        unit: what one of them is in the unit of the costs.
    """

    row_of: Int64Array
    costs: Int64Array
    unit: float


def makespan_of(window: Window, placement: Placement) -> int:
    """Return the slowest rank of each meeting, summed over meetings."""
    by_rank = placement.costs.reshape(window.num_ranks, -1, window.rows_per_rank).sum(axis=2)
    if window.sync == "step":
        return int(by_rank.sum(axis=1).max(initial=0))
    return int(by_rank.max(axis=0, initial=0).sum())


class PlannedWindow(NamedTuple):
    """A window as it is planned.

    Attributes:
        plan: where its samples go.
        decision: what was decided.
        loads_before: float64[ranks], the work of each rank as its samples were read.
        loads_after: the same as it is planned.
    """

    plan: Plan
    decision: Decision
    loads_before: Float64Array
    loads_after: Float64Array


def plan_window(window: Window, policy: Policy, *, min_balance_gain: float = 0.0) -> PlannedWindow:
    """Plan a window.

    Raises:
        InfeasibleError: the rows as they are break a limit.
        PlanError: the policy proposes rows that lose, repeat or add samples, or break a limit.
    """
    before = window.reference
    if faults := window.row_faults(before):
        raise InfeasibleError(f"the samples do not fit where they are: {list_offenders(faults)}")
    proposed = policy.candidate(window)
    after = before if proposed is None else proposed
    if faults := window.row_faults(after):
        raise PlanError(f"the placement that {type(policy).__name__} proposes breaks limits: {list_offenders(faults)}")
    num_rows = window.num_rows_in_all
    costs = np.concatenate([window.costs.rows(before, num_rows), window.costs.rows(after, num_rows)])
    whole = integer_costs(costs)
    unit = float(costs.max()) / int(whole.max()) if whole.any() else 0.0
    old = policy.objective(window, Placement(row_of=before, costs=whole[:num_rows], unit=unit))
    new = policy.objective(window, Placement(row_of=after, costs=whole[num_rows:], unit=unit))
    scale = unit if policy.counts_costs else 1.0
    gain = (old - new) / old if old > 0 else 0.0
    accepted = gain > min_balance_gain
    kept = after if accepted else before
    rank_before, rank_after = before // window.num_rows, kept // window.num_rows
    moved = np.bincount(rank_after[rank_after != rank_before], minlength=window.num_ranks)
    decision = Decision(
        first_rank=0,
        objective_before=old * scale,
        objective_candidate=new * scale,
        objective_after=(new if accepted else old) * scale,
        gain=gain,
        accepted=accepted,
        moved=tuple(moved.tolist()),
    )
    loads = costs.reshape(2, window.num_ranks, -1).sum(axis=2)
    return PlannedWindow(plan_of_rows(window, kept), decision, loads[0], loads[int(accepted)])


def plan_of_rows(window: Window, row_of: Int64Array) -> Plan:
    """Return the plan that puts the samples of `window` into rows, `row_of`; every limit is proven again."""
    rank, row = np.divmod(row_of, window.num_rows)
    slot_of = row * window.num_ranks + rank  # bins: micro-batch after micro-batch, in each row after row
    order = np.argsort(slot_of, kind="stable")
    sizes = np.bincount(slot_of, minlength=window.num_rows_in_all)
    microbatch, row_in_microbatch = np.divmod(np.arange(window.num_rows), window.rows_per_rank)
    is_oversized = (window.tokens > window.seq_len) & window.keeps_oversized
    oversized = np.bincount(slot_of[is_oversized], minlength=sizes.size) > 0
    plan = Plan(
        microbatch=np.repeat(microbatch, window.num_ranks),
        first_rank=np.tile(np.arange(window.num_ranks), window.num_rows),
        cp_size=np.ones(sizes.size, np.int64),
        row=np.repeat(row_in_microbatch, window.num_ranks),
        oversized=oversized,
        dummy=sizes == 0,
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        sequence_ids=order,
        starts=np.zeros_like(order),
        entry_lengths=window.tokens[order],
        lengths=window.tokens,
        dropped=np.zeros_like(window.tokens),
        num_ranks=window.num_ranks,
        num_microbatches=window.num_rows // window.rows_per_rank,
        rows_per_rank=window.rows_per_rank,
        capacity=window.seq_len,
        bounds=_bounds(window),
    )
    refuse_huge_bins(plan)
    plan.validate()
    return plan


def _bounds(window: Window) -> dict[str, float]:
    bounds = step_bounds(
        window.tokens,
        num_ranks=window.num_ranks,
        capacity=window.seq_len,
        cp_sizes=(1,),
        padding=None,
        cost=QuadraticCost(),
    )
    return {**bounds, "num_microbatches": float(-(-bounds["num_microbatches"] // window.rows_per_rank))}


def rows_of_plan(plan: Plan) -> Int64Array:
    """Return int64[n]: the row of each sequence of a data-parallel plan that cuts and drops none.

    Example:
        >>> import dcpack
        >>> plan = dcpack.plan([4, 3, 3], num_ranks=2, capacity=4, scheduler="in_order", on_empty="dummy")
        >>> plan.to_sample_id_groups(), rows_of_plan(plan).tolist()
        ([[[0], [1]], [[2], []]], [0, 2, 1])
    """
    num_rows = plan.num_microbatches * plan.rows_per_rank
    row_of_bin = plan.first_rank * num_rows + plan.microbatch * plan.rows_per_rank + plan.row
    row_of = np.empty(plan.num_sequences, np.int64)
    row_of[plan.sequence_ids] = row_of_bin[plan.entry_bin]
    return row_of
