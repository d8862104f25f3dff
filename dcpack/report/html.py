"""One self-contained HTML file: summary, lengths, strategies side by side, each step laid out in time.

No script and no request: what moves is the browser's own display of titles under the pointer. A policy in the head
forbids both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dcpack._checks import check_choice, check_cost, check_int, check_kinds, check_names, check_path, list_offenders
from dcpack.cost import CostModel
from dcpack.errors import ArgumentError
from dcpack.plans import SYNC_MODES, Plan
from dcpack.report.lengths import LengthSummary
from dcpack.report.markup import Markup, tag
from dcpack.report.strategies import StrategyResult
from dcpack.report.strategy_tables import strategy_cells
from dcpack.report.svg import length_chart, plan_chart

__all__ = ["HtmlReport", "save_html_report"]

_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; color: #222; max-width: 1040px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.2em; margin-top: 2em; } h3 { font-size: 1em; margin-bottom: 0; }
table { border-collapse: collapse; } th, td { padding: 2px 6px; text-align: right; white-space: pre-line; }
th { vertical-align: bottom; border-bottom: 1px solid #888; font-weight: 600; }
th:first-child, td:first-child { text-align: left; } td.reason { text-align: left; color: #a33; }
dl { display: grid; grid-template-columns: max-content auto; gap: 0 1em; } dt { color: #666; } dd { margin: 0; }
.track { min-width: 100px; } .bar { height: 12px; background: #0072B2; }
svg { display: block; font: 11px system-ui, sans-serif; max-width: 100%; height: auto; }
svg .bin:hover { stroke: #000; stroke-width: 2; } .note { color: #666; }
.swatch { display: inline-block; width: 12px; height: 12px; border: 1px solid #444; margin: 0 4px 0 12px; }
"""


@dataclass(frozen=True, kw_only=True)
class HtmlReport:
    """What the page shows; every text may be anything, it is escaped.

    Attributes:
        title: what was planned.
        facts: names and values of the summary, in order.
        lengths: the lengths of all steps.
        results: the strategies.
        plans: by strategy, its plan of the step that is laid out in time; those that have none are left out.
        step: the number of that step.
        cost: the cost model that times the plans.
        sync: as in `dcpack.Plan.simulate`.

    Example:
        >>> import numpy as np
        >>> import dcpack
        >>> from dcpack.report import Cluster, compare_strategies, summarise_lengths
        >>> cost, lengths = dcpack.QuadraticCost(), np.array([5, 3, 4, 4])
        >>> cluster = Cluster(num_ranks=2, capacity=8, padding=None, cost=cost)
        >>> report = HtmlReport(
        ...     title="my data",
        ...     facts=[("ranks", "2")],
        ...     lengths=summarise_lengths(lengths, capacities=[8]),
        ...     results=compare_strategies(cluster, [lengths], done=lambda: None, names=["dynamic_cp"]),
        ...     plans={"dynamic_cp": cluster.plan(lengths)},
        ...     cost=cost,
        ... )
        >>> report.sync
        'microbatch'
    """

    title: str
    facts: Sequence[tuple[str, str]]
    lengths: LengthSummary
    results: Sequence[StrategyResult]
    plans: Mapping[str, Plan] = field(default_factory=dict)
    step: int = 0
    cost: CostModel
    sync: str = "microbatch"

    def __post_init__(self) -> None:
        check_kinds(
            title=(self.title, str),
            facts=(self.facts, list | tuple),
            lengths=(self.lengths, LengthSummary),
            results=(self.results, list | tuple),
            plans=(self.plans, Mapping),
        )
        if wrong := [repr(fact) for fact in self.facts if not _is_pair_of_texts(fact)]:
            raise ArgumentError(f"facts must be pairs of texts, got {list_offenders(wrong)}")
        check_kinds(**{f"results[{i}]": (result, StrategyResult) for i, result in enumerate(self.results)})
        check_kinds(**{f"plans[{name!r}]": (plan, Plan) for name, plan in self.plans.items()})
        check_names("plans", self.plans)
        check_int("step", self.step, minimum=0)
        check_cost(self.cost)
        check_choice("sync", self.sync, SYNC_MODES)


