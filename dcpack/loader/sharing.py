"""Calls among the constructors: coming to the same plans."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from dcpack.comm import Communicator
from dcpack.comm.guard import tell_failure
from dcpack.comm.trees import broadcast_tree, decode_tree, encode_tree
from dcpack.errors import PlanError
from dcpack.padding import PaddingRule
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
    planned, message = None, None
    if communicator.rank == planner:
        with tell_failure(communicator):
            planned = make()
            decisions = [[*asdict(decision).values()] for decision in planned.decisions]
            tree = {
                "plans": [_tree_of(plan) for plan in planned.plans],
                "decisions": decisions,
                "loads": [list(planned.loads_before), list(planned.loads_after)],
                "num_moved": planned.num_moved,
            }
            message = encode_tree(communicator, tree) if communicator.size > 1 else None
    if communicator.size == 1 and planned is not None:
        return planned
    message = communicator.broadcast(message, planner)
    if planned is not None:
        return planned
    with tell_failure(communicator):
        received = decode_tree(communicator, message)
        plans = tuple(_plan_of(tree) for tree in received["plans"])
    return Planned(
        plans=plans,
        decisions=tuple(_decision(values) for values in received["decisions"]),
        loads_before=tuple(received["loads"][0]),
        loads_after=tuple(received["loads"][1]),
        num_moved=received["num_moved"],
    )


def _tree_of(plan: Plan) -> dict[str, Any]:
    values = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return {**values, "padding": None if plan.padding is None else asdict(plan.padding), "digest": plan.digest()}


def _plan_of(tree: Mapping[str, Any]) -> Plan:
    values = {**tree, "padding": None if tree["padding"] is None else PaddingRule(**tree["padding"])}
    digest = values.pop("digest")
    plan = Plan(**values)
    if plan.digest() != digest:
        raise PlanError(f"a plan was changed on its way: its digest is {plan.digest()}, its sender's was {digest}")
    return plan


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
