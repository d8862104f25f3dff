"""Lengths, ranks and costs to plans."""

from dcpack.scheduling.base import Group, MicroBatch, Problem, Scheduler
from dcpack.scheduling.driver import ON_EMPTY, SCHEDULERS, get_scheduler, make_plan
from dcpack.scheduling.in_order import InOrder
from dcpack.scheduling.packing_aware import PackingAware

__all__ = [
    "ON_EMPTY",
    "SCHEDULERS",
    "Group",
    "InOrder",
    "MicroBatch",
    "PackingAware",
    "Problem",
    "Scheduler",
    "get_scheduler",
    "make_plan",
]
