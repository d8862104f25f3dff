"""The training loop with JAX, as its reader runs it: on real processes, on one rank and on two."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[Any]]:
    launcher: Any = importlib.import_module("jax_ranks")
    bodies: Any = importlib.import_module("jax_loop_bodies")
    folder: Path = tmp_path_factory.mktemp("loop")
    found = {}
    for size in (1, 2):
        outcomes = launcher.launch(size, bodies.train_loop, folder=folder, deadline_s=140.0)
        assert [outcome.error for outcome in outcomes] == [""] * size, [outcome.stderr for outcome in outcomes]
        found[size] = [outcome.result for outcome in outcomes]
    return found


@pytest.mark.timeout(300)  # most of it is compiling, which a busy machine makes slow
def test_it_learns_the_same_on_one_device_and_on_two(runs: dict[int, list[Any]]) -> None:
    ((alone, *_),) = runs[1]
    (losses, *_), (same, *_) = runs[2]
    assert losses == same
    assert losses == pytest.approx(alone, rel=1e-4)
    assert len(losses) == 12
    assert losses[-1] < losses[0] - 0.4


@pytest.mark.timeout(300)
def test_rows_are_shared_where_they_must_be(runs: dict[int, list[Any]]) -> None:
    ((_, _, alone, _),) = runs[1]
    assert {size for sizes in alone for size in sizes} == {1}
    for _, metrics, cp_sizes, _ in runs[2]:
        assert {size for sizes in cp_sizes for size in sizes} == {1, 2}
        assert metrics["loader/imbalance_after"] <= metrics["loader/imbalance_before"]


@pytest.mark.timeout(300)
def test_steps_are_made_while_the_devices_compute(runs: dict[int, list[Any]]) -> None:
    # The first step of an epoch has nothing to hide behind; then five more, and the end of the epoch.
    for _, _, _, planned in runs[2]:
        assert planned == ([False] + [True] * 6) * 2


def test_the_page_shows_the_command() -> None:
    command = "dcpack launch -n 2 -- python docs/examples/training_loop/jax_uniform_cp.py"
    assert command in (_ROOT / "docs" / "jax.md").read_text()
    assert command in (_ROOT / "docs" / "examples" / "training_loop" / "jax_uniform_cp.py").read_text()
