"""``dcpack tune``: the setting that suits a user's own lengths, model and devices."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from dcpack.cli.inputs import add_length_arguments, lengths_of
from dcpack.cli.progress import progress_bar
from dcpack.cost import DEVICES, MODELS, get_device, get_model
from dcpack.packing import OVERLONG_POLICIES
from dcpack.plans import SYNC_MODES
from dcpack.report import STRATEGIES, format_bytes
from dcpack.tuning import (
    RECOMPUTE,
    STATE_SHARDINGS,
    Job,
    MemoryOptions,
    SearchSpace,
    Trial,
    alternatives,
    format_alternatives,
    recommend,
    sample_lengths,
    search,
    trial_to_dict,
)

__all__ = ["add_parser"]

_NAMES = {name.replace(" ", "-").lower(): name for name in STRATEGIES if name != "pad to longest"}


def add_parser(commands: Any) -> None:
    """Add the command to the sub-parsers `commands`."""
    parser = commands.add_parser(
        "tune",
        help="try capacities, strategies, CP limits and global batches, and recommend",
        description="Plans a sample of the lengths under every setting that fits in memory by a written estimate, "
        "recommends the one with the least simulated time a token, and says what holds the others back.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_length_arguments(parser)
    add = parser.add_argument
    add("--model", choices=list(MODELS), default="llama3-8b", help="dimensions of the model")
    add("--device", choices=list(DEVICES), default="h100", help="figures of the device")
    add("--ranks", type=int, default=64, help="ranks of the DPxCP domain")
    add("--tp", type=int, default=1, help="tensor-parallel size: devices of each rank")
    add("--block", type=int, default=1, help="kernel block, for the padding rule: 16 for fp8, 32 for mxfp8")
    add("--capacity", type=int, nargs="+", default=[4096, 8192, 16384, 32768, 65536], help="capacities to try")
    add("--global-batch-size", type=int, nargs="+", default=[256, 512], help="sequences of a step, to try")
    add("--max-cp-size", type=int, nargs="+", default=None, help="CP limits to try; none: a node, and all ranks")
    add("--scheduler", nargs="+", choices=sorted(_NAMES), default=list(_NAMES), help="strategies to try")
    add("--recompute", nargs="+", choices=RECOMPUTE, default=list(RECOMPUTE), help="full only where none does not fit")
    add("--sharding", choices=STATE_SHARDINGS, default="full", help="what is sharded over the ranks")
    add("--fused-loss", action="store_true", help="the loss never holds the logits of a whole row")
    add("--usable-memory", type=float, default=0.9, help="part of a device's memory that may be planned for")
    add("--attention", default="causal", help="causal, full, sliding_window:N or chunked:N")
    add("--sync", choices=SYNC_MODES, default="microbatch", help="when ranks wait for each other")
    add("--overlong", choices=OVERLONG_POLICIES, default="error", help="for sequences that fit on no CP size")
    add("--sample", type=int, default=2048, help="sequences to plan, spread over the file")
    add("--json", action="store_true", help="print JSON, with every setting")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    job = Job(
        model=get_model(args.model),
        device=get_device(args.device),
        num_ranks=args.ranks,
        tp_size=args.tp,
        block=args.block,
        attention=args.attention,
        sync=args.sync,
        overlong=args.overlong,
        memory=MemoryOptions(sharding=args.sharding, fused_loss=args.fused_loss, usable=args.usable_memory),
    )
    space = SearchSpace(
        capacities=args.capacity,
        max_cp_sizes=[job.node_ranks, job.num_ranks] if args.max_cp_size is None else args.max_cp_size,
        global_batch_sizes=args.global_batch_size,
        strategies=[_NAMES[name] for name in args.scheduler],
        recompute=args.recompute,
    )
    lengths = sample_lengths(lengths_of(args), args.sample)
    with progress_bar("tuning", unit="plan") as progress:
        trials = search(job, space, lengths, start=progress)
    best = recommend(trials)
    if args.json:
        sys.stdout.write(json.dumps(_as_json(args, job, trials, best), indent=2) + "\n")
    else:
        sys.stdout.write(_as_text(args, job, trials, best, lengths.size) + "\n")
    return 0 if best is not None else 1


def _as_json(args: argparse.Namespace, job: Job, trials: list[Trial], best: Trial | None) -> dict[str, Any]:
    return {
        "options": {key: value for key, value in vars(args).items() if key != "run"},
        "usable_bytes": job.usable_bytes,
        "recommended": None if best is None else trial_to_dict(best),
        "trials": [trial_to_dict(trial) for trial in trials],
    }


def _as_text(args: argparse.Namespace, job: Job, trials: list[Trial], best: Trial | None, count: int) -> str:
    possible = sum(trial.failure is None for trial in trials)
    lines = [
        f"{args.lengths}: {count:,} sequences planned under {possible} settings; "
        f"{len(trials) - possible} are not possible",
        f"{args.model} on {args.ranks} ranks of {args.tp} x {args.device}, "
        f"{format_bytes(job.usable_bytes)} of memory each",
        "",
    ]
    if best is None:
        return "\n".join([*lines, "no setting is possible:", *(f"  {text}" for text in _failures(trials))])
    strategy = next(name for name, known in _NAMES.items() if known == best.strategy)
    memory = ", ".join(
        f"{part} {format_bytes(getattr(best.memory, part))}" for part in ("states", "gathered", "activations", "logits")
    )
    lines += [
        f"recommended: --scheduler {strategy} --capacity {best.capacity} --max-cp-size {best.max_cp_size} "
        f"--global-batch-size {best.global_batch_size}, recomputing {best.recompute}",
        f"  {1e3 * best.step_time:,.0f} ms a step, {1 / best.token_time if best.token_time else 0:,.0f} tokens/s, "
        f"utilization {best.utilization:.1%}",
        f"  memory {format_bytes(best.memory.total)}: {memory}",
        f"  held back by {best.shares.held_back_by()}",
        "",
        "one thing changed:",
        format_alternatives(best, alternatives(best, trials)),
        "times are simulated, memory is estimated; within 1% the setting with less memory is taken",
    ]
    return "\n".join(lines)


def _failures(trials: list[Trial]) -> list[str]:
    """Return every reason, with the smallest setting that it was met under."""
    first = {trial.failure: trial for trial in reversed(trials)}
    return [f"capacity {trial.capacity:,}, {trial.strategy}: {reason}" for reason, trial in reversed(first.items())]
