"""What only a process of its own shows: closed pipes, Ctrl-C, the progress bar."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]

SMALL = ("--ranks", "4", "--capacity", "16", "--global-batch-size", "2")
TIMEOUT_S = 100

# WHERE is what the command calls while it is at work: there Ctrl-C arrives.
INTERRUPTED = """
import os, signal, time
import dcpack.cli.MODULE
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the parent ignores it
def interrupt(*args, **options):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(30)
dcpack.cli.MODULE.WHERE = interrupt
dcpack.cli.run()
"""


# ---- closed pipes ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        ("lengths", "FILE"),
        ("lengths", "FILE", "--json"),
        ("plan", "FILE", *SMALL),
        ("plan", "FILE", *SMALL, "--json"),
        ("backends",),
        ("--version",),
        ("plan", "--help"),
    ],
)
def test_a_reader_that_is_gone_is_no_error_to_speak_of(
    command: tuple[str, ...], lengths_file: Path, process: Run
) -> None:
    ours, theirs = os.pipe()
    os.close(ours)
    try:
        done = process(*(lengths_file if part == "FILE" else part for part in command), stdout=theirs)
    finally:
        os.close(theirs)
    assert done.err == ""
    assert done.code in (0, 1)


@pytest.mark.parametrize("num_sequences", [6, 3000])
def test_a_reader_that_has_enough(num_sequences: int, tmp_path: Path) -> None:
    # Output that fits in a pipe, and output that does not.
    file = tmp_path / "a.txt"
    file.write_text("7\n" * num_sequences)
    command = [sys.executable, "-m", "dcpack", "plan", str(file), *SMALL, "--scheduler", "in_order", "--per-step"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith(str(file).encode())
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(TIMEOUT_S) in (0, 1)


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "module", "where"),
    [
        ("plan", "plan", "compare_strategies"),
        ("plan", "plan", "lengths_of"),
        ("plan", "plan", "save_trace"),
        ("tune", "tune", "search"),
        ("lengths", "lengths", "lengths_of"),
        ("lengths", "lengths", "summarise_lengths"),
    ],
)
def test_ctrl_c(command: str, module: str, where: str, lengths_file: Path, tmp_path: Path, process: Run) -> None:
    code = INTERRUPTED.replace("MODULE", module).replace("WHERE", where)
    more = ("--trace", tmp_path / "a.json") if where == "save_trace" else ()
    done = process(command, lengths_file, *more, code=code)
    assert done.code == 130
    assert done.err == f"dcpack {command}: interrupted\n"
    assert done.out == ""  # files come before the text


# ---- the progress bar ------------------------------------------------------------------------------------------------


def test_no_progress_bar_where_nobody_watches(lengths_file: Path, process: Run) -> None:
    for command in (
        ("plan", lengths_file, *SMALL),
        ("plan", lengths_file, *SMALL, "--json"),
        ("lengths", lengths_file),
    ):
        done = process(*command)
        assert (done.code, done.err) == (0, "")


@pytest.mark.parametrize("more", [(), ("--scheduler", "in_order", "packing_aware", "--max-steps", "2")])
def test_the_progress_bar_counts_plans(more: tuple[str, ...], lengths_file: Path, terminal: Run) -> None:
    done = terminal("plan", lengths_file, *SMALL, *more)
    assert done.code == 0
    # Three steps of two sequences under six strategies, or two under two.
    assert "planning: 100%" in done.err
    assert ("4/4" if more else "18/18") in done.err
    assert "packing_aware" in done.out
    assert "planning:" not in done.out
