"""The board over a coordination service that is a dict: every order of arrivals, failures and ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from dcpack_jax.board import Board
from fake_time import until

from dcpack.errors import PeerError

SIZE = 3


class Service:
    """A key-value store with the calls and the errors of JAX's coordination service; keys are written once."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.counts: dict[str, int] = {}
        self.failure: Exception | None = None
        self._changed = threading.Condition()

    def key_value_set_bytes(self, key: str, value: bytes) -> None:
        with self._changed:
            self._check()
            if key in self.values:
                raise RuntimeError(f"ALREADY_EXISTS: Config key {key} already exists.")
            self.values[key] = value
            self._changed.notify_all()

    def key_value_increment(self, key: str, by: int) -> int:
        with self._changed:
            self._check()
            self.counts[key] = self.counts.get(key, 0) + by
            return self.counts[key]

    def blocking_key_value_get_bytes(self, key: str, wait_ms: int) -> bytes:
        with self._changed:
            self._check()
            if not self._changed.wait_for(lambda: key in self.values, wait_ms / 1000):
                raise RuntimeError(f"DEADLINE_EXCEEDED: GetKeyValue() timed out with key: {key}")
            return self.values[key]

    def key_value_dir_get_bytes(self, folder: str) -> list[tuple[str, bytes]]:
        with self._changed:
            self._check()
            found = [(key, value) for key, value in self.values.items() if key.startswith(folder)]
            return found[::-1]  # in no order that could be relied upon

    def key_value_delete(self, folder: str) -> None:
        with self._changed:
            self._check()
            assert folder.endswith("/")  # a folder; JAX deletes a key otherwise
            for kept in (self.values, self.counts):
                for key in [key for key in kept if key.startswith(folder)]:
                    del kept[key]

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure


def missing(members: list[int]) -> PeerError:
    return PeerError(f"{members} did not come", rank=10 + members[0])


