"""A failure inside `guard` or `tell_failure` is one of all ranks; Ctrl-C stays what it is where it was pressed."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import pytest

import dcpack
from dcpack.comm.fake_communicator import FakeCommunicator
from dcpack.comm.guard import tell_failure
from dcpack.errors import PeerError


def outcomes(make: Any, error: BaseException | None, size: int = 3) -> list[tuple[str, int | None, str | None]]:
    """What each rank sees if rank 1 raises `error` in the context and the others go on to a barrier."""
    found: list[Any] = [None] * size

    def fn(communicator: dcpack.Communicator) -> None:
        try:
            with make(communicator):
                if communicator.rank == 1 and error is not None:
                    raise error
            communicator.barrier()
            found[communicator.rank] = ("", None, None)
        except PeerError as caught:
            found[communicator.rank] = ("PeerError", caught.rank, caught.cause)
        except BaseException as caught:
            found[communicator.rank] = (type(caught).__name__, None, None)

    dcpack.run_ranks(size, fn)
    return found


CONTEXTS = {"guard": lambda communicator: communicator.guard(), "tell_failure": tell_failure}


@pytest.mark.parametrize("make", CONTEXTS.values(), ids=CONTEXTS)
def test_an_error_is_one_of_all_ranks(make: Any) -> None:
    assert outcomes(make, KeyError("x")) == [("PeerError", 1, "KeyError")] * 3
    assert outcomes(make, None) == [("", None, None)] * 3


@pytest.mark.parametrize("make", CONTEXTS.values(), ids=CONTEXTS)
def test_ctrl_c_stays_what_it_is_where_it_was_pressed(make: Any) -> None:
    told = ("PeerError", 1, "KeyboardInterrupt")
    assert outcomes(make, KeyboardInterrupt()) == [told, ("KeyboardInterrupt", None, None), told]


@pytest.mark.parametrize("make", CONTEXTS.values(), ids=CONTEXTS)
@pytest.mark.parametrize("is_pressed_again", [False, True])
def test_ctrl_c_waits_for_the_others_until_the_deadline_or_a_second_one(
    monkeypatch: pytest.MonkeyPatch, make: Any, is_pressed_again: bool
) -> None:
    is_done = threading.Event()
    waits: list[str] = []
    found: list[str] = []
    hand_over = FakeCommunicator._hand_over

    def waiting(self: FakeCommunicator, messages: Any) -> Any:
        waits.append(self._where())
        if is_pressed_again:
            raise KeyboardInterrupt("second")  # as a signal would in the middle of the wait
        return hand_over(self, messages)

    monkeypatch.setattr(FakeCommunicator, "_hand_over", waiting)

    def fn(communicator: dcpack.Communicator) -> None:
        if communicator.rank == 0:  # makes no call
            is_done.wait(60.0)
            return
        try:
            with make(communicator):
                raise KeyboardInterrupt("first")
        except KeyboardInterrupt as caught:
            found.append(str(caught))
        finally:
            is_done.set()

    with contextlib.suppress(PeerError):  # on a slow machine the run sees that rank 0 makes no call, and ends
        dcpack.run_ranks(2, fn, deadline_s=60.0 if is_pressed_again else 0.2)
    assert is_done.wait(60.0)
    assert found == ["second" if is_pressed_again else "first"]
    assert waits == ["agree (call 0)"]


def test_only_a_guard_costs_a_call_where_nothing_fails() -> None:
    def fn(communicator: dcpack.Communicator) -> int:
        with tell_failure(communicator):
            pass
        with communicator.guard():
            pass
        return communicator.counters.calls["agree"]

    assert dcpack.run_ranks(2, fn) == [1, 1]


def test_an_end_is_told_as_an_error() -> None:
    # A StopIteration on its way up would look like the end of a loop.
    assert outcomes(tell_failure, StopIteration()) == [("PeerError", 1, "RuntimeError")] * 3


def test_an_error_of_peers_is_told_where_another_group_raised_it() -> None:
    error = PeerError("of another group", rank=7, cause="ValueError")
    found = outcomes(lambda communicator: tell_failure(communicator, peer_errors=True), error)
    assert found == [("PeerError", 7, "ValueError")] * 3

    def fn(communicator: dcpack.Communicator) -> tuple[str | None, int]:
        # All ranks have it already, and need no second call.
        with pytest.raises(PeerError) as caught, tell_failure(communicator):
            communicator.agree(KeyError("x") if communicator.rank == 1 else None)
        communicator.barrier()
        return caught.value.cause, communicator.counters.calls["agree"]

    assert dcpack.run_ranks(2, fn) == [("KeyError", 1)] * 2
