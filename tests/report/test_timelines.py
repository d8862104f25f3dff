from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.cost import CostModel, QuadraticCost, RingCost, get_cost
from dcpack.errors import ArgumentError, PlanError
from dcpack.plans import Plan
from dcpack.report import save_plan_picture, timeline_of, trace_events

Bin = tuple[int, int, int, int, list[int]]


def _plan(bins: Sequence[Bin], *, num_ranks: int, rows_per_rank: int = 1) -> Plan:
    """A plan of bins: micro-batch, first rank, CP size, row, and the lengths in it (none: a dummy)."""
    lengths = [length for _, _, _, _, held in bins for length in held]
    numbers = [np.array([one[k] for one in bins], np.int64) for k in range(4)]
    sizes = [len(held) for *_, held in bins]
    return Plan(
        microbatch=numbers[0],
        first_rank=numbers[1],
        cp_size=numbers[2],
        row=numbers[3],
        oversized=np.zeros(len(bins), np.bool_),
        dummy=np.array(sizes) == 0,
        offsets=np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64),
        sequence_ids=np.arange(len(lengths)),
        starts=np.zeros(len(lengths), np.int64),
        entry_lengths=np.array(lengths, np.int64),
        lengths=np.array(lengths, np.int64),
        dropped=np.zeros(len(lengths), np.int64),
        num_ranks=num_ranks,
        num_microbatches=max((one[0] for one in bins), default=-1) + 1,
        rows_per_rank=rows_per_rank,
        capacity=100,
        cp_sizes=(1, 2, 4),
    )


# Work is L * L / cp. Rank 0: 9, 4 | 4, 4; rank 1: 16, 1 | 1, 1.
ROWS: list[Bin] = [
    (0, 0, 1, 0, [3]),
    (0, 0, 1, 1, [2]),
    (0, 1, 1, 0, [4]),
    (0, 1, 1, 1, [1]),
    (1, 0, 1, 0, [2]),
    (1, 0, 1, 1, [2]),
    (1, 1, 1, 0, [1]),
    (1, 1, 1, 1, [1]),
]

# Ranks 0 and 1: 4 and 16, then 16 / 2 together. Ranks 2 and 3: 36 / 2 together, then 4 and 1.
GROUPS: list[Bin] = [
    (0, 0, 1, 0, [2]),
    (0, 1, 1, 0, [4]),
    (0, 2, 2, 0, [6]),
    (1, 0, 2, 0, [4]),
    (1, 2, 1, 0, [2]),
    (1, 3, 1, 0, [1]),
]


@pytest.mark.parametrize(
    ("bins", "sync", "starts", "ends"),
    [
        (ROWS, "microbatch", [0, 9, 0, 16, 17, 21, 17, 18], [17, 25]),
        (ROWS, "step", [0, 9, 0, 16, 13, 17, 17, 18], [17, 21]),
        (GROUPS, "microbatch", [0, 0, 0, 18, 18, 18], [18, 26]),
        (GROUPS, "step", [0, 0, 0, 16, 18, 18], [18, 24]),
    ],
)
def test_bars_by_hand(bins: list[Bin], sync: str, starts: list[float], ends: list[float]) -> None:
    rows = 2 if bins is ROWS else 1
    plan = _plan(bins, num_ranks=2 if bins is ROWS else 4, rows_per_rank=rows)
    plan.validate()
    timeline = timeline_of(plan, QuadraticCost(), sync=sync)
    assert timeline.starts.tolist() == starts
    assert timeline.durations.tolist() == [sum(held) ** 2 / cp for _, _, cp, _, held in bins]
    assert timeline.microbatch_ends.tolist() == ends
    assert timeline.unit == "cost"


@pytest.mark.parametrize("sync", ["microbatch", "step"])
def test_the_order_of_the_bins_means_nothing(sync: str) -> None:
    for bins, num_ranks, rows in ((ROWS, 2, 2), (GROUPS, 4, 1)):
        whole = timeline_of(_plan(bins, num_ranks=num_ranks, rows_per_rank=rows), QuadraticCost(), sync=sync)
        order = np.random.default_rng(1).permutation(len(bins))
        shuffled = _plan([bins[i] for i in order], num_ranks=num_ranks, rows_per_rank=rows)
        mixed = timeline_of(shuffled, QuadraticCost(), sync=sync)
        assert mixed.starts.tolist() == whole.starts[order].tolist()
        assert mixed.microbatch_ends.tolist() == whole.microbatch_ends.tolist()


