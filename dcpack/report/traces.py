"""A plan as a trace that opens in Perfetto and chrome://tracing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dcpack._checks import check_path
from dcpack.cost import CostModel
from dcpack.plans import Plan
from dcpack.report.timelines import timeline_of

__all__ = ["save_trace", "trace_events"]

_MICROSECONDS = {"s": 1e6, "cost": 1e-3}


def trace_events(plan: Plan, cost: CostModel, *, sync: str = "microbatch") -> dict[str, Any]:
    """Return the trace of one step: one track a rank, one slice a bin.

    Times in seconds become microseconds; those in cost units are shown as if a thousand of them took one microsecond,
    those in any other unit as if it were a microsecond.
    Source: the Trace Event Format ("X" complete events, "M" metadata).

    Args:
        plan: a plan with ranks.
        cost: the cost model that times it.
        sync: ``"microbatch"`` or ``"step"``, when ranks meet.

    Raises:
        PlanError: a plan without ranks.
        ArgumentError: an unknown `sync`.

    Example:
        >>> import dcpack
        >>> events = trace_events(dcpack.plan([4, 2], num_ranks=2, capacity=4), dcpack.QuadraticCost())["traceEvents"]
        >>> [(event["tid"], event["name"]) for event in events if event["ph"] == "X"]
        [(0, 'micro-batch 0: 1 sequence'), (1, 'micro-batch 0: 1 sequence')]
    """
    timeline = timeline_of(plan, cost, sync=sync)
    scale = _MICROSECONDS.get(timeline.unit, 1.0)
    events: list[dict[str, Any]] = [
        {"ph": "M", "pid": 0, "name": "process_name", "args": {"name": f"simulated step, {plan.num_ranks} ranks"}}
    ]
    for rank in range(plan.num_ranks):
        events.append({"ph": "M", "pid": 0, "tid": rank, "name": "thread_name", "args": {"name": f"rank {rank}"}})
        events.append({"ph": "M", "pid": 0, "tid": rank, "name": "thread_sort_index", "args": {"sort_index": rank}})
    for b in range(plan.num_bins):
        first, cp = int(plan.first_rank[b]), int(plan.cp_size[b])
        ids = plan.sequence_ids[plan.offsets[b] : plan.offsets[b + 1]].tolist()
        lengths = plan.entry_lengths[plan.offsets[b] : plan.offsets[b + 1]].tolist()
        what = "dummy" if plan.dummy[b] else "1 sequence" if len(ids) == 1 else f"{len(ids)} sequences"
        args = {"cp_size": cp, "tokens": int(plan.bin_padded_tokens[b]), "sequences": ids, "lengths": lengths}
        for rank in range(first, first + cp):
            events.append(
                {
                    "ph": "X",
                    "pid": 0,
                    "tid": rank,
                    "name": f"micro-batch {plan.microbatch[b]}: {what}",
                    "cat": f"cp {cp}",
                    "ts": float(timeline.starts[b]) * scale,
                    "dur": float(timeline.durations[b]) * scale,
                    "args": args,
                }
            )
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"time_unit": timeline.unit}}


def save_trace(path: str | Path, plan: Plan, cost: CostModel, *, sync: str = "microbatch") -> None:
    """Write `trace_events` to `path`, as JSON.

    Args:
        path: file to write; chrome://tracing and ui.perfetto.dev open it.
        plan: a plan with ranks.
        cost: the cost model that times it.
        sync: ``"microbatch"`` or ``"step"``, when ranks meet.

    Raises:
        PlanError: a plan without ranks.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import dcpack
        >>> plan = dcpack.plan([4, 2], num_ranks=2, capacity=4)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_trace(f"{folder}/trace.json", plan, dcpack.QuadraticCost())
        ...     len(json.loads(Path(folder, "trace.json").read_text())["traceEvents"])
        7
    """
    file = check_path("path", path)
    file.write_text(json.dumps(trace_events(plan, cost, sync=sync)))
