"""Numbers beyond 2**31 and squares beyond 2**53 by exact integers of Python, and 4,096 ranks with 100,000 sequences."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.bounds import balance_lower_bound, packing_lower_bound
from dcpack.cost import get_cost
from dcpack.errors import ArgumentError, DcpackError
from dcpack.layout import cu_seqlens_from_lengths
from dcpack.metrics import plan_metrics
from dcpack.packing import PACKERS
from dcpack.report import summarise_lengths
from dcpack.scheduling import SCHEDULERS

BIG = 2**31 + 7


@pytest.mark.parametrize("method", [*PACKERS, "concat_then_split"])
def test_token_counts_beyond_int32(method: str) -> None:
    # Each bin stays below 2**31 tokens; all together are far beyond.
    lengths = [2**30, 2**30 - 1, 2**29, 2**29, 2**30] * 3
    plan = dcpack.pack(lengths, capacity=2**31 - 1, method=method)
    assert int(plan.entry_lengths.sum()) == sum(lengths) > 2**33
    plan.validate(lengths)
    assert plan.num_bins >= plan.bounds["num_bins"] == packing_lower_bound(lengths, 2**31 - 1)


def test_a_bin_beyond_int32_is_an_error_and_never_a_wrapped_offset() -> None:
    with pytest.raises(DcpackError, match=str(2**31 - 1)):
        dcpack.pack([BIG], capacity=2**32)
    with pytest.raises(ArgumentError, match="over the 2147483647"):
        cu_seqlens_from_lengths([2**30, 2**30])
    assert cu_seqlens_from_lengths([2**30, 2**30 - 1])[-1] == 2**31 - 1


@pytest.mark.parametrize("scheduler", sorted(SCHEDULERS))
def test_a_global_batch_beyond_int32(scheduler: str) -> None:
    lengths = np.full(40, 2**28 - 5)
    plan = dcpack.plan(lengths, num_ranks=4, capacity=2**28, scheduler=scheduler)
    assert int(plan.entry_lengths.sum()) == 40 * (2**28 - 5) > 2**33
    assert plan.num_microbatches == 10
    metrics = plan_metrics(plan, get_cost("llama3-8b@h100"))
    assert metrics["plan/num_tokens"] == 40 * (2**28 - 5)
    assert metrics["plan/utilization"] == pytest.approx((2**28 - 5) / 2**28)


@pytest.mark.parametrize("name", ["quadratic", "ring", "llama3-8b@h100"])
def test_squares_beyond_2_to_the_53(name: str) -> None:
    # 94,906,267 ** 2 is the first square beyond 2**53; longer ones round to 16 digits and keep their order.
    cost = get_cost(name)
    lengths = np.array([94_906_266, 94_906_267, 2**29, 2**29 + 1, 2**30])
    squares = cost.columns(lengths)[:, -1]
    exact = [Fraction(n * n) if name != "llama3-8b@h100" else Fraction(n * (n + 1), 2) for n in lengths.tolist()]
    assert all(abs(Fraction(float(got)) - want) <= want / 2**52 for got, want in zip(squares, exact, strict=True))
    assert np.all(np.diff(squares) > 0)
    plan = dcpack.plan(lengths, num_ranks=8, capacity=2**28, cost=cost, on_empty="dummy")
    plan.validate(lengths)
    assert np.isfinite(plan.simulate(cost))
    assert plan.simulate(cost) >= plan.bounds["step_time"] * (1 - 1e-12)


def test_costs_of_any_size_are_balanced_exactly() -> None:
    costs = [2**62, 2**61, 2**61, 1, 1]
    parts = dcpack.balance(costs, num_parts=2)
    loads = [sum(cost for cost, part in zip(costs, parts.tolist(), strict=True) if part == p) for p in (0, 1)]
    assert max(loads) <= 2**62 + 2
    assert balance_lower_bound(costs, 2) == 2**62 + 1
    tiny = dcpack.balance([5e-324, 5e-324, 1e308], num_parts=2)
    assert tiny[0] == tiny[1] != tiny[2]


def test_sums_of_lengths_beyond_int64_are_exact() -> None:
    summary = summarise_lengths(np.array([2**62] * 5), capacities=[8])
    assert summary.num_tokens == 5 * 2**62
    with pytest.raises(DcpackError):
        dcpack.pack([2**62] * 5, capacity=8, overlong="single")


def sequences(count: int) -> Any:
    return np.clip(np.random.default_rng(7).lognormal(6.5, 1.3, count), 16, 60_000).astype(np.int64)


@pytest.mark.parametrize("scheduler", ["in_order", "balanced"])  # the others: benchmarks/scale.py
def test_4096_ranks_and_100_000_sequences(scheduler: str) -> None:
    lengths = sequences(100_000)
    plan = dcpack.plan(lengths, num_ranks=4096, capacity=8192, scheduler=scheduler, cp_sizes=(8,), on_empty="dummy")
    plan.validate(lengths)
    assert int(plan.entry_lengths.sum()) == int(lengths.sum())
    assert np.bincount(plan.sequence_ids, minlength=100_000).max() == 1
    assert plan.num_microbatches >= plan.bounds["num_microbatches"]


def test_packing_and_balancing_of_100_000_for_4096() -> None:
    lengths = sequences(100_000)
    packed = dcpack.pack(lengths, capacity=65_536)
    assert int(packed.entry_lengths.sum()) == int(lengths.sum())
    parts = dcpack.balance(lengths, num_parts=4096)
    loads = np.bincount(parts, weights=lengths, minlength=4096)
    assert loads.max() <= 1.001 * max(balance_lower_bound(lengths, 4096), 1)


def test_dropped_tokens_beyond_int64_are_counted() -> None:
    lengths = [2**62] * 5 + [3]
    options: dict[str, Any] = {"scheduler": "in_order", "cp_sizes": (1,), "on_empty": "dummy", "overlong": "drop"}
    plan = dcpack.plan(lengths, num_ranks=2, capacity=8, **options)
    assert plan_metrics(plan, get_cost("quadratic"))["plan/num_dropped_tokens"] == float(5 * 2**62)
