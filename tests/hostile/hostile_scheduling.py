"""`dcpack.scheduling`: each public callable, what it takes, and what a scheduler of a user may return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from hostile_calls import VALUES, Call
from hostile_core import plan_arguments

import dcpack
from dcpack import scheduling
from dcpack.scheduling import Group

LENGTHS = [3, 1, 4, 1, 5, 2]
COST = dcpack.QuadraticCost()
ROWS = [[[0, 1], [2]], [[3, 4], [5]]]


def plan(scheduler: Any, **options: Any) -> dcpack.Plan:
    return dcpack.plan(LENGTHS, scheduler=scheduler, **{"num_ranks": 2, "capacity": 8, "cost": COST, **options})


def microbatches() -> list[Any]:
    return [[Group(2, [0, 1])], [Group(1, [2, 3]), Group(1, [4, 5])]]


class Own:
    """A scheduler of a user, one thing about it as the test says."""

    name = "own"

    def __init__(
        self, usable: Any = None, returned: Any = None, name: Any = "own", options: Any = (), equal_groups: Any = False
    ) -> None:
        self.usable, self.returned = usable, returned
        self.name, self.options, self.equal_groups = name, options, equal_groups

    def usable_cp_sizes(self, legal: Any) -> Any:
        return legal if self.usable is None else self.usable[0]

    def schedule(self, problem: Any) -> Any:
        return microbatches() if self.returned is None else self.returned[0]


def returned(change: Callable[[list[Any], Any], Any]) -> Call:
    """A value in one place of what a scheduler returns."""

    def fn(value: Any) -> dcpack.Plan:
        made = microbatches()
        change(made, value)
        return plan(Own(returned=[made]))

    return Call(fn, lambda: {"value": {"cp_size": 1, "row": 0, "item": 3}.get(change.__name__, [2, 3])})


def item(made: list[Any], value: Any) -> None:
    made[1][0].items[1] = value


def items(made: list[Any], value: Any) -> None:
    made[1][0].items = value


def cp_size(made: list[Any], value: Any) -> None:
    made[1][0].cp_size = value


def row(made: list[Any], value: Any) -> None:
    made[1][0].row = value


def in_local_gain(value: Any) -> dcpack.Plan:
    return plan(scheduling.LocalGain(reference=Own(returned=[value])))


class OwnCost:
    """A cost model of a user."""

    unit = "s"

    def __init__(self, node_size: Any) -> None:
        self.node_size = node_size

    def columns(self, padded_lengths: Any) -> Any:
        return padded_lengths[:, np.newaxis] * 1.0

    def bin_time(self, column_sums: Any, cp_size: Any, crosses_node: Any) -> Any:
        return column_sums[:, 0] / cp_size


CALLS = {
    "make_plan node_size": Call(lambda value: plan("in_order", cost=OwnCost(node_size=value)), lambda: {"value": 8}),
    "get_scheduler": Call(scheduling.get_scheduler, lambda: {"scheduler": "balanced"}),
    "make_plan": Call(
        scheduling.make_plan,
        plan_arguments,
        few=True,
    ),
    "Budget": Call(
        lambda **given: plan("dynamic_cp", budgets=[scheduling.Budget(**given)], on_empty="dummy"),
        lambda: {"name": "images", "amounts": [1, 0, 2, 0, 0, 1], "limit": 2},
    ),
    "Balanced": Call(
        lambda **given: plan(scheduling.Balanced(**given)),
        lambda: {"rows_per_rank": 1, "window": 2, "pipeline_order": False},
    ),
    "LocalGain": Call(
        lambda **given: plan(scheduling.LocalGain(**given)),
        lambda: {
            "reference": ROWS,
            "costs": [9, 9, 1, 1, 4, 4],
            "min_balance_gain": 0.1,
            "objective": "variance",
            "balance_group_size": 2,
            "rows_per_rank": 1,
            "budgets": (),
        },
    ),
    "LocalGain rows": Call(
        lambda value: plan(scheduling.LocalGain(reference=[value, ROWS[1]])), lambda: {"value": ROWS[0]}
    ),
    "LocalGain ids": Call(
        lambda value: plan(scheduling.LocalGain(reference=[[value, [2]], ROWS[1]])), lambda: {"value": [0, 1]}
    ),
    "LocalGain id": Call(
        lambda value: plan(scheduling.LocalGain(reference=[[[0, value], [2]], ROWS[1]])), lambda: {"value": 1}
    ),
    "LocalGain microbatches": Call(in_local_gain, lambda: {"value": [[Group(1, [0, 1, 2]), Group(1, [3, 4, 5])]]}),
    "Scheduler": Call(
        lambda **given: plan(Own(**given)), lambda: {"name": "own", "options": (), "equal_groups": False}
    ),
    "Scheduler.usable_cp_sizes": Call(lambda legal: plan(Own(usable=[legal])), lambda: {"legal": (1, 2)}),
    "Scheduler.schedule": Call(lambda problem: plan(Own(returned=[problem])), lambda: {"problem": microbatches()}),
    "Scheduler.schedule microbatch": Call(
        lambda value: plan(Own(returned=[[value]])), lambda: {"value": [Group(2, [0, 1, 2, 3, 4, 5])]}
    ),
    "Scheduler.schedule group": Call(
        lambda value: plan(Own(returned=[[[value]]])), lambda: {"value": Group(2, [0, 1, 2, 3, 4, 5])}
    ),
    **{f"Scheduler.schedule {change.__name__}": returned(change) for change in (item, items, cp_size, row)},
}

_BY_MAKE_PLAN = "called by make_plan, of what a user's own may return this table has the cases"
LEFT_OUT = {
    "Decision": "a result of LocalGain.decide",
    "Group": "made by schedulers; make_plan judges those it gets",
    "Problem": "made by make_plan out of checked arguments",
    **{f"Problem.{name}": "called by schedulers" for name in ("describe", "fits", "fits_sizes", "padded_to")},
    "Problem.smallest_size": "called by schedulers",
    **{
        f"{scheduler}.{method}": _BY_MAKE_PLAN
        for scheduler in ("Balanced", "DynamicCP", "InOrder", "LocalGain", "PackingAware", "UniformCP")
        for method in ("schedule", "usable_cp_sizes")
    },
    "LocalGain.decide": "called with the problem that make_plan made",
    "LocalGain.improve": "called with slots that the loader or solve made",
    "LocalGain.solve": "called with the problem that make_plan made",
}

# What of the values has a meaning there.
TAKES = {
    "make_plan node_size.value": "none, huge, number of an enum",
    "make_plan.lengths": "list",
    "make_plan.max_cp_size": "none, huge",
    "make_plan.padding": "none",
    "make_plan.max_sequences": "none, huge",
    "make_plan.num_heads": "none, list",
    "make_plan.max_groups": "none, huge",
    "make_plan.budgets": "list",
    "make_plan.groups": "none",
    "make_plan.max_displacement": "none, huge",
    "make_plan.effort": "none",
    "Budget.name": "text, surrogate",
    "Budget.limit": "huge, number of an enum",
    "Balanced.window": "none, huge, number of an enum",
    "Balanced.pipeline_order": "true, numpy true",
    "Balanced.rows_per_rank": "number of an enum",
    "LocalGain.costs": "none",
    "LocalGain.min_balance_gain": "zero, half, fraction, minus zero",
    "LocalGain.balance_group_size": "none, number of an enum",
    "LocalGain.rows_per_rank": "none, number of an enum",
    "LocalGain.budgets": "list",
    "Scheduler.name": ", ".join(VALUES),
    "Scheduler.options": "list",
    "Scheduler.equal_groups": "true, numpy true",
    "Scheduler.schedule item.value": "0-d",
    "Scheduler.schedule row.value": "zero",
}