def _is_pair_of_texts(fact: object) -> bool:
    return isinstance(fact, tuple) and len(fact) == 2 and all(isinstance(text, str) for text in fact)


def save_html_report(path: str | Path, report: HtmlReport) -> None:
    """Write the page to `path`; it opens in any browser, without a network.

    Args:
        path: file to write.
        report: what it shows.

    Example:
        >>> import numpy as np
        >>> import dcpack
        >>> from dcpack.report import Cluster, compare_strategies, summarise_lengths
        >>> cost, lengths = dcpack.QuadraticCost(), np.array([5, 3, 4, 4])
        >>> cluster = Cluster(num_ranks=2, capacity=8, padding=None, cost=cost)
        >>> report = HtmlReport(
        ...     title="my data",
        ...     facts=[("ranks", "2")],
        ...     lengths=summarise_lengths(lengths, capacities=[8]),
        ...     results=compare_strategies(cluster, [lengths], done=lambda: None, names=["dynamic_cp"]),
        ...     plans={"dynamic_cp": cluster.plan(lengths)},
        ...     cost=cost,
        ... )
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_html_report(f"{folder}/report.html", report)
        ...     "my data" in Path(folder, "report.html").read_text()
        True
    """
    check_kinds(report=(report, HtmlReport))
    file = check_path("path", path)
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        tag("title", report.title),
        tag("style", Markup(_STYLE)),
    )
    body = tag(
        "body",
        tag("h1", report.title),
        tag("dl", *(tag("dt", name) + tag("dd", value) for name, value in report.facts)),
        tag("h2", "Strategies side by side"),
        _strategies(report),
        tag("p", "Times are simulated by the cost model; bound: of the same pieces.", class_="note"),
        tag("h2", "Lengths"),
        length_chart(report.lengths),
        tag("h2", f"Step {report.step}: ranks over time"),
        *_plans(report),
    )
    page = "<!DOCTYPE html>\n" + tag("html", head, body, lang="en") + "\n"
    file.write_text(page, encoding="utf-8", errors="backslashreplace")  # names of files may be no text


def _strategies(report: HtmlReport) -> Markup:
    """Return the table, with a bar for each step time; the slowest is the longest."""
    headers, rows = strategy_cells(report.results, unit=report.cost.unit, with_planning=True)
    slowest = max((result.totals["step_time"] for result in report.results if result.failure is None), default=0.0)
    lines = []
    for result, row in zip(report.results, rows, strict=True):
        if result.failure is not None:
            reason = tag("td", result.failure, class_="reason", colspan=len(headers))
            lines.append(tag("tr", tag("td", result.name), reason, class_="strategy"))
            continue
        share = 100 * result.totals["step_time"] / slowest if slowest else 0.0
        bar = tag("div", Markup(""), class_="bar", style=f"width:{share:.2f}%", title=f"{share:.1f}% of the slowest")
        cells = [tag("td", cell) for cell in row]
        lines.append(tag("tr", *cells, tag("td", bar, class_="track"), class_="strategy"))
    return tag("table", tag("tr", *(tag("th", header) for header in [*headers, "step time"])), *lines)


def _plans(report: HtmlReport) -> list[Markup]:
    if not report.plans:
        return [tag("p", "No strategy has a plan of this step.", class_="note")]
    text = (
        "Each bar is a bin: as high as the ranks that share it, as long as they work on it. Grey is waiting. Rest on "
    )
    parts = [tag("p", text + "a bar for what is in it. Each picture has a time scale of its own.", class_="note")]
    sizes = sorted({size for plan in report.plans.values() for size in plan.cp_size.tolist()})
    for name, plan in report.plans.items():
        parts += [tag("h3", name), plan_chart(plan, report.cost, sync=report.sync, cp_sizes=sizes)]
    return parts
