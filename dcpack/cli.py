"""The command line: ``dcpack demo``.

Exit codes: 0 all right, 1 what was asked for failed, 2 the command itself is wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

from absl import app, logging
from absl.flags import argparse_flags
from tqdm import tqdm

from dcpack.demo import DemoOptions, run_demo
from dcpack.errors import ArgumentError, DcpackError, PeerError
from dcpack.exchange import ROUTINGS
from dcpack.packing import OVERLONG_POLICIES
from dcpack.scheduling import SCHEDULERS
from dcpack.sharding import SHARDINGS

__all__ = ["main", "run"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse_flags.ArgumentParser(
        prog="dcpack", description="Packing, balancing and dynamic context parallelism for variable-length sequences."
    )
    parser.add_argument("--version", action="version", version=f"dcpack {version('dcpack')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_demo(commands)
    return parser


def _add_demo(commands: Any) -> None:
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
    demo.set_defaults(run=_demo)


def _demo(args: argparse.Namespace) -> int:
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
    with tqdm(unit="plan", desc="demo", disable=None) as bar:

        def progress(total: int) -> Callable[[], object]:
            bar.reset(total)
            return bar.update

        result = run_demo(options, progress=progress)
    sys.stdout.write(result.report + "\n")
    return 0 if result.is_proven else 1


def main(args: argparse.Namespace) -> int:
    """Run the chosen command; an error of ours is one line, with exit code 2 for wrong arguments and 1 otherwise."""
    try:
        return args.run(args)
    except DcpackError as error:
        logging.debug("dcpack %s failed", args.command, exc_info=True)
        is_plain = isinstance(error, PeerError) and error.cause in ("ArgumentError", "InfeasibleError")
        text = str(error).splitlines()[0] if is_plain else str(error)  # the user's to mend: no traceback
        sys.stderr.write(f"dcpack {args.command}: {text}\n")
        return 2 if isinstance(error, ArgumentError) else 1
    except KeyboardInterrupt:
        sys.stderr.write(f"dcpack {args.command}: interrupted\n")
        return 130


def run() -> None:
    """Entry point of the ``dcpack`` command."""
    app.run(main, flags_parser=lambda argv: _parser().parse_args(argv[1:]))
