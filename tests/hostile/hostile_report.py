"""`dcpack.report`: each public callable, and arguments that it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hostile_calls import Call

import dcpack
from dcpack import report
from dcpack.loader import Span, StepRecord

COST = dcpack.QuadraticCost()
SECONDS = dcpack.plan([3, 2], num_ranks=1, capacity=8)
PLAN = dcpack.plan([3, 2], num_ranks=1, capacity=8)
CLUSTER = {
    "num_ranks": 2,
    "capacity": 8,
    "padding": dcpack.PaddingRule(),
    "cost": COST,
    "overlong": "split",
    "max_cp_size": 2,
    "sync": "step",
    "cp_sizes": (1, 2),
    "min_cp_size": 1,
    "microbatch_multiple": 1,
    "max_sequences": 4,
    "on_empty": "dummy",
}
SUMMARY = report.summarise_lengths(np.array([3, 2]), capacities=[8])


def record() -> StepRecord:
    span = Span(name="wait", start=2.0, end=2.25)
    counts = {"number": 0, "epoch": 0, "step": 0, "num_valid_tokens": 1, "global_valid_tokens": 1, "bytes_sent": 0}
    return StepRecord(**counts, start=2.0, end=2.5, waits=(span,), spans=(span,), planned=None, fills_rows=False)


def done() -> None:
    pass


def results() -> list[report.StrategyResult]:
    return report.compare_strategies(report.Cluster(**CLUSTER), [[3, 2]], done=done, names=["in_order"])


CALLS: dict[str, Call] = {
    "Cluster": Call(report.Cluster, lambda: dict(CLUSTER)),
    "Cluster.plan": Call(report.Cluster(**CLUSTER).plan, lambda: {"lengths": [3, 2]}),
    "Cluster.static": Call(report.Cluster(**CLUSTER).static, lambda: {"lengths": [3, 2], "cp_size": 2}),
    "Cluster.static_cp_size": Call(report.Cluster(**CLUSTER).static_cp_size, lambda: {"lengths": [3, 2]}),
    "compare_strategies": Call(
        report.compare_strategies,
        lambda: {
            "cluster": report.Cluster(**CLUSTER),
            "steps": [[3, 2]],
            "done": done,
            "names": ["in_order"],
            "inspect": None,
        },
    ),
    "Planned.of": Call(report.Planned.of, lambda: {"plan": PLAN}),
    "ShapeCount": Call(report.ShapeCount, lambda: {"row_lengths": (8, 16), "max_seqlens": (8, 16)}),
    "ShapeCount.add": Call(report.ShapeCount().add, lambda: {"plan": PLAN}),
    "HtmlReport": Call(
        report.HtmlReport,
        lambda: {
            "title": "t",
            "facts": [("a", "b")],
            "lengths": SUMMARY,
            "results": results(),
            "plans": {"in_order": PLAN},
            "step": 0,
            "cost": COST,
            "sync": "step",
        },
    ),
    "summarise_lengths": Call(report.summarise_lengths, lambda: {"lengths": np.array([3, 2]), "capacities": [8]}),
    "format_lengths": Call(report.format_lengths, lambda: {"summary": SUMMARY}),
    "format_bytes": Call(report.format_bytes, lambda: {"count": 3.0}),
    "format_table": Call(report.format_table, lambda: {"headers": ["a"], "rows": [["b"]], "right": [0]}),
    "format_steps": Call(report.format_steps, lambda: {"results": results(), "lengths": [(1, 2, 3)], "unit": "s"}),
    "format_strategies": Call(
        report.format_strategies, lambda: {"results": results(), "unit": "s", "with_planning": True}
    ),
    "strategy_cells": Call(report.strategy_cells, lambda: {"results": results(), "unit": "s", "with_planning": True}),
    "timeline_of": Call(report.timeline_of, lambda: {"plan": PLAN, "cost": COST, "sync": "step"}),
    "trace_events": Call(report.trace_events, lambda: {"plan": PLAN, "cost": COST, "sync": "step"}),
    "step_trace_events": Call(
        report.step_trace_events, lambda: {"records": [record()], "cost": None, "rank": 0, "sync": "step"}
    ),
    "save_trace": Call(report.save_trace, lambda: {"path": "a.json", "plan": PLAN, "cost": COST, "sync": "step"}),
    "save_step_trace": Call(
        report.save_step_trace,
        lambda: {"path": "a.json", "records": [record()], "cost": None, "rank": 0, "sync": "step"},
    ),
}


def html(**given: Any) -> report.HtmlReport:
    values = CALLS["HtmlReport"].arguments()
    return report.HtmlReport(**{**values, **given})


CALLS["save_length_picture"] = Call(
    report.save_length_picture, lambda: {"path": "a.svg", "lengths": [3, 2], "title": "t"}, few=True
)
CALLS["save_plan_picture"] = Call(
    report.save_plan_picture,
    lambda: {"path": "a.svg", "plan": PLAN, "cost": COST, "title": "t", "sync": "step"},
    few=True,
)
CALLS["save_html_report"] = Call(report.save_html_report, lambda: {"path": "a.html", "report": html()})

LEFT_OUT = {
    "LengthSummary": "a result of summarise_lengths",
    "Planned": "a result of Planned.of",
    "StepFigures": "a result, in that of compare_strategies",
    "StrategyResult": "a result of compare_strategies",
    "Timeline": "a result of timeline_of",
}

# What of the values has a meaning there.
TAKES = {
    "Cluster.padding": "none",
    "Cluster.max_cp_size": "none, huge, number of an enum",
    "Cluster.cp_sizes": "list, unsigned, hugest",
    "Cluster.min_cp_size": "huge, number of an enum",
    "Cluster.microbatch_multiple": "huge, number of an enum",
    "Cluster.max_sequences": "none, huge, number of an enum",
    "Cluster.plan.lengths": "list, unsigned",
    "Cluster.static.lengths": "list, unsigned",
    "Cluster.static.cp_size": "number of an enum",
    "Cluster.static_cp_size.lengths": "list, unsigned, hugest",
    "Cluster.num_ranks": "number of an enum",
    "Cluster.capacity": "number of an enum",
    "compare_strategies.steps": "list, ragged, 2-d",
    "compare_strategies.done": "function, type",
    "compare_strategies.names": "list, map",
    "compare_strategies.inspect": "none, function, type",
    "ShapeCount.row_lengths": "none",
    "ShapeCount.max_seqlens": "none",
    "HtmlReport.title": "text, surrogate",
    "HtmlReport.facts": "list",
    "HtmlReport.results": "list",
    "HtmlReport.plans": "map",
    "HtmlReport.step": "zero, huge, number of an enum",
    "summarise_lengths.lengths": "list, unsigned, hugest",
    "summarise_lengths.capacities": "list, set, unsigned, hugest",
    "format_bytes.count": "zero, minus, huge, half, minus zero, number of an enum",
    "format_table.rows": "list",
    "format_table.right": "none, list, set, unsigned, hugest",
    "format_steps.results": "list",
    "format_steps.lengths": "list",
    "format_steps.unit": "text, surrogate",
    "format_strategies.results": "list",
    "format_strategies.unit": "text, surrogate",
    "format_strategies.with_planning": "true, numpy true",
    "strategy_cells.results": "list",
    "strategy_cells.unit": "text, surrogate",
    "strategy_cells.with_planning": "true, numpy true",
    "step_trace_events.cost": "none",
    "step_trace_events.rank": "zero, huge, number of an enum",
    "save_trace.path": "text",
    "save_step_trace.path": "text",
    "save_step_trace.cost": "none",
    "save_step_trace.rank": "zero, huge, number of an enum",
    "save_html_report.path": "text",
    "save_length_picture.lengths": "list",
    "save_length_picture.title": "text",
    "save_plan_picture.title": "text",
}