def test_microbatches_is_how_ranks_wait_unless_told() -> None:
    plan = _plan(ROWS, num_ranks=2, rows_per_rank=2)
    assert timeline_of(plan, QuadraticCost()).microbatch_ends.tolist() == [17, 25]
    with pytest.raises(ArgumentError, match="sync must be one of 'microbatch', 'step', got 'never'"):
        timeline_of(plan, QuadraticCost(), sync="never")


def test_nothing_and_dummies_take_no_room() -> None:
    for sync in ("microbatch", "step"):
        nothing = timeline_of(dcpack.plan([], num_ranks=2, capacity=4), QuadraticCost(), sync=sync)
        assert (nothing.starts.size, nothing.durations.size, nothing.microbatch_ends.size) == (0, 0, 0)
        dummy = _plan([(0, 0, 1, 0, [3]), (0, 1, 1, 0, [])], num_ranks=2)
        timeline = timeline_of(dummy, QuadraticCost(), sync=sync)
        assert (timeline.starts.tolist(), timeline.durations.tolist()) == ([0, 0], [9, 0])


def test_times_are_those_of_the_cost_model() -> None:
    cost = get_cost("llama3-8b@h100")
    plan = dcpack.plan([4000, 3000, 9000], num_ranks=2, capacity=8192, cost=cost)
    timeline = timeline_of(plan, cost)
    assert timeline.unit == "s"
    assert timeline.durations.tolist() == plan.bin_times(cost).tolist()
    assert timeline.durations.min() > 0


def test_a_plan_without_ranks_has_no_timeline(tmp_path: Path) -> None:
    plan, cost = dcpack.pack([3, 4], capacity=8), QuadraticCost()
    for use in (timeline_of, trace_events, partial(save_plan_picture, tmp_path / "a.png")):
        with pytest.raises(PlanError, match="without ranks"):
            use(plan, cost)


@given(
    lengths=st.lists(st.integers(1, 300), min_size=1, max_size=40),
    num_ranks=st.sampled_from([1, 2, 3, 4, 8]),
    scheduler=st.sampled_from(["packing_aware", "in_order"]),
    cost=st.sampled_from([QuadraticCost(), RingCost()]),
    sync=st.sampled_from(["microbatch", "step"]),
)
@settings(max_examples=60, deadline=None)
def test_bars_are_the_simulation_laid_out(
    lengths: list[int], num_ranks: int, scheduler: str, cost: CostModel, sync: str
) -> None:
    plan = dcpack.plan(
        lengths, num_ranks=num_ranks, capacity=100, scheduler=scheduler, cost=cost, overlong="split", on_empty="dummy"
    )
    timeline = timeline_of(plan, cost, sync=sync)
    ends = timeline.starts + timeline.durations
    busy = plan.rank_times(cost)
    for rank in range(num_ranks):
        mine = plan.bins_of_rank(rank)
        assert timeline.durations[mine].sum() == pytest.approx(busy[:, rank].sum())
        assert timeline.starts[mine[0]] == 0
        # One bar after the other, in the order of the micro-batches.
        assert all(ends[a] <= timeline.starts[b] for a, b in pairwise(mine))
    last = timeline.microbatch_ends[-1]
    assert last == pytest.approx(ends.max())
    simulated = plan.simulate(cost, sync=sync)
    if sync == "microbatch":
        assert last == pytest.approx(simulated)
        for number, (a, b) in enumerate(pairwise(timeline.microbatch_ends)):
            assert b >= a
            assert np.all(timeline.starts[plan.microbatch == number + 1] == a)
    else:
        # Ranks wait for those they share a bin with, which the simulation of a step leaves out.
        assert simulated * (1 - 1e-12) <= last <= plan.simulate(cost, sync="microbatch") * (1 + 1e-12)
