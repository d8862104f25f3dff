"""Where the time of all ranks goes: work on tokens, padding, CP communication, waiting."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcpack._checks import Float64Array, Int64Array, check_choice, check_cost, check_kinds
from dcpack.cost import CostModel
from dcpack.plans import Plan

__all__ = ["TimeShares", "time_shares"]

_SMALL = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class TimeShares:
    """Time of all ranks together, in the unit of the cost model; the four parts add up to ranks x step time.

    Attributes:
        work: what the real tokens cost without CP.
        padding: what padding tokens cost on top.
        ring: what CP costs on top: exposed transfers and latency.
        waiting: ranks that wait for the slowest one.
        waiting_for_one: the part of `waiting` where what is slowest is a bin with a single sequence.

    Example:
        >>> shares = TimeShares(work=3.0, waiting=1.0) + TimeShares(work=3.0, padding=1.0)
        >>> shares.total, shares.share("work")
        (8.0, 0.75)
    """

    work: float = 0.0
    padding: float = 0.0
    ring: float = 0.0
    waiting: float = 0.0
    waiting_for_one: float = 0.0

    @property
    def total(self) -> float:
        """Ranks x step time."""
        return self.work + self.padding + self.ring + self.waiting

    def __add__(self, other: TimeShares) -> TimeShares:
        return TimeShares(**{name: getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__})

    def share(self, name: str) -> float:
        """Return a part over the total.

        Example:
            >>> TimeShares(work=3.0, waiting=1.0).share("waiting")
            0.25
        """
        check_choice("name", name, self.__dataclass_fields__)
        return getattr(self, name) / self.total if self.total else 0.0

    def held_back_by(self) -> str:
        """Return in words what costs the most beside the work.

        Example:
            >>> TimeShares(work=3.0, waiting=1.0, waiting_for_one=0.9).held_back_by()
            'waiting for long sequences'
            >>> TimeShares(work=99.0, waiting=1.0).held_back_by()
            'the work itself'
        """
        if self.work >= (1 - _SMALL) * self.total:
            return "the work itself"
        largest = max(("padding", "ring", "waiting"), key=self.share)
        if largest == "waiting":
            return "waiting for " + ("long sequences" if 2 * self.waiting_for_one > self.waiting else "fuller ranks")
        return "padding" if largest == "padding" else "CP communication"


def time_shares(plan: Plan, cost: CostModel, *, sync: str = "microbatch") -> TimeShares:
    """Return where the ranks' time of one step goes.

    Args:
        plan: a plan with ranks, whose entries are real sequences.
        cost: the cost model.
        sync: as in `Plan.simulate`; ``waiting_for_one`` is told micro-batch by micro-batch also under ``"step"``.

    Example:
        >>> import dcpack
        >>> plan = dcpack.plan([4, 2], num_ranks=2, capacity=4)
        >>> shares = time_shares(plan, dcpack.QuadraticCost())  # 16 and 4: the second rank waits for 12
        >>> shares.work, shares.waiting, shares.waiting_for_one
        (20.0, 12.0, 12.0)
    """
    check_kinds(plan=(plan, Plan))
    check_cost(cost)
    busy_of = plan.rank_times(cost)
    busy = float(busy_of.sum())
    alone = _time_without_cp(plan, cost, plan.entry_padded_lengths)
    work = _time_without_cp(plan, cost, plan.entry_lengths)
    waiting = max(plan.num_ranks * plan.simulate(cost, sync=sync) - busy, 0.0)
    return TimeShares(
        work=work,
        padding=alone - work,
        ring=busy - alone,
        waiting=waiting,
        waiting_for_one=waiting * _share_for_one(plan, cost, busy_of),
    )


def _time_without_cp(plan: Plan, cost: CostModel, lengths: Int64Array) -> float:
    columns = cost.columns(lengths)
    sums = np.zeros((plan.num_bins, columns.shape[1]))
    np.add.at(sums, plan.entry_bin, columns)
    ones = np.ones(plan.num_bins, np.int64)
    return float(cost.bin_time(sums, ones, np.zeros(plan.num_bins, np.bool_))[~plan.dummy].sum())


def _share_for_one(plan: Plan, cost: CostModel, busy: Float64Array) -> float:
    """Return the share of the waiting in micro-batches whose slowest bin holds a single sequence."""
    waits = plan.num_ranks * busy.max(axis=1, initial=0.0) - busy.sum(axis=1)
    if not waits.sum() > 0:
        return 0.0
    order = np.lexsort((plan.bin_times(cost), plan.microbatch))
    last = np.flatnonzero(np.diff(plan.microbatch[order], append=plan.num_microbatches))  # the slowest of each
    single = np.diff(plan.offsets)[order[last]] == 1
    return float(waits[single].sum() / waits.sum())
