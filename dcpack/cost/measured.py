"""A cost model whose coefficients come from the user's own timings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from dcpack._checks import (
    BoolArray,
    Float64Array,
    Int64Array,
    check_int,
    check_items,
    check_kinds,
    check_names,
    check_path,
    list_offenders,
)
from dcpack.cost.attention import AttentionPattern, attention_name, count_pairs, get_attention, named_if_known
from dcpack.cost.checks import as_real, check_keys
from dcpack.cost.regression import RobustFit, robust_regression
from dcpack.cost.timings import BinTiming, StepTiming, WorkTable, tabulate
from dcpack.errors import ArgumentError

__all__ = ["COEFFICIENTS", "FitReport", "MeasuredCost"]

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

_NAMES = tuple(COEFFICIENTS)
_RINGS = (_NAMES.index("ring_intra"), _NAMES.index("ring_inter"))
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


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCost:
    """Seconds that a rank works on a bin, from measured coefficients.

    A rank of a bin holds ``t = tokens / cp`` tokens and ``q = pairs / cp`` pairs, and passes keys and values on in
    ``cp - 1`` rounds. ``ring`` is `ring_intra` inside a node and `ring_inter` between nodes:

        fixed + linear * t + quadratic * q + (cp - 1) * ring * t                        with overlap=False,
        fixed + linear * t + quadratic * q/cp + (cp - 1) * max(quadratic * q/cp, ring * t)  with overlap=True.

    Args:
        fixed: seconds of each bin.
        linear: seconds of a token.
        quadratic: seconds of a (query, key) pair.
        ring_intra: seconds to pass one token's keys and values on inside a node.
        ring_inter: the same between nodes.
        overlap: whether attention hides ring transfers; then `ring` is the transfer itself, else the part that shows.
        node_size: consecutive ranks of a node; None puts all ranks on one node.
        attention: what counts as a pair, as in `TransformerCost`.
        report: how it was fitted, or None.

    Raises:
        ArgumentError: an argument of the wrong type or range.

    Example:
        >>> cost = MeasuredCost(linear=1e-4, quadratic=1e-8, ring_intra=1e-5, ring_inter=1e-4, attention="full")
        >>> sums = cost.columns(np.array([1000]))
        >>> [round(float(cost.bin_time(sums, np.array([cp]), np.array([False]))[0]), 6) for cp in (1, 2)]
        [0.11, 0.0575]
    """

    linear: float
    quadratic: float
    ring_intra: float
    ring_inter: float
    fixed: float = 0.0
    overlap: bool = True
    node_size: int | None = 8
    attention: str | AttentionPattern = "causal"
    report: FitReport | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in _NAMES:
            object.__setattr__(self, name, as_real(name, getattr(self, name)))
        check_kinds(report=(self.report, FitReport | None))
        if not isinstance(self.overlap, bool):
            raise ArgumentError(f"overlap must be True or False, got {self.overlap!r}")
        if self.node_size is not None:
            object.__setattr__(self, "node_size", check_int("node_size", self.node_size, minimum=1))
        object.__setattr__(self, "attention", named_if_known(get_attention(self.attention)))

    @property
    def unit(self) -> str:
        """``"s"``."""
        return "s"

    def columns(self, padded_lengths: Int64Array) -> Float64Array:
        """Return float64[n, 2]: tokens, and (query, key) pairs."""
        pairs = count_pairs(get_attention(self.attention), padded_lengths)
        return np.stack([np.asarray(padded_lengths, np.float64), pairs], axis=1)

    def bin_time(self, column_sums: Float64Array, cp_size: Int64Array, crosses_node: BoolArray) -> Float64Array:
        """Return float64[b]: the seconds of each rank of each bin, by the formula above."""
        coefficients = np.array([getattr(self, name) for name in _NAMES])
        return _bin_rows(column_sums, cp_size, crosses_node, coefficients, self.overlap) @ coefficients

    @classmethod
    def fit(
        cls,
        samples: Iterable[BinTiming | StepTiming],
        *,
        attention: str | AttentionPattern = "causal",
        node_size: int | None = 8,
        overlap: bool | None = None,
        known: Mapping[str, float] | None = None,
    ) -> MeasuredCost:
        """Fit the coefficients to timings, robustly, none below 0.

        A regression needs to know which rank a step waited for, and (with overlap) which transfers showed; both depend
        on the coefficients. So it starts from typical ones, takes the ranks that they call slowest, fits, and repeats
        until nothing changes. That finds a good answer, not provably the best one: several starts are tried.

        Args:
            samples: timings of bins or steps, at least as many as coefficients. Vary the lengths, the number of
                sequences of a bin and the CP sizes, or terms cannot be told apart.
            attention: what counts as a pair.
            node_size: consecutive ranks of a node, for the plans of the samples and for the model.
            overlap: see the class; None takes the form that describes the timings better.
            known: coefficients that are given and not fitted.

        Returns:
            The model, with its `report`. A ring coefficient that no timing shows is taken from the other one.

        Raises:
            ArgumentError: too few samples, or an argument of the wrong type or range.

        Example:
            >>> bins = [([1000], 1), ([4000], 1), ([500] * 8, 1), ([8000], 2), ([500] * 8, 4), ([64] * 2, 1)]
            >>> def seconds(lengths, cp):
            ...     tokens, pairs = sum(lengths) / cp, sum(n * n for n in lengths) / cp
            ...     return 0.01 + 1e-4 * tokens + 1e-8 * pairs + (cp - 1) * 2e-5 * tokens
            >>> timings = [BinTiming(lengths=n, cp_size=cp, time=seconds(n, cp)) for n, cp in bins]
            >>> cost = MeasuredCost.fit(timings, attention="full", overlap=False)
            >>> [f"{value:.3g}" for value in (cost.fixed, cost.linear, cost.quadratic, cost.ring_intra)]
            ['0.01', '0.0001', '1e-08', '2e-05']
        """
        timings = list(check_items("samples", samples))
        check_kinds(overlap=(overlap, bool | None))
        wrong = [f"sample {i} is {s!r}" for i, s in enumerate(timings) if not isinstance(s, BinTiming | StepTiming)]
        if wrong or not timings:
            raise ArgumentError(f"samples must be BinTiming or StepTiming, at least one: {list_offenders(wrong)}")
        if node_size is not None:
            check_int("node_size", node_size, minimum=1)
        given = check_keys("known", {} if known is None else known, _NAMES)
        held = np.array([as_real(name, given[name]) if name in given else np.nan for name in _NAMES])
        table = tabulate(timings, get_attention(attention), node_size)
        best = _best_attempt(table, held, overlap)
        values = dict(zip(_NAMES, best.coefficients.tolist(), strict=True))
        report = _report(table, held, best)
        return cls(**values, overlap=best.overlap, node_size=node_size, attention=attention, report=report)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as JSON-able values.

        Raises:
            ArgumentError: `attention` is a function of the user's own.

        Example:
            >>> cost = MeasuredCost(linear=1e-4, quadratic=1e-8, ring_intra=1e-5, ring_inter=1e-4)
            >>> MeasuredCost.from_dict(cost.to_dict()) == cost
            True
        """
        values = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "report"}
        values["attention"] = attention_name(get_attention(self.attention))
        return values if self.report is None else {**values, "report": asdict(self.report)}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> MeasuredCost:
        """Return the model that `to_dict` described.

        Raises:
            ArgumentError: keys that are missing or unknown, or values out of range.
        """
        checked = check_keys("measured", values, [item.name for item in fields(cls)])
        needed = ("linear", "quadratic", "ring_intra", "ring_inter")
        if missing := [repr(name) for name in needed if name not in checked]:
            raise ArgumentError(f"measured needs {', '.join(missing)}")
        if checked.get("report") is not None:
            report = check_keys("report", checked["report"], [item.name for item in fields(FitReport)])
            if missing := [repr(item.name) for item in fields(FitReport) if item.name not in report]:
                raise ArgumentError(f"report needs {', '.join(missing)}")
            checked["report"] = FitReport(**{**report, "warnings": check_names("warnings", report["warnings"])})
        return cls(**checked)

    def save(self, path: str | Path) -> None:
        """Write the model to `path` as JSON, which `load` and `get_cost` read."""
        check_path("path", path).write_text(json.dumps({"measured": self.to_dict()}, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> MeasuredCost:
        """Return the model that `save` wrote.

        Raises:
            ArgumentError: a file that cannot be read or holds something else; names it.
        """
        file = check_path("path", path)
        try:
            values = json.loads(file.read_text(encoding="utf-8"))["measured"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ArgumentError(f"{path}: not a measured cost: {type(error).__name__}: {error}") from error
        return cls.from_dict(values)


def _bin_rows(
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


def _best_attempt(table: WorkTable, held: Float64Array, overlap: bool | None) -> _Attempt:
    """Return the attempt of least loss over several starts, and over both forms where `overlap` is None.

    The form without overlap is kept unless the other one is clearly better: it asks less of the timings.
    """
    starts = [_START, _START * np.array([1, 1, 1, 10, 10])]
    if overlap is not None:
        return min((_iterate(table, held, overlap, start) for start in starts), key=lambda attempt: attempt.loss)
    plain = _best_attempt(table, held, False)
    hidden = min(
        _best_attempt(table, held, True), _iterate(table, held, True, plain.coefficients), key=lambda a: a.loss
    )
    return hidden if hidden.loss < 0.97 * plain.loss else plain


def _iterate(table: WorkTable, held: Float64Array, overlap: bool, start: Float64Array) -> _Attempt:
    """Fit, look again which ranks are slowest and which transfers show, until nothing changes; return the best seen."""
    coefficients = np.where(np.isnan(held), start, held)
    best: _Attempt | None = None
    last, seen = b"", set[bytes]()
    for _ in range(_MAX_ROUNDS):
        bin_rows = _bin_rows(table.sums, table.cp_size, table.crosses, coefficients, overlap)
        rows = table.rows(bin_rows, bin_rows @ coefficients)
        choice = rows.tobytes()
        if best is not None and choice in seen:
            return best._replace(settled=choice == last)  # else a cycle
        last = choice
        seen.add(choice)
        is_free = np.isnan(held) & rows.any(axis=0)
        if rows.shape[0] < np.count_nonzero(is_free):
            names = ", ".join(np.array(_NAMES)[is_free].tolist())
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


def _report(table: WorkTable, held: Float64Array, best: _Attempt) -> FitReport:
    inliers = best.fit.weights > 0
    predicted, times = (best.rows @ best.coefficients)[inliers], table.times[inliers]
    errors = _relative_errors(predicted, times)
    spread = float(np.square(times - times.mean()).sum())
    unexplained = float(np.square(times - predicted).sum())
    standard = np.zeros(len(_NAMES))
    standard[best.is_free] = best.fit.standard_errors
    median, p95 = np.percentile(errors, [50, 95]).tolist()
    num_outliers = int(np.count_nonzero(~inliers))
    return FitReport(
        coefficients=dict(zip(_NAMES, best.coefficients.tolist(), strict=True)),
        standard_errors=dict(zip(_NAMES, standard.tolist(), strict=True)),
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
                yield f"no timing shows {_NAMES[ring]}: it is not identifiable and is taken to be {_NAMES[other]}"
    for k, name in enumerate(_NAMES):
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
