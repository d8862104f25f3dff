"""The page as text: escaped, self-contained, with the figures that the table has."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.padding import PaddingRule
from dcpack.plans import Plan
from dcpack.report import Cluster, HtmlReport, compare_strategies, save_html_report, strategy_cells, summarise_lengths
from dcpack.report.markup import Markup, tag
from dcpack.report.svg import length_chart, plan_chart

LENGTHS = np.array([4, 2, 6, 3, 16, 7, 30, 9, 1, 5, 5, 12])
COST = dcpack.QuadraticCost()
NASTY = "<script>alert('1')</script> & \"x\" <img src=//evil.example/a onerror=b>"


def make_report(**options: Any) -> HtmlReport:
    """Two steps on four ranks of 16; 30 fits on no single rank, so in_order fails."""
    plans: dict[str, Plan] = {}

    def keep(name: str, number: int, planned: Any) -> None:
        if number == 1:
            plans[name] = planned.plan

    cluster = Cluster(num_ranks=4, capacity=16, padding=PaddingRule(), cost=COST, overlong="error")
    results = compare_strategies(cluster, [LENGTHS[:6], LENGTHS[6:]], done=lambda: None, inspect=keep)
    plans = {result.name: plans[result.name] for result in results if result.failure is None}
    given: dict[str, Any] = {
        "title": "some lengths",
        "facts": [("ranks", "4"), ("tokens", "100")],
        "lengths": summarise_lengths(LENGTHS, capacities=[16]),
        "results": results,
        "plans": plans,
        "step": 1,
        "cost": COST,
    }
    return HtmlReport(**{**given, **options})


class Page(HTMLParser):
    """The elements of a page and its visible text; a tag that is not closed is an error."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def page_of(path: Path, report: HtmlReport) -> Page:
    save_html_report(path, report)
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_holds_the_figures_of_the_table(tmp_path: Path) -> None:
    report = make_report()
    page = page_of(tmp_path / "a report.html", report)
    headers, rows = strategy_cells(report.results, unit="cost", with_planning=True)
    for text in (*headers, *(cell for row in rows for cell in row if cell != "-")):
        assert text in page.texts
    failed = [result for result in report.results if result.failure is not None]
    assert [result.name for result in failed] == ["in_order"]
    assert str(failed[0].failure) in page.texts
    assert {"ranks", "4", "tokens", "100", "Step 1: ranks over time"} <= set(page.texts)
    bars = [values for name, values in page.elements if name == "rect" and values.get("class") == "bin"]
    assert len(bars) == sum(plan.num_bins for plan in report.plans.values())


def test_what_texts_hold_is_shown_and_never_obeyed(tmp_path: Path) -> None:
    report = make_report(title=NASTY, facts=[(NASTY, NASTY)])
    for result in report.results:
        if result.failure is not None:
            result.failure = NASTY
    page = page_of(tmp_path / "a.html", report)
    assert "script" not in {name for name, _ in page.elements}
    assert "img" not in {name for name, _ in page.elements}
    assert page.texts.count(NASTY) == 5  # title twice, name and value of a fact, the reason


def test_a_title_that_is_no_text_is_written(tmp_path: Path) -> None:
    save_html_report(tmp_path / "a.html", make_report(title="file \udcff.npy"))
    assert "file \\udcff.npy" in (tmp_path / "a.html").read_text(encoding="utf-8")


def test_nothing_outside_the_file_is_asked_for(tmp_path: Path) -> None:
    page = page_of(tmp_path / "a.html", make_report())
    for name, values in page.elements:
        assert name not in {"script", "link", "img", "iframe", "object", "base", "form", "a"}
        assert not {"src", "href", "xlink:href", "action", "data"} & set(values)
        assert not [value for key, value in values.items() if key.startswith("on") and value]
    assert ("meta", "default-src 'none'; style-src 'unsafe-inline'") in [
        (name, values.get("content")) for name, values in page.elements
    ]
    text = (tmp_path / "a.html").read_text()
    assert "://" not in text
    assert "url(" not in text


def test_a_page_without_a_plan_says_so(tmp_path: Path) -> None:
    page = page_of(tmp_path / "a.html", make_report(plans={}))
    assert "No strategy has a plan of this step." in page.texts


