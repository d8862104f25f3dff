"""Is sharding a batch of rollouts with sequence packing at least 5 times as fast as going row by row?

16,384 rollouts of 8 fields go to 64 shards, in micro-batches as large as the longest rollout may be, as in `rl` of
`benchmarks/packing.py`. The other path is what one would write first: first fit decreasing over a list of bins, then
each field of each row picked by itself, and stacked. Both are timed in turn in one run, in CPU time of one thread (as
many as torchrun gives torch), and both results are checked: every row once, no micro-batch over its limit.

    python benchmarks/batched_data_dict.py | tee benchmarks/results/batched_data_dict.txt
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from length_sets import rl

import dcpack
from dcpack import BatchedDataDict

NUM_PROMPTS, RESPONSES = 2048, 8
SHARDS = 64
WIDTH = 256
CAPACITY = WIDTH
REPEATS = 5
TARGET = 5.0


def main() -> int:
    rows = NUM_PROMPTS * RESPONSES
    print(f"benchmarks/batched_data_dict.py, {datetime.date.today()}, {describe_machine()}")
    print(f"{rows} rollouts x 8 fields, up to {WIDTH} tokens, {SHARDS} shards, micro-batches of {CAPACITY} tokens")
    print(f"CPU time of one thread, medians of {REPEATS}")
    torch.set_num_threads(1)
    worst = float("inf")
    for name, make in (("numpy", np.asarray), ("torch", torch.from_numpy)):
        batch = make_batch(make)
        lengths = np.asarray(batch["input_lengths"]).tolist()
        ours: list[float] = []
        others: list[float] = []
        packing: list[tuple[float, float]] = []
        for _ in range(REPEATS):
            ours.append(seconds(lambda batch=batch: shard(batch)))
            others.append(seconds(lambda batch=batch: shard_by_rows(batch)))
            fast = seconds(lambda lengths=lengths: dcpack.pack(lengths, capacity=CAPACITY))
            packing.append((fast, seconds(lambda lengths=lengths: pack_by_rows(lengths))))
        check(shard(batch)[0], rows)
        check(shard_by_rows(batch), rows)
        t, other = statistics.median(ours), statistics.median(others)
        fast, slow = (statistics.median(times) for times in zip(*packing, strict=True))
        worst = min(worst, other / t)
        print(
            f"{name}: dcpack {1000 * t:.0f} ms ({1000 * fast:.0f} of them packing), row by row {1000 * other:.0f} ms "
            f"({1000 * slow:.0f} of them packing): {other / t:.1f} times as fast"
        )
    verdict = "reached" if worst >= TARGET else "MISSED"
    print(f"target {TARGET:g}x: {verdict}")
    return 0 if worst >= TARGET else 1


def make_batch(make: Callable[[Any], Any]) -> BatchedDataDict:
    """Return rollouts whose lengths are those of the set `rl`, shortened 128 times."""
    rng = np.random.default_rng(7)
    lengths = np.clip(rl(NUM_PROMPTS, RESPONSES) // 128, 1, WIDTH)
    rows = lengths.size
    places = np.arange(WIDTH) < lengths[:, None]
    return BatchedDataDict(
        input_ids=make(rng.integers(0, 32_000, (rows, WIDTH)) * places),
        input_lengths=make(lengths),
        logprobs=make(rng.standard_normal((rows, WIDTH), np.float32) * places),
        advantages=make(rng.standard_normal((rows, WIDTH), np.float32) * places),
        token_mask=make(places),
        rewards=make(rng.standard_normal(rows, np.float32)),
        prompt_ids=make(np.repeat(np.arange(NUM_PROMPTS), RESPONSES)),
        texts=[f"rollout {i}" for i in range(rows)],
    )


def shard(batch: BatchedDataDict) -> Any:
    cfg = {"max_tokens_per_microbatch": CAPACITY, "input_key": "input_ids", "input_lengths_key": "input_lengths"}
    return batch.shard_by_batch_size(SHARDS, sequence_packing_cfg=cfg)


def pack_by_rows(lengths: list[int]) -> list[list[int]]:
    """First fit decreasing; then single rows are taken out until the shards have equally many bins."""
    bins: list[list[int]] = []
    rooms: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for b, room in enumerate(rooms):
            if lengths[row] <= room:
                bins[b].append(row)
                rooms[b] -= lengths[row]
                break
        else:
            bins.append([row])
            rooms.append(CAPACITY - lengths[row])
    while len(bins) % SHARDS:
        bins.append([max(bins, key=len).pop()])
    return bins


def shard_by_rows(batch: BatchedDataDict) -> list[BatchedDataDict]:
    """Pick each field of each row by itself, and stack them again."""
    bins = pack_by_rows(np.asarray(batch["input_lengths"]).tolist())
    shards = []
    for s in range(SHARDS):
        picked = BatchedDataDict()
        for key, column in batch.items():
            rows = [column[row] for b in bins[s::SHARDS] for row in b]
            picked[key] = rows if isinstance(column, list) else stack_rows(rows)
        ends = np.cumsum([0] + [len(b) for b in bins[s::SHARDS]])
        picked.micro_batch_indices = [[[int(a), int(b)] for a, b in pairwise(ends)]]
        shards.append(picked)
    return shards


def stack_rows(rows: list[Any]) -> Any:
    return torch.stack(rows) if isinstance(rows[0], torch.Tensor) else np.stack(rows)


def check(shards: list[BatchedDataDict], rows: int) -> None:
    """Every row once, equally many micro-batches on all shards, none over the limit."""
    assert sorted(text for part in shards for text in part["texts"]) == sorted(f"rollout {i}" for i in range(rows))
    counts = set()
    for part in shards:
        assert part.micro_batch_indices is not None
        lengths = np.asarray(part["input_lengths"])
        totals = [lengths[start:end].sum() for start, end in part.micro_batch_indices[0]]
        assert max(totals) <= CAPACITY
        counts.add(len(totals))
    assert len(counts) == 1


def seconds(fn: Callable[[], Any]) -> float:
    start = time.process_time()
    fn()
    return time.process_time() - start


def describe_machine() -> str:
    cores = len(os.sched_getaffinity(0))
    return f"{platform.machine()}, {cores} cores, Python {platform.python_version()}, NumPy {np.__version__}"


if __name__ == "__main__":
    sys.exit(main())
