"""Does the loader hide behind the training, and what does it cost beside torch's plain DataLoader?

Two processes over torch-gloo. First: training on a step sleeps 50 ms, reading it 40 ms, and a delivered step must take
at most 55 ms: once the placement stays as it was read, once `local_gain` plans and samples move. How long the loader
worked is part of the output: on a busy machine planning and calls take longer, and beyond 50 ms nothing can hide it.
Second: samples a second with nothing to wait
for, of the loader, and of `torch.utils.data.DataLoader` with a `DistributedSampler` over the same dataset, which
plans and moves nothing, in the same run, taking turns.

    python benchmarks/loader_ahead.py | tee benchmarks/results/loader_ahead.txt
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

import dcpack
from dcpack import DistributedDataLoader, SampleMetadata, Topology, build_distributed_dataloader
from dcpack.loader import StepRecord
from dcpack.loader.stages import STAGES

RANKS = 2
TRAIN_S, READ_S, TARGET_S = 0.050, 0.040, 0.055
STEPS = 60
SAMPLES_OF_A_STEP = 8  # on each rank
THROUGHPUT_SAMPLES, THROUGHPUT_STEP = 4096, 64
ROUNDS = 3


class Dataset:
    """Samples of 64 to 512 tokens; a read may sleep."""

    def __init__(self, num_samples: int, read_s: float = 0.0) -> None:
        self.lengths = np.random.default_rng(0).integers(64, 512, num_samples)
        self.tokens = torch.arange(512)
        self.read_s = read_s

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.read_s:
            time.sleep(self.read_s)
        tokens = self.tokens[: self.lengths[index]]
        return {"input_ids": tokens, "labels": tokens}


class Stay:
    """A balancing algorithm that leaves every sample where it was read."""

    def assign(self, samples: Any, *, reference_bins: Any, **_: Any) -> Any:
        """Return the rows as they are."""
        return reference_bins

    def objective(self, rank_costs: Any) -> float:
        """Return the load of the busiest rank."""
        return max(cost.llm for cost in rank_costs)


def build(dataset: Dataset, samples: int, balancing: Any = None) -> DistributedDataLoader:
    """A loader of steps of so many samples on each rank."""
    return build_distributed_dataloader(
        dataset,
        Topology.of_domain(RANKS),
        {"seq_len": 512, "local_batch_size": samples, "communication_backend": "torch-gloo"},
        metadata_fn=lambda sample: SampleMetadata(pack_tokens=len(sample["input_ids"])),
        batch_sampler=dcpack.GlobalBatchSampler(len(dataset), global_batch_size=samples * RANKS),
        balancing_algorithm=balancing,
    )


def hide(balancing: Any) -> dict[str, float]:
    """Train with sleeps; times in seconds."""
    dataset = Dataset(STEPS * SAMPLES_OF_A_STEP * RANKS, READ_S / SAMPLES_OF_A_STEP)
    records: list[StepRecord] = []
    with build(dataset, SAMPLES_OF_A_STEP, balancing) as loader:
        loader.on_step(records.append)
        for _ in loader:
            time.sleep(TRAIN_S)
    later = records[1:]  # the first step of an epoch has nothing to hide behind
    made = [sum(span.seconds for span in record.spans) for record in later]
    metrics = [record.metrics() for record in later]
    return {
        "mean": statistics.fmean(record.seconds for record in later),
        "median": statistics.median(record.seconds for record in later),
        "loader": statistics.median(made),
        "waited": statistics.fmean(record.waited for record in later),
        "hidden": statistics.fmean(found["loader/hidden_share"] for found in metrics),
        **{name: statistics.median(found[f"loader/{name}(ms)"] for found in metrics) for name in STAGES},
    }


def throughput() -> dict[str, list[float]]:
    """Samples a second on this rank."""
    dataset = Dataset(THROUGHPUT_SAMPLES)
    found: dict[str, list[float]] = {"dcpack": [], "torch": []}
    plain: Any = dataset
    for _ in range(ROUNDS):
        dist.barrier()
        with build(dataset, THROUGHPUT_STEP) as loader:
            started = time.perf_counter()
            count = sum(len(batch.sample_ids) for batch in loader)
            found["dcpack"].append(count / (time.perf_counter() - started))
        dist.barrier()
        sampler: Any = DistributedSampler(plain, RANKS, dist.get_rank())
        torch_loader = DataLoader(plain, THROUGHPUT_STEP, sampler=sampler, collate_fn=lambda rows: rows)
        started = time.perf_counter()
        count = sum(len(rows) for rows in torch_loader)
        found["torch"].append(count / (time.perf_counter() - started))
    return found


def be_a_rank() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    hidden = {
        "samples stay": hide(Stay()),
        "local_gain": hide(None),
    }
    speed = throughput()
    dist.barrier()
    if dist.get_rank() == 0:
        report(hidden, speed)
    dist.destroy_process_group()


def report(runs: dict[str, dict[str, float]], speed: dict[str, list[float]]) -> None:
    print(f"benchmarks/loader_ahead.py, {datetime.date.today()}, {describe_machine()}")
    sleeps = f"training {TRAIN_S * 1e3:.0f} ms, reading {READ_S * 1e3:.0f} ms"
    print(f"{RANKS} processes, torch-gloo, rank 0; {sleeps}, {STEPS - 1} steps")
    for name, hidden in runs.items():
        print(f"{name}: mean {hidden['mean'] * 1e3:.1f} ms, median {hidden['median'] * 1e3:.1f} ms a delivered step")
        print(f"  the loader's own work: {hidden['loader'] * 1e3:.1f} ms (median)")
        print(f"    of it {', '.join(f'{stage} {hidden[stage]:.1f} ms' for stage in STAGES)}")
        print(f"  waited for: {hidden['waited'] * 1e3:.2f} ms (mean), hidden share {hidden['hidden']:.3f}")
        verdict = "met" if hidden["mean"] <= TARGET_S else "NOT met"
        print(f"  at most {TARGET_S * 1e3:.0f} ms: {verdict}")
    amounts = f"{THROUGHPUT_SAMPLES} samples, steps of {THROUGHPUT_STEP} a rank, {ROUNDS} rounds in turn"
    print(f"nothing to wait for, {amounts}")
    for name, values in speed.items():
        listed = ", ".join(f"{value:,.0f}" for value in values)
        print(f"  {name:<7} {statistics.median(values):>9,.0f} samples/s a rank (median of {listed})")


def describe_machine() -> str:
    load = os.getloadavg()[0]
    return f"{os.cpu_count()} shared {platform.machine()} cores, load {load:.1f}, torch {torch.__version__}"


def main() -> int:
    if "RANK" in os.environ:
        be_a_rank()
        return 0
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), __file__]
    return subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
