from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import dcpack.cli
import dcpack.cli.demo
import dcpack.demo.run
from dcpack.comm import Fault, run_ranks
from dcpack.demo import DemoOptions

TIMEOUT_S = 100


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """A document of five tokens: over two ranks of 4, rank 0 holds it and rank 1 gets c, d and the end."""
    file = tmp_path / "a text.txt"
    file.write_bytes(b"abcd")
    return file


SMALL = ("--ranks", "2", "--steps", "1", "--global-batch-size", "1", "--capacity", "4")


def _main(*arguments: str) -> int:
    """What the command does, in this process; argparse itself ends with SystemExit."""
    return dcpack.cli.main(dcpack.cli._parser().parse_args(arguments))


def _process(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


# ---- the whole command --------------------------------------------------------------------------------------------


def test_the_demo_as_people_run_it(text: Path) -> None:
    done = _process("-m", "dcpack", "demo", "--ranks", "2", "--steps", "1", "--data", str(text))
    assert done.returncode == 0
    assert done.stderr == ""  # no progress bar where nobody watches
    lines = done.stdout.splitlines()
    assert lines[0] == "1 documents, 5 byte tokens: median 5, longest 5"
    assert any(line.startswith("strategy ") for line in lines)
    assert any(line.startswith("packing_aware ") for line in lines)
    # The one document comes 128 times.
    assert lines[-1].startswith("PROVEN under packing_aware: 640 tokens arrived exactly once")


def test_the_progress_bar_is_there_for_those_who_watch(text: Path, terminal: Callable[..., Any]) -> None:
    done = terminal("demo", "--data", text, *SMALL)
    assert done.code == 0
    assert "demo: 100%" in done.err
    assert "7/7" in done.err  # one step, proven once and planned by six strategies
    assert "PROVEN" in done.out
    assert "PROVEN" not in done.err


FLIPPED = """
import functools
import dcpack.cli, dcpack.demo.run
from dcpack.comm import Fault, run_ranks
fault = Fault(rank=0, call=0, action="flip_byte", verb="all_to_all")
dcpack.demo.run.run_ranks = functools.partial(run_ranks, faults=[fault])
dcpack.cli.run()
"""


def test_a_failed_proof_is_a_failed_command(text: Path) -> None:
    done = _process("-c", FLIPPED, "demo", "--data", str(text), *SMALL)
    assert done.returncode == 1
    assert done.stdout.splitlines()[-2:] == [
        "PROOF FAILED under packing_aware: 1 fault (0 documents cut or dropped by overlong='split', 0 tokens dropped)",
        "step 0: micro-batch 0, rank 1: input_ids: slot 0 is 156, expected 99 (1 differ)",
    ]
    assert "PROVEN" not in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


INTERRUPTED = """
import os, signal
import dcpack.cli, dcpack.demo.run
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the parent ignores it
def interrupt(communicator, plan):
    if communicator.rank == 0:
        os.kill(os.getpid(), signal.SIGINT)
    while True:
        communicator.barrier()
dcpack.demo.run.check_same_plan = interrupt
dcpack.cli.run()
"""


def test_ctrl_c_while_the_ranks_run(text: Path) -> None:
    done = _process("-c", INTERRUPTED, "demo", "--data", str(text), *SMALL)
    assert done.returncode == 130
    assert done.stderr == "dcpack demo: interrupted\n"
    assert done.stdout == ""


def test_the_command_and_the_module_are_the_same() -> None:
    for command in (["-m", "dcpack"], ["-c", "import dcpack.cli; dcpack.cli.run()"]):
        done = _process(*command, "--version")
        assert (done.returncode, done.stdout, done.stderr) == (0, f"dcpack {version('dcpack')}\n", "")


def test_a_wrong_choice_ends_the_process_with_2() -> None:
    done = _process("-m", "dcpack", "demo", "--sharding", "spiral")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "argument --sharding: invalid choice: 'spiral'" in done.stderr
    assert "Traceback" not in done.stderr


# ---- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["--version"], ["--help"], ["-h"], ["demo", "--help"], ["demo", "-h"]])
def test_what_only_informs_ends_with_0(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _main(*arguments)
    assert caught.value.code == 0
    printed = capsys.readouterr()
    assert printed.out
    assert printed.err == ""


def test_the_help_of_the_demo_names_every_option_and_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        _main("demo", "--help")
    text = " ".join(capsys.readouterr().out.split())
    defaults = DemoOptions()
    for option, default in {
        "--data": None,
        "--backend": "fake",
        "--ranks": None,  # of the fake back end alone
        "--steps": defaults.num_steps,
        "--global-batch-size": defaults.global_batch_size,
        "--capacity": defaults.capacity,
        "--scheduler": defaults.scheduler,
        "--max-cp-size": defaults.max_cp_size,
        "--overlong": defaults.overlong,
        "--sharding": defaults.sharding,
        "--routing": defaults.routing,
        "--seed": defaults.seed,
    }.items():
        assert option in text
        if default is not None:
            assert f"(default: {default})" in text
    assert f"fake: {defaults.num_ranks} if not given" in text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["dance"], "invalid choice: 'dance' (choose from 'demo', 'plan', 'tune', 'lengths', 'backends'"),
        (["demo", "--speed", "9"], "unrecognized arguments: --speed 9"),
        (["demo", "--scheduler", "best"], "argument --scheduler: invalid choice: 'best'"),
        (["demo", "--sharding", "spiral"], "argument --sharding: invalid choice: 'spiral'"),
        (["demo", "--routing", "slow"], "argument --routing: invalid choice: 'slow'"),
        (["demo", "--overlong", "ignore"], "argument --overlong: invalid choice: 'ignore'"),
        (["demo", "--ranks", "two"], "argument --ranks: invalid int value: 'two'"),
        (["demo", "--capacity", "1.5"], "argument --capacity: invalid int value: '1.5'"),
        (["demo", "--data"], "argument --data: expected at least one argument"),
    ],
)
def test_arguments_that_are_none(arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        _main(*arguments)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert text.replace("'", "") in printed.err.replace("'", "")  # Pythons differ in their quotes


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--ranks", "0"], "num_ranks must be at least 1, got 0"),
        (["--ranks", "-3"], "num_ranks must be at least 1, got -3"),
        (["--steps", "0"], "num_steps must be from 1 to 16777216, got 0"),
        (["--global-batch-size", "0"], "global_batch_size must be from 1 to 16777216, got 0"),
        (["--capacity", "0"], "capacity must be at least 1, got 0"),
        (["--max-cp-size", "0"], "max_cp_size must be at least 1, got 0"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--data", "no/such/file", "nor/this one"], "data not found: no/such/file, nor/this one"),
    ],
)
def test_values_that_are_wrong_are_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _main("demo", *arguments) == 2
    printed = capsys.readouterr()
    assert printed.err == f"dcpack demo: {line}\n"
    assert printed.out == ""


