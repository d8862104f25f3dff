"""When each rank works on what: a plan laid out in time, for pictures and traces."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcpack._checks import Float64Array, Int64Array, check_choice, check_cost, check_kinds
from dcpack.cost import CostModel
from dcpack.errors import PlanError
from dcpack.plans import SYNC_MODES, Plan

__all__ = ["Timeline", "timeline_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Timeline:
    """One bar for each bin.

    Attributes:
        starts: float64[b], when the ranks of the bin begin with it.
        durations: float64[b], how long they work.
        microbatch_ends: float64[num_microbatches], when the last rank is done with each micro-batch.
        unit: unit of the times.

    Example:
        >>> import dcpack
        >>> plan = dcpack.plan([4, 2, 3], num_ranks=2, capacity=4, scheduler="in_order", on_empty="dummy")
        >>> timeline_of(plan, dcpack.QuadraticCost()).microbatch_ends.tolist()
        [16.0, 25.0]
    """

    starts: Float64Array
    durations: Float64Array
    microbatch_ends: Float64Array
    unit: str


def timeline_of(plan: Plan, cost: CostModel, *, sync: str = "microbatch") -> Timeline:
    """Lay the bins of a plan out in time.

    Under ``"microbatch"`` all ranks begin a micro-batch together, when the slowest has ended the one before; rows of a
    rank follow one another. Under ``"step"`` a rank begins as soon as all ranks of the bin's CP group are free.

    Args:
        plan: a plan with ranks.
        cost: the cost model that times it.
        sync: ``"microbatch"`` or ``"step"``, when ranks meet.

    Returns:
        When each bin begins and how long it takes.

    Raises:
        PlanError: a plan without ranks.
        ArgumentError: an unknown `sync`.

    Example:
        >>> import dcpack
        >>> plan = dcpack.plan([4, 2, 3], num_ranks=2, capacity=4, scheduler="in_order", on_empty="dummy")
        >>> timeline_of(plan, dcpack.QuadraticCost()).starts.tolist()
        [0.0, 0.0, 16.0, 16.0]
    """
    check_kinds(plan=(plan, Plan))
    check_cost(cost)
    check_choice("sync", sync, SYNC_MODES)
    if plan.num_ranks == 0:
        raise PlanError("a plan without ranks has no timeline; make it with dcpack.plan")
    durations = plan.bin_times(cost)
    starts = np.zeros(plan.num_bins)
    ends = np.zeros(plan.num_microbatches)
    free = np.zeros(plan.num_ranks)  # when each rank is done with what it has
    for b in _in_time_order(plan).tolist():
        m, ranks = plan.microbatch[b], slice(plan.first_rank[b], plan.first_rank[b] + plan.cp_size[b])
        earliest = ends[m - 1] if sync == "microbatch" and m else 0.0
        starts[b] = max(earliest, free[ranks].max())
        free[ranks] = starts[b] + durations[b]
        ends[m] = max(ends[m], free[ranks].max())
    return Timeline(starts=starts, durations=durations, microbatch_ends=ends, unit=cost.unit)


def _in_time_order(plan: Plan) -> Int64Array:
    return np.lexsort((plan.first_rank, plan.row, plan.microbatch))
