"""How far `dynamic_cp` is from the optimum of small batches, which an exact solver finds.

The fastest plan is a set-partitioning problem: a column is a set of sequences that makes one micro-batch, with the time
of the best groups of it on all ranks. HiGHS (`scipy.optimize.milp`) picks the columns. It shares no code with the
planner; `fastest_on` is plain Python. The suite goes to 8 sequences on 4 ranks, and to 12, which takes minutes, with

    DCPACK_SEQUENCES=12 pytest -s --timeout 3600 tests/properties/test_dynamic_cp_optimum.py
"""

from __future__ import annotations

import importlib
import itertools
import math
import os
from functools import cache
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.cost import CostModel, RingCost

scipy_optimize: Any = importlib.import_module("scipy.optimize")  # scipy has no types
scipy_sparse: Any = importlib.import_module("scipy.sparse")

CAPACITY = 100
MOST_SEQUENCES = int(os.environ.get("DCPACK_SEQUENCES", "8"))
COSTS = (RingCost(linear=200.0, ring_intra=60.0, node_size=None), RingCost(linear=20.0, ring_intra=10.0, node_size=2))


def fastest_step(lengths: list[int], ranks: int, cost: CostModel) -> float:
    """The least sum over micro-batches of the slowest rank, with any CP size."""
    every = range(len(lengths))
    columns = cost.columns(np.array(lengths, np.int64))

    @cache
    def group_time(members: tuple[int, ...], size: int) -> float:
        if sum(lengths[i] for i in members) > CAPACITY * size:
            return math.inf
        sums = columns[list(members)].sum(axis=0, keepdims=True)
        crosses = cost.node_size is not None and size > cost.node_size
        return float(cost.bin_time(sums, np.array([size]), np.array([crosses]))[0])

    @cache
    def fastest_on(members: tuple[int, ...], free: int) -> float:
        """The slowest of the best groups of these sequences on exactly so many ranks."""
        if not members or not free:
            return 0.0 if not members and not free else math.inf
        best, rest = math.inf, members[1:]
        for count in range(len(rest) + 1):
            for more in itertools.combinations(rest, count):
                left = tuple(i for i in rest if i not in more)
                for size in range(1, free + 1) if left else (free,):
                    time = group_time((members[0], *more), size)
                    if time < best:
                        best = min(best, max(time, fastest_on(left, free - size)))
        return best

    sets = [held for count in range(1, len(lengths) + 1) for held in itertools.combinations(every, count)]
    sets = [held for held in sets if sum(lengths[i] for i in held) <= CAPACITY * ranks]
    times = [fastest_on(held, ranks) for held in sets]
    kept = [(held, time) for held, time in zip(sets, times, strict=True) if time < math.inf]
    rows = [i for held, _ in kept for i in held]
    cols = [c for c, (held, _) in enumerate(kept) for _ in held]
    cover = scipy_sparse.csr_matrix((np.ones(len(rows)), (rows, cols)), shape=(len(lengths), len(kept)))
    solved = scipy_optimize.milp(
        np.array([time for _, time in kept]),
        constraints=scipy_optimize.LinearConstraint(cover, 1, 1),
        integrality=np.ones(len(kept)),
        bounds=scipy_optimize.Bounds(0, 1),
    )
    assert solved.success
    return float(solved.fun)


def test_by_hand() -> None:
    # 100 tokens on one rank take 100, on two 50; work is linear, so all ranks busy is the optimum: 180 / 2
    linear = RingCost(linear=1.0, quadratic=0.0, ring_intra=0.0, ring_inter=0.0)
    assert fastest_step([60, 60, 60], 2, linear) == pytest.approx(90)
    assert fastest_step([60, 70], 1, linear) == pytest.approx(130)


@pytest.mark.parametrize(("effort", "most"), [("balanced", 0.025), ("best", 0.01)])
def test_the_gap_to_the_optimum(effort: str, most: float) -> None:
    rng = np.random.default_rng(12)
    gaps = []
    for case in range(24):
        ranks = int(rng.integers(2, 5))
        count = int(rng.integers(ranks, MOST_SEQUENCES + 1))
        lengths = np.rint(np.exp(rng.uniform(np.log(5), np.log(80 * ranks), count))).astype(np.int64).tolist()
        cost = COSTS[case % 2]
        best = fastest_step(lengths, ranks, cost)
        plan = dcpack.plan(lengths, num_ranks=ranks, capacity=CAPACITY, cp_sizes="any", cost=cost, effort=effort)
        gaps.append(plan.simulate(cost) / best - 1)
    print(f"{effort}: mean gap {np.mean(gaps):.4f}, largest {max(gaps):.4f} over {len(gaps)} batches")
    assert min(gaps) >= -1e-6
    assert np.mean(gaps) <= most, gaps
    assert max(gaps) > 0  # a guard: the reference is not the planner
