"""Every option of every command gets what it cannot be: an error of ours and its exit code, never a traceback."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

import dcpack.cli

VALUES = {
    "empty": "",
    "nan": "nan",
    "minus": "-1",
    "zero": "0",
    "half": "0.5",
    "huge": str(2**80),
    "digits": "9" * 5000,  # more than int() reads
    "text": "no such thing",
    "surrogate": "\udcff",
    "nul": "a\0b",
    "commas": "1,,2",
    "folder": ".",
}

# Small, and with an exit code of 0. The first argument of those that read lengths is the file.
COMMANDS = {
    "demo": "--data text.txt --ranks 2 --steps 1 --global-batch-size 1 --capacity 8",
    "plan": "lengths.txt --ranks 2 --capacity 64 --global-batch-size 4 --scheduler in_order",
    "tune": "lengths.txt --ranks 8 --capacity 4096 --global-batch-size 4 --scheduler in_order --sample 8",
    "lengths": "lengths.txt",
    "backends": "",
    "launch": "-n 1 -- true",
}

# What has a meaning there.
TAKES = {
    "demo --data": "folder",
    "demo --max-cp-size": "huge",
    "demo --seed": "zero, huge",
    "plan lengths": "folder",
    "plan --global-batch-size": "huge",
    "plan --max-steps": "huge",
    "plan --min-cp-size": "huge",
    "plan --max-cp-size": "huge",
    "plan --max-sequences": "huge",
    "plan --step": "zero",
    **{f"plan --{name}": "nan, minus, zero, half, huge, text, surrogate, commas" for name in ("save", "trace", "html")},
    "tune --capacity": "huge",
    "tune --max-cp-size": "huge",
    "tune --usable-memory": "half",
    "tune --sample": "huge",
    "lengths lengths": "folder",
    "lengths --capacity": "huge",
}


def commands() -> dict[str, argparse.ArgumentParser]:
    return next(action.choices for action in dcpack.cli._parser()._actions if isinstance(action.choices, dict))


def options() -> list[tuple[str, str]]:
    """Each command with each of its arguments that takes a value; an option by its longest name."""
    found = []
    for command, parser in commands().items():
        for action in parser._actions:
            if action.nargs != 0 and action.help != argparse.SUPPRESS and action.dest not in ("undefok", "arguments"):
                found.append((command, max(action.option_strings, key=len) if action.option_strings else action.dest))
    return found


def arguments(command: str, option: str, value: str) -> list[str]:
    given = COMMANDS[command].split()
    if not option.startswith("-"):
        return [command, value, *given[1:]]
    if command == "launch":
        return [command, option, value, *given[2:]]
    return [command, *given, option, value]


def outcome(given: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """'taken', 'refused' in words of ours, or what else came of a command."""
    capsys.readouterr()
    try:
        code = dcpack.cli.main(dcpack.cli._parse(["dcpack", *given]))
    except SystemExit as error:  # of argparse
        code = error.code
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    out, err = capsys.readouterr()
    if code == 0:
        return "taken" if out or given[0] == "launch" else "no answer"
    if code == 1 and out and not err:
        return "taken"  # a report that says why nothing is possible
    own = err.startswith(f"dcpack {given[0]}: ") or f"dcpack {given[0]}: error: " in err
    return "refused" if code in (1, 2) and own and "Traceback" not in err else f"{code}: {err}"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("lengths.txt").write_text("4\n2\n6\n3\n16\n7\n")
    Path("text.txt").write_text("abcd")
    return tmp_path


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_runs(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert outcome([command, *COMMANDS[command].split()], capsys) == "taken"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(("command", "option"), options())
def test_every_option(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = {name: outcome(arguments(command, option, value), capsys) for name, value in VALUES.items()}
    assert {name: what for name, what in found.items() if what not in ("taken", "refused")} == {}
    taken = TAKES.get(f"{command} {option}", "")
    assert ", ".join(name for name, what in found.items() if what == "taken") == taken


def test_the_tables_name_what_there_is() -> None:
    assert list(COMMANDS) == list(commands())
    assert set(TAKES) <= {f"{command} {option}" for command, option in options()}
    assert len(options()) > 50


@pytest.mark.parametrize("flag", ["--verbosity", "--stderrthreshold", "--logger_levels"])
def test_flags_of_absl_are_refused_in_one_line(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        dcpack.cli._parse(["dcpack", "backends", f"{flag}=no such thing"])
    assert caught.value.code == 2
    assert flag.strip("-") in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("given", "code", "text"),
    [
        ("plan lengths.txt --save=", 2, "dcpack plan: --save must be the path of a file, got ''"),
        ("plan lengths.txt --step 9", 2, "dcpack plan: --step must be from 0 to 0, got 9"),
        ("demo --data text.txt --global-batch-size 16777217", 2, "global_batch_size must be from 1 to 16777216"),
        ("launch -n 1000000 -- true", 2, "--num-processes must be from 1 to 4096, got 1000000"),
        ("lengths nowhere.txt", 2, "nowhere.txt"),
        ("lengths lengths.txt --column 99999999999999999999", 2, "column"),
    ],
)
def test_what_is_said(given: str, code: int, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dcpack.cli.main(dcpack.cli._parse(["dcpack", *given.split()])) == code
    assert text in capsys.readouterr().err
