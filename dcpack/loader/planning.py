"""From the table of a step to plans, and from plans to who has which samples."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np

from dcpack._checks import Int64Array
from dcpack.comm import Communicator
from dcpack.loader.costs import CostRule
from dcpack.loader.policies import OwnAlgorithm
from dcpack.loader.sharing import Planned, share_plans
from dcpack.loader.step_metrics import imbalance, mean_cp_size_of
from dcpack.loader.step_table import StepTable
from dcpack.loader.types import PackingConstraints
from dcpack.loader.windows import Policy, Window, plan_window

__all__ = ["StepLayout", "WindowPlanner", "report"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepLayout:
    """Where the samples of a step go.

    Attributes:
        destination: int64[n], member that shall have each sample of the table.
        microbatches: ``[micro-batch][row] -> samples`` of one member.
    """

    destination: Int64Array
    microbatches: tuple[tuple[tuple[int, ...], ...], ...]

    @property
    def samples(self) -> tuple[int, ...]:
        """The member's samples, in the order in which they are used."""
        return tuple(i for rows in self.microbatches for row in rows for i in row)


@dataclass(frozen=True, kw_only=True, slots=True)
class WindowPlanner:
    """Plans the windows of a step.

    Attributes:
        policy: what proposes placements.
        rule: what samples cost.
        constraints: what rows must keep.
        min_balance_gain: below it a placement stays.
        rows_per_round: rows of a rank in a round of the sampler, and in a micro-batch.
        window_size: rounds planned together.
        one_a_row: whether a row is one sample.
        may_be_empty: whether rows may stay empty.
        sync: when ranks meet.
        planner: member that plans.
        broadcast: whether it alone does.
        logs: whether decisions are logged.
    """

    policy: Policy
    rule: CostRule
    constraints: PackingConstraints
    min_balance_gain: float
    rows_per_round: int
    window_size: int
    one_a_row: bool
    may_be_empty: bool
    sync: str
    planner: int
    broadcast: bool
    logs: bool

    @property
    def needs_metadata(self) -> bool:
        """Whether the policy looks at the whole metadata, so that it must travel."""
        return isinstance(self.policy, OwnAlgorithm)

    def windows(self, num_rounds: int) -> list[range]:
        """Return the rounds of each window.

        Example:
            >>> from unittest.mock import Mock
            >>> WindowPlanner.windows(Mock(window_size=2), 5)
            [range(0, 2), range(2, 4), range(4, 5)]
        """
        starts = range(0, num_rounds, self.window_size)
        return [range(start, min(start + self.window_size, num_rounds)) for start in starts]

    def plan(self, communicator: Communicator, table: StepTable) -> tuple[Planned, StepLayout]:
        """Return the plans of a step and the layout that they make for this member. Collective."""
        planned = share_plans(communicator, self.planner, lambda: self.plan_alone(table), broadcast=self.broadcast)
        if self.logs and communicator.rank == self.planner:
            report(planned)
        return planned, self.layout(table, planned, communicator.rank)

    def plan_alone(self, table: StepTable) -> Planned:
        """Return the plans of a step; a pure function of the table."""
        windows = [self._window(table, rounds) for rounds in self.windows(table.num_rounds)]
        made = [plan_window(window, self.policy, min_balance_gain=self.min_balance_gain) for window in windows]
        return Planned(
            plans=tuple(window.plan for window in made),
            decisions=tuple(window.decision for window in made),
            loads_before=tuple(np.sum([window.loads_before for window in made], axis=0).tolist()),
            loads_after=tuple(np.sum([window.loads_after for window in made], axis=0).tolist()),
            num_moved=sum(sum(window.decision.moved) for window in made),
        )

    def _window(self, table: StepTable, rounds: range) -> Window:
        return table.window(
            rounds,
            rows_per_round=self.rows_per_round,
            constraints=self.constraints,
            rule=self.rule,
            one_a_row=self.one_a_row,
            may_be_empty=self.may_be_empty,
            sync=self.sync,
        )

    def layout(self, table: StepTable, planned: Planned, member: int) -> StepLayout:
        """Return where the samples go and what `member` has."""
        destination = np.full(table.num_samples, -1, np.int64)
        microbatches: list[tuple[tuple[int, ...], ...]] = []
        for rounds, plan in zip(self.windows(table.num_rounds), planned.plans, strict=True):
            items = table.items_of(rounds)
            destination[items[plan.sequence_ids]] = plan.first_rank[plan.entry_bin]
            mine, offsets = items[plan.sequence_ids].tolist(), plan.offsets.tolist()
            rows = [tuple(mine[offsets[b] : offsets[b + 1]]) for b in plan.bins_of_rank(member).tolist()]
            size = plan.rows_per_rank
            microbatches += [tuple(rows[start : start + size]) for start in range(0, len(rows), size)]
        return StepLayout(destination=destination, microbatches=tuple(microbatches))


def report(planned: Planned) -> None:
    """Log what was decided for a step: on the rank that plans, where the configuration asks for it."""
    for number, decision in enumerate(planned.decisions):
        _log.info(
            "window %d: objective %g, candidate %g, gain %.4f, %s; samples received by rank: %s",
            number,
            decision.objective_before,
            decision.objective_candidate,
            decision.gain,
            "accepted" if decision.accepted else "left",
            list(decision.moved),
        )
    _log.info(
        "step: imbalance %.4f as read, %.4f as planned; %d samples moved; mean CP size %.3f",
        imbalance(planned.loads_before),
        imbalance(planned.loads_after),
        planned.num_moved,
        mean_cp_size_of(planned.plans),
    )
