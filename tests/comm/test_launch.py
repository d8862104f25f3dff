from __future__ import annotations

import signal
import threading
import time
from typing import Any

import numpy as np
import pytest
from fake_time import Clock, until

from dcpack.comm import Communicator, launch, run_ranks
from dcpack.errors import ArgumentError, PeerError

# Far above what any of these runs needs: a test that waits for it has failed.
LONG_S = 60.0


def _elapsed(fn: Any):
    started = time.monotonic()
    fn()
    return time.monotonic() - started


def test_results_are_in_the_order_of_the_ranks():
    def fn(communicator: Communicator):
        time.sleep(0.01 * (3 - communicator.rank))
        return communicator.rank

    assert run_ranks(4, fn) == [0, 1, 2, 3]


def test_a_rank_that_raises_ends_the_wait_of_the_others_at_once():
    original = ValueError("bad sample")
    heard = {}

    def fn(communicator: Communicator):
        if communicator.rank == 2:
            communicator.barrier()
            raise original
        communicator.barrier()
        try:
            communicator.all_gather(np.zeros(1))
        except PeerError as error:
            heard[communicator.rank] = (error.rank, error.cause, str(error).splitlines()[0])
            raise

    def run():
        with pytest.raises(PeerError, match=r"^rank 2 failed: ValueError: bad sample\n") as caught:
            run_ranks(4, fn, deadline_s=LONG_S)
        assert caught.value.__cause__ is original
        assert (caught.value.rank, caught.value.cause) == (2, "ValueError")
        assert "raise original" in str(caught.value)

    assert _elapsed(run) < 10
    text = "rank 2 failed: ValueError: bad sample; it does not arrive in all_gather (call 1)"
    assert heard == dict.fromkeys((0, 1, 3), (2, "ValueError", text))


def test_a_rank_that_returns_ends_the_wait_of_the_others_at_once():
    def fn(communicator: Communicator):
        if communicator.rank != 2:
            communicator.barrier()

    def run():
        text = r"^rank 2 has finished; it does not arrive in barrier \(call 0\)$"
        with pytest.raises(PeerError, match=text) as caught:
            run_ranks(3, fn, deadline_s=LONG_S)
        assert caught.value.rank == 2

    assert _elapsed(run) < 10


def test_a_rank_that_closes_ends_the_wait_of_the_others_at_once():
    def fn(communicator: Communicator):
        child = communicator.dup()
        if communicator.rank == 1:
            child.close()
            communicator.barrier()
            return
        with pytest.raises(
            PeerError, match=r"rank 1 has closed this communicator; it does not arrive in agree \(call 0\)"
        ):
            child.agree()
        communicator.barrier()

    assert _elapsed(lambda: run_ranks(3, fn, deadline_s=LONG_S)) < 10


def test_a_failure_reaches_groups_that_do_not_hold_the_culprit():
    # Rank 2 fails; rank 1 waits for it; rank 0 waits for rank 1 in a group without rank 2.
    heard = {}

    def fn(communicator: Communicator):
        pair = communicator.split([[0, 1], [2]])
        if communicator.rank == 2:
            raise KeyError("culprit")
        try:
            (communicator if communicator.rank == 1 else pair).barrier()
        except PeerError as error:
            heard[communicator.rank] = (error.rank, error.cause)
            raise

    with pytest.raises(PeerError, match=r"^rank 2 failed: KeyError: 'culprit'"):
        run_ranks(3, fn, deadline_s=LONG_S)
    assert heard == {0: (2, "KeyError"), 1: (2, "KeyError")}


def test_an_agreed_error_is_raised_with_its_original():
    original = ValueError("agreed")

    def fn(communicator: Communicator):
        communicator.agree(original if communicator.rank == 1 else None)

    with pytest.raises(PeerError, match=r"^rank 1 failed in agree \(call 0\): ValueError: agreed") as caught:
        run_ranks(3, fn)
    assert caught.value.__cause__ is original
    assert (caught.value.rank, caught.value.cause) == (1, "ValueError")


def test_calls_that_differ_are_raised_as_they_are():
    with pytest.raises(PeerError, match=r"^calls differ: rank 0: barrier \(call 0\); rank 1: agree \(call 0\)$"):
        run_ranks(2, lambda communicator: communicator.agree() if communicator.rank else communicator.barrier())


def test_other_failures_are_named():
    together = threading.Barrier(3, timeout=100)

    def fn(communicator: Communicator):
        together.wait()
        raise OSError(communicator.rank)

    with pytest.raises(PeerError) as caught:
        run_ranks(3, fn)
    first = caught.value.rank
    assert str(caught.value).splitlines()[0] == f"rank {first} failed: OSError: {first}"
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_an_exit_of_a_rank_is_a_failure(kind: Any):
    def fn(communicator: Communicator):
        if communicator.rank == 0:
            raise kind
        communicator.barrier()

    with pytest.raises(PeerError, match=f"rank 0 failed: {kind.__name__}") as caught:
        run_ranks(2, fn)
    assert type(caught.value.__cause__) is kind


