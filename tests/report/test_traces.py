from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.cost import CostModel, QuadraticCost, get_cost
from dcpack.plans import Plan
from dcpack.report import save_trace, trace_events

COST = get_cost("llama3-8b@h100")


def _plan(**options: Any) -> Plan:
    """Several micro-batches on four ranks, with CP sizes 2 and 1."""
    return dcpack.plan(
        [150, 90, 80, 40, 30, 190, 100, 99],
        **{"num_ranks": 4, "capacity": 100, "cost": COST, "max_cp_size": 2, **options},
    )


def _slices(trace: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in trace["traceEvents"] if event["ph"] == "X"]


def test_the_trace_by_hand() -> None:
    # Micro-batch 0: 4 and 2 on rank 0 and 1; micro-batch 1: 3 on rank 0, a dummy on rank 1. Work 16, 4 | 9, 0.
    plan = dcpack.plan([4, 2, 3], num_ranks=2, capacity=4, scheduler="in_order", on_empty="dummy")
    trace = trace_events(plan, QuadraticCost())
    assert trace["displayTimeUnit"] == "ms"
    assert trace["otherData"] == {"time_unit": "cost"}
    metadata = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    assert metadata == [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": "simulated step, 2 ranks"}},
        {"ph": "M", "pid": 0, "tid": 0, "name": "thread_name", "args": {"name": "rank 0"}},
        {"ph": "M", "pid": 0, "tid": 0, "name": "thread_sort_index", "args": {"sort_index": 0}},
        {"ph": "M", "pid": 0, "tid": 1, "name": "thread_name", "args": {"name": "rank 1"}},
        {"ph": "M", "pid": 0, "tid": 1, "name": "thread_sort_index", "args": {"sort_index": 1}},
    ]
    found = [(e["tid"], e["name"], e["cat"], e["ts"], e["dur"]) for e in _slices(trace)]
    # A thousand units of cost are shown as one microsecond.
    assert found == [
        (0, "micro-batch 0: 1 sequence", "cp 1", 0.0, pytest.approx(0.016)),
        (1, "micro-batch 0: 1 sequence", "cp 1", 0.0, pytest.approx(0.004)),
        (0, "micro-batch 1: 1 sequence", "cp 1", pytest.approx(0.016), pytest.approx(0.009)),
        (1, "micro-batch 1: dummy", "cp 1", pytest.approx(0.016), 0.0),
    ]
    assert [e["args"] for e in _slices(trace)] == [
        {"cp_size": 1, "tokens": 4, "sequences": [0], "lengths": [4]},
        {"cp_size": 1, "tokens": 2, "sequences": [1], "lengths": [2]},
        {"cp_size": 1, "tokens": 3, "sequences": [2], "lengths": [3]},
        {"cp_size": 1, "tokens": 0, "sequences": [], "lengths": []},
    ]


def test_every_event_has_what_the_format_asks_for() -> None:
    trace = json.loads(json.dumps(trace_events(_plan(), COST)))
    assert isinstance(trace["traceEvents"], list)
    slices = _slices(trace)
    assert {event["ph"] for event in trace["traceEvents"]} == {"M", "X"}
    for event in slices:
        assert (type(event["pid"]), type(event["tid"]), type(event["name"]), type(event["cat"])) == (int, int, str, str)
        assert type(event["ts"]) is type(event["dur"]) is float
        assert event["ts"] >= 0
        assert event["dur"] > 0
    assert {event["tid"] for event in slices} == {0, 1, 2, 3}


@pytest.mark.parametrize("sync", ["microbatch", "step"])
def test_slices_sum_to_the_times_of_the_ranks_in_microseconds(sync: str) -> None:
    plan = _plan()
    assert set(plan.cp_size.tolist()) == {1, 2}
    assert plan.num_microbatches > 1
    slices = _slices(trace_events(plan, COST, sync=sync))
    assert len(slices) == plan.cp_size.sum()
    busy = np.zeros((plan.num_microbatches, plan.num_ranks))
    for event in slices:
        busy[int(event["name"].split(":")[0].removeprefix("micro-batch ")), event["tid"]] += event["dur"]
    assert busy == pytest.approx(1e6 * plan.rank_times(COST))
    for rank in range(plan.num_ranks):
        mine = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == rank)
        assert all(a[1] <= b[0] * (1 + 1e-12) for a, b in pairwise(mine))
    if sync == "microbatch":
        assert max(e["ts"] + e["dur"] for e in slices) == pytest.approx(1e6 * plan.simulate(COST))


def test_a_bin_that_ranks_share_is_on_the_track_of_each() -> None:
    plan = _plan()
    shared = [event for event in _slices(trace_events(plan, COST)) if event["cat"] == "cp 2"]
    assert len(shared) == 2 * np.count_nonzero(plan.cp_size == 2)
    for one, other in zip(shared[::2], shared[1::2], strict=True):
        assert other["tid"] == one["tid"] + 1
        assert {**one, "tid": None} == {**other, "tid": None}


def test_when_ranks_wait_moves_the_slices() -> None:
    # 3 and 4 units of length, then 2 and 1: rank 0 goes on at 9, or waits until 16.
    plan = dcpack.plan([3, 4, 2, 1], num_ranks=2, capacity=4, scheduler="in_order")
    starts = {
        sync: [event["ts"] for event in _slices(trace_events(plan, QuadraticCost(), sync=sync))]
        for sync in ("microbatch", "step")
    }
    assert starts["microbatch"] == pytest.approx([0, 0, 0.016, 0.016])
    assert starts["step"] == pytest.approx([0, 0, 0.009, 0.016])


class OwnCost(QuadraticCost):
    """A cost model of a user, in a unit of its own."""

    @property
    def unit(self) -> str:
        return "ms"


def test_any_unit_of_time_can_be_shown() -> None:
    cost: CostModel = OwnCost()
    trace = trace_events(_plan(cost=cost), cost)
    assert trace["otherData"] == {"time_unit": "ms"}
    assert all(event["dur"] > 0 for event in _slices(trace))


def test_a_plan_of_nothing_has_tracks_and_no_slices() -> None:
    trace = trace_events(dcpack.plan([], num_ranks=3, capacity=4), COST)
    assert _slices(trace) == []
    assert sum(event["name"] == "thread_name" for event in trace["traceEvents"]) == 3


def test_a_trace_is_saved_as_json(tmp_path: Path) -> None:
    for path in (tmp_path / "a trace.json", str(tmp_path / "other")):
        save_trace(path, _plan(), COST, sync="step")
        assert json.loads(Path(path).read_text()) == trace_events(_plan(), COST, sync="step")
