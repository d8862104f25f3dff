"""The training loop with FSDP2, as its reader runs it: on real processes, on one rank and on two."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    launcher: Any = importlib.import_module("torch_ranks")
    bodies: Any = importlib.import_module("loop_bodies")
    folder: Path = tmp_path_factory.mktemp("loop")
    start: Callable[..., Any] = launcher.launch
    found = {}
    for size in (1, 2):
        outcomes = start(size, bodies.train_loop, folder=folder, deadline_s=100.0)
        assert [outcome.error for outcome in outcomes] == [""] * size, [outcome.stderr for outcome in outcomes]
        found[size] = [outcome.result for outcome in outcomes]
    return found


def test_it_learns_the_same_on_one_rank_and_on_two(runs: dict[int, list[Any]]) -> None:
    ((alone, _, _, _),) = runs[1]
    (losses, _, _, _), (same, _, _, _) = runs[2]
    assert losses == same
    assert losses == pytest.approx(alone, rel=1e-3)
    assert len(losses) == 16
    assert losses[-1] < losses[0] - 0.3


def test_it_balances_records_and_ends(runs: dict[int, list[Any]]) -> None:
    for _, metrics, num_times, threads in runs[2]:
        assert metrics["loader/imbalance_after"] <= metrics["loader/imbalance_before"]
        assert metrics["loader/num_tokens"] == metrics["loader/global_valid_tokens"]
        assert num_times == 15  # one window a step; the first step is left out
        assert threads == []
