"""Pictures of plans and lengths, by matplotlib (the extra ``plot``)."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import numpy as np

from dcpack._checks import as_lengths, check_kinds, check_path, exact_sum
from dcpack.cost import CostModel
from dcpack.errors import ArgumentError, BackendError
from dcpack.plans import Plan
from dcpack.report.scales import COLOURS, shades, time_scale
from dcpack.report.timelines import timeline_of

__all__ = ["save_length_picture", "save_plan_picture"]


def _pyplot() -> Any:
    try:
        matplotlib = importlib.import_module("matplotlib")
        matplotlib.use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError as error:
        raise BackendError("pictures need matplotlib: pip install 'dcpack[plot]'") from error


def save_plan_picture(
    path: str | Path, plan: Plan, cost: CostModel, *, title: str = "", sync: str = "microbatch"
) -> None:
    """Draw one step: ranks upwards, time to the right, one bar a bin, coloured by CP size; what is white is idle.

    Args:
        path: file to write; its ending chooses the format (.png, .svg, .pdf).
        plan: a plan with ranks.
        cost: the cost model that times it.
        title: what the plan is; the step time and its distance from the bound are added.
        sync: as in `Plan.simulate`.

    Raises:
        ArgumentError: an argument of another kind, or a path whose ending names no format.
        BackendError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> import dcpack
        >>> plan = dcpack.plan([150, 60, 30], num_ranks=4, capacity=100)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_plan_picture(f"{folder}/plan.svg", plan, dcpack.QuadraticCost(), title="my step")
        ...     "<svg" in Path(folder, "plan.svg").read_text()
        True
    """
    path, title = check_path("path", path), _printable(title)
    timeline = timeline_of(plan, cost, sync=sync)
    pyplot = _pyplot()
    scale, unit = time_scale(float(timeline.microbatch_ends.max(initial=0.0)), timeline.unit)
    figure, axes = pyplot.subplots(figsize=(11, 5.5), layout="constrained")
    sizes = sorted(set(plan.cp_size.tolist()))
    for size, colour in zip(sizes, shades(len(sizes)), strict=True):
        for is_dummy in (False, True):
            chosen = (plan.cp_size == size) & (plan.dummy == is_dummy)
            if chosen.any():
                axes.barh(
                    plan.first_rank[chosen] + size / 2,
                    timeline.durations[chosen] * scale,
                    left=timeline.starts[chosen] * scale,
                    height=size - 0.15,
                    color="none" if is_dummy else colour,
                    edgecolor=colour if is_dummy else "black",
                    linewidth=0.5,
                    hatch="///" if is_dummy else None,
                    label=f"CP {size}{' (dummy)' if is_dummy else ''}",
                )
    for end in timeline.microbatch_ends[:-1] if sync == "microbatch" else ():
        axes.axvline(float(end) * scale, color="0.35", linewidth=0.8, linestyle="--")
    step, bound = plan.simulate(cost, sync=sync) * scale, plan.bounds.get("step_time", 0.0) * scale
    beyond = f", {step / bound - 1:.1%} above the lower bound" if bound else ""
    title = f"{title}: {plan.num_microbatches} micro-batches, step {step:.4g} {unit}{beyond}".lstrip(": ")
    axes.set_title(title, parse_math=False)
    axes.set_xlabel(f"simulated time ({unit}); dashed: all ranks wait for the slowest")
    axes.set_ylabel("rank")
    axes.set_ylim(0, plan.num_ranks)
    axes.set_xlim(left=0)
    step_of_ticks = max(1, -(-plan.num_ranks // 16))
    ticks = np.arange(0, plan.num_ranks, step_of_ticks)
    axes.set_yticks(ticks + 0.5, [str(tick) for tick in ticks])
    if sizes:
        figure.legend(loc="outside right upper", title="ranks that\nshare a bin")
    _save(pyplot, figure, path)


def _printable(title: str) -> str:
    """Return `title` as a font can draw it: names of files may hold what is no text."""
    check_kinds(title=(title, str))
    return title.replace("\0", "\\x00").encode(errors="backslashreplace").decode()


def _save(pyplot: Any, figure: Any, path: Path) -> None:
    known = sorted(figure.canvas.get_supported_filetypes())
    try:
        if path.suffix.removeprefix(".").lower() not in known:
            raise ArgumentError(f"pictures end in {', '.join('.' + ending for ending in known)}, got {str(path)!r}")
        figure.savefig(path, dpi=150)
    finally:
        pyplot.close(figure)


def save_length_picture(path: str | Path, lengths: Any, *, title: str = "") -> None:
    """Draw the lengths: how many sequences, and how many of all tokens, lie in each range of lengths.

    Args:
        path: file to write; its ending chooses the format.
        lengths: int64[n], tokens of each sequence.
        title: what they are.

    Raises:
        ArgumentError: an argument of another kind, or a path whose ending names no format.
        BackendError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_length_picture(f"{folder}/lengths.svg", [5, 300, 4000], title="my data")
        ...     "<svg" in Path(folder, "lengths.svg").read_text()
        True
    """
    path, title = check_path("path", path), _printable(title)
    values = as_lengths("lengths", lengths)
    pyplot = _pyplot()
    values = values[values > 0]
    total = exact_sum(values)
    edges = (
        np.unique(np.round(np.geomspace(int(values.min()), float(values.max()) + 1, 40)))
        if values.size
        else np.array([1.0, 2.0])
    )
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    for weights, colour, label in (
        (np.full(values.size, 100 / max(values.size, 1)), COLOURS[0], "sequences"),
        (values * (100 / max(total, 1)), COLOURS[5], "tokens"),
    ):
        axes.hist(values, bins=edges, weights=weights, color=colour, alpha=0.6, label=f"share of {label}")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("length (tokens)")
    axes.set_ylabel("share (%)")
    axes.set_title(f"{title}: {values.size:,} sequences, {total:,} tokens".lstrip(": "), parse_math=False)
    axes.legend()
    _save(pyplot, figure, path)
