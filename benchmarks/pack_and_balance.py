"""How well does `balanced` pack and balance together, against what others do, and how long does it take?

The others are plain versions of HyperParallel's LPT (dearest first to the least loaded rank, tightest row, one seed a
row first) and of WLB-LLM's greedy (longest first to the row with least work, else to the one with fewest tokens). Each
gets as few micro-batches as best-fit-decreasing bins allow, and one more as long as it finds no room; the better of its
rows as they are and in order of cost counts. The ratio is the slowest rank summed over micro-batches over the mean of
the ranks. Exits 1 where `balanced` is more than 0.005 above the best of the others, takes more micro-batches than they,
or more than 100 ms of CPU time.

    python benchmarks/pack_and_balance.py | tee benchmarks/results/pack_and_balance.txt
"""

from __future__ import annotations

import datetime
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable

import length_sets
import numpy as np
import numpy.typing as npt

import dcpack
from dcpack.bounds import packing_lower_bound
from dcpack.packing import get_packer

Ints = npt.NDArray[np.int64]
Rows = list[list[int]]
Peer = Callable[[Ints, Ints, int, int, int], Rows | None]

CAPACITIES = (8192, 32768)
RANKS = (8, 16, 64)
BATCHES = (512, 2048, 8192)
MOST_ABOVE = 0.005
MOST_MS = 100.0
REPEATS = 5


def main() -> int:
    print(f"python benchmarks/pack_and_balance.py, {datetime.date.today()}, {describe_machine()}")
    print("cost 24576 * L + L * L, no padding, ranks meet in every micro-batch; bound: of the micro-batches; ms: of")
    print(f"dcpack.plan with its proof, CPU time (in brackets elapsed, on a shared machine), medians of {REPEATS}")
    print(f"{'':>35} {'slowest rank over mean':>26} {'micro-batches':>25}")
    print(
        f"{'batch':>15} {'capacity':>8} {'ranks':>5} {'fill':>5} {'balanced':>8} {'LPT':>8} {'WLB':>8} "
        f"{'balanced':>9} {'LPT':>4} {'WLB':>4} {'bound':>5} {'ms':>6}"
    )
    faults: list[str] = []
    gaps, times = [], []
    for batch_size in BATCHES:
        for name, capacity, lengths in batches(batch_size):
            for num_ranks in RANKS:
                line, wrong, gap, ms = compare(name, lengths, capacity, num_ranks)
                print(line, flush=True)
                faults += wrong
                gaps.append(gap)
                times.append(ms)
    better = sum(gap < 0 for gap in gaps)
    print(
        f"{len(gaps)} cases: better than both in {better}, at most {max(gaps):.4f} above the best; {max(times):.0f} ms"
    )
    print("\n".join(faults) if faults else f"within {MOST_ABOVE} and {MOST_MS:.0f} ms, never more micro-batches")
    return 1 if faults else 0


def batches(size: int) -> list[tuple[str, int, Ints]]:
    """Return (name, capacity, lengths) of the first `size` of each set, cut to the capacity."""
    made: list[tuple[str, int, Ints]] = []
    for capacity in CAPACITIES:
        sets = {
            "sft": length_sets.sft(),
            "pretrain": length_sets.split_docs(length_sets.pretrain_docs(), capacity),
            "rl": length_sets.rl(),
            "longctx": length_sets.longctx(),
        }
        made += [(name, capacity, np.minimum(lengths[:size], capacity)) for name, lengths in sets.items()]
    return made


