"""How fast and how full does `best_fit_decreasing` pack, beside other packers in the same run?

All times are CPU time of this process, single-threaded, medians, the packers taking turns. Peers get their lengths as
they like them best, a list made beforehand; ours are timed from the array to the finished `Bins`, checks included. A
peer that cannot be imported is left out and named. Exits 1 where bins are not those of a plain best fit decreasing.

    python benchmarks/packing.py | tee benchmarks/results/packing.txt
"""

from __future__ import annotations

import datetime
import gc
import importlib
import math
import os
import platform
import statistics
import sys
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import length_sets
import numpy as np

from dcpack.bounds import packing_lower_bound
from dcpack.packing import (
    Bins,
    StreamingPacker,
    best_fit_decreasing,
    coarse_lengths,
    first_fit_decreasing,
    next_fit,
    refill,
)

NUM_REPEATS = {1_000: 9, 10_000: 9, 100_000: 5, 1_000_000: 5}
SLOW_LOOP_REPEATS = {1_000_000: 3}  # the loop takes up to a minute there
MUST = {"loop": {1_000: 7, 10_000: 7, 100_000: 30, 1_000_000: 75}, "compiled": {100_000: 0.5, 1_000_000: 1.3}}
STRETCH = {"loop": {1_000: 10, 10_000: 10, 100_000: 50, 1_000_000: 150}, "compiled": {1_000_000: 2.0}}
FAST_MUST = {10_000: 0.5}
FAST_STRETCH = {1_000_000: 2.0}
FAST_MORE_BINS = 0.001
PEERS = ("lightbinpack", "binpacking", "prtpy")


class RoomTree:
    """The amounts of room that occur, in a segment tree: the smallest that is large enough in O(log capacity)."""

    def __init__(self, capacity: int) -> None:
        self.num_leaves = 1 << (capacity - 1).bit_length()
        self.largest = [0] * (2 * self.num_leaves)

    def put(self, room: int, value: int) -> None:
        """Say that bins with this room exist (value is the room) or do not (value is 0)."""
        node = self.num_leaves + room - 1
        self.largest[node] = value
        while node > 1:
            node >>= 1
            left, right = self.largest[2 * node], self.largest[2 * node + 1]
            self.largest[node] = left if left >= right else right

    def smallest_from(self, length: int) -> int:
        """Return the smallest room that is at least `length`."""
        node = 1
        while node < self.num_leaves:
            node *= 2
            if self.largest[node] < length:
                node += 1
        return self.largest[node]


def plain_loop(lengths: np.ndarray, capacity: int) -> list[list[int]]:
    """Best fit decreasing, item by item, built as TRL's `bfd` strategy is.

    A segment tree of room, in which each placed item enters what it leaves; queues of bins with equal room; bins that
    count their tokens; lengths and items as NumPy numbers, as they come out of its Arrow columns.
    """
    tree = RoomTree(capacity)
    tree.put(capacity, capacity)
    bins_with: dict[int, deque[dict[str, Any]]] = defaultdict(deque)
    bins: list[dict[str, Any]] = []
    order = np.argsort(-lengths, kind="stable")
    for length, item in zip(lengths[order].astype(np.int32), order, strict=True):
        room = tree.smallest_from(length)
        if room < capacity:
            chosen = bins_with[room].popleft()
        else:
            chosen = {"items": [], "tokens": 0}
            bins.append(chosen)
        chosen["items"].append(item)
        chosen["tokens"] += length
        if room < capacity and not bins_with[room]:
            tree.put(room, 0)
        room -= length
        bins_with[room].append(chosen)
        if room > 0:
            tree.put(room, room)
    return [chosen["items"] for chosen in bins]


