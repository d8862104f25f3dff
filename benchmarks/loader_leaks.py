"""Does a long run leak? Resident memory, file descriptors and threads over 5,000 steps of the loader.

One process with two fake ranks: planning, exchange, packing and the threads that stay ahead. Memory is compared after a
tenth of the steps, when all is warm, and at the end; it may grow by less than 5%.

    python benchmarks/loader_leaks.py --steps 5000 | tee benchmarks/results/loader_leaks.txt
"""

from __future__ import annotations

import argparse
import datetime
import gc
import os
import platform
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import dcpack
from dcpack import SampleMetadata, Topology, build_distributed_dataloader
from dcpack.comm import Communicator

RANKS = 2
STEPS_OF_AN_EPOCH = 50
GROWTH = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class Usage:
    """What this process holds."""

    resident: int
    descriptors: int
    threads: int


def usage() -> Usage:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Usage(
        resident=pages * os.sysconf("SC_PAGE_SIZE"),
        descriptors=len(list(Path("/proc/self/fd").iterdir())),
        threads=threading.active_count(),
    )


class Tokens:
    """Samples of 16 to 256 tokens, made when they are read."""

    def __init__(self, num_samples: int) -> None:
        self.lengths = np.random.default_rng(0).integers(16, 256, num_samples)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": np.full(self.lengths[index], index)}


def measure(steps: int) -> tuple[Usage, Usage, Usage]:
    """Run so many steps; return the usage before it, after a tenth of them, and at the end."""
    found: dict[str, Usage] = {"before": usage()}

    def body(communicator: Communicator) -> None:
        size = 4 * RANKS
        data = Tokens(size * STEPS_OF_AN_EPOCH)
        done = 0
        with build_distributed_dataloader(
            data,
            Topology.of_domain(RANKS),
            {"seq_len": 256, "local_batch_size": 4, "communication_backend": "fake"},
            metadata_fn=lambda sample: SampleMetadata(pack_tokens=len(sample["input_ids"])),
            batch_sampler=dcpack.GlobalBatchSampler(len(data), global_batch_size=size),
        ) as loader:
            while done < steps:
                for _ in loader:
                    done += 1
                    loader.metrics()
                    if communicator.rank == 0 and done in (steps // 10, steps):
                        found["warm" if done < steps else "end"] = usage()
                    if done == steps:
                        break

    dcpack.run_ranks(RANKS, body)
    after = usage()
    end = Usage(resident=found["end"].resident, descriptors=after.descriptors, threads=after.threads)
    return found["before"], found["warm"], end


def faults_of(before: Usage, warm: Usage, end: Usage) -> list[str]:
    """Return what leaks, in words."""
    faults = []
    growth = end.resident / warm.resident - 1.0
    if growth >= GROWTH:
        faults.append(f"resident memory grew by {growth:.1%}")
    if end.descriptors > before.descriptors:
        faults.append(f"{end.descriptors - before.descriptors} file descriptors are left")
    if end.threads > before.threads:
        faults.append(f"{end.threads - before.threads} threads are left")
    return faults


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5000)
    steps = parser.parse_args().steps
    before, warm, end = measure(steps)
    machine = f"{os.cpu_count()} shared {platform.machine()} cores, NumPy {np.__version__}"
    print(f"benchmarks/loader_leaks.py, {datetime.date.today()}, {machine}")
    print(f"{steps} steps, {RANKS} fake ranks, epochs of {STEPS_OF_AN_EPOCH} steps")
    mib = 2**20
    print(
        f"  resident after {steps // 10} steps {warm.resident / mib:.1f} MiB, at the end {end.resident / mib:.1f} MiB"
    )
    print(f"  file descriptors before {before.descriptors}, after {end.descriptors}")
    print(f"  threads before {before.threads}, after {end.threads}")
    faults = faults_of(before, warm, end)
    print(f"  {'; '.join(faults) if faults else f'growth {end.resident / warm.resident - 1.0:.2%}: nothing leaks'}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