def test_a_folder_without_text_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("demo", "--data", str(tmp_path)) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("dcpack demo: no text files (")
    assert printed.err.endswith(f" in {tmp_path}\n")
    assert printed.err.count("\n") == 1


def test_every_argument_reaches_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[DemoOptions] = []

    class Result:
        report = ""
        is_proven = True

    def run_demo(options: DemoOptions, **more: object) -> Result:
        asked_for.append(options)
        return Result()

    monkeypatch.setattr(dcpack.cli.demo, "run_demo", run_demo)
    arguments = (
        "--data a b --ranks 3 --steps 4 --global-batch-size 5 --capacity 6 --scheduler in_order --max-cp-size 2 "
        "--overlong drop --sharding striped --routing whole --seed 7"
    )
    assert _main("demo", *arguments.split()) == 0
    assert _main("demo") == 0
    assert asked_for == [
        DemoOptions(
            data=("a", "b"),
            num_ranks=3,
            num_steps=4,
            global_batch_size=5,
            capacity=6,
            scheduler="in_order",
            max_cp_size=2,
            overlong="drop",
            sharding="striped",
            routing="whole",
            seed=7,
        ),
        DemoOptions(),
    ]


# ---- what goes wrong while it runs --------------------------------------------------------------------------------


def _with_fault(monkeypatch: pytest.MonkeyPatch, action: str) -> None:
    faults = [Fault(rank=0, call=0, action=action, verb="all_to_all")]
    monkeypatch.setattr(dcpack.demo.run, "run_ranks", partial(run_ranks, faults=faults))


def test_a_proof_passes(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert _main("demo", "--data", str(text), *SMALL) == 0
    assert "PROVEN under packing_aware: 5 tokens" in capsys.readouterr().out


def test_a_flipped_byte_fails_the_command(
    monkeypatch: pytest.MonkeyPatch, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_fault(monkeypatch, "flip_byte")
    assert _main("demo", "--data", str(text), *SMALL) == 1
    assert "PROOF FAILED under packing_aware" in capsys.readouterr().out


def test_a_rank_that_fails_is_an_error_and_not_a_traceback_of_ours(
    monkeypatch: pytest.MonkeyPatch, text: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _with_fault(monkeypatch, "raise")
    assert _main("demo", "--data", str(text), *SMALL) == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("dcpack demo: rank 0 failed in all_to_all")
    assert "PROVEN" not in printed.out


def test_documents_that_fit_nowhere_are_one_line(text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # Nothing failed here, the question has no answer: a line that says so, and no stack of calls.
    text.write_bytes(b"x" * 20)
    assert _main("demo", "--data", str(text), "--overlong", "error", *SMALL) == 1
    printed = capsys.readouterr()
    assert "1 sequence is longer than the limit of 8 tokens" in printed.err
    assert "Traceback" not in printed.err
    assert printed.err.count("\n") == 1


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dcpack.cli.demo, "run_demo", interrupted)
    assert _main("demo") == 130
    assert capsys.readouterr().err == "dcpack demo: interrupted\n"


def test_errors_that_are_not_ours_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object, **options: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(dcpack.cli.demo, "run_demo", broken)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        _main("demo")
