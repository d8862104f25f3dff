"""The command line: ``dcpack demo``, ``plan``, ``tune``, ``lengths``, ``backends``, ``launch``.

Exit codes: 0 all right, 1 what was asked for failed, 2 the command itself is wrong, 130 interrupted.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from importlib.metadata import version

from absl import app, flags, logging
from absl.flags import argparse_flags

from dcpack.cli import backends, demo, launch, lengths, plan, tune
from dcpack.errors import ArgumentError, DcpackError, PeerError

__all__ = ["main", "run"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse_flags.ArgumentParser(
        prog="dcpack", description="Packing, balancing and dynamic context parallelism for variable-length sequences."
    )
    parser.add_argument("--version", action="version", version=f"dcpack {version('dcpack')}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (demo, plan, tune, lengths, backends, launch):
        command.add_parser(commands)
    return parser


def main(args: argparse.Namespace) -> int:
    """Run the chosen command; an error of ours is one line, with exit code 2 for wrong arguments and 1 otherwise."""
    _print_any_name()
    try:
        code = args.run(args)
        sys.stdout.flush()  # a reader that has gone is met here, not at the exit of the interpreter
        return code
    except DcpackError as error:
        logging.debug("dcpack %s failed", args.command, exc_info=True)
        is_plain = isinstance(error, PeerError) and error.cause in ("ArgumentError", "InfeasibleError")
        text = str(error).splitlines()[0] if is_plain else str(error)  # the user's to mend: no traceback
        sys.stderr.write(f"dcpack {args.command}: {text}\n")
        return 2 if isinstance(error, ArgumentError) or getattr(error, "cause", "") == "ArgumentError" else 1
    except BrokenPipeError:
        return _reader_has_gone()
    except OSError as error:  # a file that cannot be written
        sys.stderr.write(f"dcpack {args.command}: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"dcpack {args.command}: interrupted\n")
        return 130


def _print_any_name() -> None:
    """Let names of files that are no valid text, or that a terminal cannot show, be printed with escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _reader_has_gone() -> int:
    """Say nothing more on standard output: the reader of the pipe, say `head`, has enough."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


def _parse(argv: list[str]) -> argparse.Namespace:
    try:
        return _parser().parse_args(argv[1:])
    except SystemExit:  # --help and --version have printed
        try:
            sys.stdout.flush()
        except BrokenPipeError:
            sys.exit(_reader_has_gone())
        raise
    except (flags.Error, ValueError) as error:  # of the flags of absl, such as --verbosity
        sys.stderr.write(f"dcpack: {error}\n")
        sys.exit(2)


def run() -> None:
    """Entry point of the ``dcpack`` command."""
    app.run(main, flags_parser=_parse)
