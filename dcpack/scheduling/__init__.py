"""Lengths, ranks and costs to plans."""

from dcpack.scheduling.balanced import Balanced
from dcpack.scheduling.base import Group, MicroBatch, Problem, Scheduler
from dcpack.scheduling.budgets import Budget
from dcpack.scheduling.driver import ON_EMPTY, SCHEDULERS, get_scheduler, make_plan
from dcpack.scheduling.dynamic_cp import DynamicCP
from dcpack.scheduling.in_order import InOrder
from dcpack.scheduling.local_gain import Decision, LocalGain
from dcpack.scheduling.packing_aware import PackingAware
from dcpack.scheduling.uniform_cp import UniformCP

__all__ = [
    "ON_EMPTY",
    "SCHEDULERS",
    "Balanced",
    "Budget",
    "Decision",
    "DynamicCP",
    "Group",
    "InOrder",
    "LocalGain",
    "MicroBatch",
    "PackingAware",
    "Problem",
    "Scheduler",
    "UniformCP",
    "get_scheduler",
    "make_plan",
]
