"""Every format through `dcpack plan` and `dcpack lengths`, and files that are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

FORMATS = (".npy", ".npz", ".txt", ".csv", ".parquet", ".jsonl", ".idx", "folder")
SMALL = ("--ranks", "2", "--capacity", "10", "--global-batch-size", "4", "--cost", "quadratic")

Run = Callable[..., Any]

# `BLOCKED` cannot be imported, as where it is not installed.
WITHOUT = """
import sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "BLOCKED":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocker())
import dcpack.cli
dcpack.cli.run()
"""


# ---- formats ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_summarised_alike(kind: str, length_files: dict[str, Path], cli: Run) -> None:
    assert set(FORMATS) == set(length_files)
    done = cli("lengths", length_files[kind], "--json")
    assert (done.code, done.err) == (0, "")
    summary = json.loads(done.out)
    assert (summary["num_sequences"], summary["num_tokens"]) == (6, 38)
    assert summary["percentiles"]["50"] == 4
    assert summary["percentiles"]["100"] == 16


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_is_planned_in_the_order_of_the_file(
    kind: str, length_files: dict[str, Path], cli: Run, lengths_file: Path
) -> None:
    done, expected = (cli("plan", file, *SMALL, "--json") for file in (length_files[kind], lengths_file))
    assert (done.code, done.err) == (0, "")
    (steps, expected_steps) = (_without_seconds(json.loads(outcome.out)) for outcome in (done, expected))
    assert steps == expected_steps
    assert [step["num_tokens"] for step in steps[-1]] == [4 + 2 + 6 + 3, 16 + 7]


def _without_seconds(result: dict[str, Any]) -> list[list[dict[str, Any]]]:
    kept = [[dict(step) for step in strategy["steps"]] for strategy in result["strategies"]]
    for step in (step for steps in kept for step in steps):
        del step["planning_seconds"]
    return kept


@pytest.mark.parametrize(
    "data",
    [
        b"4\n2\n6\n3\n16\n7\n",
        b"4\r\n2\r\n\r\n6\r\n3\r\n16\r\n7",
        b"".join(b'{"length": %d}\n' % length for length in (4, 2, 6, 3, 16, 7)),
        b'{"input_ids": [1, 1, 1, 1]}\n{"input_ids": [1, 1]}\n'
        + b"".join(b'{"input_ids": [%s]}\n' % b",".join([b"1"] * length) for length in (6, 3, 16, 7)),
    ],
)
@pytest.mark.parametrize("command", [("lengths",), ("plan", *SMALL)])
def test_standard_input(data: bytes, command: tuple[str, ...], process: Run) -> None:
    done = process(command[0], "-", *command[1:], stdin=data)
    assert (done.code, done.err) == (0, "")
    assert "6 sequences, 38 tokens" in done.out


def test_a_key_for_records_on_standard_input(process: Run) -> None:
    done = process("lengths", "-", "--key", "words", "--tokenizer", "whitespace", stdin=b'{"words": "one two"}\n')
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("1 sequences, 2 tokens")


@pytest.mark.parametrize(
    ("name", "options", "num_tokens"),
    [
        ("a.npz", ["--key", "few"], 3),
        ("a.npz", ["--key", "many"], 70),
        ("a.csv", ["--column", "size"], 40),
        ("a.csv", ["--column", "0"], 11),
        ("a.jsonl", [], 9),
        ("a.jsonl", ["--key", "body"], 8 + 2),
        ("a.jsonl", ["--key", "body", "--tokenizer", "whitespace"], 2 + 1),
        ("texts", [], 8),
        ("texts", ["--tokenizer", "whitespace"], 2),
    ],
)
def test_options_choose_what_is_read(name: str, options: list[str], num_tokens: int, tmp_path: Path, cli: Run) -> None:
    np.savez(tmp_path / "a.npz", few=[1, 2], many=[30, 40])
    (tmp_path / "a.csv").write_text("id,size\n5,10\n6,30\n")
    (tmp_path / "a.jsonl").write_text('{"length": 4, "body": "two one"}\n{"length": 5, "body": "x"}\n')
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.md").write_text("one two")
    for command in ("lengths", "plan"):
        done = cli(command, tmp_path / name, *options, "--json")
        assert (done.code, done.err) == (0, "")
        found = json.loads(done.out)
        assert num_tokens == (
            found["num_tokens"] if command == "lengths" else found["strategies"][-1]["steps"][0]["num_tokens"]
        )


# ---- files that are wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan", "lengths"])
@pytest.mark.parametrize("name", ["no.npy", "no.idx", "no", "no/no.txt", "a.pkl", "empty folder"])
def test_what_is_no_file_of_lengths_is_a_wrong_argument(command: str, name: str, tmp_path: Path, cli: Run) -> None:
    (tmp_path / "a.pkl").write_text("3\n")
    (tmp_path / "empty folder").mkdir()
    done = cli(command, tmp_path / name)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(f"dcpack {command}: ")
    assert str(tmp_path / name) in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", ["plan", "lengths"])
@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.txt", b"3\nfour\n", "line 2, byte 2: 'four' is no length"),
        ("a.txt", b"3\n-4\n", "'-4' is no length"),
        ("a.csv", b"length\n3\n4.5\n", "line 3"),
        ("a.jsonl", b'{"length": 3}\n{"length"\n', "line 2"),
        ("a.jsonl", b'{"size": 3}\n', "a record must have one of 'length', 'input_ids', 'text'"),
        ("a.npy", b"", "empty"),
        ("a.npy", b"not an array", "no .npy file"),
        ("a.npz", b"PK\x03\x04 and no more", "a broken .npz archive"),
        ("a.idx", b"MMIDIDX\0\0\1", "truncated"),
        ("a.idx", b"something else", "no Megatron index"),
        ("a.parquet", b"PAR1", "truncated"),
        ("a.parquet", b"no parquet", "no .parquet file"),
    ],
)
def test_a_damaged_file_is_one_line_with_its_name(
    command: str, name: str, content: bytes, reason: str, tmp_path: Path, cli: Run
) -> None:
    (tmp_path / name).write_bytes(content)
    done = cli(command, tmp_path / name)
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"dcpack {command}: {tmp_path / name}, ")
    assert reason in done.err
    assert done.err.count("\n") == 1


def test_a_damaged_standard_input(process: Run) -> None:
    for command in ("plan", "lengths"):
        done = process(command, "-", stdin=b"3\n4\nfive\n")
        assert (done.code, done.out) == (1, "")
        assert done.err.startswith(f"dcpack {command}: <standard input>, line 3, byte 4: 'five' is no length")
        assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (["--key", "x"], "key is for .jsonl, .npz, -, not for .txt; got 'x'"),
        (["--column", "x"], "column is for .csv, .parquet, not for .txt; got 'x'"),
        (["--column", "1"], "column is for .csv, .parquet, not for .txt; got 1"),
    ],
)
def test_options_that_do_not_fit_the_file(options: list[str], line: str, lengths_file: Path, cli: Run) -> None:
    for command in ("plan", "lengths"):
        done = cli(command, lengths_file, *options)
        assert (done.code, done.out, done.err) == (2, "", f"dcpack {command}: {line}\n")


@pytest.mark.parametrize("command", ["plan", "lengths"])
def test_an_array_that_is_not_there_lists_those_that_are(command: str, tmp_path: Path, cli: Run) -> None:
    file = tmp_path / "two.npz"
    np.savez(file, one=[1], two=[2])
    for options, reason in (([], "key must name one array"), (["--key", "x"], "key 'x' is no array")):
        done = cli(command, file, *options)
        assert (done.code, done.out) == (2, "")
        assert done.err == f"dcpack {command}: {reason} of {file}, which has 'one', 'two'\n"


def test_a_tokenizer_that_is_none(capsys: pytest.CaptureFixture[str], lengths_file: Path, cli: Run) -> None:
    with pytest.raises(SystemExit) as caught:
        cli("lengths", lengths_file, "--tokenizer", "letters")
    assert caught.value.code == 2
    assert "argument --tokenizer: invalid choice" in capsys.readouterr().err


# ---- packages that are missing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["plan", "lengths"])
def test_parquet_without_pyarrow_says_what_to_install(
    command: str, length_files: dict[str, Path], process: Run
) -> None:
    done = process(command, length_files[".parquet"], code=WITHOUT.replace("BLOCKED", "pyarrow"))
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"dcpack {command}: ")
    assert "pip install 'dcpack[data]'" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("command", ["plan", "lengths"])
def test_pictures_without_matplotlib_say_what_to_install(
    command: str, lengths_file: Path, tmp_path: Path, process: Run
) -> None:
    done = process(command, lengths_file, "--image", tmp_path / "a.png", code=WITHOUT.replace("BLOCKED", "matplotlib"))
    assert done.code == 1
    assert done.err == f"dcpack {command}: pictures need matplotlib: pip install 'dcpack[plot]'\n"
    assert not (tmp_path / "a.png").exists()


def test_nothing_else_needs_a_package_that_may_be_missing(
    length_files: dict[str, Path], tmp_path: Path, process: Run
) -> None:
    for package in ("matplotlib", "pyarrow"):
        for command in (("lengths",), ("plan", *SMALL, "--trace", tmp_path / "a.json", "--save", tmp_path / "a.npz")):
            code = WITHOUT.replace("BLOCKED", package)
            done = process(command[0], length_files[".idx"], *command[1:], code=code)
            assert (done.code, done.err) == (0, "")