def load(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        return None


def take_turns(
    calls: dict[str, tuple[Callable[[], Any], int]], in_a_row: int = 1
) -> tuple[dict[str, Any], dict[str, float]]:
    """Return the last result and the median of the milliseconds of each call; the number is that of its repeats.

    Short calls are made several times in a row and divided, so that none pays for the caches another one filled. The
    garbage collector is off meanwhile, as in `timeit`, so that none pays for the objects another one left.
    """
    gc.disable()
    results: dict[str, Any] = {}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(max(repeats for _, repeats in calls.values())):
        for name, (call, repeats) in calls.items():
            if turn < repeats:
                start = time.process_time()
                for _ in range(in_a_row):
                    results[name] = call()
                times[name].append(1e3 * (time.process_time() - start) / in_a_row)
    gc.enable()
    return results, {name: statistics.median(values) for name, values in times.items()}


def best(lengths: np.ndarray, capacity: int, bound: int) -> Bins:
    return refill(best_fit_decreasing(lengths, capacity), lengths, capacity, enough=bound)


def is_right(bins: Bins, lengths: np.ndarray, capacity: int, plain: list[list[int]]) -> bool:
    """Every item once, no bin over the capacity, and the loads of the plain loop.

    Whichever of two bins with equal room is taken, the same amounts of room are left, so loads are equal bin by bin.
    """
    loads = np.add.reduceat(lengths[bins.items], bins.offsets[:-1])
    ids = np.fromiter((item for members in plain for item in members), np.int64, lengths.size)
    ends = np.cumsum([len(members) for members in plain])
    plain_loads = np.diff(np.cumsum(lengths[ids])[ends - 1], prepend=0)
    once = np.array_equal(np.sort(bins.items), np.arange(lengths.size))
    return once and int(loads.max()) <= capacity and np.array_equal(np.sort(loads), np.sort(plain_loads))


def compare_speed(compiled: Any) -> tuple[bool, dict[tuple[str, int], list[float]], list[float]]:
    print(
        f"\n{'set':>14} {'n':>8} | {'L2':>7} {'bfd':>7} {'fast':>7} {'best':>7} |"
        f" {'bfd ms':>8} {'fast ms':>8} {'ffd ms':>8} {'best ms':>8} | {'loop ms':>9} {'C++ ms':>8} |"
        f" {'loop/bfd':>8} {'C++/bfd':>8} {'C++/fast':>8} | equal"
    )
    ratios: dict[tuple[str, int], list[float]] = defaultdict(list)
    more_bins: list[float] = []
    all_right = True
    for name in length_sets.SETS:
        everything, capacity = length_sets.make(name)
        for n, repeats in NUM_REPEATS.items():
            lengths = everything[:n]
            listed = lengths.tolist()
            bound = packing_lower_bound(lengths, capacity)
            calls: dict[str, tuple[Callable[[], Any], int]] = {
                "bfd": (lambda x=lengths, c=capacity: best_fit_decreasing(x, c), repeats),
                "fast": (lambda x=lengths, c=capacity: best_fit_decreasing(coarse_lengths(x, c), c), repeats),
                "ffd": (lambda x=lengths, c=capacity: first_fit_decreasing(x, c), repeats),
                "loop": (lambda x=lengths, c=capacity: plain_loop(x, c), SLOW_LOOP_REPEATS.get(n, repeats)),
                "best": (lambda x=lengths, c=capacity, b=bound: best(x, c, b), 1),
            }
            if compiled is not None:
                calls["C++"] = (lambda x=listed, c=capacity: compiled.obfd(x, c), repeats)
            results, ms = take_turns(calls, in_a_row=max(1, 10_000 // n))
            right = is_right(results["bfd"], lengths, capacity, results["loop"])
            all_right &= right
            ms.setdefault("C++", math.nan)
            ratios["loop", n].append(ms["loop"] / ms["bfd"])
            ratios["compiled", n].append(ms["C++"] / ms["bfd"])
            ratios["fast", n].append(ms["C++"] / ms["fast"])
            more_bins.append(results["fast"].num_bins / results["bfd"].num_bins - 1)
            print(
                f"{name:>14} {n:>8} | {bound:>7} {results['bfd'].num_bins:>7} {results['fast'].num_bins:>7} "
                f"{results['best'].num_bins:>7} | {ms['bfd']:>8.2f} {ms['fast']:>8.2f} {ms['ffd']:>8.2f} "
                f"{ms['best']:>8.1f} | {ms['loop']:>9.1f} {ms['C++']:>8.2f} | {ratios['loop', n][-1]:>8.1f} "
                f"{ratios['compiled', n][-1]:>8.2f} {ratios['fast', n][-1]:>8.2f} | {'yes' if right else 'NO'}",
                flush=True,
            )
    return all_right, ratios, more_bins


def compare_small_peers(peers: dict[str, Any]) -> None:
    print(f"\nslower peers, 1000 lengths: bins and ms\n{'set':>14} {'bfd':>14} {'binpacking':>16} {'prtpy ffd':>16}")
    for name in length_sets.SETS:
        everything, capacity = length_sets.make(name)
        lengths = everything[:1000]
        listed = lengths.tolist()
        calls: dict[str, tuple[Callable[[], Any], int]] = {
            "bfd": (lambda x=lengths, c=capacity: best_fit_decreasing(x, c).lists(), 5)
        }
        binpacking, prtpy = peers["binpacking"], peers["prtpy"]
        if binpacking is not None:
            calls["binpacking"] = (lambda x=listed, c=capacity, m=binpacking: m.to_constant_volume(x, c), 5)
        if prtpy is not None:
            calls["prtpy"] = (lambda x=listed, c=capacity, m=prtpy: pack_with_prtpy(m, x, c), 5)
        results, ms = take_turns(calls)
        cells = [
            f"{len(results[p]):>6} {ms[p]:>9.2f}" if p in results else f"{'-':>16}" for p in ("binpacking", "prtpy")
        ]
        print(f"{name:>14} {len(results['bfd']):>6} {ms['bfd']:>7.2f} {' '.join(cells)}", flush=True)


def pack_with_prtpy(prtpy: Any, lengths: list[int], capacity: int) -> Any:
    return prtpy.pack(algorithm=prtpy.packing.first_fit_decreasing, binsize=capacity, items=lengths)


def one_token_more() -> bool:
    print("\nbins at capacity C + 1 over bins at C, 100000 lengths")
    worst = 0.0
    for name in length_sets.SETS:
        everything, own = length_sets.make(name)
        lengths = everything[:100_000]
        least = int(lengths.max())
        power = 1 << (least - 1).bit_length()
        capacities = {own + d for d in (-1, 0, 1)} | {m * power + d for m in (1, 2, 4, 8) for d in (-2, -1, 0, 1)}
        capacities |= {3 * power // 2, 10 * power // 7, 12 * power // 7}
        tried = sorted(capacity for capacity in capacities if capacity >= least)
        ratio = max(
            best_fit_decreasing(lengths, c + 1).num_bins / best_fit_decreasing(lengths, c).num_bins for c in tried
        )
        worst = max(worst, ratio)
        print(f"{name:>14} {len(tried)} capacities from {tried[0]} to {tried[-1]}: at most {ratio:.6f}", flush=True)
    return worst <= 1.001


def stream() -> None:
    windows = (256, 1024, 8192, 65536)
    print("\nstreaming, 200000 lengths: bins over the bound L2, and microseconds a sequence")
    print(f"{'set':>14} {'next fit':>9} " + " ".join(f"{f'window {window}':>18}" for window in windows))
    for name in length_sets.SETS:
        everything, capacity = length_sets.make(name)
        lengths = everything[:200_000]
        listed = lengths.tolist()
        bound = packing_lower_bound(lengths, capacity)
        cells = [f"{100 * (next_fit(lengths, capacity).num_bins / bound - 1):>8.2f}%"]
        for window in windows:
            start = time.process_time()
            packer = StreamingPacker(lambda at, x=listed: x[at:], capacity, packer=best_fit_decreasing, window=window)
            num_bins = sum(1 for _ in packer)
            microseconds = 1e6 * (time.process_time() - start) / lengths.size
            cells.append(f"{100 * (num_bins / bound - 1):>10.3f}% {microseconds:>6.2f}")
        print(f"{name:>14} {' '.join(cells)}", flush=True)


def judge(row: str, got: list[float], must: float | None, stretch: float | None) -> None:
    """Print the smallest ratio over all sets beside what it must be, and what is beyond that."""
    least = min(got)
    words = [f"{row}: least {least:.2f}, median {statistics.median(got):.2f} of {len(got)} sets"]
    for kind, limit in (("must", must), ("stretch", stretch)):
        if limit is not None:
            met = sum(ratio >= limit for ratio in got)
            words.append(f"{kind} {limit}: " + ("met" if met == len(got) else f"met on {met} sets"))
    print("; ".join(words))


def main() -> int:
    peers = {name: load(name) for name in PEERS}
    print(f"python benchmarks/packing.py, {datetime.date.today()}, {describe_machine()}")
    print(f"CPU time, medians of {NUM_REPEATS} runs (loop {SLOW_LOOP_REPEATS}, best 1), packers taking turns")
    print("loop: plain Python best fit over a segment tree, as in TRL; C++: lightbinpack.obfd")
    missing = [name for name, module in peers.items() if module is None]
    print(f"missing peers: {', '.join(missing) if missing else 'none'}")
    all_right, ratios, more_bins = compare_speed(peers["lightbinpack"])
    compare_small_peers(peers)
    monotone = one_token_more()
    stream()
    print(
        "\nP1 bins of a plain best fit decreasing, each sequence once, within capacity:", "yes" if all_right else "NO"
    )
    for n in NUM_REPEATS:
        judge(f"P2 times faster than the loop at {n}", ratios["loop", n], MUST["loop"][n], STRETCH["loop"][n])
    if peers["lightbinpack"] is not None:
        for n in NUM_REPEATS:
            must, stretch = MUST["compiled"].get(n), STRETCH["compiled"].get(n)
            judge(f"P3 times faster than C++ at {n}", ratios["compiled", n], must, stretch)
        for n in NUM_REPEATS:
            row = f"P3 effort='fast' times faster than C++ at {n}"
            judge(row, ratios["fast", n], FAST_MUST.get(n), FAST_STRETCH.get(n))
    print(f"P3 effort='fast' bins: at most {max(more_bins):+.3%}, must {FAST_MORE_BINS:+.1%}")
    print("bins at C + 1 within 1.001 of bins at C:", "yes" if monotone else "NO")
    return 0 if all_right and monotone else 1


def describe_machine() -> str:
    return f"{os.cpu_count()} x {platform.machine()}, Python {platform.python_version()}, NumPy {np.__version__}"


if __name__ == "__main__":
    sys.exit(main())
