"""Staying ahead on real processes over torch-gloo: faults, and ends at any moment."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ahead_bodies
import pytest


def results_of(outcomes: list[Any]) -> list[Any]:
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes), outcomes[0].stderr
    return [outcome.result for outcome in outcomes]


def test_a_rank_that_raises_is_named_on_all(launch: Callable[..., Any]) -> None:
    assert results_of(launch(2, ahead_bodies.meet_a_fault, 1, "raise")) == [((1, "KeyError"), [])] * 2


def test_a_rank_that_is_late_is_waited_for(launch: Callable[..., Any]) -> None:
    steps = [step for step in range(4) for _ in range(2)]
    assert results_of(launch(2, ahead_bodies.meet_a_fault, 0, "delay")) == [(steps, [])] * 2


def test_a_rank_that_dies_is_named_by_the_others(launch: Callable[..., Any]) -> None:
    outcomes = launch(3, ahead_bodies.meet_a_fault, 1, "die")
    assert outcomes[1].exit_code == -signal.SIGKILL
    for rank in (0, 2):
        (at_fault, _), threads = outcomes[rank].result
        assert at_fault == 1
        assert threads == []


@pytest.mark.parametrize("taken", [0, 1, 2])
def test_all_may_leave_in_the_middle(launch: Callable[..., Any], taken: int) -> None:
    for threads, seconds in results_of(launch(2, ahead_bodies.leave_together, taken)):
        assert threads == []
        assert seconds < 15  # and not the deadline of 60


def test_an_error_in_the_training_is_what_the_others_are_told(launch: Callable[..., Any]) -> None:
    assert results_of(launch(2, ahead_bodies.fail_in_training)) == [(1, "ZeroDivisionError", []), ("here", [])]


def test_close_cuts_off_a_wait_for_another_rank(launch: Callable[..., Any], tmp_path: Path) -> None:
    assert results_of(launch(2, ahead_bodies.close_alone, str(tmp_path))) == [[], []]


def test_workers_live_as_long_as_the_loader_and_no_longer(launch: Callable[..., Any]) -> None:
    # Two workers: each rank's own, and the one that read what was sent to it.
    assert results_of(launch(2, ahead_bodies.read_with_workers, False)) == [(2, True)] * 2


def test_a_worker_that_dies_is_an_error_on_all_ranks(launch: Callable[..., Any]) -> None:
    assert results_of(launch(2, ahead_bodies.read_with_workers, True)) == [(1, "RuntimeError")] * 2


def test_a_step_takes_four_rounds_of_messages(launch: Callable[..., Any]) -> None:
    # Table, plans, samples, and that all have packed them; one less where no sample moves.
    for counts in results_of(launch(2, ahead_bodies.count_rounds)):
        assert len(counts) == 4
        assert set(counts) <= {3, 4}
        assert 4 in counts
