"""Does planning the next window in a background thread slow the training thread down?

As a loader does, each step starts the plan of the next window (`sft`, 512 sequences, 64 ranks) in a second thread and
takes the result at its end; every other step plans nothing. The step itself leaves the interpreter alone, as a thread
does that waits for a device: it sleeps. The medians of its wall time are compared, and the wait for the plan at the end
is counted in.

What it cannot say: a training thread that runs Python while the plan is made shares the interpreter's lock with it, and
may wait up to `sys.getswitchinterval()` (5 ms) each time it wants it back.

    python benchmarks/planning_ahead.py | tee benchmarks/results/planning_ahead.txt
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import length_sets

import dcpack

STEPS = 60
STEP_SECONDS = 0.5
COST = dcpack.RingCost()


def main() -> None:
    batches = length_sets.sft()[: 512 * STEPS].reshape(STEPS, 512)
    print(f"python benchmarks/planning_ahead.py, {datetime.date.today()}, {os.cpu_count()} x {platform.machine()}")
    alone: list[float] = []
    beside: list[float] = []
    planning: list[float] = []

    def plan_next(number: int) -> int:
        start = time.thread_time()
        made = dcpack.plan(batches[number], num_ranks=64, capacity=8192, cost=COST)
        planning.append(time.thread_time() - start)
        return made.num_microbatches

    with ThreadPoolExecutor(1) as planner:
        for number in range(STEPS):
            start = time.perf_counter()
            coming = planner.submit(plan_next, number) if number % 2 else None
            time.sleep(STEP_SECONDS)
            if coming is not None:
                coming.result()
            (alone if coming is None else beside).append(time.perf_counter() - start)
    one, two = 1e3 * statistics.median(alone), 1e3 * statistics.median(beside)
    print(f"load of the machine {os.getloadavg()[0]:.1f}, one plan {1e3 * statistics.median(planning):.0f} ms of CPU")
    print(f"step {one:.1f} ms without planning, {two:.1f} ms with the next plan made beside: {two - one:+.1f} ms")


if __name__ == "__main__":
    main()
