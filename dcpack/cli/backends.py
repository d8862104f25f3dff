"""``dcpack backends``: what can be used here, and what brings the rest."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from dataclasses import asdict
from typing import Any

from dcpack.comm import backend_statuses

__all__ = ["add_parser"]


def add_parser(commands: Any) -> None:
    """Add the command to the sub-parsers `commands`."""
    parser = commands.add_parser("backends", help="what can be used here, versions, and what to install for the others")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    statuses = backend_statuses()
    if args.json:
        sys.stdout.write(json.dumps([asdict(status) for status in statuses], indent=2) + "\n")
        return 0
    for status in statuses:
        text = status.detail if status.is_usable else f"{status.detail}; it {status.needs}"
        head = f"{status.name:<12} {'usable' if status.is_usable else 'not usable':<11} "
        wrapped = textwrap.fill(" ".join(text.split()), 100, initial_indent=head, subsequent_indent=" " * len(head))
        sys.stdout.write(wrapped + "\n")
    return 0