def test_bars_lie_where_the_plan_says() -> None:
    # Two ranks: 4 tokens (16) beside 2 (4); then 3 (9) beside a dummy.
    plan = dcpack.plan([4, 2, 3], num_ranks=2, capacity=4, scheduler="in_order", cp_sizes=(1,), on_empty="dummy")
    chart = plan_chart(plan, COST)
    assert "2 micro-batches, step 25 cost units" in chart
    svg = ElementTree.fromstring(chart[chart.index("<svg") :])
    bars = [rect for rect in svg.iter("rect") if rect.get("class") == "bin"]
    per_time = (960 - 60 - 10) / 25
    found = [(rect.findtext("title"), *(float(rect.get(key, "")) for key in ("x", "width", "y"))) for rect in bars]
    expected = [
        ("micro-batch 0, rank 0: 1 sequence, 4 tokens, 16 cost units of 16", 60, 16 * per_time, 0.5),
        ("micro-batch 0, rank 1: 1 sequence, 2 tokens, 4 cost units of 16", 60, 4 * per_time, 24.5),
        ("micro-batch 1, rank 0: 1 sequence, 3 tokens, 9 cost units of 9", 60 + 16 * per_time, 9 * per_time, 0.5),
        ("micro-batch 1, rank 1: dummy, 0 cost units of 9", 60 + 16 * per_time, 0.5, 24.5),
    ]
    assert found == [(title, *(pytest.approx(value, abs=0.006) for value in rest)) for title, *rest in expected]
    ends = [line for line in svg.iter("line") if line.get("class") == "end"]
    assert [float(line.get("x1", "")) for line in ends] == pytest.approx([60 + 16 * per_time, 60 + 25 * per_time], 1e-4)


def test_a_group_is_as_high_as_its_ranks() -> None:
    chart = plan_chart(dcpack.plan([10, 8], num_ranks=4, capacity=5, scheduler="in_order", cp_sizes=(2,)), COST)
    svg = ElementTree.fromstring(chart[chart.index("<svg") :])
    heights = {
        str(rect.findtext("title")).split(":")[0].split(", ")[1]: float(rect.get("height", ""))
        for rect in svg.iter("rect")
        if rect.get("class") == "bin"
    }
    assert heights == {"ranks 0 to 1 (CP 2)": 2 * 24 - 1, "ranks 2 to 3 (CP 2)": 2 * 24 - 1}


def test_ranks_that_meet_once_have_no_line_between_micro_batches() -> None:
    plan = dcpack.plan([4, 2, 3, 3], num_ranks=2, capacity=4, scheduler="in_order", cp_sizes=(1,))
    assert 'class="end"' in plan_chart(plan, COST)
    assert 'class="end"' not in plan_chart(plan, COST, sync="step")


def test_a_plan_of_many_bins_is_drawn_in_part_and_says_so() -> None:
    plan = dcpack.plan(np.full(5200, 3), num_ranks=1300, capacity=3, scheduler="in_order", cp_sizes=(1,))
    assert plan.num_microbatches == 4
    chart = plan_chart(plan, COST)
    assert chart.count('class="bin"') == 3 * 1300
    assert "only the first 3 micro-batches are drawn" in chart
    large = dcpack.plan(np.full(5000, 3), num_ranks=5000, capacity=3, scheduler="in_order", cp_sizes=(1,))
    assert plan_chart(large, COST).count('class="bin"') == 5000


def test_nothing_to_draw() -> None:
    assert "nan" not in plan_chart(dcpack.plan([], num_ranks=2, capacity=4), COST)
    assert "No sequences." in length_chart(summarise_lengths(np.zeros(0, np.int64), capacities=[4]))
    assert "0 tokens: 2 sequences, 100.0% of all" in length_chart(summarise_lengths(np.zeros(2, int), capacities=[4]))


def test_shares_of_lengths() -> None:
    chart = length_chart(summarise_lengths(np.array([1, 1, 2, 4]), capacities=[4]))
    titles = re.findall(r"<title>(.*?)</title>", chart)
    assert titles == [
        "1 token: 2 sequences, 50.0% of all",
        "1 token: 2 tokens, 25.0% of all",
        "2 to 3 tokens: 1 sequence, 25.0% of all",
        "2 to 3 tokens: 2 tokens, 25.0% of all",
        "4 to 7 tokens: 1 sequence, 25.0% of all",
        "4 to 7 tokens: 4 tokens, 50.0% of all",
    ]


def test_colours_are_shared_where_asked_for() -> None:
    plan = dcpack.plan([4, 4], num_ranks=2, capacity=4, cost=COST)
    assert 'fill="#56B4E9"' in plan_chart(plan, COST)
    assert 'fill="#F0E442"' in plan_chart(plan, COST, cp_sizes=(0, 1))


def test_markup_stays_markup_and_texts_do_not() -> None:
    assert tag("p", "a") + "<" == "<p>a</p>&lt;"
    assert isinstance(tag("p") + tag("p"), Markup)
    assert tag("p", title='"<') == '<p title="&quot;&lt;"></p>'
