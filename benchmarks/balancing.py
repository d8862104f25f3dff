"""How do the balancers compare with textbook Karmarkar-Karp, in time and in what they reach?

Costs are 24576 * L + L * L of the reinforcement-learning lengths. Two peers: `objects` is the textbook in the form that
training frameworks use, a heap of states that hold sets, each a list of items and their sum; `tuples` is the leanest
form in plain Python, for comparison. Times are CPU times (nothing here uses a second thread), medians of rounds in
which all take turns; a round repeats what is short until it took some milliseconds. Gaps are the dearest part over
max(mean, dearest item), less one. Exits 1 where a row misses what it must reach.

    python benchmarks/balancing.py | tee benchmarks/results/balancing.txt
"""

from __future__ import annotations

import datetime
import heapq
import os
import platform
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import length_sets
import numpy as np
import numpy.typing as npt

from dcpack.balancing import karmarkar_karp, lpt
from dcpack.bounds import balance_lower_bound, packing_lower_bound

CASES = ((1024, 8), (1024, 64), (1024, 256), (8192, 8), (8192, 64), (8192, 256))
LARGE = ((131072, 256), (1_000_000, 1024))
ROUNDS = 5
MIN_SECONDS = 0.02  # of a round of one contender
Costs = npt.NDArray[np.int64]


class PartialSum:
    """The items of a part and what they cost together."""

    def __init__(self) -> None:
        self.total = 0
        self.items: list[tuple[int, int]] = []

    def add(self, item: int, cost: int) -> None:
        """Take an item."""
        self.items.append((item, cost))
        self.total += cost

    def merge(self, other: PartialSum) -> None:
        """Take all items of another."""
        for item, cost in other.items:
            self.add(item, cost)

    def __lt__(self, other: PartialSum) -> bool:
        if self.total != other.total:
            return self.total < other.total
        if len(self.items) != len(other.items):
            return len(self.items) < len(other.items)
        return self.items < other.items


class State:
    """A partial partition, its parts in descending order."""

    def __init__(self, items: Sequence[tuple[int, int]], num_parts: int) -> None:
        self.parts = [PartialSum() for _ in range(num_parts)]
        for part, (cost, item) in zip(self.parts, items, strict=False):
            part.add(item, cost)
        self.parts.sort(reverse=True)

    @property
    def spread(self) -> int:
        """What the dearest part costs more than the cheapest."""
        return self.parts[0].total - self.parts[-1].total

    def merge(self, other: State) -> None:
        """Take the parts of another, its cheapest to the dearest."""
        for mine, theirs in zip(self.parts, reversed(other.parts), strict=True):
            mine.merge(theirs)
        self.parts.sort(reverse=True)

    def __lt__(self, other: State) -> bool:
        if self.spread != other.spread:
            return self.spread > other.spread
        return other.parts[0] < self.parts[0]


def objects(costs: list[int], num_parts: int, equal_size: bool) -> list[list[int]]:
    """Karmarkar-Karp on objects; with equal sizes it starts from blocks of `num_parts`."""
    items = sorted((cost, item) for item, cost in enumerate(costs))
    size = num_parts if equal_size else 1
    heap = [State(items[start : start + size], num_parts) for start in range(0, len(items), size)]
    heapq.heapify(heap)
    while len(heap) > 1:
        first = heapq.heappop(heap)
        first.merge(heapq.heappop(heap))
        heapq.heappush(heap, first)
    return [[item for item, _ in part.items] for part in heap[0].parts]


def tuples(costs: list[int], num_parts: int, equal_size: bool) -> list[tuple[int, ...]]:
    """Karmarkar-Karp on lists of (sum, items)."""
    order = sorted(range(len(costs)), key=costs.__getitem__, reverse=True)
    size = num_parts if equal_size else 1
    heap = []
    for age, start in enumerate(range(0, len(order), size)):
        row = [(costs[item], (item,)) for item in order[start : start + size]]
        row += [(0, ())] * (num_parts - len(row))
        heap.append((row[-1][0] - row[0][0], age, row))
    heapq.heapify(heap)
    age = len(heap)
    while len(heap) > 1:
        (_, _, ahead), (_, _, behind) = heapq.heappop(heap), heapq.heappop(heap)
        row = [(a + b, p + q) for (a, p), (b, q) in zip(ahead, reversed(behind), strict=True)]
        row.sort(reverse=True)
        heapq.heappush(heap, (row[-1][0] - row[0][0], age, row))
        age += 1
    return [items for _, items in heap[0][2]]


