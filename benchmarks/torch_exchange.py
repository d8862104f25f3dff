"""What does one fused exchange of slices save against one all-to-all a key of whole sequences?

The other path moves what loaders with CP often move: each key in a collective of its own, each whole sequence to every
rank of its CP group; slicing it afterwards is not even counted. Both start from the same samples and plan, on real
processes over Gloo, and the time of the fused exchange includes cutting the slices and putting them into place.

    torchrun --standalone --nproc-per-node 4 benchmarks/torch_exchange.py | tee benchmarks/results/torch_exchange.txt
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

import dcpack
from dcpack.exchange import GatheredSamples, build_routes, gather_samples, move_samples

CAPACITY = 8192
SAMPLES_A_RANK = 16
REPEATS = 9
KEYS = {
    "input_ids": np.int64,
    "labels": np.int64,
    "loss_mask": np.float32,
    "position_ids": np.int64,
    "advantages": np.float32,
    "old_logprobs": np.float32,
}
EXTRA = ("advantages", "old_logprobs")


def main() -> int:
    with dcpack.get_backend("torch-gloo").world() as world:
        samples = make_samples(world.rank)
        gathered = gather_samples(world, samples, per_token=EXTRA)
        plan = dcpack.plan(
            gathered.table.lengths,
            num_ranks=world.size,
            capacity=CAPACITY,
            cp_sizes=(world.size,),
            padding=dcpack.PaddingRule(),
        )
        routes = build_routes(plan, gathered.table, num_processes=world.size)
        fused = measure(world, lambda: move_samples(world, gathered, plan, routes))
        each = measure(world, lambda: move_key_by_key(world, gathered, plan))
    if world.rank == 0:
        lengths = gathered.table.lengths
        print(f"benchmarks/torch_exchange.py, {datetime.date.today()}, {describe_machine()}")
        print(
            f"{world.size} processes, CP {world.size}, {lengths.size} sequences of {lengths.min()} to {lengths.max()} "
            f"tokens, {lengths.sum()} in all, {len(KEYS)} keys; median of {REPEATS} steps"
        )
        for name, (num_bytes, calls, milliseconds) in (("one fused exchange", fused), ("key by key, whole", each)):
            print(f"{name:>20}: {num_bytes:>12,} bytes moved, {calls} all-to-all, {milliseconds:7.1f} ms")
        print(f"{'ratio':>20}: {each[0] / fused[0]:.2f} x bytes, {each[2] / fused[2]:.2f} x time")
    return 0


def make_samples(rank: int) -> list[dict[str, np.ndarray]]:
    generator = np.random.default_rng(rank)
    lengths = np.minimum(generator.lognormal(7.5, 1.0, SAMPLES_A_RANK).astype(np.int64) + 16, 4 * CAPACITY)
    return [
        {name: generator.integers(0, 1000, length).astype(dtype) for name, dtype in KEYS.items()} for length in lengths
    ]


def move_key_by_key(world: dcpack.Communicator, gathered: GatheredSamples, plan: dcpack.Plan) -> None:
    """Send each key of each whole sequence to every rank of its CP group."""
    table = gathered.table
    first = plan.first_rank[plan.entry_bin]
    last = first + plan.cp_size[plan.entry_bin] - 1
    wanted = [plan.sequence_ids[(first <= r) & (r <= last)] for r in range(world.size)]
    holder, place = table.holders[table.holder_offsets[:-1]], table.holder_places[table.holder_offsets[:-1]]
    received = wanted[world.rank]
    recv_counts = np.bincount(holder[received], weights=table.lengths[received], minlength=world.size).astype(np.int64)
    recv_counts[world.rank] = 0
    mine = [
        [] if r == world.rank else place[wanted[r][holder[wanted[r]] == world.rank]].tolist() for r in range(world.size)
    ]
    send_counts = [sum(gathered.local[p].length for p in places) for places in mine]
    for name, dtype in KEYS.items():
        parts = [gathered.local[p].fields[name] for places in mine for p in places]
        world.all_to_all(np.concatenate([np.zeros(0, dtype), *parts]).astype(dtype), send_counts, recv_counts)


def measure(world: dcpack.Communicator, step: Callable[[], object]) -> tuple[int, int, float]:
    """Return the bytes that all ranks moved in one step, the all-to-all calls, and the slowest rank's milliseconds."""
    step()
    before, times = world.counters, []
    for _ in range(REPEATS):
        world.barrier()
        started = time.perf_counter()
        step()
        times.append(max(float(part) for part in world.all_gather(np.float64(time.perf_counter() - started))))
    after = world.counters
    control = REPEATS * 8 * (world.size - 1)  # the gathered times
    sent = sum(int(part) for part in world.all_gather(np.int64(after.bytes_sent - before.bytes_sent - control)))
    calls = after.calls["all_to_all"] - before.calls["all_to_all"]
    return sent // REPEATS, calls // REPEATS, 1e3 * statistics.median(times)


def describe_machine() -> str:
    return (
        f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}, "
        f"torch {torch.__version__}"
    )


if __name__ == "__main__":
    sys.exit(main())
