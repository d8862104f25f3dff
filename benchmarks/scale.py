"""How long does planning take at 4,096 ranks and 100,000 sequences?

python benchmarks/scale.py

CPU time of this process, so that a shared machine tells the same.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import length_sets
import numpy as np

import dcpack
from dcpack.cost import get_cost
from dcpack.scheduling import SCHEDULERS

RANKS, SEQUENCES, CAPACITY = 4096, 100_000, 8192
COST = get_cost("llama3-8b@h100")
ONE_SIZE = ("in_order", "balanced", "local_gain")  # need one CP size that holds the longest


def timed(fn: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = fn()
    return time.process_time() - start, result


def main() -> None:
    lengths = length_sets.sft(SEQUENCES)
    print(f"{SEQUENCES:,} sequences, {lengths.sum():,} tokens, {RANKS:,} ranks, capacity {CAPACITY:,}")
    seconds, packed = timed(lambda: dcpack.pack(lengths, capacity=65_536))
    print(f"{'pack':15} {seconds:7.2f} s CPU, {packed.num_bins} bins, at least {packed.bounds['num_bins']:.0f}")
    seconds, parts = timed(lambda: dcpack.balance(lengths, num_parts=RANKS))
    loads = np.bincount(parts, weights=lengths)
    print(f"{'balance':15} {seconds:7.2f} s CPU, slowest over mean {loads.max() / loads.mean():.5f}")
    for name in SCHEDULERS:
        options: dict[str, Any] = {"cp_sizes": (4,)} if name in ONE_SIZE else {}
        seconds, plan = timed(
            lambda name=name, options=options: dcpack.plan(
                lengths, num_ranks=RANKS, capacity=CAPACITY, scheduler=name, on_empty="dummy", **options
            )
        )
        above = plan.simulate(COST) / plan.bounds["step_time"] - 1
        print(f"{name:15} {seconds:7.2f} s CPU, {plan.num_microbatches} micro-batches, {above:.1%} above the bound")


if __name__ == "__main__":
    main()
