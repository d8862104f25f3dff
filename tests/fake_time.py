"""A clock for ranks that are threads: time passes when a test says so, or when nothing else can end a wait.

A test of deadlines must not be one of how fast the machine is: a thread that is kept from running for a second is no
rank that failed. Here deadlines are long, and pass in no time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dcpack.comm import fake_communicator, launch, membership, rendezvous
from dcpack.comm.rendezvous import Meeting, World

__all__ = ["Clock", "until"]


def until(condition: Callable[[], Any], seconds: float = 60.0) -> None:
    """Wait for something that must come true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come true"
        time.sleep(0.002)


class Clock:
    """Stands in for `time` in the fake back end."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        self._worlds: list[World] = []
        self._waits: dict[object, tuple[Meeting, Callable[[], bool]]] = {}  # whether only time can end each
        self._is_over = threading.Event()
        self._watcher = threading.Thread(target=self._watch, daemon=True)
        for module in (fake_communicator, launch, membership, rendezvous):
            monkeypatch.setattr(module, "time", self)
        self._note(monkeypatch)

    def monotonic(self) -> float:
        return time.monotonic() + self._ahead

    def leap(self, seconds: float) -> None:
        """Let so much time pass at once."""
        self._ahead += seconds
        for world in self._worlds:
            world._wake_all()

    def leap_when_stuck(self) -> None:
        """From now on, let a deadline pass whenever all ranks wait for one that does not come.

        Ranks make their calls in one thread.
        """
        self._watcher.start()

    def stop(self) -> None:
        self._is_over.set()
        if self._watcher.ident is not None:
            self._watcher.join()

    def _note(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Know of all worlds, and of all waits in them."""
        make_world, await_all, doze = launch.make_world, Meeting._await_all, Meeting.doze

        def noted_make_world(*args: Any) -> World:
            self._worlds.append(make_world(*args))
            return self._worlds[-1]

        def noted_await_all(
            meeting: Meeting, member: int, arrived: dict[int, Sequence[Any]], where: str, *rest: Any
        ) -> None:
            def hopeless() -> bool:
                return (
                    len(arrived) < len(meeting.ranks)
                    and member not in meeting._closed
                    and meeting._broken is None
                    and meeting._find_departed(arrived, where) is None
                )

            wait = object()
            self._waits[wait] = meeting, hopeless
            try:
                await_all(meeting, member, arrived, where, *rest)
            finally:
                del self._waits[wait]

        def noted_doze(meeting: Meeting, *args: Any) -> None:
            wait = object()
            self._waits[wait] = meeting, lambda: meeting._broken is None
            try:
                doze(meeting, *args)
            finally:
                del self._waits[wait]

        monkeypatch.setattr(launch, "make_world", noted_make_world)
        monkeypatch.setattr(Meeting, "_await_all", noted_await_all)
        monkeypatch.setattr(Meeting, "doze", noted_doze)

    def _watch(self) -> None:
        while not self._is_over.wait(0.002):
            for world in list(self._worlds):
                if not world.over.is_set() and self._is_stuck(world):
                    self.leap(2 * world.deadline_s)

    def _is_stuck(self, world: World) -> bool:
        """Whether every rank waits, and all the while that this looks."""
        before = _moves(world)
        present = [rank for rank in range(world.num_ranks) if rank not in {*world._departures, *world.vanished}]
        if not present or not all(world._waiting[rank] for rank in present):
            return False
        waits = [wait for wait in list(self._waits.values()) if wait[0].world is world]
        if len(waits) != sum(world._waiting):
            return False
        for meeting, hopeless in waits:
            with meeting._condition:
                if not hopeless():
                    return False
        return _moves(world) == before


def _moves(world: World) -> tuple[list[int], list[float]]:
    """What changes whenever a rank enters a call or leaves it."""
    with world._lock:
        return list(world._waiting), list(world._seen_at)
