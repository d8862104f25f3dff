"""Tables for people."""

from dcpack.report.strategies import STRATEGIES, Cluster, Planned, StrategyResult, compare_strategies, format_strategies
from dcpack.report.tables import format_bytes, format_table

__all__ = [
    "STRATEGIES",
    "Cluster",
    "Planned",
    "StrategyResult",
    "compare_strategies",
    "format_bytes",
    "format_strategies",
    "format_table",
]
