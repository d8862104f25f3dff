"""What does one CP size per micro-batch cost against `dynamic_cp`, and how few shapes does a run need?

For global batches of the six length sets: r3 (time of the step under `RingCost` over work / ranks) of `uniform_cp` and
of `dynamic_cp`, powers of two, the same ranks and row capacity; micro-batches, mean CP, planning time. Then, over steps
of 512 sequences on 64 ranks, the shapes that batches need against the bound known beforehand, with rows of 2048, 4096
and 8192, and how much of all rows is real tokens. Nothing here is a must; plans are validated. Planning
times are process times, as other work shares the machine.

    python benchmarks/uniform_cp.py | tee benchmarks/results/uniform_cp.txt
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import sys
import time

import length_sets
import numpy as np

import dcpack
from dcpack.exchange import StaticShapes, shapes_of_bins
from dcpack.metrics import mean_cp_size
from dcpack.padding import PaddingRule

CAPACITY = 8192
COST = dcpack.RingCost()
RANKS = (16, 64, 256)
SEQUENCES = (512, 2048)
REPEATS = 2
ROWS = (2048, 4096, 8192)
STEPS = 20


def main() -> int:
    print(f"python benchmarks/uniform_cp.py, {datetime.date.today()}, {describe_machine()}")
    print(f"capacity {CAPACITY} a rank, powers of two, least of {REPEATS} process times; uniform_cp / dynamic_cp")
    print(f"{'set':>14} {'n':>5} {'ranks':>5} {'r3':>13} {'costs':>7} {'steps':>8} {'mean CP':>12} {'ms':>9}")
    sets = {name: length_sets.make(name)[0] for name in length_sets.SETS}
    cases = [(n, ranks) for n in SEQUENCES for ranks in RANKS] + [(8192, 256)]
    ratios = []
    for n, num_ranks in cases:
        for name, lengths in sets.items():
            ratios.append(measure(name, lengths[:n], num_ranks))
    print(
        f"uniform_cp takes {statistics.median(ratios):.3f} times the step of dynamic_cp (median of {len(ratios)}; "
        f"{min(ratios):.3f} to {max(ratios):.3f})"
    )
    print(f"\nshapes over {STEPS} steps of 512 sequences on 64 ranks, rows of {', '.join(map(str, ROWS))}")
    print(f"{'set':>14} {'bound':>5} {'seen':>4} {'real tokens of rows':>20} {'with full rows':>15}")
    for name, lengths in sets.items():
        count_shapes(name, lengths)
    return 0


def plan_of(lengths: np.ndarray, num_ranks: int, scheduler: str) -> dcpack.Plan:
    return dcpack.plan(lengths, num_ranks=num_ranks, capacity=CAPACITY, scheduler=scheduler, cost=COST)


def measure(name: str, lengths: np.ndarray, num_ranks: int) -> float:
    figures = []
    for scheduler in ("uniform_cp", "dynamic_cp"):
        plan = plan_of(lengths, num_ranks, scheduler)
        plan.validate(lengths)
        seconds = []
        for _ in range(REPEATS):
            start = time.process_time()
            plan_of(lengths, num_ranks, scheduler)
            seconds.append(time.process_time() - start)
        r3 = plan.simulate(COST) / plan.bounds["work"]
        figures.append((r3, plan.num_microbatches, mean_cp_size(plan), 1e3 * min(seconds)))
    ours, theirs = figures
    costs, steps = ours[0] / theirs[0] - 1, f"{ours[1]}/{theirs[1]}"
    print(
        f"{name:>14} {lengths.size:>5} {num_ranks:>5} {ours[0]:>6.3f}/{theirs[0]:<6.3f} {costs:>+7.1%} {steps:>8} "
        f"{ours[2]:>6.2f}/{theirs[2]:<5.2f} {ours[3]:>4.0f}/{theirs[3]:<4.0f}",
        flush=True,
    )
    return ours[0] / theirs[0]


def count_shapes(name: str, lengths: np.ndarray) -> None:
    static_shapes = StaticShapes(max_sequences=512, row_lengths=ROWS)
    seen = set()
    tokens = in_buckets = in_full = bound = 0
    for step in range(STEPS):
        part = lengths[512 * step : 512 * (step + 1)]
        plan = dcpack.plan(
            part, num_ranks=64, capacity=CAPACITY, scheduler="uniform_cp", cost=COST, padding=PaddingRule()
        )
        shapes = shapes_of_bins(plan, static_shapes)
        seen.update(shapes)
        bound = static_shapes.num_shapes(plan.cp_sizes)
        tokens += int(part.sum())
        in_buckets += sum(shape.row_tokens * shape.cp_size for shape in shapes)
        in_full += plan.num_microbatches * plan.num_ranks * CAPACITY
    print(f"{name:>14} {bound:>5} {len(seen):>4} {tokens / in_buckets:>20.1%} {tokens / in_full:>15.1%}")


def describe_machine() -> str:
    return f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"


if __name__ == "__main__":
    sys.exit(main())
