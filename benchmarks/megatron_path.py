"""What does each stage of Megatron's data path take of the host, and does any grow faster than the data?

One step on four processes over Gloo, stage by stage, on the supervised fine-tuning lengths; for `in_order`, whose CP
size is 1 here, cut to the capacity, else to two ranks' capacity. CPU time is of the busiest rank, all its threads, and
does not count waiting; wall time is of the slowest rank and counts what else the machine does. The fastest of three
steps, as neighbours on a shared machine only ever add. Exits 1 where planning takes more CPU time than it may, or a
stage grows faster than the tokens.

    torchrun --standalone --nproc-per-node 4 benchmarks/megatron_path.py | tee benchmarks/results/megatron_path.txt
"""

from __future__ import annotations

import datetime
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import length_sets
import numpy as np

import dcpack
from dcpack.megatron import (
    ParallelGroups,
    StepOptions,
    broadcast_metadata,
    build_groups,
    build_packed_microbatches,
    complete_sample,
    get_batch_and_global_lengths,
    get_batch_for_rank,
    make_data_iterators,
    needs_of_virtual_stages,
    plan_step,
    reroute_samples,
    wrap_data_iterator,
)

CAPACITY = 8192
REPEATS = 3
PLAN_LIMITS_MS = {"in_order": 100.0, "dynamic_cp": 750.0}  # at 8,192 sequences
MAX_GROWTH = 1.25  # of a stage's time, over the growth of the tokens
MIN_JUDGED_MS = 10.0
STAGES = (
    "fetch, unpack, gather lengths",
    "make missing fields",
    "plan",
    "reroute",
    "pack",
    "tell the pipeline",
    "iterators",
    "batches of the rank",
)
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Case:
    """One job of four ranks."""

    scheduler: str
    num_sequences: int
    pp_size: int = 1

    @property
    def options(self) -> StepOptions:
        """How its steps are planned."""
        return StepOptions(capacity=CAPACITY, scheduler=self.scheduler, pp_size=self.pp_size)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of every sequence; the longest fit on two ranks, under `in_order` on one."""
        lengths = length_sets.sft(self.num_sequences)
        return np.minimum(lengths, CAPACITY) if self.scheduler == "in_order" else np.minimum(lengths, 2 * CAPACITY)


CASES = (
    Case("in_order", 2048),
    Case("in_order", 8192),
    Case("dynamic_cp", 2048),
    Case("dynamic_cp", 8192),
    Case("dynamic_cp", 8192, pp_size=2),
)


class Clock:
    """CPU and wall milliseconds of each stage of one step."""

    def __init__(self) -> None:
        self.times: dict[str, tuple[float, float]] = {}

    def run(self, stage: str, work: Callable[[], _Result]) -> _Result:
        """Do `work` and note what it took."""
        cpu, wall = time.process_time(), time.perf_counter()
        result = work()
        self.times[stage] = (1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall))
        return result


def make_samples(case: Case, dp_rank: int, dp_size: int) -> list[dict[str, Any]]:
    samples = []
    for length in case.lengths[dp_rank::dp_size].tolist():
        tokens = np.arange(length) % 50_000
        mask, positions = np.ones(length, np.float32), np.arange(length)
        fields = {"tokens": tokens, "labels": tokens + 1, "loss_mask": mask, "position_ids": positions}
        samples.append({**fields, "padded_seq_len": np.array([length])})
    return samples


def run_step(case: Case, groups: ParallelGroups, samples: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Do one step, function by function."""
    clock, options = Clock(), case.options
    needs = needs_of_virtual_stages(is_first=groups.is_first_stage, is_last=groups.is_last_stage)
    fetch, complete, plan_it, reroute, pack, tell, iterate, take = STAGES
    batch = clock.run(fetch, lambda: get_batch_and_global_lengths(groups.dp, iter([samples]), num_microbatches=1))
    full = clock.run(complete, lambda: [complete_sample(sample) for sample in batch.samples])
    plan = clock.run(plan_it, lambda: plan_step(batch.padded_lengths, options, num_ranks=groups.dp_cp.size))
    found = clock.run(reroute, lambda: reroute_samples(groups.dp_cp, full, batch.ids, plan))
    rows = clock.run(pack, lambda: build_packed_microbatches(found, plan, groups.plan_rank))
    clock.run(tell, lambda: broadcast_metadata(groups.pp, rows, {"plan_digest": plan.digest()}))
    iterator = clock.run(iterate, lambda: make_data_iterators(rows, needs, is_tp_first=True))
    assert not isinstance(iterator, list)
    clock.run(take, lambda: [get_batch_for_rank(iterator, groups) for _ in rows])
    return clock.times


