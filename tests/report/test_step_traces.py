"""The trace of real steps: what a loader recorded, where it was, and the simulated steps beside it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dcpack
from dcpack.api import DEFAULT_COST
from dcpack.cost import get_cost
from dcpack.loader import Span, StepRecord
from dcpack.loader.sharing import Planned
from dcpack.report.step_traces import save_step_trace, step_trace_events


def record(number: int, start: float) -> StepRecord:
    plans = (dcpack.plan([64, 32], num_ranks=2, capacity=64),) * 2
    return StepRecord(
        number=number,
        epoch=0,
        step=number,
        start=start,
        end=start + 0.5,
        waits=(Span(name="wait", start=start, end=start + 0.1),),
        spans=(Span(name="read", start=start - 1.0, end=start - 0.75), Span(name="pack", start=start - 0.5, end=start)),
        planned=Planned(plans=plans, loads_before=(2.0, 1.0), loads_after=(2.0, 1.0)),
        num_valid_tokens=64,
        global_valid_tokens=192,
        bytes_sent=0,
        fills_rows=False,
    )


def test_real_steps_stand_where_they_were() -> None:
    events = step_trace_events([record(0, 8.0), record(1, 8.5)], rank=3)["traceEvents"]
    slices = [(e["pid"], e["tid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        (1, 0, "step 0", 1e6, 5e5),
        (1, 1, "wait", 1e6, pytest.approx(1e5)),
        (1, 2, "read", 0, 2.5e5),
        (1, 2, "pack", 5e5, 5e5),
        (1, 0, "step 1", 1.5e6, 5e5),
        (1, 1, "wait", 1.5e6, pytest.approx(1e5)),
        (1, 2, "read", 5e5, 2.5e5),
        (1, 2, "pack", 1e6, 5e5),
    ]
    names = [e["args"]["name"] for e in events if e["ph"] == "M"]
    assert names == ["real steps, rank 3", "training", "waiting for the loader", "loader"]
    step = next(e for e in events if e["name"] == "step 0")
    assert step["args"]["loader/wait(ms)"] == pytest.approx(100)


def test_simulated_plans_of_a_step_begin_with_it_and_follow_each_other(tmp_path: Path) -> None:
    cost = get_cost(DEFAULT_COST)
    one = record(0, 8.0)
    assert one.planned is not None
    path = tmp_path / "trace.json"
    save_step_trace(path, [one], cost)
    events = [e for e in json.loads(path.read_text())["traceEvents"] if e["ph"] == "X" and e["pid"] == 0]
    seconds = one.planned.plans[0].simulate(cost)
    first = [e for e in events if e["ts"] < 1e6 * (1 + seconds) - 1e-3]
    assert min(e["ts"] for e in first) == pytest.approx(1e6)
    second = [e for e in events if e not in first]
    assert len(second) == len(first)
    assert min(e["ts"] for e in second) == pytest.approx(1e6 * (1 + seconds))


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(dcpack.ArgumentError, match="at least one step"):
        step_trace_events([])
    with pytest.raises(dcpack.ArgumentError, match=r"in seconds .* its unit is 'cost'"):
        step_trace_events([record(0, 1.0)], dcpack.QuadraticCost())
