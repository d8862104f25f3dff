"""`dcpack lengths`: figures, options, pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack.cli.lengths
from dcpack.report import format_lengths, summarise_lengths

Run = Callable[..., Any]

DEFAULT_CAPACITIES = [2048, 4096, 8192, 16384, 32768, 65536, 131072]


def test_the_text_is_the_summary(lengths_file: Path, cli: Run) -> None:
    done = cli("lengths", lengths_file)
    assert (done.code, done.err) == (0, "")
    summary = summarise_lengths(np.array([4, 2, 6, 3, 16, 7]), capacities=DEFAULT_CAPACITIES)
    assert done.out == format_lengths(summary) + "\n"
    lines = done.out.splitlines()
    assert lines[0] == "6 sequences, 38 tokens, mean 6.3"
    assert lines[2].split() == "percentile 0% 1% 5% 25% 50% 75% 90% 95% 99% 99.9% 100%".split()
    assert lines[4].split() == "length 2 2 2 3 4 7 16 16 16 16 16".split()
    assert lines[-2].split() == ["4", "50.0%", "#" * 30, "44.7%", "#" * 30]


def test_json_is_the_summary(lengths_file: Path, cli: Run) -> None:
    done = cli("lengths", lengths_file, "--json", "--capacity", 4, 6)
    assert (done.code, done.err) == (0, "")
    summary = summarise_lengths(np.array([4, 2, 6, 3, 16, 7]), capacities=[4, 6])
    found = json.loads(done.out)
    assert found == json.loads(json.dumps(summary.to_dict()))
    assert found["above"] == {"4": [3 / 6, 29 / 38], "6": [2 / 6, 23 / 38]}
    assert found["histogram"]["16"] == [1, 16]


def test_capacities_are_chosen(lengths_file: Path, cli: Run) -> None:
    lines = cli("lengths", lengths_file, "--capacity", 4, 16).out.splitlines()
    at = lines.index("capacity  above it in them")
    assert [line.split() for line in lines[at + 2 : at + 5]] == [
        ["4", "50.00%", "76.32%"],
        ["16", "0.00%", "0.00%"],
        [],
    ]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([], "0 sequences, 0 tokens, mean 0.0"),
        ([0], "1 sequences, 1 of them empty, 0 tokens, mean 0.0"),
        ([7], "1 sequences, 7 tokens, mean 7.0"),
        ([2**62], f"1 sequences, {2**62:,} tokens, mean {float(2**62):,.1f}"),
        ([2**62] * 3, f"3 sequences, {3 * 2**62:,} tokens, mean {float(2**62):,.1f}"),
    ],
)
def test_few_and_huge_lengths(values: list[int], line: str, tmp_path: Path, cli: Run) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.array(values, np.int64))
    done = cli("lengths", file)
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines()[0] == line
    assert "nan" not in done.out
    assert json.loads(cli("lengths", file, "--json").out)["num_tokens"] == sum(values)


def test_a_picture_beside_the_text(
    lengths_file: Path, tmp_path: Path, cli: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[list[int], str]] = []
    save = dcpack.cli.lengths.save_length_picture

    def keep(path: Any, lengths: Any, *, title: str) -> None:
        drawn.append((lengths.tolist(), title))
        save(path, lengths, title=title)

    monkeypatch.setattr(dcpack.cli.lengths, "save_length_picture", keep)
    image = tmp_path / "histogram.png"
    done = cli("lengths", lengths_file, "--image", image)
    assert (done.code, done.err) == (0, "")
    assert done.out == cli("lengths", lengths_file).out
    assert drawn == [([4, 2, 6, 3, 16, 7], str(lengths_file))]
    data = image.read_bytes()
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) > 5000


@pytest.mark.parametrize("name", ["no folder/a.png", "a.picture"])
def test_a_picture_that_cannot_be_written_is_one_line(name: str, lengths_file: Path, tmp_path: Path, cli: Run) -> None:
    done = cli("lengths", lengths_file, "--image", tmp_path / name)
    assert done.code in (1, 2)
    assert done.err.startswith("dcpack lengths: ")
    assert name in done.err
    assert done.err.count("\n") == 1


@pytest.mark.parametrize("capacity", [0, -5])
def test_a_capacity_that_is_none_is_one_line(capacity: int, lengths_file: Path, cli: Run) -> None:
    done = cli("lengths", lengths_file, "--capacity", 8, capacity)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"dcpack lengths: capacity must be at least 1, got {capacity}\n"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "the following arguments are required: LENGTHS"),
        (("a.txt", "--capacity"), "argument --capacity: expected at least one argument"),
        (("a.txt", "--capacity", "8k"), "argument --capacity: invalid int value: 8k"),
        (("a.txt", "b.txt"), "unrecognized arguments: b.txt"),
    ],
)
def test_arguments_that_are_none(
    arguments: tuple[str, ...], text: str, cli: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        cli("lengths", *arguments)
    assert caught.value.code == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert text in printed.err.replace("'", "")
