"""This process's place, as the default group and LOCAL_RANK say it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist
import torch_bodies
from dcpack_torch.environment import current_launch

from dcpack.comm.environment import Launch
from dcpack.errors import BackendError


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> None:
    """A default group in which this process is number 5 of 8; variables that say otherwise do not count."""
    monkeypatch.setattr(dist, "get_rank", lambda: 5)
    monkeypatch.setattr(dist, "get_world_size", lambda: 8)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")


@pytest.mark.parametrize(("text", "number"), [("0", 0), ("3", 3), ("", None), (None, None)])
def test_the_place_is_that_of_the_group(
    group: None, monkeypatch: pytest.MonkeyPatch, text: str | None, number: int | None
) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if text is not None:
        monkeypatch.setenv("LOCAL_RANK", text)
    assert current_launch() == Launch(rank=5, world_size=8, local_rank=number)


@pytest.mark.parametrize("text", ["-1", "1.5", "one", " 1"])
def test_a_local_rank_that_is_no_number_is_named(group: None, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LOCAL_RANK", text)
    with pytest.raises(BackendError, match="environment variable LOCAL_RANK must be a whole number of at least 0"):
        current_launch()


def test_on_processes_with_a_default_group(launch: Callable[..., Any]) -> None:
    outcomes = launch(2, torch_bodies.place_here, environment={"LOCAL_RANK": "1"})
    assert [outcome.error for outcome in outcomes] == ["", ""]
    assert [outcome.result for outcome in outcomes] == [(0, 2, 1), (1, 2, 1)]
