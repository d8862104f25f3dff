"""``dcpack demo``."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dcpack.cli.progress import progress_bar
from dcpack.demo import DemoOptions, run_demo
from dcpack.exchange import ROUTINGS
from dcpack.packing import OVERLONG_POLICIES
from dcpack.scheduling import SCHEDULERS
from dcpack.sharding import SHARDINGS

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to the sub-parsers `commands`."""
    defaults = DemoOptions()
    demo = commands.add_parser(
        "demo",
        help="pack real text on N ranks in this process, prove the result, compare strategies",
        description="Packs real documents on N ranks of the fake back end, proves that every token arrived exactly "
        "once at its place, and compares strategies.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = demo.add_argument
    add("--data", nargs="+", default=[], metavar="PATH", help="text files or folders; none: texts of this machine")
    add("--ranks", type=int, default=defaults.num_ranks, help="ranks of the DPxCP domain")
    add("--steps", type=int, default=defaults.num_steps, help="steps to run")
    add("--global-batch-size", type=int, default=defaults.global_batch_size, help="documents of a step")
    add("--capacity", type=int, default=defaults.capacity, help="padded tokens of a row on one rank")
    add("--scheduler", choices=sorted(SCHEDULERS), default=defaults.scheduler, help="the scheduler that is proven")
    add("--max-cp-size", type=int, default=None, help="largest CP size; 1 turns CP off; none: all ranks")
    add("--overlong", choices=OVERLONG_POLICIES, default=defaults.overlong, help="for documents that fit nowhere")
    add("--sharding", choices=sorted(SHARDINGS), default=defaults.sharding, help="CP slicing")
    add("--routing", choices=ROUTINGS, default=defaults.routing, help="send slices or whole sequences")
    add("--seed", type=int, default=defaults.seed, help="which documents, in which order")
    demo.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    options = DemoOptions(
        data=tuple(args.data),
        num_ranks=args.ranks,
        num_steps=args.steps,
        global_batch_size=args.global_batch_size,
        capacity=args.capacity,
        scheduler=args.scheduler,
        max_cp_size=args.max_cp_size,
        overlong=args.overlong,
        sharding=args.sharding,
        routing=args.routing,
        seed=args.seed,
    )
    with progress_bar("demo", unit="plan") as progress:
        result = run_demo(options, progress=progress)
    sys.stdout.write(result.report + "\n")
    return 0 if result.is_proven else 1
