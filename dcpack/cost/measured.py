"""A cost model whose coefficients come from the user's own timings."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np

from dcpack._checks import (
    BoolArray,
    Float64Array,
    Int64Array,
    as_real,
    check_flag,
    check_int,
    check_items,
    check_kinds,
    check_names,
    check_path,
    list_offenders,
)
from dcpack.cost.attention import AttentionPattern, attention_name, count_pairs, get_attention, named_if_known
from dcpack.cost.checks import check_keys
from dcpack.cost.fitting import NAMES, FitReport, best_attempt, bin_rows, report_on
from dcpack.cost.timings import BinTiming, StepTiming, tabulate
from dcpack.errors import ArgumentError

__all__ = ["MeasuredCost"]


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
        for name in NAMES:
            object.__setattr__(self, name, as_real(name, getattr(self, name)))
        check_kinds(report=(self.report, FitReport | None))
        object.__setattr__(self, "overlap", check_flag("overlap", self.overlap))
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
        coefficients = np.array([getattr(self, name) for name in NAMES])
        return bin_rows(column_sums, cp_size, crosses_node, coefficients, self.overlap) @ coefficients

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
        overlap = None if overlap is None else check_flag("overlap", overlap)
        wrong = [f"sample {i} is {s!r}" for i, s in enumerate(timings) if not isinstance(s, BinTiming | StepTiming)]
        if wrong or not timings:
            raise ArgumentError(f"samples must be BinTiming or StepTiming, at least one: {list_offenders(wrong)}")
        if node_size is not None:
            check_int("node_size", node_size, minimum=1)
        given = check_keys("known", {} if known is None else known, NAMES)
        held = np.array([as_real(name, given[name]) if name in given else np.nan for name in NAMES])
        table = tabulate(timings, get_attention(attention), node_size)
        best = best_attempt(table, held, overlap)
        values = dict(zip(NAMES, best.coefficients.tolist(), strict=True))
        report = report_on(table, held, best)
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
