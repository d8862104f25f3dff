"""The fit behind `MeasuredCost`: its rows by hand, which form it keeps, and what its report says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack.cost import BinTiming
from dcpack.cost.attention import full_pairs
from dcpack.cost.fitting import COEFFICIENTS, NAMES, FitReport, best_attempt, bin_rows, report_on
from dcpack.cost.timings import WorkTable, tabulate
from dcpack.errors import ArgumentError

FREE = np.full(5, np.nan)
SHAPES = ([4], [8], [16], [4, 4, 4], [8, 8], [16, 4], [32])


def table_of(times: list[float], shapes: Any = SHAPES, cp_size: int = 1) -> WorkTable:
    samples = [BinTiming(lengths=n, time=t, cp_size=cp_size) for n, t in zip(shapes, times, strict=True)]
    return tabulate(samples, full_pairs, None)


def exact_times() -> list[float]:
    """2 s a bin, 0.5 s a token, 0.25 s a pair: all exact in binary."""
    return [2 + 0.5 * sum(n) + 0.25 * sum(k * k for k in n) for n in SHAPES]


@pytest.mark.parametrize(
    ("overlap", "ring_intra", "expected"),
    [
        # 100 tokens and 1000 pairs on 4 ranks: 25 and 250 each, 3 * 25 tokens passed on.
        (False, 3.0, [1, 25, 250, 75, 0]),
        (True, 2.0, [1, 25, 250, 0, 0]),  # a round: 2 * 25 s of transfer hide behind 250 / 4 s of attention
        (True, 3.0, [1, 25, 62.5, 75, 0]),  # 3 * 25 s do not: one round's attention and three transfers
    ],
)
def test_rows_by_hand(overlap: bool, ring_intra: float, expected: list[float]) -> None:
    coefficients = np.array([0, 0, 1, ring_intra, 3.0])
    sums, cp_size = np.array([[100.0, 1000.0]]), np.array([4])
    assert bin_rows(sums, cp_size, np.array([False]), coefficients, overlap).tolist() == [expected]


def test_transfers_between_nodes_have_their_own_column() -> None:
    sums, cp_size = np.full((3, 2), [100.0, 1000.0]), np.array([1, 4, 4])
    rows = bin_rows(sums, cp_size, np.array([False, False, True]), np.array([0, 0, 1, 2, 3.0]), True)
    assert rows.tolist() == [[1, 100, 1000, 0, 0], [1, 25, 250, 0, 0], [1, 25, 62.5, 0, 75]]


def test_exact_timings_give_their_coefficients_and_a_clean_report() -> None:
    table = table_of(exact_times())
    attempt = best_attempt(table, FREE, None)
    report = report_on(table, FREE, attempt)
    assert not attempt.overlap  # no timing shows a transfer, so that the plainer form stays
    assert [report.coefficients[name] for name in NAMES[:3]] == pytest.approx([2, 0.5, 0.25], rel=1e-6)
    assert (report.num_samples, report.num_outliers) == (7, 0)
    assert report.r2 == pytest.approx(1)
    assert report.p95_relative_error == pytest.approx(0, abs=1e-9)
    assert report.warnings[0].startswith("all timings are at CP size 1")


def test_what_is_held_stays_and_has_no_error() -> None:
    held = np.array([2.0, np.nan, np.nan, 0.125, 0.5])
    table = table_of(exact_times())
    report = report_on(table, held, best_attempt(table, held, False))
    assert [report.coefficients[name] for name in ("fixed", "ring_intra", "ring_inter")] == [2.0, 0.125, 0.5]
    assert [report.standard_errors[name] for name in ("fixed", "ring_intra", "ring_inter")] == [0, 0, 0]
    assert report.coefficients["linear"] == pytest.approx(0.5, rel=1e-6)
    assert not any("CP size 1" in text for text in report.warnings)  # the rings were given


def test_too_few_timings_name_the_coefficients() -> None:
    with pytest.raises(
        ArgumentError, match=r"^samples are too few: 2 timings for the coefficients fixed, linear, quadratic$"
    ):
        best_attempt(table_of([1.0, 2.0], SHAPES[:2]), FREE, False)


def report_with(**changed: Any) -> FitReport:
    numbers = dict.fromkeys(COEFFICIENTS, 0.5)
    fields: dict[str, Any] = {"coefficients": numbers, "standard_errors": numbers, "r2": 0.5, "num_samples": 8}
    fields |= {"median_relative_error": 0.125, "p95_relative_error": 0.25, "num_outliers": 1, "condition_number": 2.0}
    fields["warnings"] = ("look again",)
    fields |= changed
    return FitReport(**fields)


def test_a_report_as_text() -> None:
    lines = str(report_with()).splitlines()
    assert lines[0] == "fixed      0.5 +- 0.5 s per bin"
    assert lines[5:] == [
        "R2 0.5000, relative error 12.5% (median), 25.0% (95th percentile), 1 outliers of 8 timings, "
        "condition number 2",
        "warning: look again",
    ]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"coefficients": dict.fromkeys(NAMES[:3], 1.0)}, "^coefficients needs ring_intra, ring_inter$"),
        ({"num_samples": -1}, "num_samples must be"),
        ({"r2": "good"}, "r2 must be"),
        ({"standard_errors": dict.fromkeys(NAMES, "x")}, r"standard_errors\['fixed'\] must be"),
    ],
)
def test_a_report_that_cannot_be_is_named(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        report_with(**changed)