def compare(name: str, lengths: Ints, capacity: int, num_ranks: int) -> tuple[str, list[str], float, float]:
    """Return a line of the table, what is wrong, how far ours is above the best of the others, and its CPU time."""
    costs = 24576 * lengths + lengths * lengths
    fewest = -(-get_packer("best_fit_decreasing")(lengths, capacity).num_bins // num_ranks)
    plan, cpu_ms, elapsed_ms = timed_plan(lengths, capacity, num_ranks)
    ours = ratio(costs, rows_of(plan), num_ranks)
    of_lpt, count_lpt = run_peer(lpt, lengths, costs, capacity, num_ranks, fewest)
    of_wlb, count_wlb = run_peer(wlb, lengths, costs, capacity, num_ranks, fewest)
    best = min(of_lpt, of_wlb)
    where = f"{name} GB{lengths.size} capacity {capacity} ranks {num_ranks}"
    wrong = [f"{where}: {ours:.4f} against {best:.4f}"] if ours > best + MOST_ABOVE else []
    wrong += [f"{where}: {cpu_ms:.0f} ms"] if cpu_ms > MOST_MS else []
    if plan.num_microbatches > min(count_lpt, count_wlb):
        wrong.append(f"{where}: {plan.num_microbatches} micro-batches")
    fill = lengths.sum() / (plan.num_microbatches * num_ranks * capacity)
    bound = -(-packing_lower_bound(lengths, capacity) // num_ranks)
    line = (
        f"{name:>8} GB{lengths.size:<5} {capacity:>8} {num_ranks:>5} {fill:>5.3f} {ours:>8.4f} {of_lpt:>8.4f} "
        f"{of_wlb:>8.4f} {plan.num_microbatches:>9} {count_lpt:>4} {count_wlb:>4} {bound:>5} "
        f"{cpu_ms:>6.1f} ({elapsed_ms:.0f})"
    )
    return line, wrong, ours - best, cpu_ms


def timed_plan(lengths: Ints, capacity: int, num_ranks: int) -> tuple[dcpack.Plan, float, float]:
    """Return the plan, and the medians of CPU and elapsed milliseconds."""
    cost = dcpack.RingCost(node_size=None)
    plans, cpu_times, elapsed_times = [], [], []
    for _ in range(REPEATS):
        cpu, elapsed = time.process_time(), time.perf_counter()
        plan = dcpack.plan(lengths, num_ranks=num_ranks, capacity=capacity, scheduler="balanced", cost=cost)
        cpu_times.append(1e3 * (time.process_time() - cpu))
        elapsed_times.append(1e3 * (time.perf_counter() - elapsed))
        plans.append(plan)
    return plans[0], statistics.median(cpu_times), statistics.median(elapsed_times)


def rows_of(plan: dcpack.Plan) -> Rows:
    """Return the sequences of each bin, by micro-batch and rank."""
    rows = [plan.sequence_ids[a:b].tolist() for a, b in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)]
    return [rows[b] for b in np.lexsort((plan.first_rank, plan.microbatch))]


def ratio(costs: Ints, rows: Rows, num_ranks: int) -> float:
    """Return the slowest rank summed over micro-batches, over the mean of the ranks."""
    loads = np.array([costs[row].sum() for row in rows], np.float64).reshape(-1, num_ranks)
    return float(loads.max(axis=1).sum() / (costs.sum() / num_ranks))


def run_peer(peer: Peer, lengths: Ints, costs: Ints, capacity: int, num_ranks: int, fewest: int) -> tuple[float, int]:
    """Return the ratio of a peer, and the micro-batches it needs."""
    count = fewest
    while (rows := peer(lengths, costs, capacity, num_ranks, count)) is None:
        count += 1
    loads = np.array([costs[row].sum() for row in rows]).reshape(count, num_ranks)
    in_order = np.argsort(-loads, axis=0, kind="stable")  # the rows of each rank by cost
    by_cost = [rows[m * num_ranks + r] for ordered in in_order.tolist() for r, m in enumerate(ordered)]
    return min(ratio(costs, rows, num_ranks), ratio(costs, by_cost, num_ranks)), count


def lpt(lengths: Ints, costs: Ints, capacity: int, num_ranks: int, num_microbatches: int) -> Rows | None:
    """HyperParallel's LPT: rows by micro-batch and rank, or None on a dead end."""
    num_rows = num_ranks * num_microbatches
    rank_of = np.arange(num_rows) % num_ranks
    rows: Rows = [[] for _ in range(num_rows)]
    tokens, loads, rank_tokens = (np.zeros(size, np.int64) for size in (num_rows, num_ranks, num_ranks))
    order = np.lexsort((np.arange(lengths.size), -lengths, -costs))
    for number, item in enumerate(order.tolist()):
        fits = tokens + lengths[item] <= capacity
        if number < num_rows:
            fits &= tokens == 0
        possible = np.flatnonzero(fits)
        if possible.size == 0:
            return None
        of_rank = loads[rank_of[possible]]
        least = possible[of_rank == of_rank.min()]  # then the tightest row, the rank with fewest tokens, the lowest
        rank = rank_of[least]
        row = int(least[np.lexsort((least, rank, rank_tokens[rank], -tokens[least]))[0]])
        rows[row].append(item)
        tokens[row] += lengths[item]
        loads[rank_of[row]] += costs[item]
        rank_tokens[rank_of[row]] += lengths[item]
    return rows


def wlb(lengths: Ints, costs: Ints, capacity: int, num_ranks: int, num_microbatches: int) -> Rows | None:
    """WLB-LLM's greedy: rows by micro-batch and rank, or None where a sequence would have to wait for the next step."""
    num_rows = num_ranks * num_microbatches
    rows: Rows = [[] for _ in range(num_rows)]
    tokens, work = np.zeros(num_rows, np.int64), np.zeros(num_rows, np.int64)
    for item in np.argsort(-lengths, kind="stable").tolist():
        row = int(work.argmin())
        if tokens[row] + lengths[item] > capacity:
            row = int(tokens.argmin())
        if tokens[row] + lengths[item] > capacity:
            return None
        rows[row].append(item)
        tokens[row] += lengths[item]
        work[row] += costs[item]
    return [rows[row] for row in np.argsort(-work, kind="stable").tolist()]


def describe_machine() -> str:
    return f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"


if __name__ == "__main__":
    sys.exit(main())