def main() -> int:
    print(f"python benchmarks/balancing.py, {datetime.date.today()}, {describe_machine()}")
    print(f"CPU times, medians of {ROUNDS} rounds; x: times as fast as `objects`; gap to max(mean, dearest item) in %")
    lengths = length_sets.rl()
    costs = 24576 * lengths + lengths * lengths
    print(f"L2 bound of packing all {lengths.size} lengths into 32768: {packing_lower_bound(lengths, 32768)} bins")
    failed = 0
    for equal_size in (False, True):
        print()
        title = "equal sizes" if equal_size else "any sizes"
        print(f"{title:>14} {'':24} {'ms':>9} {'x':>7} {'gap %':>9} {'over mean':>12}")
        for num_items, num_parts in CASES:
            results = compare(costs[:num_items], num_parts, equal_size)
            show(f"{num_items} x {num_parts}", results)
            failed += check(f"{num_items} x {num_parts}", results, num_parts, equal_size)
    for num_items, num_parts in LARGE:
        print()
        for equal_size in (False, True):
            name = f"{num_items} x {num_parts}" + (" equal" if equal_size else "")
            show(name, measure(costs[:num_items], num_parts, ours(costs[:num_items], num_parts, equal_size), rounds=3))
    print()
    print(f"peak memory of the whole run: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10:.0f} MiB")
    print("all musts are met" if not failed else f"{failed} musts are missed")
    return 1 if failed else 0


def ours(costs: Costs, num_parts: int, equal_size: bool) -> dict[str, Callable[[], Costs]]:
    return {
        f"{balancer.__name__} {effort}": lambda b=balancer, e=effort: b(
            costs, num_parts, equal_size=equal_size, effort=e
        )
        for balancer in (karmarkar_karp, lpt)
        for effort in ("fast", "best")
    }


def compare(costs: Costs, num_parts: int, equal_size: bool) -> dict[str, tuple[float, float, int]]:
    listed = costs.tolist()
    peers: dict[str, Callable[[], object]] = {
        "objects": lambda: objects(listed, num_parts, equal_size),
        "tuples": lambda: tuples(listed, num_parts, equal_size),
    }
    return measure(costs, num_parts, {**peers, **ours(costs, num_parts, equal_size)}, rounds=ROUNDS)


def measure(
    costs: Costs, num_parts: int, contenders: Mapping[str, Callable[[], object]], *, rounds: int
) -> dict[str, tuple[float, float, int]]:
    """Return for each contender: milliseconds, gap, dearest part less the mean rounded up."""
    times: dict[str, list[float]] = {name: [] for name in contenders}
    dearest: dict[str, int] = {}
    for _ in range(rounds):
        for name, run in contenders.items():
            start = time.process_time()
            result, repeats = run(), 1
            while time.process_time() - start < MIN_SECONDS:
                result, repeats = run(), repeats + 1
            times[name].append(1e3 * (time.process_time() - start) / repeats)
            dearest[name] = dearest_part(costs, num_parts, result)
    mean = -(-int(costs.sum()) // num_parts)
    bound = balance_lower_bound(costs, num_parts)
    return {
        name: (statistics.median(times[name]), dearest[name] / bound - 1, dearest[name] - mean) for name in contenders
    }


def dearest_part(costs: Costs, num_parts: int, result: object) -> int:
    if isinstance(result, list):
        return max(int(costs[list(items)].sum()) for items in result)
    assert isinstance(result, np.ndarray)
    sums = np.zeros(num_parts, np.int64)
    np.add.at(sums, result, costs)
    return int(sums.max())


def show(case: str, results: dict[str, tuple[float, float, int]]) -> None:
    for i, (name, (milliseconds, gap, over)) in enumerate(results.items()):
        times_faster = f"{results['objects'][0] / milliseconds:7.1f}" if "objects" in results else f"{'':7}"
        print(
            f"{case if i == 0 else '':>18} {name:<20} {milliseconds:>9.2f} {times_faster} {100 * gap:>9.2g} {over:>12}"
        )


def check(case: str, results: dict[str, tuple[float, float, int]], num_parts: int, equal_size: bool) -> int:
    """Say whether the case reaches what it must, and whether it reaches more."""
    peer_time, peer_gap, _ = results["objects"]

    def faster(name: str) -> float:
        return peer_time / results[name][0]

    fast, best, lpt_fast = "karmarkar_karp fast", "karmarkar_karp best", "lpt fast"
    if not equal_size:
        factor = 20 if num_parts >= 64 else 5
        met = faster(best) >= factor and results[best][1] <= peer_gap
        print(
            f"{'':>18} B1 must, the default {factor}x at most its gap: {verdict(met)}; "
            f"stretch 50x: fast {verdict(faster(fast) >= 50)}, best {verdict(faster(best) >= 50)}"
        )
        return not met
    met = faster(fast) >= 4
    line = f"{'':>18} B2 must, the default method fast 4x: {verdict(met)} (lpt {verdict(faster(lpt_fast) >= 4)})"
    if case in ("1024 x 64", "8192 x 256"):
        smaller = 5 * results[best][1] <= peer_gap
        both = faster(lpt_fast) >= 4 and 5 * results[lpt_fast][1] <= peer_gap
        line += f"\n{'':>18} best, gap 5x smaller: {verdict(smaller)}; stretch, both at once, lpt fast: {verdict(both)}"
        met = met and smaller
    print(line)
    return not met


def verdict(met: bool) -> str:
    return "yes" if met else "NO"


def describe_machine() -> str:
    return f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"


if __name__ == "__main__":
    sys.exit(main())