def run_one_call(case: Case, groups: ParallelGroups, samples: list[dict[str, Any]]) -> tuple[float, float]:
    """Do one step up to the iterators with the one call that does it all."""
    clock = Clock()
    clock.run("all", lambda: wrap_data_iterator(iter([samples]), groups, case.options, num_microbatches=1))
    return clock.times["all"]


def measure(world: dcpack.Communicator, case: Case) -> tuple[list[tuple[float, float]], int]:
    """Return (CPU, wall) milliseconds of each stage and of the one call, and the tokens of the step."""
    mesh = dcpack.Topology(axes=("pp", "dp"), sizes=(case.pp_size, world.size // case.pp_size))
    groups = build_groups(world, mesh)
    samples = make_samples(case, groups.dp.rank, groups.dp.size)
    steps = []
    for _ in range(REPEATS):
        world.barrier()
        times = run_step(case, groups, samples)
        world.barrier()
        mine = np.array([*(times[stage] for stage in STAGES), run_one_call(case, groups, samples)])
        steps.append(np.max(world.all_gather(mine), axis=0))
    groups.close()
    fastest = np.min(steps, axis=0)
    return [(float(cpu), float(wall)) for cpu, wall in fastest], int(case.lengths.sum())


def main() -> int:
    with dcpack.get_backend("torch-gloo", deadline_s=300.0).world() as world:
        results = {case: measure(world, case) for case in CASES}
    if world.rank > 0:
        return 0
    print(f"benchmarks/megatron_path.py, {datetime.date.today()}, {describe_machine()}, {world.size} processes")
    faults = []
    for case, (times, num_tokens) in results.items():
        mesh = f"pp {case.pp_size}, dp {world.size // case.pp_size}"
        print(f"\n{case.scheduler}, {case.num_sequences:,} sequences of {num_tokens:,} tokens, {mesh}")
        print(f"{'':34}{'CPU ms':>10}{'wall ms':>10}")
        for stage, (cpu, wall) in zip((*STAGES, "one call up to the iterators"), times, strict=True):
            print(f"  {stage:32}{cpu:10.1f}{wall:10.1f}")
        planning = times[STAGES.index("plan")][0]
        if planning > PLAN_LIMITS_MS[case.scheduler]:
            faults.append(f"{case}: planning takes {planning:.0f} ms, over {PLAN_LIMITS_MS[case.scheduler]:.0f}")
    faults += judge_growth(results)
    print("\n" + ("\n".join(faults) if faults else "every limit is kept"))
    return 1 if faults else 0


def judge_growth(results: dict[Case, tuple[list[tuple[float, float]], int]]) -> list[str]:
    faults = []
    for scheduler in PLAN_LIMITS_MS:
        (small, few), (large, many) = (results[Case(scheduler, size)] for size in (2048, 8192))
        print(f"\n{scheduler}: growth of CPU time from 2,048 to 8,192 sequences over that of tokens ({many / few:.2f})")
        for stage, (before, _), (after, _) in zip(STAGES, small, large, strict=False):
            growth = after / max(before, 1e-9) / (many / few)
            is_judged = after >= MIN_JUDGED_MS
            print(f"  {stage:32}{growth:10.2f}{'' if is_judged else '  (too short to tell)'}")
            if is_judged and growth > MAX_GROWTH:
                faults.append(f"{scheduler}: {stage!r} grows {growth:.2f} times as fast as the tokens")
    return faults


def describe_machine() -> str:
    """Say what this runs on, and how busy it is: beside other work all times grow, CPU times too."""
    versions = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return f"load {os.getloadavg()[0]:.0f} on {os.cpu_count()} x {platform.machine()}, {versions}"


if __name__ == "__main__":
    sys.exit(main())