def arrived_in(communicator: Any) -> set[int]:
    """Which members wait in the call that is under way."""
    return {member for arrived in list(communicator._meeting._steps.values()) for member in list(arrived)}


def test_a_member_that_does_not_arrive_is_named(clock: Clock):
    heard = {}

    def fn(communicator: Any):
        pair = communicator.split([[0, 2], [1, 3]])
        if communicator.rank in (1, 3):
            until(lambda: arrived_in(communicator) == {0, 2})
            if communicator.rank == 1:
                clock.leap(0.6 * LONG_S)
            pair.barrier()  # a sign of life, but not the call that the others wait for
            if communicator.rank == 1:
                clock.leap(0.6 * LONG_S)
            until(lambda: len(heard) >= 2)
        try:
            communicator.all_gather(np.zeros(1))
        except PeerError as error:
            heard[communicator.rank] = (error.rank, str(error))
            raise

    text = "ranks 1, 3 did not arrive in all_gather (call 1) within 60 s"
    with pytest.raises(PeerError) as caught:
        run_ranks(4, fn, deadline_s=LONG_S)
    assert str(caught.value) == text
    assert heard == dict.fromkeys(range(4), (1, text))  # those that come too late hear the same


def test_a_rank_that_hangs_outside_of_calls(clock: Clock):
    release = threading.Event()
    hanging: list[threading.Thread] = []

    def fn(communicator: Any):
        communicator.barrier()
        if communicator.rank == 1:
            hanging.append(threading.current_thread())
            until(lambda: communicator._meeting.world.first_departed([0]))
            clock.leap(1.25 * LONG_S)
            release.wait(100)
        return communicator.rank

    try:
        with pytest.raises(PeerError, match=r"^rank 1 made no call and did not return for 75 s$") as caught:
            run_ranks(2, fn, deadline_s=LONG_S)
        assert caught.value.rank == 1
    finally:
        release.set()
        for thread in hanging:
            thread.join(LONG_S)


def test_work_between_calls_may_last_until_the_deadline_each_time(clock: Clock):
    def fn(communicator: Any):
        for _ in range(4):
            if communicator.rank == 0:
                until(lambda: arrived_in(communicator) == {1})
                clock.leap(0.6 * LONG_S)
            communicator.barrier()
        return True

    assert run_ranks(2, fn, deadline_s=LONG_S) == [True, True]


def test_ctrl_c_ends_the_run(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "_JOIN_S", LONG_S)
    before = set(threading.enumerate())
    heard = {}

    def fn(communicator: Communicator):
        try:
            pair = communicator.split([[0, 1], [2, 3]])
            if communicator.rank == 3:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            while communicator.rank < 2:
                pair.barrier()  # ranks that are busy among themselves are stopped at their next call
            communicator.barrier()
        except PeerError as error:
            heard[communicator.rank] = str(error)
            raise

    def run():
        with pytest.raises(KeyboardInterrupt):
            run_ranks(4, fn, deadline_s=LONG_S)

    # Processes that a shell starts in the background ignore the signal.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert _elapsed(run) < 10
    finally:
        signal.signal(signal.SIGINT, previous)
    assert sorted(heard) == [0, 1, 2, 3]
    assert all("the run has ended" in text for text in heard.values())
    assert set(threading.enumerate()) <= before


def test_runs_can_be_nested():
    def fn(communicator: Communicator):
        inner = run_ranks(2, lambda other: int(other.all_gather(np.int64(other.rank))[1]))
        return sum(inner) + int(communicator.all_gather(np.int64(communicator.rank))[2])

    assert run_ranks(3, fn) == [4, 4, 4]


def test_many_ranks():
    gathered = run_ranks(32, lambda communicator: communicator.all_gather(np.full(1, communicator.rank)))
    assert [int(array[0]) for array in gathered[31]] == list(range(32))


def test_threads_are_gone_afterwards():
    before = set(threading.enumerate())
    run_ranks(8, lambda communicator: communicator.barrier())
    assert set(threading.enumerate()) <= before


def test_a_rank_that_is_done_is_waited_for_however_slow_its_thread_is(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "_JOIN_S", 0.0)
    wake = launch._Run._wake

    def wake_and_linger(run: Any):
        wake(run)
        time.sleep(0.2)

    monkeypatch.setattr(launch._Run, "_wake", wake_and_linger)
    before = set(threading.enumerate())
    run_ranks(3, lambda communicator: communicator.barrier())
    assert set(threading.enumerate()) <= before


def test_options_are_checked():
    with pytest.raises(ArgumentError, match="num_ranks must be from 1 to 4096, got 0"):
        run_ranks(0, lambda communicator: None)
    with pytest.raises(ArgumentError, match="deadline_s must be a finite number"):
        run_ranks(1, lambda communicator: None, deadline_s=-1)
