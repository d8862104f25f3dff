"""Is training through dcpack exactly training on the sequences one by one? Trains both and compares.

    torchrun --standalone --nproc-per-node 4 docs/examples/torch_exactness/main.py

Prints a table of losses and of the largest relative differences. Exits with 1 where a way differs from the reference by
more than rounding, where a mistake made on purpose goes unseen, or where a hard case was not met.
"""

from __future__ import annotations

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path

import torch
from broken import BROKEN
from checking import TOLERANCES
from proof import WAYS, ProofOptions, Report, prove
from texts import STEP_KINDS

import dcpack

__all__ = ["format_report", "main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proof on all ranks that torchrun started; return the exit status."""
    parser = argparse.ArgumentParser(description="Prove that training through dcpack is exact.")
    parser.add_argument("--dtype", choices=["both", *TOLERANCES], default="both")
    parser.add_argument("--steps", type=int, default=20, help="training steps")
    parser.add_argument("--seed", type=int, default=1234, help="of parameters and texts")
    parser.add_argument("--way", action="append", choices=WAYS, help="only this way; may be repeated")
    parser.add_argument("--broken", action="append", choices=[*BROKEN, "none"], help="only this mistake, or none")
    given = parser.parse_args(arguments)
    broken = tuple(name for name in given.broken or BROKEN if name != "none")
    faults = []
    with dcpack.get_backend("torch-gloo").world() as world:
        if not 2 <= world.size <= 4:
            parser.error(f"the steps are made for 2 to 4 ranks, got {world.size}: start it with torchrun")
        if world.rank == 0:
            print(f"{Path(__file__).name}, {datetime.date.today()}, torch {torch.__version__}, {_describe_machine()}")
        for dtype in TOLERANCES if given.dtype == "both" else (given.dtype,):
            options = ProofOptions(
                dtype=dtype, num_steps=given.steps, seed=given.seed, ways=given.way or WAYS, broken=broken
            )
            started = time.perf_counter()
            report = prove(world, options)
            faults += report.faults
            if world.rank == 0:
                print(format_report(report), f"{time.perf_counter() - started:.1f} s", sep="\n", flush=True)
    return 1 if faults else 0


def format_report(report: Report) -> str:
    """Return the table, the hard cases that were met, and the verdict as text."""
    tolerance = TOLERANCES[report.options.dtype]
    steps = report.options.num_steps
    few = min(steps, len(STEP_KINDS))
    lines = [
        "",
        f"{report.options.dtype}, {report.num_ranks} ranks, {steps} steps ({few} of each mistake), "
        f"tolerance {tolerance:g}",
        f"{'way':<28}{'first loss':>12}{'last loss':>12}{'loss':>10}{'gradients':>11}  verdict",
    ]
    for row in report.rows:
        difference = row.difference
        verdict = "agrees" if difference.passes(tolerance) else "differs"
        lines.append(
            f"{row.name:<28}{row.first_loss:>12.8f}{row.last_loss:>12.8f}"
            f"{difference.loss:>10.1e}{difference.gradients:>11.1e}  {verdict}{', as it must' * row.is_broken}"
        )
    lines += _format_cases(report)
    if report.faults:
        lines += ["NOT PROVEN", *report.faults]
    else:
        num_broken = sum(row.is_broken for row in report.rows)
        num_ways = len(report.rows) - 1 - num_broken
        lines.append(f"PROVEN: ways that agree with one at a time: {num_ways}; mistakes that are seen: {num_broken}")
    if steps < len(STEP_KINDS):
        lines.append(f"Not every hard case was looked for: that takes {len(STEP_KINDS)} steps")
    return "\n".join(lines)


def _format_cases(report: Report) -> list[str]:
    """Return a table of how often each hard case was met; its heads are explained in `evidence.Cases`."""
    heads = {"micro-batches": 14, "empty steps": 12, "empty ranks": 12, "uneven": 7, "dummies": 8}
    heads |= {"packed CP": 10, "ragged": 7, "length 1": 9}
    lines = [f"{'hard cases':<28}{'CP sizes':>9}" + "".join(f"{head:>{width}}" for head, width in heads.items())]
    for row in report.rows:
        if row.cases is not None and not row.is_broken:
            sizes, *counts = astuple(row.cases)
            numbers = "".join(f"{count:>{width}}" for count, width in zip(counts, heads.values(), strict=True))
            lines.append(f"{row.name:<28}{' '.join(map(str, sizes)):>9}{numbers}")
    return lines if len(lines) > 1 else []


def _describe_machine() -> str:
    return f"{os.cpu_count()} CPUs, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


if __name__ == "__main__":
    sys.exit(main())
