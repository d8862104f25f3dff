"""One process as a member of a group: how a call of the group begins, fails together, and breaks.

Every call starts with an exchange of control records. What the group concludes from them is the same on all members, so
that all go on or all raise; only what fails later, in the transport itself, leaves the members out of step.
"""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType, TracebackType
from typing import Any, NamedTuple, Self

from dcpack._checks import as_real, check_int
from dcpack.comm.agreement import describe_sides, require_same
from dcpack.comm.control import VERBS, ControlRecord
from dcpack.comm.counters import Counters
from dcpack.comm.failures import Failure, agreed_error, name_ranks
from dcpack.errors import ArgumentError, BackendError, PeerError

__all__ = ["DEFAULT_DEADLINE_S", "DEFAULT_MAX_MESSAGE_BYTES", "Begun", "GroupMember", "Prepared", "check_deadline"]

DEFAULT_DEADLINE_S = 60.0
"""Seconds that a call may wait for the other members, unless said otherwise."""
DEFAULT_MAX_MESSAGE_BYTES = 1 << 30
"""Bytes of one message between two ranks above which it goes in rounds, unless said otherwise."""


class Prepared(NamedTuple):
    """What a rank has ready before a call.

    Attributes:
        value: what the verb needs later.
        fields: of the control record.
        blocks: the bytes for each member, where they may travel with the record; else nothing.
    """

    value: Any = None
    fields: Mapping[str, Any] = MappingProxyType({})
    blocks: Sequence[Any] = ()


class Begun(NamedTuple):
    """What a rank knows when all have begun a call.

    Attributes:
        value: what it prepared.
        records: of all members.
        blocks: what came with them from each member, of `inline_bytes` bytes each.
    """

    value: Any
    records: list[ControlRecord]
    blocks: Sequence[Any]


MAX_DEADLINE_S = 10**9
"""Longest deadline, some thirty years; the libraries below take little more."""


def check_deadline(value: Any, name: str = "deadline_s") -> float:
    """Return `value` as seconds: a finite number above 0.

    Example:
        >>> check_deadline(-1)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: deadline_s must be a finite number of seconds above 0 and at most 1e+09, \
got -1
    """
    return as_real(name, value, positive=True, maximum=MAX_DEADLINE_S, what="number of seconds")


