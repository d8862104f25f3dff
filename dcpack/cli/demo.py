"""``dcpack demo``."""

from __future__ import annotations

import argparse
import contextlib
import sys
from typing import Any

from dcpack.cli.progress import progress_bar
from dcpack.comm import Communicator, get_backend, list_backends
from dcpack.demo import DemoOptions, run_demo
from dcpack.errors import ArgumentError
from dcpack.exchange import ROUTINGS
from dcpack.packing import OVERLONG_POLICIES
from dcpack.scheduling import SCHEDULERS
from dcpack.sharding import SHARDINGS
from dcpack.topology import Topology

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
    add("--backend", choices=list_backends(), default="fake", help="fake: ranks are threads of this process")
    add(
        "--ranks",
        type=int,
        default=None,
        help=f"fake: {defaults.num_ranks} if not given; else the processes, or devices, there are",
    )
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
    if args.backend == "fake":
        return _prove(args)
    backend = get_backend(args.backend)
    return max(backend.run(lambda communicator: _prove(args, communicator, backend.topology())))


def _prove(args: argparse.Namespace, communicator: Communicator | None = None, topology: Topology | None = None) -> int:
    """Be one process, or all ranks where there is no communicator; return the exit code."""
    options = DemoOptions(
        data=tuple(args.data),
        num_ranks=_num_ranks(args, communicator, topology),
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
    is_first = communicator is None or communicator.rank == 0
    with contextlib.closing(communicator) if communicator is not None else contextlib.nullcontext():
        with progress_bar("demo", unit="plan", silent=not is_first) as progress:
            result = run_demo(options, progress=progress, communicator=communicator, topology=topology)
    if is_first:
        sys.stdout.write(result.report + "\n")
    return 0 if result.is_proven else 1


def _num_ranks(args: argparse.Namespace, communicator: Communicator | None, topology: Topology | None) -> int:
    """Return the ranks asked for; a real back end has as many as there are processes, or devices in them."""
    if communicator is None:
        return DemoOptions().num_ranks if args.ranks is None else args.ranks
    count = communicator.size if topology is None else topology.num_ranks
    if args.ranks not in (None, count):
        what = "processes" if topology is None else "devices"
        raise ArgumentError(f"--ranks must be the {count} {what} of {args.backend}, got {args.ranks}")
    return count
