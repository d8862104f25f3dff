"""`dcpack tune`: options, figures, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack.cli.tune
from dcpack.cost import get_device, get_model
from dcpack.tuning import Job, MemoryOptions, SearchSpace, recommend, sample_lengths, search, trial_to_dict

Run = Callable[..., Any]

LENGTHS = np.random.default_rng(3).integers(20, 9000, 80)
SMALL = ("--ranks", 8, "--capacity", 4096, 8192, "--global-batch-size", 16, 32)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some lengths.npy"
    np.save(path, LENGTHS)
    return path


def test_the_text_says_what_the_search_finds(file: Path, cli: Run) -> None:
    done = cli("tune", file, *SMALL)
    assert (done.code, done.err) == (0, "")
    job = Job(model=get_model("llama3-8b"), device=get_device("h100"), num_ranks=8)
    space = SearchSpace(capacities=(4096, 8192), max_cp_sizes=(8,), global_batch_sizes=(16, 32))
    best = recommend(search(job, space, LENGTHS))
    assert best is not None
    lines = done.out.splitlines()
    assert lines[0].startswith(f"{file}: 80 sequences planned under ")
    assert lines[1] == "llama3-8b on 8 ranks of 1 x h100, 67.1 GiB of memory each"
    name = best.strategy.replace(" ", "-").lower()
    assert lines[3] == (
        f"recommended: --scheduler {name} --capacity {best.capacity} --max-cp-size 8 --global-batch-size "
        f"{best.global_batch_size}, recomputing none"
    )
    assert f"{1e3 * best.step_time:,.0f} ms a step, {1 / best.token_time:,.0f} tokens/s" in lines[4]
    assert lines[6] == f"  held back by {best.shares.held_back_by()}"
    other = {4096: "8,192", 8192: "4,096"}[best.capacity]
    assert any(line.startswith(f"capacity {other} ") for line in lines[8:])
    assert any(line.startswith("global batch size ") for line in lines[8:])


def test_what_is_recommended_can_be_planned(file: Path, cli: Run) -> None:
    (line,) = (line for line in cli("tune", file, *SMALL).out.splitlines() if line.startswith("recommended: "))
    options = line.removeprefix("recommended: ").split(",")[0].split()
    assert cli("plan", file, "--ranks", 8, *options).code == 0


def test_every_option_reaches_the_search(file: Path, cli: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def keep(job: Job, space: SearchSpace, lengths: Any, *, start: Any) -> Any:
        asked.append((job, space, lengths.tolist()))
        return search(job, space, lengths, start=start)

    monkeypatch.setattr(dcpack.cli.tune, "search", keep)
    done = cli(
        *("tune", file, "--model", "mixtral-8x7b", "--device", "h200", "--ranks", 16, "--tp", 4, "--block", 16),
        *("--capacity", 8192, "--global-batch-size", 20, "--max-cp-size", 2, 16, "--scheduler", "packing_aware"),
        *("--recompute", "full", "--sharding", "full", "--fused-loss", "--usable-memory", "0.8"),
        *("--attention", "sliding_window:512", "--sync", "step", "--overlong", "truncate", "--sample", 40, "--json"),
    )
    assert (done.code, done.err) == (0, "")
    ((job, space, lengths),) = asked
    assert job == Job(
        model=get_model("mixtral-8x7b"),
        device=get_device("h200"),
        num_ranks=16,
        tp_size=4,
        block=16,
        attention="sliding_window:512",
        sync="step",
        overlong="truncate",
        memory=MemoryOptions(sharding="full", fused_loss=True, usable=0.8),
    )
    assert space == SearchSpace(
        capacities=(8192,),
        max_cp_sizes=(2, 16),
        global_batch_sizes=(20,),
        strategies=("packing_aware",),
        recompute=("full",),
    )
    assert lengths == sample_lengths(LENGTHS, 40).tolist()
    result = json.loads(done.out)
    trials = search(job, space, np.array(lengths))
    best = recommend(trials)
    assert best is not None
    assert result["recommended"] == json.loads(json.dumps(trial_to_dict(best)))
    assert result["trials"] == json.loads(json.dumps([trial_to_dict(trial) for trial in trials]))
    assert result["options"]["sharding"] == "full"
    assert result["usable_bytes"] == 0.8 * 141e9


def test_cp_limits_are_a_node_and_all_by_default(file: Path, cli: Run) -> None:
    result = json.loads(cli("tune", file, "--ranks", 32, "--global-batch-size", 40, "--json").out)
    assert {trial["max_cp_size"] for trial in result["trials"]} == {8, 32}


def test_where_nothing_is_possible_the_command_fails(file: Path, cli: Run) -> None:
    arguments = ("tune", file, "--ranks", 8, "--global-batch-size", 16, "--max-cp-size", 1, "--capacity", 4096, 2**20)
    done = cli(*arguments)
    assert (done.code, done.err) == (1, "")
    assert "no setting is possible:" in done.out
    assert "longer than the limit of 4096 tokens" in done.out
    assert "capacity 1,048,576, static CP: memory: needs " in done.out
    result = json.loads(cli(*arguments, "--json").out)
    assert result["recommended"] is None


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--ranks", 0), "num_ranks must be at least 1, got 0"),
        (("--capacity", 0), "capacities must be at least 1, got 0"),
        (("--global-batch-size", 0), "global_batch_sizes must be at least 1, got 0"),
        (("--global-batch-size", 81), "global_batch_sizes must include one of at most the 80 sequences, got [81]"),
        (("--tp", 3), "tp_size must divide the 32 heads, got 3"),
        (("--sample", 0), "count must be at least 1, got 0"),
        (("--block", 0), "block must be at least 1, got 0"),
    ],
)
def test_values_that_are_wrong_are_one_line(arguments: tuple[Any, ...], line: str, file: Path, cli: Run) -> None:
    done = cli("tune", file, *arguments)
    assert (done.code, done.out, done.err) == (2, "", f"dcpack tune: {line}\n")


@pytest.mark.parametrize("arguments", [("--attention", "some"), ("--usable-memory", "2"), ("--usable-memory", "nan")])
def test_other_wrong_values(arguments: tuple[str, ...], file: Path, cli: Run) -> None:
    done = cli("tune", file, *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1


def test_an_empty_file(tmp_path: Path, cli: Run) -> None:
    np.save(tmp_path / "a.npy", np.zeros(0, np.int64))
    done = cli("tune", tmp_path / "a.npy")
    assert (done.code, done.out) == (2, "")
    assert "at most the 0 sequences" in done.err


def test_sequences_without_tokens(tmp_path: Path, cli: Run) -> None:
    np.save(tmp_path / "a.npy", np.zeros(300, np.int64))
    done = cli("tune", tmp_path / "a.npy")
    assert (done.code, done.err) == (0, "")
    assert "nan" not in done.out