class GroupMember(ABC):
    """The part of a `Communicator` that all its calls share; see there.

    Args:
        rank: group-local number of this process.
        ranks: global numbers of the members, in the order of the group.
        deadline_s: seconds that a call may wait for the others.
        max_message_bytes: larger messages between two ranks are sent in rounds.
    """

    inline_bytes: int = 0
    """Messages to one member of so many bytes travel with the control record, the same on all members; 0: none does.

    For back ends whose control messages are as fast as their payload: it spares a small message its own round.
    """

    def __init__(
        self,
        rank: int,
        ranks: Sequence[int],
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> None:
        self._ranks = tuple(ranks)
        self._rank = check_int("rank", rank, minimum=0, maximum=len(self._ranks) - 1)
        self._deadline_s = check_deadline(deadline_s)
        self._deadline_at = 0.0
        self.max_message_bytes = max_message_bytes
        self._verb = ""
        self._call = -1
        self._num_calls = dict.fromkeys(VERBS, 0)
        self._largest_block = 0  # bytes, of the present all-to-all
        self._sent = dict.fromkeys(VERBS, 0)  # bytes
        self._bytes_received = 0
        self._owner: threading.Thread | None = None
        self._owner_lock = threading.Lock()
        self._closed = False
        self._broken: PeerError | None = None

    @property
    def rank(self) -> int:
        """Group-local number of this process, from 0."""
        return self._rank

    @property
    def size(self) -> int:
        """Number of members."""
        return len(self._ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """Global numbers of the members, in the order of the group."""
        return self._ranks

    @property
    def deadline_s(self) -> float:
        """Seconds that a call may wait for the other members."""
        return self._deadline_s

    @property
    def max_message_bytes(self) -> int:
        """The largest message between two ranks; the smallest value in the group holds for all."""
        return self._max_message_bytes

    @max_message_bytes.setter
    def max_message_bytes(self, value: int) -> None:
        self._max_message_bytes = check_int("max_message_bytes", value, minimum=1, maximum=2**62)

    @property
    def counters(self) -> Counters:
        """Calls and payload bytes so far."""
        return Counters(calls=dict(self._num_calls), sent=dict(self._sent), bytes_received=self._bytes_received)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rank={self.rank}, size={self.size}, ranks={self.ranks})"

    def close(self) -> None:
        """Give back what this communicator holds; later calls raise. Any thread may close, any number of times."""
        if not self._closed:
            self._closed = True
            self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # What a back end writes.

    @abstractmethod
    def _exchange_control(self, record: bytes) -> list[bytes]:
        """Return every member's bytes. All members pass equally many, another number from time to time."""

    def _exchange_inline(self, record: bytes, blocks: Sequence[Any]) -> tuple[list[bytes], Sequence[Any]]:
        """Do as `_exchange_control`, and carry a block of bytes to each member; only where `inline_bytes` is above 0.

        Args:
            record: as there.
            blocks: for each member a buffer of at most `inline_bytes` bytes, or nothing at all.

        Returns:
            Every member's record, and from each a block of `inline_bytes` bytes: its own and then anything.

        Raises:
            BackendError: the back end sets `inline_bytes` and does not write this.
        """
        del record, blocks
        raise BackendError(f"{type(self).__name__} has inline_bytes {self.inline_bytes} and no _exchange_inline")

    @abstractmethod
    def _close(self) -> None:
        """Give back what the back end holds; called once."""

    def _begin_call(self, verb: str) -> None:
        """Called before each call; what it raises is a failure of this rank in that call. Nothing by default."""
        del verb

    # What a back end may use.

    def _remaining_s(self) -> float:
        """Seconds until the deadline of the present call; 0 when it is past."""
        return max(0.0, self._deadline_at - time.monotonic())

    def _where(self) -> str:
        """The present call, for a message."""
        return f"{self._verb} (call {self._call})"

    def _missing_error(self, members: Sequence[int]) -> PeerError:
        """The error for members (group-local) that did not come before the deadline."""
        missing = sorted(self.ranks[member] for member in members)
        text = f"{name_ranks(missing)} did not arrive in {self._where()} within {self.deadline_s:g} s"
        return PeerError(text, rank=missing[0])

    # What all verbs share.

    def _synchronise(self, verb: str, prepare: Callable[[], Prepared], failure: BaseException | None = None) -> Begun:
        """Begin a call: exchange control records and raise what the group agrees upon.

        Args:
            verb: the call.
            prepare: this rank's checks; what it raises is a failure of this rank.
            failure: a failure that is known before.
        """
        self._require_usable()
        self._verb = verb
        self._call += 1
        self._num_calls[verb] += 1
        prepared = Prepared()
        record = b""
        try:
            self._begin_call(verb)
            prepared = prepare()
            record = self._record(**prepared.fields)  # what the record cannot hold is a failure of this rank, too
        except Exception as error:
            failure = error if failure is None else failure
        self._deadline_at = time.monotonic() + self.deadline_s
        records, blocks = self._exchange_records(record, failure, prepared.blocks)
        return Begun(prepared.value, records, blocks)

    def _exchange_records(
        self, record: bytes, failure: BaseException | None, blocks: Sequence[Any] = ()
    ) -> tuple[list[ControlRecord], Sequence[Any]]:
        """Return every member's record and block; raise the same error on all if one failed or calls something else."""
        report = b""
        if failure is not None:
            report = Failure.of(failure).encode()
            record = self._record(ok=False, report_bytes=len(report))
        with self._transport():
            if self.inline_bytes:
                messages, blocks = self._exchange_inline(record, blocks if failure is None else ())
            else:
                messages, blocks = self._exchange_control(record), ()
            decoded = {message: ControlRecord.decode(message) for message in set(messages)}  # often all are equal
            records = [decoded[message] for message in messages]
        failed = [member for member, other in enumerate(records) if not other.ok]
        if failed:
            reports = self._gather_reports(report, records)
            failures = {self.ranks[member]: Failure.decode(reports[member]) for member in failed}
            first = records[self.ranks.index(min(failures))]  # its call, as this rank's may be another
            raise agreed_error(failures, f"{first.verb} (call {first.call})") from failure
        calls = [f"{other.verb} (call {other.call})" for other in records]
        if len(set(calls)) > 1:
            raise PeerError(f"calls differ: {describe_sides(calls, self.ranks)}")
        return records, blocks

    def _gather_reports(self, report: bytes, records: list[ControlRecord]) -> list[bytes]:
        """Return every member's report, cut to its length; they travel padded, as control messages are equally long."""
        longest = max(record.report_bytes for record in records)
        with self._transport():
            reports = self._exchange_control(report.ljust(longest, b"\0"))
        return [data[: record.report_bytes] for data, record in zip(reports, records, strict=True)]

    def _record(self, **fields: Any) -> bytes:
        limit = self.max_message_bytes
        return ControlRecord(call=self._call, verb=self._verb, max_message_bytes=limit, **fields).encode()

    def _require_same(self, what: str, values: Sequence[str]) -> None:
        require_same(what, self._where(), values, self.ranks)

    def _require_usable(self) -> None:
        """Raise, on this rank alone, where no call can begin: nothing has been sent yet that others could wait for."""
        if self._closed:
            raise ArgumentError(f"this communicator is closed: {self!r}")
        with self._owner_lock:
            thread = threading.current_thread()
            self._owner = self._owner or thread
            if self._owner is not thread:
                raise ArgumentError(
                    f"a communicator belongs to one thread: this one to {self._owner.name!r}, called from "
                    f"{thread.name!r}; make another with dup()"
                )
        if self._broken is not None:
            text = f"this communicator is broken: {self._broken}"
            raise PeerError(text, rank=self._broken.rank, cause=self._broken.cause)

    @contextlib.contextmanager
    def _transport(self) -> Iterator[None]:
        """Run primitives of the back end; after a failure in them the ranks are out of step for good."""
        try:
            yield
        except PeerError as error:
            # Kept without its traceback, whose frames hold arrays.
            self._broken = PeerError(str(error), rank=error.rank, cause=error.cause)
            raise
        except Exception as error:
            failure = Failure.of(error)
            text = f"the back end failed in {self._where()}: {failure.summary}"
            self._broken = PeerError(text, cause=failure.cause)
            raise PeerError(text, cause=failure.cause) from error
        except BaseException as error:
            self._broken = PeerError(f"{self._where()} was interrupted by {type(error).__name__}")
            raise
