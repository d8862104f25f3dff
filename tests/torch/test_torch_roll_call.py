"""Who is missing, found out over a store: the threads here are the members of a group."""

from __future__ import annotations

import queue
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from dcpack_torch import roll_call
from dcpack_torch.roll_call import RollCall, Verdict, assemble

from dcpack.errors import PeerError

stores: Any = dist


def describe(missing: list[int], late: bool) -> str:
    return f"{missing} missing{', late' if late else ''}"


def conclude(present: dict[int, bool], ranks: list[int], monkeypatch: pytest.MonkeyPatch) -> list[Verdict | None]:
    """What the members that are there conclude; `present` says of each whether it waited until its deadline.

    Time is up when all of them have left their notes, and not before, however slow the machine is.
    """
    store, found = stores.HashStore(), dict[int, Verdict | None]()
    seconds = 60.0
    clock = SimpleNamespace(sleep=time.sleep)
    clock.monotonic = lambda: 0.0 if store.add("number of notes", 0) < len(present) else 2 * seconds
    monkeypatch.setattr(roll_call, "time", clock)

    def be(member: int) -> None:
        found[member] = RollCall(store, member, ranks).conclude(present[member], describe, seconds)

    threads = [threading.Thread(target=be, args=(member,)) for member in present]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return [found[member] for member in present]


def test_all_conclude_the_same_and_name_who_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = conclude({0: False, 2: True, 3: False}, [10, 11, 12, 13], monkeypatch)
    assert verdicts == [Verdict(text="[11] missing, late", rank=11)] * 3


def test_nobody_is_missing_where_all_left_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    verdicts = conclude({0: False, 1: False}, [4, 5], monkeypatch)
    assert verdicts == [Verdict(text="[] missing", rank=None)] * 2


def test_the_first_verdict_stands() -> None:
    store = stores.HashStore()
    first = RollCall(store, 0, [4, 5]).conclude(True, describe, 0.05)
    # Rank 5 comes when it was given up already, and says what the others say.
    second = RollCall(store, 1, [4, 5]).conclude(False, lambda missing, late: "another story", 60.0)
    assert first == second == Verdict(text="[5] missing, late", rank=5)


class DeadStore:
    """A store whose host is gone."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("Connection reset by peer")


def test_without_a_store_there_is_no_verdict() -> None:
    assert RollCall(DeadStore(), 0, [0, 1]).conclude(True, describe, 0.05) is None


def test_a_process_that_was_stopped_hears_the_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stopped:
        """A wait whose time has passed when the process goes on, before any other thread of it does."""

        def __init__(self) -> None:
            self.answers = queue.SimpleQueue[Verdict | None]()
            self.put = self.answers.put
            self.num_waits = 0

        def get(self, timeout: float) -> Verdict | None:
            self.num_waits += 1
            if self.num_waits == 1:
                raise queue.Empty
            return self.answers.get(timeout=100)

    monkeypatch.setattr(roll_call, "queue", SimpleNamespace(SimpleQueue=Stopped, Empty=queue.Empty))
    assert RollCall(stores.HashStore(), 0, [4]).conclude(True, describe, 60.0) == Verdict(
        text="[] missing, late", rank=None
    )


def test_assembly_names_all_who_did_not_start() -> None:
    store = stores.HashStore()
    threads = [threading.Thread(target=assemble, args=(store, member, [7, 8], 30.0)) for member in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
        assert not thread.is_alive()
    with pytest.raises(PeerError, match=r"ranks 7, 9 did not start within 0\.05 s") as caught:
        assemble(stores.HashStore(), 1, [7, 8, 9], 0.05)
    assert caught.value.rank == 7
