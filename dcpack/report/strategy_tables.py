"""Strategies and steps as tables."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence

from dcpack._checks import check_flag, check_kinds, list_offenders
from dcpack.errors import ArgumentError
from dcpack.report.strategies import StrategyResult
from dcpack.report.tables import format_bytes, format_table

__all__ = ["format_steps", "format_strategies", "strategy_cells"]


def strategy_cells(
    results: Sequence[StrategyResult], *, unit: str, with_planning: bool = False
) -> tuple[list[str], list[list[str]]]:
    """Return headers and one row a strategy; in the row of a strategy that could not plan every other cell is ``"-"``.

    Bytes are among the columns where some strategy has them.

    Args:
        results: the strategies.
        unit: unit of the times; seconds are shown as milliseconds.
        with_planning: add the bound itself and the planning time.

    Example:
        >>> import dcpack
        >>> from dcpack.report import Cluster, compare_strategies
        >>> cluster = Cluster(num_ranks=2, capacity=8, padding=None, cost=dcpack.QuadraticCost())
        >>> results = compare_strategies(cluster, [[5, 3, 4, 4]], done=lambda: None, names=["dynamic_cp"])
        >>> headers, rows = strategy_cells(results, unit="cost")
        >>> headers[0], rows[0][0], len(headers) == len(rows[0])
        ('strategy', 'dynamic_cp', True)
    """
    _check_results(results, unit)
    with_planning = check_flag("with_planning", with_planning)
    columns = _COLUMNS + (_BYTE_COLUMNS if any(result.bytes_moved is not None for result in results) else [])
    shown_unit, scale = ("ms", 1e3) if unit == "s" else (unit, 1.0)
    columns = columns + _time_columns(shown_unit, scale, with_planning=with_planning)
    rows = [
        [result.name, *("-" if result.failure is not None else cell(result) for _, cell in columns)]
        for result in results
    ]
    return ["strategy", *(header for header, _ in columns)], rows


def format_strategies(results: Sequence[StrategyResult], *, unit: str, with_planning: bool = False) -> str:
    """Return the table that people read.

    Each step time stands beside its distance from the lower bound of the same pieces: a strategy that cuts sequences
    has less attention to compute, so its times are not comparable with those of one that does not. A strategy that
    could not plan has the reason in its row. Bytes are shown where some strategy has them.

    Args:
        results: the strategies.
        unit: unit of the times; seconds are shown as milliseconds.
        with_planning: show the bound itself and the planning time too.

    Example:
        >>> import dcpack
        >>> from dcpack.report import Cluster, compare_strategies
        >>> cluster = Cluster(num_ranks=2, capacity=8, padding=None, cost=dcpack.QuadraticCost())
        >>> results = compare_strategies(cluster, [[5, 3, 4, 4]], done=lambda: None, names=["dynamic_cp"])
        >>> format_strategies(results, unit="cost").splitlines()[-1].split()[0]
        'dynamic_cp'
    """
    headers, rows = strategy_cells(results, unit=unit, with_planning=with_planning)
    lines = format_table(headers, rows).splitlines()
    width, name_width = len(max(lines, key=len)), max(len("strategy"), *(len(result.name) for result in results), 0)
    for k, result in enumerate(results, start=len(lines) - len(results)):
        if result.failure is not None:
            reason = textwrap.shorten(f"- {result.failure}", width - name_width - 1, placeholder=" ...")
            lines[k] = f"{result.name.ljust(name_width)} {reason}"
    return "\n".join(lines)


def _check_results(results: Sequence[StrategyResult], unit: str) -> None:
    check_kinds(results=(results, list | tuple), unit=(unit, str))
    check_kinds(**{f"results[{i}]": (result, StrategyResult) for i, result in enumerate(results)})


_Column = tuple[str, Callable[[StrategyResult], str]]

_COLUMNS: list[_Column] = [
    ("micro-\nbatches", lambda r: f"{r.totals['num_microbatches']:.0f}"),
    ("cut\nsequences", lambda r: f"{r.totals['num_cut_sequences']:.0f}"),
    ("padding", lambda r: f"{r.totals['padding_share']:.1%}"),
    ("utili-\nzation", lambda r: f"{r.totals['utilization']:.1%}"),
    ("max/mean\nwork", lambda r: f"{r.totals['imbalance']:.2f}"),
    ("mean\nCP", lambda r: f"{r.totals['mean_cp_size']:.2f}"),
]

_BYTE_COLUMNS: list[_Column] = [
    ("moved", lambda r: "-" if r.bytes_moved is None else format_bytes(r.bytes_moved)),
    ("moved whole,\nkey by key", lambda r: "-" if r.bytes_whole is None else format_bytes(r.bytes_whole)),
]


def _time_columns(unit: str, scale: float, *, with_planning: bool) -> list[_Column]:
    step: _Column = (f"step time\n({unit})", lambda r: _number(scale * r.totals["step_time"]))
    bound: _Column = (f"bound\n({unit})", lambda r: _number(scale * r.totals["bound"]))
    above: _Column = ("above\nbound", lambda r: _above(r.totals["step_time"], r.totals["bound"]))
    planning: _Column = (
        "planning\n(ms/step)",
        lambda r: f"{1e3 * r.planning_seconds / max(len(r.steps), 1):.1f}",
    )
    return [step, bound, above, planning] if with_planning else [step, above]


def _number(value: float) -> str:
    """Write four digits; thousands with commas as long as they fit."""
    return f"{value:,.0f}" if 1000 <= value < 1e7 else f"{value:.4g}"


def _above(step_time: float, bound: float) -> str:
    return f"{step_time / bound - 1:.1%}" if bound else "-"


def format_steps(results: Sequence[StrategyResult], lengths: Sequence[tuple[int, int, int]], *, unit: str) -> str:
    """Return a table with one row a step: what it holds, and each strategy's time and distance from its bound.

    Args:
        results: the strategies; those that could not plan are left out.
        lengths: for each step its sequences, its tokens, and its longest sequence.
        unit: unit of the times; seconds are shown as milliseconds.

    Raises:
        ArgumentError: results or lengths that are none.

    Example:
        >>> import dcpack
        >>> from dcpack.report import Cluster, compare_strategies
        >>> cluster = Cluster(num_ranks=2, capacity=8, padding=None, cost=dcpack.QuadraticCost())
        >>> results = compare_strategies(cluster, [[5, 3, 4, 4]], done=lambda: None, names=["dynamic_cp"])
        >>> print(format_steps(results, [(4, 16, 5)], unit="cost").splitlines()[-1].split()[:4])
        ['0', '4', '16', '5']
    """
    _check_results(results, unit)
    check_kinds(lengths=(lengths, list | tuple))
    if wrong := [repr(each) for each in lengths if not isinstance(each, tuple) or len(each) != 3]:
        raise ArgumentError(f"lengths must be three numbers a step, got {list_offenders(wrong)}")
    shown = [result for result in results if result.failure is None]
    shown_unit, scale = ("ms", 1e3) if unit == "s" else (unit, 1.0)
    headers = ["step", "sequences", "tokens", "longest"]
    for result in shown:
        headers += [f"{result.name}\n({shown_unit})", "above\nbound"]
    rows = []
    for number, (count, tokens, longest) in enumerate(lengths):
        cells = [str(number), f"{count:,}", f"{tokens:,}", f"{longest:,}"]
        for result in shown:
            step = result.steps[number]
            cells += [_number(scale * step.step_time), _above(step.step_time, step.bound)]
        rows.append(cells)
    return format_table(headers, rows)
