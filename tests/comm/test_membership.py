"""What all calls of a group share, one member at a time: the back end is a script of what the others sent."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from dcpack.comm.control import ControlRecord
from dcpack.comm.failures import Failure
from dcpack.comm.membership import GroupMember, Prepared, check_deadline
from dcpack.errors import ArgumentError, PeerError

Reply = Callable[[bytes], list[bytes]]


class ScriptedMember(GroupMember):
    """Rank 0 of the global ranks 4 and 7; each exchange is answered by the next reply."""

    def __init__(self, *replies: Reply, **options: Any) -> None:
        super().__init__(0, [4, 7], **options)
        self.replies = list(replies)
        self.sent: list[bytes] = []
        self.num_closed = 0

    def _exchange_control(self, record: bytes) -> list[bytes]:
        self.sent.append(record)
        return self.replies.pop(0)(record)

    def _close(self) -> None:
        self.num_closed += 1

    def call(self, verb: str = "barrier", prepare: Callable[[], Prepared] = Prepared) -> Any:
        return self._synchronise(verb, prepare)


def echo(record: bytes) -> list[bytes]:
    """The other member sends the same."""
    return [record, record]


def other_sends(message: ControlRecord | bytes) -> Reply:
    data = message.encode() if isinstance(message, ControlRecord) else message
    return lambda record: [record, data]


def fails(error: BaseException) -> Reply:
    def reply(record: bytes) -> list[bytes]:
        del record
        raise error

    return reply


def record_of(call: int = 0, verb: str = "barrier", **fields: Any) -> ControlRecord:
    return ControlRecord(call=call, verb=verb, max_message_bytes=1 << 30, **fields)


def test_a_call_tells_its_record_and_returns_what_was_prepared() -> None:
    member = ScriptedMember(echo, other_sends(record_of(1, "broadcast", root=1)), max_message_bytes=99)
    assert member.call().records == [ControlRecord(call=0, verb="barrier", max_message_bytes=99)] * 2
    begun = member.call("broadcast", lambda: Prepared("mine", {"root": 1}))
    mine = ControlRecord(call=1, verb="broadcast", max_message_bytes=99, root=1)
    assert (begun.value, begun.records, begun.blocks) == ("mine", [mine, record_of(1, "broadcast", root=1)], ())
    assert (member.counters.calls["barrier"], member.counters.calls["broadcast"]) == (1, 1)


def test_ranks_are_shown() -> None:
    member = ScriptedMember(deadline_s=2)
    assert (member.rank, member.size, member.ranks, member.deadline_s) == (0, 2, (4, 7), 2.0)
    assert repr(member) == "ScriptedMember(rank=0, size=2, ranks=(4, 7))"


def test_calls_that_differ_are_told_with_global_ranks_and_break_nothing() -> None:
    member = ScriptedMember(other_sends(record_of(3, "agree")), echo)
    with pytest.raises(PeerError, match=r"^calls differ: rank 4: barrier \(call 0\); rank 7: agree \(call 3\)$"):
        member.call()
    assert member.call().records[1].call == 1


def test_the_failure_of_another_is_raised_here() -> None:
    report = Failure.of(KeyError("x")).encode()
    failed = record_of(ok=False, report_bytes=len(report))
    member = ScriptedMember(other_sends(failed), other_sends(report))
    with pytest.raises(PeerError, match=r"^rank 7 failed in barrier \(call 0\): KeyError: 'x'") as caught:
        member.call()
    assert (caught.value.rank, caught.value.cause) == (7, "KeyError")
    assert member.sent[1] == bytes(len(report))  # as long as the report, and nothing in it


def test_a_failure_here_is_told_before_it_is_raised() -> None:
    def prepare() -> Prepared:
        raise ValueError("no such root")

    member = ScriptedMember(other_sends(record_of()), lambda report: [report, bytes(len(report))])
    with pytest.raises(PeerError, match=r"^rank 4 failed in barrier \(call 0\): ValueError: no such root") as caught:
        member.call(prepare=prepare)
    assert (caught.value.rank, caught.value.cause) == (4, "ValueError")
    assert isinstance(caught.value.__cause__, ValueError)
    told = ControlRecord.decode(member.sent[0])
    assert (told.ok, told.report_bytes) == (False, len(member.sent[1]))
    assert Failure.decode(member.sent[1]).summary == "ValueError: no such root"


def test_what_the_record_cannot_hold_is_a_failure_of_this_rank() -> None:
    member = ScriptedMember(other_sends(record_of()), lambda report: [report, bytes(len(report))])
    with pytest.raises(PeerError, match=r"^rank 4 failed in barrier \(call 0\): .*an array of 9 dims cannot be sent"):
        member.call(prepare=lambda: Prepared(fields={"shape": (1,) * 9}))


@pytest.mark.parametrize(
    ("error", "text", "rank", "cause"),
    [
        (OSError("link down"), r"the back end failed in barrier \(call 0\): OSError: link down", None, "OSError"),
        (PeerError("rank 7 fell", rank=7, cause="OSError"), "rank 7 fell", 7, "OSError"),
    ],
)
def test_a_failure_of_the_transport_breaks_the_member(
    error: Exception, text: str, rank: int | None, cause: str
) -> None:
    member = ScriptedMember(fails(error), echo)
    with pytest.raises(PeerError, match=f"^{text}$"):
        member.call()
    with pytest.raises(PeerError, match=f"^this communicator is broken: {text}$") as caught:
        member.call()
    assert (caught.value.rank, caught.value.cause) == (rank, cause)
    assert len(member.sent) == 1  # nothing of the second call


def test_ctrl_c_stays_what_it_is_and_breaks_the_member() -> None:
    member = ScriptedMember(fails(KeyboardInterrupt()), echo)
    with pytest.raises(KeyboardInterrupt):
        member.call()
    with pytest.raises(PeerError, match=r"broken: barrier \(call 0\) was interrupted by KeyboardInterrupt$"):
        member.call()


def test_who_is_missing_is_told_with_global_ranks() -> None:
    class Lonely(ScriptedMember):
        def _exchange_control(self, record: bytes) -> list[bytes]:
            raise self._missing_error([1, 0])

    with pytest.raises(PeerError, match=r"^ranks 4, 7 did not arrive in barrier \(call 0\) within 2.5 s$") as caught:
        Lonely(deadline_s=2.5).call()
    assert caught.value.rank == 4


def test_a_closed_member_makes_no_call() -> None:
    with ScriptedMember(echo) as member:
        member.close()
    assert member.num_closed == 1
    with pytest.raises(ArgumentError, match=r"^this communicator is closed: ScriptedMember\(rank=0"):
        member.call()
    assert member.sent == []


def test_a_member_belongs_to_the_thread_of_its_first_call() -> None:
    member = ScriptedMember(echo, echo)
    first = threading.Thread(target=member.call, name="loader")
    first.start()
    first.join()
    with pytest.raises(ArgumentError, match="belongs to one thread: this one to 'loader', called from 'MainThread'"):
        member.call()
    assert len(member.sent) == 1


def test_inline_bytes_without_their_exchange_are_named() -> None:
    class Half(ScriptedMember):
        inline_bytes = 64

    with pytest.raises(PeerError, match="BackendError: Half has inline_bytes 64 and no _exchange_inline"):
        Half().call()


def test_blocks_travel_with_the_record_only_where_nothing_failed() -> None:
    class Inline(ScriptedMember):
        inline_bytes = 4
        blocks: Sequence[Any] = ()

        def _exchange_inline(self, record: bytes, blocks: Sequence[Any]) -> tuple[list[bytes], Sequence[Any]]:
            self.blocks = blocks
            return self._exchange_control(record), [b"from", b"both"]

    member = Inline(echo, other_sends(record_of(1)), lambda report: [report, bytes(len(report))])
    begun = member.call(prepare=lambda: Prepared(blocks=[b"to a", b"to b"]))
    assert (member.blocks, begun.blocks) == ([b"to a", b"to b"], [b"from", b"both"])
    with pytest.raises(PeerError, match="at most 8"):
        member.call(prepare=lambda: Prepared(fields={"shape": (1,) * 9}, blocks=[b"to a", b"to b"]))
    assert member.blocks == ()


@pytest.mark.parametrize("value", [0, -1, float("inf"), float("nan"), 2e9])
def test_deadlines_have_bounds(value: float) -> None:
    with pytest.raises(
        ArgumentError, match=r"^wait must be a finite number of seconds above 0 and at most 1e\+09, got"
    ):
        check_deadline(value, "wait")


@pytest.mark.parametrize("value", [0, 2**62 + 1])
def test_the_largest_message_has_bounds(value: int) -> None:
    with pytest.raises(ArgumentError, match="max_message_bytes must be"):
        ScriptedMember(max_message_bytes=value)
