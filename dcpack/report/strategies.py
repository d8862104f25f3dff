"""The same sequences under several strategies, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, as_lengths
from dcpack.api import plan
from dcpack.cost import CostModel
from dcpack.errors import InfeasibleError
from dcpack.metrics import num_cut_sequences, plan_metrics
from dcpack.packing import apply_overlong
from dcpack.padding import PaddingRule, longest_fitting_length
from dcpack.plans import Plan
from dcpack.report.tables import format_bytes, format_table
from dcpack.topology import legal_cp_sizes

__all__ = ["STRATEGIES", "Cluster", "StrategyResult", "compare_strategies", "format_strategies"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """What the strategies plan for.

    Attributes:
        num_ranks: ranks of the DPxCP domain.
        capacity: padded tokens of one row on one rank.
        padding: the padding rule, or None.
        cost: the cost model that times the plans.
        overlong: the policy for sequences that fit on no CP size of a strategy.
        max_cp_size: largest CP size, or None.
        sync: ``"microbatch"`` or ``"step"``.
    """

    num_ranks: int
    capacity: int
    padding: PaddingRule | None
    cost: CostModel
    overlong: str = "split"
    max_cp_size: int | None = None
    sync: str = "microbatch"

    def plan(self, lengths: Any, **options: Any) -> Plan:
        """Return a plan for this cluster; too few sequences are filled up with dummies."""
        fixed: dict[str, Any] = {"max_cp_size": self.max_cp_size, "overlong": self.overlong, "on_empty": "dummy"}
        return plan(
            lengths,
            num_ranks=self.num_ranks,
            capacity=self.capacity,
            padding=self.padding,
            cost=self.cost,
            sync=self.sync,
            **{**fixed, **options},
        )

    def static_cp_size(self, lengths: Int64Array) -> int:
        """Return the smallest legal CP size that divides the ranks and holds the longest sequence, else the largest."""
        sizes = legal_cp_sizes(self.num_ranks, max_cp_size=self.max_cp_size)
        sizes = [size for size in sizes if self.num_ranks % size == 0]
        longest = int(lengths.max(initial=0))
        return next((s for s in sizes if longest_fitting_length(self.capacity, s, self.padding) >= longest), sizes[-1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Planned:
    """What a strategy makes of one step.

    Attributes:
        plan: what the ranks compute.
        num_tokens: real tokens in it.
        num_cut_sequences: sequences that the overlong policy cut.
        bound: lower bound of the step time of those tokens, in the unit of the cost model.
    """

    plan: Plan
    num_tokens: int
    num_cut_sequences: int
    bound: float

    @classmethod
    def of(cls, plan: Plan) -> Planned:
        """Return a plan of the sequences as they are."""
        return cls(
            plan=plan,
            num_tokens=int(plan.entry_lengths.sum()),
            num_cut_sequences=num_cut_sequences(plan),
            bound=plan.bounds["step_time"],
        )


def _pad_to_longest(cluster: Cluster, lengths: Int64Array) -> Planned:
    """One sequence a rank group, each padded to the longest of its micro-batch; static CP that holds the longest."""
    cp_size = cluster.static_cp_size(lengths)
    limit = longest_fitting_length(cluster.capacity, cp_size, cluster.padding)
    cut = apply_overlong(lengths, limit, cluster.overlong)
    pieces = cut.lengths
    groups = cluster.num_ranks // cp_size
    starts = np.arange(0, pieces.size, groups)
    longest = np.repeat(np.maximum.reduceat(pieces, starts) if starts.size else pieces, groups)[: pieces.size]
    options: dict[str, Any] = {"scheduler": "in_order", "cp_sizes": (cp_size,), "max_sequences": 1}
    return Planned(
        plan=cluster.plan(longest, **options),
        num_tokens=int(pieces.sum()),
        num_cut_sequences=cut.num_cut,
        bound=cluster.plan(pieces, **options).bounds["step_time"],
    )


def _static_cp(cluster: Cluster, lengths: Int64Array) -> Planned:
    return Planned.of(cluster.plan(lengths, scheduler="in_order", cp_sizes=(cluster.static_cp_size(lengths),)))


def _in_order(cluster: Cluster, lengths: Int64Array) -> Planned:
    return Planned.of(cluster.plan(lengths, scheduler="in_order", cp_sizes=(1,)))


def _packing_aware(cluster: Cluster, lengths: Int64Array) -> Planned:
    return Planned.of(cluster.plan(lengths, scheduler="packing_aware"))


STRATEGIES: dict[str, Callable[[Cluster, Int64Array], Planned]] = {
    "pad to longest": _pad_to_longest,
    "static CP": _static_cp,
    "in_order": _in_order,
    "packing_aware": _packing_aware,
}
"""The strategies by name, from the wasteful to the best."""


@dataclass(slots=True)
class StrategyResult:
    """One strategy, summed over steps.

    Attributes:
        name: the strategy.
        steps: what it makes of each step.
        totals: sums and means of `dcpack.metrics.plan_metrics`, by name.
        bytes_moved: bytes between processes, or None where not worked out.
        bytes_whole: bytes that whole sequences, field by field, would have moved, or None.
        failure: why the strategy cannot plan these lengths, or None.
    """

    name: str
    steps: list[Planned]
    totals: dict[str, float]
    bytes_moved: int | None = None
    bytes_whole: int | None = None
    failure: str | None = None


def compare_strategies(cluster: Cluster, steps: Sequence[Any], *, done: Callable[[], object]) -> list[StrategyResult]:
    """Plan every step under every strategy.

    Args:
        cluster: ranks, capacity, cost.
        steps: int64[n] lengths of each step.
        done: called after each plan, for progress.

    Returns:
        One result a strategy. A strategy that cannot plan some step has a `failure` and no totals.
    """
    checked = [as_lengths(f"steps[{i}]", lengths) for i, lengths in enumerate(steps)]
    return [_run_strategy(name, cluster, checked, done) for name in STRATEGIES]


def _run_strategy(
    name: str, cluster: Cluster, steps: Sequence[Int64Array], done: Callable[[], object]
) -> StrategyResult:
    result = StrategyResult(name=name, steps=[], totals={})
    for lengths in steps:
        if result.failure is None:
            try:
                result.steps.append(STRATEGIES[name](cluster, lengths))
            except InfeasibleError as error:
                result.failure = str(error)
        done()
    if result.failure is not None:
        return result
    result.totals = _totals(cluster, result.steps)
    return result


def _totals(cluster: Cluster, steps: Sequence[Planned]) -> dict[str, float]:
    plans = [step.plan for step in steps]
    metrics = [plan_metrics(p, cluster.cost, sync=cluster.sync) for p in plans]
    unit = cluster.cost.unit
    real = float(sum(step.num_tokens for step in steps))
    padded = sum(float(p.bin_padded_tokens.sum()) for p in plans)
    slots = sum(float(p.num_microbatches * p.num_ranks * p.capacity) for p in plans)
    work = np.sum([p.rank_times(cluster.cost).sum(axis=0) for p in plans], axis=0)
    tokens = np.array([m["plan/num_tokens"] for m in metrics])
    mean_cp = np.array([m["plan/mean_cp_size"] for m in metrics])
    return {
        "num_microbatches": sum(m["plan/num_microbatches"] for m in metrics),
        "num_cut_sequences": float(sum(step.num_cut_sequences for step in steps)),
        "padding_share": 1.0 - real / padded if padded else 0.0,
        "utilization": real / slots if slots else 0.0,
        "imbalance": float(work.max() / work.mean()) if np.any(work) else 1.0,
        "mean_cp_size": float((tokens * mean_cp).sum() / tokens.sum()) if tokens.sum() else 1.0,
        "step_time": sum(m[f"plan/step_time({unit})"] for m in metrics) / max(len(plans), 1),
        "bound": sum(step.bound for step in steps) / max(len(plans), 1),
    }


def format_strategies(results: Sequence[StrategyResult], *, unit: str) -> str:
    """Return the table that people read.

    Each step time stands beside its distance from the lower bound of the same pieces: a strategy that cuts sequences
    has less attention to compute, so its times are not comparable with those of one that does not.

    Args:
        results: the strategies.
        unit: unit of the times.
    """
    headers = [
        "strategy",
        "micro-\nbatches",
        "cut\nsequences",
        "padding",
        "utili-\nzation",
        "max/mean\nwork",
        "mean\nCP",
        "moved",
        "moved whole,\nkey by key",
        f"step time\n({unit})",
        "above\nbound",
    ]
    return format_table(headers, [_row(result, len(headers)) for result in results])


def _row(result: StrategyResult, width: int) -> list[str]:
    if result.failure is not None:
        return [result.name, *["-"] * (width - 1)]
    t = result.totals
    sizes = ["-" if size is None else format_bytes(size) for size in (result.bytes_moved, result.bytes_whole)]
    return [
        result.name,
        f"{t['num_microbatches']:.0f}",
        f"{t['num_cut_sequences']:.0f}",
        f"{t['padding_share']:.1%}",
        f"{t['utilization']:.1%}",
        f"{t['imbalance']:.2f}",
        f"{t['mean_cp_size']:.2f}",
        *sizes,
        f"{t['step_time']:.4g}",
        f"{t['step_time'] / t['bound'] - 1:.1%}" if t["bound"] else "-",
    ]
