"""Calls among the constructors: coming to the same plans."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from dcpack.comm import Communicator
from dcpack.comm.guard import tell_failure
from dcpack.comm.trees import broadcast_tree
from dcpack.errors import PlanError
from dcpack.plans import Plan
from dcpack.scheduling.local_gain import Decision

__all__ = ["Planned", "share_plans"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """The plans of a step.

    Attributes:
        plans: one for each window.
        decisions: what balancing decided in each; empty where CP is planned.
        loads_before: work of each rank in the step as its samples were read, in the unit of the costs.
        loads_after: the same as it is planned.
        num_moved: samples that another rank computes than the one that was to, or several do.
    """

    plans: tuple[Plan, ...]
    decisions: tuple[Decision, ...] = ()
    loads_before: tuple[float, ...] = ()
    loads_after: tuple[float, ...] = ()
    num_moved: int = 0


def share_plans(
    communicator: Communicator, planner: int, make: Callable[[], Planned], *, broadcast: bool = True
) -> Planned:
    """Return the same plans on all members: those of one planner, or each member's own, compared. Collective.

    Args:
        communicator: of the constructors.
        planner: member that plans.
        make: plans; a pure function of what all members know.
        broadcast: whether the planner alone calls `make`.

    Raises:
        PeerError: `make` failed somewhere, or members came to different plans; on all members.
    """
    if not broadcast:
        with tell_failure(communicator):
            planned = make()
        _require_same(communicator, planned.plans)
        return planned
    planned, tree = None, None
    if communicator.rank == planner:
        with tell_failure(communicator):
            planned = make()
            decisions = [[*asdict(decision).values()] for decision in planned.decisions]
            tree = {
                "plans": [plan.to_json() for plan in planned.plans],
                "decisions": decisions,
                "loads": [list(planned.loads_before), list(planned.loads_after)],
                "num_moved": planned.num_moved,
            }
    if communicator.size == 1 and planned is not None:
        return planned
    received = broadcast_tree(communicator, tree, planner)
    if planned is not None:
        return planned
    return Planned(
        plans=tuple(Plan.from_json(text) for text in received["plans"]),
        decisions=tuple(_decision(values) for values in received["decisions"]),
        loads_before=tuple(received["loads"][0]),
        loads_after=tuple(received["loads"][1]),
        num_moved=received["num_moved"],
    )


def _decision(values: Sequence[object]) -> Decision:
    return Decision(**dict(zip(Decision.__dataclass_fields__, values, strict=True)))  # type: ignore[arg-type]


def _require_same(communicator: Communicator, plans: Sequence[Plan]) -> None:
    digest = hashlib.sha256("".join(plan.digest() for plan in plans).encode()).digest()
    digests = [bytes(part) for part in communicator.all_gather(np.frombuffer(digest, np.uint8))]
    if len(set(digests)) == 1:
        return
    reference = broadcast_tree(communicator, [plan.to_json() for plan in plans], 0)
    difference = None
    if len(reference) != len(plans):
        difference = f"{len(reference)} plans against {len(plans)}"
    for number, (text, mine) in enumerate(zip(reference, plans, strict=False)):
        if difference is None and (found := Plan.from_json(text).first_difference(mine)) is not None:
            difference = f"window {number}: {found}"
    text = f"this rank's plan differs from that of rank {communicator.ranks[0]}: {difference}"
    communicator.agree(None if difference is None else PlanError(text))
