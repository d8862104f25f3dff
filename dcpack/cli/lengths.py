"""``dcpack lengths``: what a file of lengths holds."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from dcpack.cli.inputs import add_length_arguments, lengths_of
from dcpack.report import format_lengths, save_length_picture, summarise_lengths

__all__ = ["add_parser"]

_CAPACITIES = (2048, 4096, 8192, 16384, 32768, 65536, 131072)


def add_parser(commands: Any) -> None:
    """Add the command to the sub-parsers `commands`."""
    parser = commands.add_parser("lengths", help="count, percentiles, share of tokens above each capacity, histogram")
    add_length_arguments(parser)
    parser.add_argument("--capacity", type=int, nargs="+", default=_CAPACITIES, help="capacities to compare with")
    parser.add_argument("--image", default=None, metavar="FILE", help="draw the histogram (.png, .svg, .pdf)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    lengths = lengths_of(args)
    summary = summarise_lengths(lengths, capacities=tuple(args.capacity))
    if args.image is not None:
        save_length_picture(args.image, lengths, title=args.lengths)
    text = json.dumps(summary.to_dict(), indent=2) if args.json else format_lengths(summary)
    sys.stdout.write(text + "\n")
    return 0
