"""Tables, pictures and traces for people."""

from dcpack.report.html import HtmlReport, save_html_report
from dcpack.report.lengths import LengthSummary, format_lengths, summarise_lengths
from dcpack.report.pictures import save_length_picture, save_plan_picture
from dcpack.report.shapes import ShapeCount
from dcpack.report.step_traces import save_step_trace, step_trace_events
from dcpack.report.strategies import (
    STRATEGIES,
    Cluster,
    Planned,
    StepFigures,
    StrategyResult,
    compare_strategies,
)
from dcpack.report.strategy_tables import format_steps, format_strategies, strategy_cells
from dcpack.report.tables import format_bytes, format_table
from dcpack.report.timelines import Timeline, timeline_of
from dcpack.report.traces import save_trace, trace_events

__all__ = [
    "STRATEGIES",
    "Cluster",
    "HtmlReport",
    "LengthSummary",
    "Planned",
    "ShapeCount",
    "StepFigures",
    "StrategyResult",
    "Timeline",
    "compare_strategies",
    "format_bytes",
    "format_lengths",
    "format_steps",
    "format_strategies",
    "format_table",
    "save_html_report",
    "save_length_picture",
    "save_plan_picture",
    "save_step_trace",
    "save_trace",
    "step_trace_events",
    "strategy_cells",
    "summarise_lengths",
    "timeline_of",
    "trace_events",
]
