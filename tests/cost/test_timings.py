from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.cost import BinTiming, RingCost, StepRecorder, StepTiming, full_pairs
from dcpack.cost.timings import tabulate
from dcpack.errors import ArgumentError

PLAN = dcpack.plan([4, 3, 2, 2, 1], num_ranks=2, capacity=4, cp_sizes=(1,))


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 200), min_size=1, max_size=30),
    num_ranks=st.sampled_from([1, 2, 4, 6]),
    sync=st.sampled_from(["microbatch", "step"]),
)
def test_rows_add_up_to_the_simulated_step(lengths: list[int], num_ranks: int, sync: str) -> None:
    """The row of a step, priced by a cost that is linear in it, is the time that the plan itself simulates."""
    plan = dcpack.plan(lengths, num_ranks=num_ranks, capacity=100, overlong="split")
    cost = RingCost(linear=50.0, ring_intra=5.0, ring_inter=70.0, node_size=2)
    samples = [StepTiming(plan=plan, time=1.0, sync=sync), BinTiming(lengths=[7], time=2.0)]
    samples += [StepTiming(plan=plan, time=1.0, rank=rank) for rank in range(num_ranks)]
    table = tabulate(samples, full_pairs, cost.node_size)
    bin_times = cost.bin_time(table.sums, table.cp_size, table.crosses)
    rows = table.rows(bin_times[:, np.newaxis], bin_times)
    assert rows[0, 0] == pytest.approx(plan.simulate(cost, sync=sync))
    assert rows[1, 0] == 50 * 7 + 49
    np.testing.assert_allclose(rows[2:, 0], plan.rank_times(cost).sum(axis=0))


def test_bins_by_hand() -> None:
    samples = [BinTiming(lengths=[3, 4], time=2.0), BinTiming(lengths=[5], time=3.0, cp_size=2, crosses_node=True)]
    table = tabulate(samples, full_pairs, 8)
    assert table.sums.tolist() == [[7, 25], [5, 25]]
    assert table.cp_size.tolist() == [1, 2]
    assert table.crosses.tolist() == [False, True]
    assert table.times.tolist() == [2, 3]
    assert table.rows(table.sums, table.sums[:, 0]).tolist() == [[7, 25], [5, 25]]


def test_the_recorder_leaves_out_the_warm_up_and_keeps_the_newest() -> None:
    recorder = StepRecorder(sync="step", warmup=2, max_samples=3)
    for k in range(1, 8):
        recorder.record(PLAN, float(k), rank=k % 2)
    assert [sample.time for sample in recorder.samples] == [5, 6, 7]
    assert [sample.rank for sample in recorder.samples] == [1, 0, 1]
    assert {sample.sync for sample in recorder.samples} == {"step"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"time": 0.0}, "time must be a finite number above 0, got 0.0"),
        ({"time": float("nan")}, "time must be a finite number above 0, got nan"),
        ({"sync": "never"}, "sync must be one of 'microbatch', 'step', got 'never'"),
        ({"rank": 2}, "rank must be from 0 to 1, got 2"),
        ({"plan": dcpack.pack([3], capacity=4)}, "plan must have ranks; make it with dcpack.plan"),
    ],
)
def test_a_step_that_cannot_be_is_named(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        StepTiming(**{"plan": PLAN, "time": 1.0, **arguments})


def test_a_bin_that_cannot_be_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"lengths must be at least 0: lengths\[1\] = -2"):
        BinTiming(lengths=[3, -2], time=1.0)
    with pytest.raises(ArgumentError, match="cp_size must be at least 1, got 0"):
        BinTiming(lengths=[3], time=1.0, cp_size=0)
    with pytest.raises(ArgumentError, match="warmup must be at least 0, got -1"):
        StepRecorder(warmup=-1)
    with pytest.raises(ArgumentError, match="max_samples must be from 1 to 2147483647, got 0"):
        StepRecorder(max_samples=0)