def soon(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


def boards(service: Service, size: int = SIZE) -> list[Board]:
    return [Board(service, "group", member, size) for member in range(size)]


def together(calls: list[Callable[[], Any]]) -> list[Any]:
    """What each call returns or raises, all at once in threads."""
    results: list[Any] = [None] * len(calls)

    def be(member: int) -> None:
        try:
            results[member] = calls[member]()
        except Exception as error:
            results[member] = error

    threads = [threading.Thread(target=be, args=(member,), daemon=True) for member in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    return results


def exchange(board: Board, message: bytes, until: float | None = None) -> Callable[[], Any]:
    return lambda: board.exchange(message, soon() if until is None else until, missing)


def test_every_member_gets_every_message_in_the_order_of_the_group() -> None:
    members = boards(Service())
    for turn in range(3):
        sent = [b"", b"x" * turn, bytes([turn, 0, 255])]
        assert together([exchange(board, message) for board, message in zip(members, sent, strict=True)]) == [sent] * 3


def test_eleven_members_are_not_sorted_as_text() -> None:
    sent = [bytes([member]) for member in range(11)]
    found = together([exchange(board, sent[i]) for i, board in enumerate(boards(Service(), 11))])
    assert found == [sent] * 11


def test_messages_are_removed_when_the_next_exchange_shows_that_all_have_read_them() -> None:
    service = Service()
    members = boards(service)
    for turn in range(4):
        together([exchange(board, b"m") for board in members])
        kept = {int(key.split("/")[1]) for key in service.values}
        assert kept == {turn}  # which a slower member may still have to read


def test_groups_do_not_read_each_others_messages() -> None:
    service = Service()
    one, other = Board(service, "a", 0, 1), Board(service, "a.0", 0, 1)
    assert one.exchange(b"one", soon(), missing) == [b"one"]
    assert other.exchange(b"other", soon(), missing) == [b"other"]


def test_who_does_not_come_is_named_to_all_and_to_the_late() -> None:
    service = Service()
    members = boards(service)
    past = time.monotonic() - 1.0
    wait = service.blocking_key_value_get_bytes

    def wait_for_both(key: str, wait_ms: int) -> bytes:
        until(lambda: len(service.key_value_dir_get_bytes("group/0/from/")) >= 2)
        return wait(key, wait_ms)

    service.blocking_key_value_get_bytes = wait_for_both
    found = together([exchange(members[0], b"a", past), exchange(members[2], b"c", past)])
    assert [(str(error), error.rank) for error in found] == [("[1] did not come", 11)] * 2
    # The late one is the last to bring its message: a success for it alone would leave it a call ahead.
    with pytest.raises(PeerError, match=r"^\[1\] did not come$") as late:
        members[1].exchange(b"b", soon(), missing)
    assert late.value.rank == 11


def test_who_gives_up_just_after_the_last_has_come_succeeds_like_it() -> None:
    service = Service()
    members = boards(service, 2)
    wait = service.blocking_key_value_get_bytes
    others: list[Any] = []

    def time_out(key: str, wait_ms: int) -> bytes:
        service.blocking_key_value_get_bytes = wait
        others.append(members[1].exchange(b"b", soon(), missing))  # between the time-out and the verdict
        raise RuntimeError("DEADLINE_EXCEEDED: too late")

    service.blocking_key_value_get_bytes = time_out
    assert members[0].exchange(b"a", time.monotonic(), missing) == [b"a", b"b"]
    assert others == [[b"a", b"b"]]


def test_who_gives_up_once_all_messages_are_there_settles_that_they_are() -> None:
    # The last member has left its message and not counted it yet, or died there: nobody is missing.
    service = Service()
    members = boards(service, 2)
    service.key_value_set_bytes("group/0/from/00000001", b"+b")
    assert members[0].exchange(b"a", time.monotonic(), missing) == [b"a", b"b"]


def test_a_failure_of_the_devices_is_what_all_raise_in_their_next_exchange() -> None:
    members = boards(Service())
    found = together(
        [
            exchange(members[0], b"a"),
            lambda: members[1].report("rank 1: däs \u2603", soon(), missing),
            exchange(members[2], b"!c"),  # a message that looks like a failure is none
        ]
    )
    assert [(type(error), str(error)) for error in found] == [(PeerError, "rank 1: däs \u2603")] * 3


def test_of_two_failures_all_raise_the_first_members() -> None:
    members = boards(Service())
    found = together(
        [
            exchange(members[0], b"a"),
            lambda: members[1].report("one", soon(), missing),
            lambda: members[2].report("two", soon(), missing),
        ]
    )
    assert [str(error) for error in found] == ["one"] * 3


def test_a_failure_that_others_do_not_come_for_names_them() -> None:
    (first, _, _) = boards(Service())
    error = first.report("own", time.monotonic(), missing)
    assert (str(error), error.rank) == ("[1, 2] did not come", 11)


def test_a_service_that_is_gone_is_an_error_that_says_so() -> None:
    service = Service()
    board = Board(service, "group", 0, 2)
    service.failure = RuntimeError("UNAVAILABLE: failed to connect\nand a stack")
    text = (
        "the coordination service of JAX, which lives in process 0, cannot be reached: UNAVAILABLE: failed to connect"
    )
    with pytest.raises(PeerError) as caught:
        board.exchange(b"", soon(), missing)
    assert (str(caught.value), caught.value.cause) == (text, "RuntimeError")
    assert str(board.report("own", soon(), missing)) == text
    board.close()  # in silence


def test_an_error_of_the_service_is_no_time_out(monkeypatch: pytest.MonkeyPatch) -> None:
    service = Service()

    def refuse(key: str, wait_ms: int) -> bytes:
        raise RuntimeError(f"INTERNAL: {key}")

    monkeypatch.setattr(service, "blocking_key_value_get_bytes", refuse)
    with pytest.raises(PeerError, match="cannot be reached: INTERNAL: group/0/outcome"):
        Board(service, "group", 0, 2).exchange(b"", soon(), missing)


def test_the_last_to_close_removes_what_is_left_and_nothing_of_others() -> None:
    service = Service()
    members = boards(service, 2)
    Board(service, "group.1", 0, 1).exchange(b"stays", soon(), missing)
    together([exchange(board, b"m") for board in members])
    members[0].close()
    assert any(key.startswith("group/") for key in service.values)
    members[1].close()
    assert sorted(service.values) == ["group.1/0/from/00000000", "group.1/0/outcome"]
    assert not any(key.startswith("group/") for key in service.counts)
