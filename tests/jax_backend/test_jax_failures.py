"""Whatever happens to one process, all others get a clear error, in time."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import jax_bodies


def test_a_killed_rank_is_named_at_the_deadline(launch: Callable[..., Any]):
    outcomes = launch(3, jax_bodies.fail_in_time, "is killed", 1, 2.0)
    assert outcomes.pop(1).exit_code == -signal.SIGKILL
    text = "rank 1 did not arrive in all_gather (call 2) within 2 s"
    for outcome in outcomes:
        assert outcome.result[:3] == (text, 1, f"this communicator is broken: {text}"), outcome
        assert 1.5 < outcome.result[3] < 25


def test_a_late_rank_finds_that_the_others_gave_up(launch: Callable[..., Any]):
    outcomes = launch(3, jax_bodies.fail_in_time, "is late", 2, 2.0)
    assert {outcome.result[0] for outcome in outcomes} == {"rank 2 did not arrive in all_gather (call 2) within 2 s"}
    assert outcomes[2].result[3] < 25, "it must not wait for those that are gone"


def test_a_rank_that_is_killed_inside_a_collective_is_named(launch: Callable[..., Any]):
    outcomes = launch(3, jax_bodies.fail_in_time, "is killed inside", 1, 5.0)
    assert outcomes.pop(1).exit_code == -signal.SIGKILL
    for outcome in outcomes:
        assert outcome.result[0] == (
            "lost rank 1 in all_gather (call 2): its process has ended, or the connection broke"
        ), outcome
        assert outcome.result[1] == 1


def test_a_collective_that_never_ends_is_an_error_on_all(launch: Callable[..., Any]):
    outcomes = launch(2, jax_bodies.fail_in_time, "stays away", 1, 3.0, deadline_s=90.0)
    assert outcomes[0].result[0].startswith("lost rank 1 in all_gather (call 2)"), outcomes[0]
    assert 1.5 < outcomes[0].result[3] < 25


def test_a_failure_in_a_guard_is_one_error_everywhere(launch: Callable[..., Any]):
    outcomes = launch(3, jax_bodies.fail_in_a_guard)
    assert {outcome.result for outcome in outcomes} == {
        "rank 1 failed in agree (call 0): ValueError: no such sample"
    }, outcomes


def test_a_rank_that_makes_no_world_is_named(launch: Callable[..., Any]):
    outcomes = launch(3, jax_bodies.come_late)
    assert [outcome.result for outcome in outcomes] == [
        "rank 1 did not start within 2 s",
        "",
        "rank 1 did not start within 2 s",
    ], outcomes
