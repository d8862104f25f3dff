"""The fit of `MeasuredCost`: its coefficients from timings, robustly, and how good they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from dcpack._checks import BoolArray, Float64Array, Int64Array, check_int, check_kinds, check_names
from dcpack.cost.checks import check_keys
from dcpack.cost.regression import RobustFit, robust_regression
from dcpack.cost.timings import WorkTable
from dcpack.errors import ArgumentError

__all__ = ["COEFFICIENTS", "NAMES", "FitReport", "best_attempt", "bin_rows", "report_on"]

COEFFICIENTS: Mapping[str, str] = MappingProxyType(
    {
        "fixed": "s per bin",
        "linear": "s per token",
        "quadratic": "s per pair",
        "ring_intra": "s per token and round, inside a node",
        "ring_inter": "s per token and round, between nodes",
    }
)
"""Coefficients of `MeasuredCost` and their units."""

NAMES = tuple(COEFFICIENTS)
"""Their names, in the order of the columns of `bin_rows`."""

_RINGS = (NAMES.index("ring_intra"), NAMES.index("ring_inter"))
# Ratios of a 7B-class model on GPUs: only where the search for the slowest ranks begins.
_START = np.array([0.0, 24576.0, 1.0, 1024.0, 2304.0])
_MAX_ROUNDS = 30


@dataclass(frozen=True, kw_only=True, slots=True)
class FitReport:
    """How well a fit describes the timings it was made from.

    Attributes:
        coefficients: value of each coefficient, in the units of `COEFFICIENTS`.
        standard_errors: standard error of each; 0 where it was given, is held at 0, or was taken from another.
        r2: part of the variance of the times that the fit explains, without outliers.
        median_relative_error: of the predictions, without outliers.
        p95_relative_error: 95th percentile of the same.
        num_samples: timings.
        num_outliers: timings that the fit gives no weight.
        condition_number: of the weighted columns, each scaled to length 1; large where the timings look alike.
        warnings: what is wrong with the timings or the fit, in words.

    Example:
        >>> from dcpack.cost import BinTiming, MeasuredCost
        >>> cost = MeasuredCost.fit([BinTiming(lengths=[n], time=1e-5 * n) for n in (100, 200, 400, 800)])
        >>> assert cost.report is not None
        >>> cost.report.num_samples, cost.report.warnings[0][:31]
        (4, 'all timings are at CP size 1, s')
    """

    coefficients: Mapping[str, float]
    standard_errors: Mapping[str, float]
    r2: float
    median_relative_error: float
    p95_relative_error: float
    num_samples: int
    num_outliers: int
    condition_number: float
    warnings: tuple[str, ...]

    def __post_init__(self) -> None:
        for name in ("coefficients", "standard_errors"):
            values = check_keys(name, getattr(self, name), COEFFICIENTS)
            if missing := [key for key in COEFFICIENTS if key not in values]:
                raise ArgumentError(f"{name} needs {', '.join(missing)}")
            check_kinds(**{f"{name}[{key!r}]": (value, int | float) for key, value in values.items()})
        numbers = ("r2", "median_relative_error", "p95_relative_error", "condition_number")
        check_kinds(**{name: (getattr(self, name), int | float) for name in numbers})
        for name in ("num_samples", "num_outliers"):
            check_int(name, getattr(self, name), minimum=0)
        check_names("warnings", self.warnings)

    def __str__(self) -> str:
        lines = [
            f"{name:<11}{self.coefficients[name]:.4g} +- {self.standard_errors[name]:.2g} {unit}"
            for name, unit in COEFFICIENTS.items()
        ]
        lines.append(
            f"R2 {self.r2:.4f}, relative error {self.median_relative_error:.1%} (median), "
            f"{self.p95_relative_error:.1%} (95th percentile), {self.num_outliers} outliers of {self.num_samples} "
            f"timings, condition number {self.condition_number:.3g}"
        )
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])


def bin_rows(
    sums: Float64Array, cp_size: Int64Array, crosses: BoolArray, coefficients: Float64Array, overlap: bool
) -> Float64Array:
    """Return float64[b, 5]: what each coefficient is multiplied with. With overlap that depends on the coefficients."""
    cp = np.asarray(cp_size, np.float64)
    tokens, pairs = sums[:, 0] / cp, sums[:, 1] / cp
    passed_on = (cp - 1) * tokens
    if overlap:
        ring = np.where(crosses, coefficients[_RINGS[1]], coefficients[_RINGS[0]])
        waits = (cp > 1) & (ring * tokens > coefficients[2] * pairs / cp)
        pairs = np.where(waits, pairs / cp, pairs)
        passed_on = np.where(waits, passed_on, 0.0)
    inside, between = np.where(crosses, 0.0, passed_on), np.where(crosses, passed_on, 0.0)
    return np.stack([np.ones_like(tokens), tokens, pairs, inside, between], axis=1)


class _Attempt(NamedTuple):
    """One fitted form. `loss`: root mean square of the relative errors without their largest tenth."""

    loss: float
    overlap: bool
    coefficients: Float64Array
    rows: Float64Array
    is_free: BoolArray
    fit: RobustFit
    settled: bool


def best_attempt(table: WorkTable, held: Float64Array, overlap: bool | None) -> _Attempt:
    """Return the attempt of least loss over several starts, and over both forms where `overlap` is None.

    The form without overlap is kept unless the other one is clearly better: it asks less of the timings.
    """
    starts = [_START, _START * np.array([1, 1, 1, 10, 10])]
    if overlap is not None:
        return min((_iterate(table, held, overlap, start) for start in starts), key=lambda attempt: attempt.loss)
    plain = best_attempt(table, held, False)
    hidden = min(best_attempt(table, held, True), _iterate(table, held, True, plain.coefficients), key=lambda a: a.loss)
    return hidden if hidden.loss < 0.97 * plain.loss else plain


def _iterate(table: WorkTable, held: Float64Array, overlap: bool, start: Float64Array) -> _Attempt:
    """Fit, look again which ranks are slowest and which transfers show, until nothing changes; return the best seen."""
    coefficients = np.where(np.isnan(held), start, held)
    best: _Attempt | None = None
    last, seen = b"", set[bytes]()
    for _ in range(_MAX_ROUNDS):
        of_bins = bin_rows(table.sums, table.cp_size, table.crosses, coefficients, overlap)
        rows = table.rows(of_bins, of_bins @ coefficients)
        choice = rows.tobytes()
        if best is not None and choice in seen:
            return best._replace(settled=choice == last)  # else a cycle
        last = choice
        seen.add(choice)
        is_free = np.isnan(held) & rows.any(axis=0)
        if rows.shape[0] < np.count_nonzero(is_free):
            names = ", ".join(np.array(NAMES)[is_free].tolist())
            raise ArgumentError(f"samples are too few: {rows.shape[0]} timings for the coefficients {names}")
        offset = rows @ np.where(np.isnan(held), 0.0, held)
        fit = robust_regression(rows[:, is_free], table.times, offset)
        coefficients = np.where(np.isnan(held), 0.0, held)
        coefficients[is_free] = fit.coefficients
        for ring, other in (_RINGS, _RINGS[::-1]):
            if np.isnan(held[ring]) and not is_free[ring]:
                coefficients[ring] = coefficients[other]
        errors = np.sort(_relative_errors(rows @ coefficients, table.times))
        loss = float(np.sqrt(np.square(errors[: max(1, int(0.9 * errors.size))]).mean()))
        if best is None or loss <= best.loss:
            best = _Attempt(loss, overlap, coefficients, rows, is_free, fit, False)
    assert best is not None
    return best


def _relative_errors(predicted: Float64Array, times: Float64Array) -> Float64Array:
    return np.abs(predicted - times) / times


def report_on(table: WorkTable, held: Float64Array, best: _Attempt) -> FitReport:
    """Return how well `best` describes the timings, and what is wrong with them."""
    inliers = best.fit.weights > 0
    predicted, times = (best.rows @ best.coefficients)[inliers], table.times[inliers]
    errors = _relative_errors(predicted, times)
    spread = float(np.square(times - times.mean()).sum())
    unexplained = float(np.square(times - predicted).sum())
    standard = np.zeros(len(NAMES))
    standard[best.is_free] = best.fit.standard_errors
    median, p95 = np.percentile(errors, [50, 95]).tolist()
    num_outliers = int(np.count_nonzero(~inliers))
    return FitReport(
        coefficients=dict(zip(NAMES, best.coefficients.tolist(), strict=True)),
        standard_errors=dict(zip(NAMES, standard.tolist(), strict=True)),
        r2=1 - unexplained / spread if spread > 0 else 0.0,
        median_relative_error=median,
        p95_relative_error=p95,
        num_samples=times.size + num_outliers,
        num_outliers=num_outliers,
        condition_number=best.fit.condition_number,
        warnings=tuple(_warnings(table, held, best, standard, p95)),
    )


def _warnings(
    table: WorkTable, held: Float64Array, best: _Attempt, standard: Float64Array, p95: float
) -> Iterable[str]:
    """Say what a user should know before planning with the fit."""
    is_unknown = np.isnan(held) & ~best.is_free
    if is_unknown[list(_RINGS)].all():
        why = "all timings are at CP size 1" if table.cp_size.max() == 1 else "no timing shows a ring transfer"
        yield (
            f"{why}, so ring_intra and ring_inter are not identifiable and are 0: plans would take CP for free; time "
            "short sequences at larger CP sizes, or give the two by known="
        )
    else:
        for ring, other in (_RINGS, _RINGS[::-1]):
            if is_unknown[ring]:
                yield f"no timing shows {NAMES[ring]}: it is not identifiable and is taken to be {NAMES[other]}"
    for k, name in enumerate(NAMES):
        value = best.coefficients[k]
        if best.is_free[k] and value == 0 and name != "fixed":
            yield f"{name} came out below 0 and is held at 0"
        if standard[k] > 0.25 * value > 0:
            yield f"{name} is only known to +-{standard[k] / value:.0%}: add timings in which it matters more"
    if best.fit.condition_number > 100:
        yield (
            f"the timings look alike (condition number {best.fit.condition_number:.3g}): vary lengths, sequences per "
            "bin and CP sizes"
        )
    num_outliers = int(np.count_nonzero(best.fit.weights == 0))
    if num_outliers > 0.2 * table.times.size:
        yield f"{num_outliers} of {table.times.size} timings are outliers"
    if p95 > 0.25:
        yield f"the model describes the timings poorly: the 95th percentile of the relative error is {p95:.0%}"
    if not (best.settled and best.fit.converged):
        yield "the fit did not settle: which ranks are slowest kept changing, and the best fit seen is kept"
