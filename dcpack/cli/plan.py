"""``dcpack plan``: what packing, balancing and dynamic CP would gain on a user's own lengths."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, check_int, check_path, exact_sum
from dcpack.api import DEFAULT_COST
from dcpack.cli.inputs import add_length_arguments, lengths_of
from dcpack.cli.progress import progress_bar
from dcpack.cost import get_cost
from dcpack.errors import ArgumentError
from dcpack.packing import OVERLONG_POLICIES
from dcpack.padding import PaddingRule
from dcpack.plans import SYNC_MODES, Plan
from dcpack.report import (
    STRATEGIES,
    Cluster,
    HtmlReport,
    Planned,
    ShapeCount,
    StrategyResult,
    compare_strategies,
    format_steps,
    format_strategies,
    save_html_report,
    save_plan_picture,
    save_trace,
    summarise_lengths,
)
from dcpack.scheduling import ON_EMPTY

__all__ = ["add_parser"]

_MAX_STEPS_SHOWN = 10


def add_parser(commands: Any) -> None:
    """Add the command to the sub-parsers `commands`."""
    parser = commands.add_parser(
        "plan",
        help="compare strategies on your own lengths and your own cluster",
        description="Cuts the lengths into global batches in the order of the file, plans each under several "
        "strategies, and prints them side by side. Times are simulated by the cost model.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_length_arguments(parser)
    add = parser.add_argument
    add("--ranks", type=int, default=64, help="ranks of the DPxCP domain")
    add("--capacity", type=int, default=8192, help="padded tokens of a row on one rank")
    add("--global-batch-size", type=int, default=512, help="sequences of a step")
    add("--max-steps", type=int, default=None, help="plan so many steps at most; none: all")
    add("--overlong", choices=OVERLONG_POLICIES, default="error", help="for sequences that fit on no CP size")
    add("--scheduler", nargs="+", choices=sorted(_NAMES), default=list(_NAMES), help="strategies to compare")
    add("--cost", default=DEFAULT_COST, help="cost model: MODEL@DEVICE, ring, quadratic, or a JSON file")
    add("--sync", choices=SYNC_MODES, default="microbatch", help="when ranks wait for each other")
    add("--cp-sizes", default="powers_of_two", help="powers_of_two, divisors, any, or sizes such as 1,2,4")
    add("--min-cp-size", type=int, default=1, help="smallest CP size where the strategy chooses")
    add("--max-cp-size", type=int, default=None, help="largest CP size; none: all ranks")
    add("--tp", type=int, default=1, help="tensor-parallel size, for the padding rule")
    add("--block", type=int, default=1, help="kernel block, for the padding rule: 16 for fp8, 32 for mxfp8")
    add("--microbatch-multiple", type=int, default=1, help="micro-batches are a multiple of it (pipeline stages)")
    add("--max-sequences", type=int, default=None, help="most sequences in a bin")
    add("--row-lengths", default=None, metavar="N,N", help="fixed row lengths for uniform_cp; none: the capacity")
    add(
        "--max-seqlens", default=None, metavar="N,N", help="fixed values of max_seqlen for uniform_cp; none: by the row"
    )
    add("--on-empty", choices=ON_EMPTY, default="dummy", help="where sequences are too few for the ranks")
    add("--step", type=int, default=0, help="the step that --save, --image, --trace and --html show")
    add("--per-step", action="store_true", help=f"print every step, not only the first {_MAX_STEPS_SHOWN}")
    add("--json", action="store_true", help="print JSON")
    add("--save", default=None, metavar="FILE", help="save the plan of --step by the last strategy (.npz)")
    add("--image", default=None, metavar="FILE", help="draw it: ranks over time (.png, .svg, .pdf)")
    add("--trace", default=None, metavar="FILE", help="write it as a trace for Perfetto or chrome://tracing (.json)")
    add(
        "--html",
        default=None,
        metavar="FILE",
        help="write a page for a browser: lengths, strategies, and their plans",
    )
    parser.set_defaults(run=_run)


_NAMES = {name.replace(" ", "-").lower(): name for name in STRATEGIES}


def _run(args: argparse.Namespace) -> int:
    cluster = _cluster_of(args)
    for name in ("save", "image", "trace", "html"):
        if getattr(args, name) is not None:
            check_path(f"--{name}", getattr(args, name))
    lengths = lengths_of(args)
    steps = _Steps(lengths, args.global_batch_size, args.max_steps)
    check_int("--step", args.step, minimum=0, maximum=max(steps.count - 1, 0))
    names = [_NAMES[name] for name in args.scheduler]
    chosen: dict[str, Plan] = {}
    shapes = ShapeCount(
        row_lengths=_numbers_of("--row-lengths", args.row_lengths),
        max_seqlens=_numbers_of("--max-seqlens", args.max_seqlens),
    )

    def keep(name: str, number: int, planned: Planned) -> None:
        if number == args.step:
            chosen[name] = planned.plan
        if name == "uniform_cp":
            shapes.add(planned.plan)

    with progress_bar("planning", unit="plan") as progress:
        done = progress(steps.count * len(names))
        results = compare_strategies(cluster, steps, done=done, names=names, inspect=keep)
    chosen = {
        result.name: chosen[result.name] for result in results if result.failure is None and result.name in chosen
    }
    written = _write_files(args, cluster, chosen, names)  # before the text, whose reader may go early
    if args.html:
        save_html_report(args.html, _html_report(args, cluster, steps, results, chosen))
        written += [f"{args.html}: a page for a browser"]
    if args.json:
        sys.stdout.write(json.dumps(_as_json(args, cluster, results, shapes), indent=2) + "\n")
    else:
        sys.stdout.write(_as_text(args, cluster, steps, results, shapes) + "\n")
        sys.stdout.write("".join(f"{line}\n" for line in written))
    return 0 if any(result.failure is None for result in results) else 1


def _cluster_of(args: argparse.Namespace) -> Cluster:
    for name in ("ranks", "capacity", "global_batch_size"):
        check_int(f"--{name.replace('_', '-')}", getattr(args, name), minimum=1)
    if args.max_steps is not None:
        check_int("--max-steps", args.max_steps, minimum=1)
    return Cluster(
        num_ranks=args.ranks,
        capacity=args.capacity,
        padding=PaddingRule(tp=args.tp, block=args.block),
        cost=get_cost(args.cost),
        overlong=args.overlong,
        max_cp_size=args.max_cp_size,
        sync=args.sync,
        cp_sizes=_cp_sizes_of(args.cp_sizes),
        min_cp_size=args.min_cp_size,
        microbatch_multiple=args.microbatch_multiple,
        max_sequences=args.max_sequences,
        on_empty=args.on_empty,
    )


def _cp_sizes_of(text: str) -> str | tuple[int, ...]:
    if not text[:1].isdigit():
        return text
    return _numbers_of("--cp-sizes", text, also="a name or ") or ()


def _numbers_of(name: str, text: str | None, *, also: str = "") -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise ArgumentError(f"{name} must be {also}numbers with commas between, got {text!r}") from error


class _Steps:
    """Global batches in the order of the file, cut as they are asked for; remembers what each of them held."""

    def __init__(self, lengths: Any, batch_size: int, max_steps: int | None) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        whole = -(-len(lengths) // batch_size)
        self.count = whole if max_steps is None else min(whole, max_steps)
        self.held: list[tuple[int, int, int]] = []

    def __iter__(self) -> Iterator[Int64Array]:
        for number in range(self.count):
            part = np.asarray(self.lengths[number * self.batch_size : (number + 1) * self.batch_size], np.int64)
            self.held.append((part.size, exact_sum(part), int(part.max(initial=0))))
            yield part


def _as_text(
    args: argparse.Namespace, cluster: Cluster, steps: _Steps, results: list[StrategyResult], shapes: ShapeCount
) -> str:
    tokens = sum(held[1] for held in steps.held)
    sequences = sum(held[0] for held in steps.held)
    lines = [
        f"{args.lengths}: {steps.count:,} steps of {args.global_batch_size:,} sequences, {sequences:,} sequences, "
        f"{tokens:,} tokens",
        f"{cluster.num_ranks} ranks, capacity {cluster.capacity:,} tokens a rank, cost {args.cost}, sync {args.sync}",
        "",
        format_strategies(results, unit=cluster.cost.unit, with_planning=True),
        "step time and bound: means over steps, simulated; bound: of the same pieces",
    ]
    lines += [f"{result.name}: {result.failure}" for result in results if result.failure is not None]
    if shapes.cp_sizes:
        lines.append(f"uniform_cp: {shapes.describe()}")
    shown = steps.held if args.per_step else steps.held[:_MAX_STEPS_SHOWN]
    if any(result.failure is None for result in results) and shown:
        lines += ["", format_steps(results, shown, unit=cluster.cost.unit)]
        if len(shown) < steps.count:
            lines.append(f"... and {steps.count - len(shown):,} more steps (--per-step, --json)")
    return "\n".join(lines)


def _html_report(
    args: argparse.Namespace,
    cluster: Cluster,
    steps: _Steps,
    results: list[StrategyResult],
    chosen: dict[str, Plan],
) -> HtmlReport:
    planned = steps.lengths[: steps.count * steps.batch_size]
    return HtmlReport(
        title=f"dcpack plan {args.lengths}",
        facts=[
            ("steps", f"{steps.count:,} of {args.global_batch_size:,} sequences"),
            ("sequences", f"{sum(held[0] for held in steps.held):,}"),
            ("tokens", f"{sum(held[1] for held in steps.held):,}"),
            ("longest", f"{max((held[2] for held in steps.held), default=0):,} tokens"),
            ("ranks", f"{cluster.num_ranks:,}"),
            ("capacity", f"{cluster.capacity:,} tokens a rank"),
            ("cost", args.cost),
            ("sync", args.sync),
        ],
        lengths=summarise_lengths(planned, capacities=(cluster.capacity,)),
        results=results,
        plans=chosen,
        step=args.step,
        cost=cluster.cost,
        sync=args.sync,
    )


def _as_json(
    args: argparse.Namespace, cluster: Cluster, results: list[StrategyResult], shapes: ShapeCount
) -> dict[str, Any]:
    options = {key: value for key, value in vars(args).items() if key != "run"}
    strategies = [
        {
            "name": result.name,
            "failure": result.failure,
            "totals": result.totals,
            "planning_seconds": result.planning_seconds,
            "steps": [asdict(step) for step in result.steps],
        }
        for result in results
    ]
    counted = {
        "bound": shapes.bound,
        "seen": [asdict(shape) for shape in sorted(shapes.seen)],
        "failure": shapes.failure,
    }
    return {
        "options": options,
        "time_unit": cluster.cost.unit,
        "strategies": strategies,
        "uniform_cp_shapes": counted if shapes.cp_sizes else None,
    }


def _write_files(args: argparse.Namespace, cluster: Cluster, chosen: dict[str, Plan], names: list[str]) -> list[str]:
    """Write the chosen step as planned by the last strategy that could; return what to say of it."""
    wanted = [path for path in (args.save, args.image, args.trace) if path]
    if not wanted:
        return []
    if not chosen:
        return ["", f"nothing was written to {', '.join(wanted)}: no strategy has a plan for step {args.step}"]
    name = [name for name in names if name in chosen][-1]
    plan = chosen[name]
    if args.save:
        plan.save(args.save)
    if args.image:
        title = f"{name}, step {args.step}, {cluster.num_ranks} ranks"
        save_plan_picture(args.image, plan, cluster.cost, title=title, sync=args.sync)
    if args.trace:
        save_trace(args.trace, plan, cluster.cost, sync=args.sync)
    return ["", f"{', '.join(wanted)}: step {args.step} as planned by {name}"]
