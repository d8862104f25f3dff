"""Whatever happens to one process, all others end with a clear error, in time."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch_bodies


@pytest.mark.parametrize(
    ("how", "exit_code"),
    [("is killed", -signal.SIGKILL), ("is killed inside", -signal.SIGKILL), ("raises", 1), ("leaves", 0)],
)
def test_a_lost_rank_is_an_error_at_once(launch: Callable[..., Any], how: str, exit_code: int):
    outcomes = launch(4, torch_bodies.fail_in_time, how, 2, 50.0)
    assert outcomes.pop(2).exit_code == exit_code
    for outcome in outcomes:
        assert outcome.error.startswith("PeerError: lost rank 2 in all_gather (call 1)"), outcome
        assert outcome.exit_code == 1
        assert outcome.seconds < 25, "the deadline was waited for, though the connection broke at once"
    assert len({outcome.error for outcome in outcomes}) == 1


def test_two_lost_ranks_are_both_named(launch: Callable[..., Any]):
    outcomes = launch(4, torch_bodies.lose_two, 50.0)
    for outcome in outcomes[::3]:
        assert outcome.error.startswith("PeerError: lost ranks 1, 2 in barrier (call 1)"), outcome


@pytest.mark.parametrize("how", ["is killed", "leaves"])
def test_the_rank_with_the_store_is_lost(launch: Callable[..., Any], how: str):
    for outcome in launch(3, torch_bodies.fail_in_time, how, 0, 50.0, store="tcp")[1:]:
        assert outcome.error.startswith("PeerError: the connection to other ranks broke in all_gather (call 1)"), (
            outcome
        )
        assert "often rank 0" in outcome.error
        assert outcome.exit_code == 1
        assert outcome.seconds < 25


def test_a_late_rank_is_named_at_the_deadline(launch: Callable[..., Any]):
    outcomes = launch(4, torch_bodies.fail_in_time, "is late", 1, 3.0)
    # The late one finds the group given up, and says so in the same words.
    assert {outcome.error for outcome in outcomes} == {
        "PeerError: rank 1 did not arrive in all_gather (call 1) within 3 s"
    }
    assert {outcome.exit_code for outcome in outcomes} == {1}
    for rank in (0, 2, 3):
        assert 1.5 < outcomes[rank].seconds < 25  # and not the 30 s of the group


def test_a_broken_group_is_not_used_again_and_breaks_no_other(launch: Callable[..., Any]):
    outcomes = launch(3, torch_bodies.break_a_child)
    assert [outcome.error for outcome in outcomes] == [""] * 3
    late = "rank 1 did not arrive in barrier (call 1) within 2 s"
    for outcome in outcomes:
        text, broken, other = outcome.result
        assert text == f"{late}\nthis communicator is broken: {late}\n"
        assert other != broken


def test_a_failure_in_a_guard_is_one_error_everywhere(launch: Callable[..., Any]):
    outcomes = launch(3, torch_bodies.fail_in_a_guard)
    for outcome in outcomes:
        assert outcome.error.startswith("PeerError: rank 1 failed in agree (call 0): ValueError: no such sample")
        assert outcome.exit_code == 1
    assert len({outcome.error for outcome in outcomes}) == 1


def test_calls_that_do_not_fit_are_one_error_everywhere(launch: Callable[..., Any]):
    outcomes = launch(3, torch_bodies.differ)
    calls, counts = outcomes[0].result
    assert calls == "calls differ: ranks 0, 2: all_gather (call 0); rank 1: barrier (call 0)"
    assert counts.startswith("counts differ in all_to_all (call 1): rank 2 sends 1 elements to rank 0, which expects 2")
    assert all(outcome.result == [calls, counts] for outcome in outcomes)


def test_a_rank_that_never_starts_is_named(launch: Callable[..., Any]):
    outcomes = launch(4, torch_bodies.come_late)
    for rank in (0, 1, 3):
        assert outcomes[rank].error == "PeerError: rank 2 did not start within 1 s"
        assert outcomes[rank].seconds < 25


_STUCK = """
import time
from dcpack.errors import PeerError
from dcpack.comm.watchdog import end_process_after
with end_process_after(30, lambda: PeerError("never")):
    pass
try:
    with end_process_after(0.2, lambda: {error}):
        time.sleep(60)
finally:
    print("unreachable")
"""


@pytest.mark.parametrize(
    ("error", "text"), [('PeerError("rank 3 did not arrive")', "PeerError: rank 3 did not arrive"), ("1 / 0", "")]
)
def test_the_watchdog_ends_a_stuck_process(error: str, text: str):
    import dcpack_torch

    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path = {sys.path!r}\n" + _STUCK.format(error=error)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert dcpack_torch.__file__ is not None
    assert done.returncode == 75
    assert text in done.stderr
    assert "time.sleep" not in done.stdout
    assert "unreachable" not in done.stdout
    if text:
        assert "line 10 in <module>" in done.stderr, "it must say where the threads stand"
