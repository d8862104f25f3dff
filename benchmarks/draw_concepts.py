"""Draws the pictures of docs/concepts.md from real plans: packing, balancing, zigzag, routes.

python benchmarks/draw_concepts.py FOLDER
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from length_sets import sft

import dcpack
from dcpack.cost import get_cost
from dcpack.exchange import build_routes, gather_samples
from dcpack.sharding import local_token_indices

CAPACITY = 4096
BLUE, ORANGE, GREEN, RED = "#56B4E9", "#E69F00", "#009E73", "#D55E00"


def draw_packing(path: Path) -> None:
    """Left one sequence a row, padded to the longest; right the bins of `dcpack.pack`."""
    lengths = np.minimum(sft(24), CAPACITY)
    plan = dcpack.pack(lengths, capacity=CAPACITY)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), sharex=True, layout="constrained")
    left.barh(range(lengths.size), lengths.max(), color="#e4e4e4")
    left.barh(range(lengths.size), lengths, color=BLUE, edgecolor="black", linewidth=0.5)
    used = lengths.sum() / (lengths.size * lengths.max())
    left.set_title(f"padded to the longest: {lengths.size} rows, {used:.0%} real tokens")
    right.barh(range(plan.num_bins), CAPACITY, color="#e4e4e4")
    ends = np.cumsum(plan.entry_lengths)
    starts = ends - plan.entry_lengths - (ends - plan.entry_lengths)[plan.offsets[:-1]][plan.entry_bin]
    right.barh(plan.entry_bin, plan.entry_lengths, left=starts, color=BLUE, edgecolor="black", linewidth=0.5)
    used = plan.entry_lengths.sum() / (plan.num_bins * CAPACITY)
    right.set_title(f"packed: {plan.num_bins} rows, {used:.0%} real tokens")
    for axes in (left, right):
        axes.set_xlabel("tokens")
        axes.set_ylabel("row")
        axes.invert_yaxis()
    save(figure, path)


def draw_balancing(path: Path) -> None:
    """Work of 8 ranks: rows dealt in order, and by `dcpack.balance`."""
    lengths = np.minimum(sft(200), CAPACITY)
    plan = dcpack.pack(lengths, capacity=CAPACITY, method="next_fit")
    cost = get_cost("llama3-8b@h100")
    times = 1e3 * plan.bin_times(cost)
    figure, panels = plt.subplots(1, 2, figsize=(10, 3.2), sharex=True, layout="constrained")
    in_order = np.arange(plan.num_bins) % 8
    for axes, parts, title in (
        (panels[0], in_order, "dealt in order"),
        (panels[1], dcpack.balance(times, num_parts=8), "balanced"),
    ):
        loads = np.bincount(parts, weights=times, minlength=8)
        axes.barh(range(8), loads.max(), color="#e4e4e4")
        for rank in range(8):
            mine = times[parts == rank]
            axes.barh(rank, mine, left=np.cumsum(mine) - mine, color=GREEN, edgecolor="black", linewidth=0.5)
        axes.set_title(f"{title}: slowest over mean {loads.max() / loads.mean():.2f}")
        axes.set_xlabel("simulated time (ms); grey: waiting")
        axes.set_ylabel("rank")
    save(figure, path)


def draw_zigzag(path: Path) -> None:
    """Which rank holds which tokens, and how many pairs each computes, for zigzag and contiguous slices."""
    figure, panels = plt.subplots(2, 2, figsize=(10, 3.6), width_ratios=(3, 2), layout="constrained")
    colours = (BLUE, ORANGE, GREEN, RED)
    for row, method in zip(panels, ("contiguous", "zigzag"), strict=True):
        pairs = []
        for rank, colour in enumerate(colours):
            tokens = local_token_indices([0, 64], 4, rank, method)
            row[0].bar(tokens, 1, width=1, align="edge", color=colour, label=f"rank {rank}")
            pairs.append(int((tokens + 1).sum()))
        row[0].set_title(f"{method}: tokens by rank")
        row[0].set_yticks([])
        row[0].set_xlim(0, 64)
        row[1].bar([f"rank {rank}" for rank in range(4)], pairs, color=colours)
        row[1].set_title(f"pairs: slowest over mean {max(pairs) * 4 / sum(pairs):.2f}")
    save(figure, path)


def draw_routes(path: Path) -> None:
    """Bytes that each process sends to each other in one step of 8 ranks, out of the routes of the plan."""
    lengths = np.minimum(sft(64), 4 * CAPACITY)

    def step(communicator: Any) -> np.ndarray:
        samples = [{"input_ids": np.zeros(n, np.int32)} for n in lengths[communicator.rank :: 8]]
        table = gather_samples(communicator, samples).table
        plan = dcpack.plan(table.lengths, num_ranks=8, capacity=CAPACITY, padding=dcpack.PaddingRule())
        routes = build_routes(plan, table, num_processes=8)
        return np.stack([routes.send_counts(process) for process in range(8)])

    sent = dcpack.run_ranks(8, step)[0]
    figure, axes = plt.subplots(figsize=(5.5, 4.5), layout="constrained")
    picture = axes.imshow(sent / 1024, cmap="Blues")
    figure.colorbar(picture, label="KiB")
    axes.set_xlabel("to process")
    axes.set_ylabel("from process")
    axes.set_title(f"one all-to-all, {sent.sum() / 2**20:.2f} MiB")
    save(figure, path)


def save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=100)
    plt.close(figure)
    print(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    draw_packing(folder / "concept_packing.png")
    draw_balancing(folder / "concept_balancing.png")
    draw_zigzag(folder / "concept_zigzag.png")
    draw_routes(folder / "concept_routes.png")


if __name__ == "__main__":
    main()
