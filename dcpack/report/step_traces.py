"""Real steps of a loader as a trace that opens in Perfetto and chrome://tracing, beside the simulated ones."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dcpack._checks import check_choice, check_cost, check_int, check_kinds, check_path
from dcpack.cost import CostModel
from dcpack.errors import ArgumentError
from dcpack.loader import StepRecord
from dcpack.plans import SYNC_MODES
from dcpack.report.traces import trace_events

__all__ = ["save_step_trace", "step_trace_events"]

_TRACKS = ("training", "waiting for the loader", "loader")


def step_trace_events(
    records: Sequence[StepRecord], cost: CostModel | None = None, *, rank: int = 0, sync: str = "microbatch"
) -> dict[str, Any]:
    """Return the trace of the steps of one rank: its training, its waiting, and the stages of its loader.

    Process 0 of the trace holds the simulated steps, one track a rank, each where the real one begins; process 1 what
    `rank` measured.

    Args:
        records: of `DistributedDataLoader.on_step`, oldest first.
        cost: model in seconds that simulates the plans of the steps; None leaves that out.
        rank: whose records these are, for the name.
        sync: as in `Plan.simulate`.

    Raises:
        ArgumentError: no records, or a cost model whose unit is not seconds.

    Example:
        >>> from dcpack.loader import Span
        >>> record = StepRecord(number=0, epoch=0, step=0, start=2.0, end=2.5, waits=(Span(name="wait", start=2.0,
        ...     end=2.25),), spans=(Span(name="read", start=1.5, end=1.75),), planned=None, num_valid_tokens=1,
        ...     global_valid_tokens=1, bytes_sent=0, fills_rows=False)
        >>> events = step_trace_events([record])["traceEvents"]
        >>> [(e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
        [('step 0', 500000.0, 500000.0), ('wait', 500000.0, 250000.0), ('read', 0.0, 250000.0)]
    """
    check_kinds(records=(records, list | tuple))
    check_kinds(**{f"records[{i}]": (record, StepRecord) for i, record in enumerate(records)})
    check_int("rank", rank, minimum=0)
    check_choice("sync", sync, SYNC_MODES)
    if cost is not None:
        check_cost(cost)
    if not records:
        raise ArgumentError("records must hold at least one step")
    if cost is not None and cost.unit != "s":
        raise ArgumentError(f"cost must be a model in seconds to stand beside real steps, its unit is {cost.unit!r}")
    zero = min(min([span.start for span in record.spans], default=record.start) for record in records)
    zero = min(zero, records[0].start)
    events: list[dict[str, Any]] = [_name(1, "process_name", f"real steps, rank {rank}")]
    events += [_name(1, "thread_name", track, tid) for tid, track in enumerate(_TRACKS)]
    for record in records:
        metrics = record.metrics()
        events.append(_slice(0, f"step {record.step}", record.start - zero, record.seconds, metrics))
        events += [_slice(1, span.name, span.start - zero, span.seconds) for span in record.waits]
        events += [
            _slice(2, span.name, span.start - zero, span.seconds, {"step": record.step}) for span in record.spans
        ]
    if cost is not None:
        events += _simulated(records, cost, sync, zero)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def save_step_trace(
    path: str | Path,
    records: Sequence[StepRecord],
    cost: CostModel | None = None,
    *,
    rank: int = 0,
    sync: str = "microbatch",
) -> None:
    """Write `step_trace_events` to `path`, as JSON.

    Args:
        path: file to write.
        records: of `DistributedDataLoader.on_step`, oldest first.
        cost: as in `step_trace_events`.
        rank: as in `step_trace_events`.
        sync: as in `step_trace_events`.

    Raises:
        ArgumentError: as in `step_trace_events`.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> record = StepRecord(number=0, epoch=0, step=0, start=2.0, end=2.5, waits=(), spans=(), planned=None,
        ...     num_valid_tokens=1, global_valid_tokens=1, bytes_sent=0, fills_rows=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_step_trace(f"{folder}/trace.json", [record])
        ...     sorted(json.loads(Path(folder, "trace.json").read_text()))
        ['displayTimeUnit', 'traceEvents']
    """
    file = check_path("path", path)
    file.write_text(json.dumps(step_trace_events(records, cost, rank=rank, sync=sync)))


def _simulated(records: Sequence[StepRecord], cost: CostModel, sync: str, zero: float) -> list[dict[str, Any]]:
    """Return the simulated plans of each step, one behind the other from where the real step begins."""
    events: list[dict[str, Any]] = []
    for record in records:
        start = 1e6 * (record.start - zero)
        for plan in () if record.planned is None else record.planned.plans:
            found = trace_events(plan, cost, sync=sync)["traceEvents"]
            slices = [event for event in found if event["ph"] == "X"]
            if not events:
                events += [event for event in found if event["ph"] == "M"]
            events += [{**event, "ts": event["ts"] + start} for event in slices]
            start += 1e6 * plan.simulate(cost, sync=sync)
    return events


def _name(pid: int, what: str, name: str, tid: int = 0) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": what, "args": {"name": name}}


def _slice(
    tid: int, name: str, start: float, seconds: float, arguments: dict[str, Any] | None = None
) -> dict[str, Any]:
    event = {"ph": "X", "pid": 1, "tid": tid, "name": name, "ts": 1e6 * start, "dur": 1e6 * seconds}
    return event if arguments is None else {**event, "args": arguments}
