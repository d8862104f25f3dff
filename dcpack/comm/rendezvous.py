"""Where the threads of the fake back end meet: messages handed over in memory, deadlines, and news of departures."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any

from dcpack.comm.failures import Failure
from dcpack.comm.faults import Fault, FaultSchedule
from dcpack.errors import PeerError

__all__ = ["Departure", "Meeting", "World"]


@dataclass(frozen=True, slots=True)
class Departure:
    """Why a rank will not come any more; `rank` and `cause` are those of the first cause, which may lie elsewhere.

    Attributes:
        text: the reason, as it follows "rank 3" in a sentence.
        rank: global number of the rank at fault.
        cause: name of the exception type there, empty without one.
    """

    text: str
    rank: int
    cause: str


class World:
    """All ranks of one run: who has departed, who has been silent for how long, and the faults to make.

    Args:
        num_ranks: how many.
        deadline_s: seconds that a call may wait; a rank may be silent for a quarter more.
        max_message_bytes: see `Communicator`.
        faults: see `Fault`.

    Example:
        >>> world = World(2, deadline_s=1.0, max_message_bytes=1 << 30, faults=())
        >>> world.root.ranks
        (0, 1)
    """

    def __init__(self, num_ranks: int, *, deadline_s: float, max_message_bytes: int, faults: Sequence[Fault]) -> None:
        self.num_ranks = num_ranks
        self.deadline_s = deadline_s
        # Longer than a call's deadline, whose error says more: who waits, in which call, for whom.
        self.silence_s = 1.25 * deadline_s
        self.max_message_bytes = max_message_bytes
        self.schedules = [FaultSchedule(rank, faults) for rank in range(num_ranks)]
        self.over = threading.Event()  # set when the run has ended: wakes what sleeps, and stops what goes on
        self.vanished: dict[int, str] = {}  # by rank, the call in which a fault made it vanish
        self.on_vanish: Callable[[], None] = lambda: None
        self._departures: dict[int, Departure] = {}  # by rank, in the order of time
        self._seen_at = [time.monotonic()] * num_ranks
        self._waiting = [0] * num_ranks  # calls in which a rank waits at present
        self._lock = threading.Lock()
        self._meetings: weakref.WeakSet[Meeting] = weakref.WeakSet()
        self.root = Meeting(self, tuple(range(num_ranks)))

    def register(self, meeting: Meeting) -> None:
        """Have `meeting` told of departures."""
        with self._lock:
            self._meetings.add(meeting)

    def depart(self, rank: int, reason: str, error: BaseException | None = None) -> None:
        """Tell all ranks that wait for `rank`, now or later, that it will not come."""
        at_fault, cause = rank, ""
        if error is not None:
            failure = Failure.of(error)
            reason = f"{reason}: {failure.summary}"
            at_fault, cause = rank, failure.cause
            if isinstance(error, PeerError) and error.rank is not None:
                at_fault, cause = error.rank, error.cause
        with self._lock:
            self._departures.setdefault(rank, Departure(reason, at_fault, cause))
        self._wake_all()

    def vanish(self, rank: int, where: str) -> None:
        """Hold the thread of `rank` until the run has ended: nobody is told, as of a machine that lost its power."""
        with self._lock:
            self.vanished[rank] = where
        self.on_vanish()
        self.over.wait()

    def end(self) -> None:
        """End the run: whoever sleeps, waits, or calls later is told."""
        self.over.set()
        self._wake_all()

    def first_departed(self, ranks: Container[int]) -> tuple[int, Departure] | None:
        """Return which of `ranks` departed first and why; None if none did."""
        with self._lock:
            return next(((rank, why) for rank, why in self._departures.items() if rank in ranks), None)

    def enter(self, rank: int) -> None:
        """Note that `rank` waits in a call."""
        with self._lock:
            self._waiting[rank] += 1
            self._seen_at[rank] = time.monotonic()

    def leave(self, rank: int) -> None:
        """Note that `rank` goes on with its own work."""
        with self._lock:
            self._waiting[rank] -= 1
            self._seen_at[rank] = time.monotonic()

    def silent_until(self, rank: int) -> float | None:
        """Return when (monotonic seconds) `rank` will have been silent for too long; None while it waits in a call."""
        with self._lock:
            return None if self._waiting[rank] else self._seen_at[rank] + self.silence_s

    def _wake_all(self) -> None:
        with self._lock:
            meetings = list(self._meetings)
        for meeting in meetings:
            meeting.wake()


class Meeting:
    """One group of ranks that hand messages to each other, step by step.

    In each step every member brings a message for each member, and leaves with those for it. The last to arrive wakes
    the others, so that nobody polls.

    Args:
        world: the run.
        ranks: global numbers of the members.

    Example:
        >>> world = World(1, deadline_s=1.0, max_message_bytes=1 << 30, faults=())
        >>> absent = lambda members: PeerError(f"{members} are late")
        >>> world.root.hand_over(0, ["hello"], where="barrier (call 0)", until=time.monotonic() + 1, absent=absent)
        ['hello']
    """

    def __init__(self, world: World, ranks: tuple[int, ...]) -> None:
        self.world = world
        self.ranks = ranks
        self._condition = threading.Condition()
        self._next_step = [0] * len(ranks)
        self._steps: dict[int, dict[int, Sequence[Any]]] = {}  # of each unfinished step: messages by sender
        self._num_read: dict[int, int] = {}
        self._closed: set[int] = set()
        self._broken: PeerError | None = None
        self._children: dict[tuple[int, int], tuple[Meeting, set[int]]] = {}
        world.register(self)

    def hand_over(
        self,
        member: int,
        messages: Sequence[Any],
        *,
        where: str,
        until: float,
        absent: Callable[[list[int]], PeerError],
    ) -> list[Any]:
        """Bring one message for each member; return the messages for `member`, by sender.

        Args:
            member: group-local number.
            messages: one for each member. They are handed over as they are: the caller makes the copies.
            where: the call, for messages.
            until: deadline, in monotonic seconds.
            absent: makes the error for members that did not come in time.

        Raises:
            PeerError: some member departed or did not come in time; then every member's later step raises the same.
        """
        world, rank = self.world, self.ranks[member]
        world.enter(rank)
        try:
            with self._condition:
                if world.over.is_set():
                    raise PeerError(f"the run has ended; {where} cannot begin")
                step = self._next_step[member]
                self._next_step[member] += 1
                arrived = self._steps.setdefault(step, {})
                arrived[member] = messages
                if len(arrived) == len(self.ranks):
                    self._condition.notify_all()
                self._await_all(member, arrived, where, until, absent)
                received = [arrived[sender][member] for sender in range(len(self.ranks))]
                self._num_read[step] = self._num_read.get(step, 0) + 1
                if self._num_read[step] == len(self.ranks):
                    del self._steps[step], self._num_read[step]
                return received
        finally:
            world.leave(rank)

    def doze(self, member: int, seconds: float) -> None:
        """Keep `member` from its next step for so long, or until the others have given up on it."""
        until = time.monotonic() + seconds
        self.world.enter(self.ranks[member])
        with self._condition:
            while not self.world.over.is_set() and self._broken is None and time.monotonic() < until:
                self._condition.wait(until - time.monotonic())
        self.world.leave(self.ranks[member])

    def child(self, call: int, block: int, ranks: tuple[int, ...], member: int) -> Meeting:
        """Return the meeting of `block` of the partition made in `call`; the first member to come makes it."""
        with self._condition:
            if (call, block) not in self._children:
                self._children[call, block] = (Meeting(self.world, ranks), set())
            meeting, taken = self._children[call, block]
            taken.add(member)
            if len(taken) == len(ranks):
                del self._children[call, block]
            return meeting

    def close(self, member: int) -> None:
        """Tell the other members that `member` makes no more calls here."""
        with self._condition:
            self._closed.add(member)
            self._condition.notify_all()

    def wake(self) -> None:
        """Have those who wait look again at who has departed."""
        with self._condition:
            self._condition.notify_all()

    def _await_all(
        self,
        member: int,
        arrived: dict[int, Sequence[Any]],
        where: str,
        until: float,
        absent: Callable[[list[int]], PeerError],
    ) -> None:
        """Wait until the step is complete; the condition is held."""
        while len(arrived) < len(self.ranks):
            if member in self._closed:  # by another thread of the same rank, which does not want to wait any longer
                raise PeerError(f"this communicator was closed in {where}", rank=self.ranks[member])
            if self._broken is None:
                self._broken = self._find_departed(arrived, where)
            remaining = until - time.monotonic()
            if self._broken is None and remaining <= 0:
                self._broken = absent([member for member in range(len(self.ranks)) if member not in arrived])
            if self._broken is not None:
                self._condition.notify_all()
                raise PeerError(str(self._broken), rank=self._broken.rank, cause=self._broken.cause)
            self._condition.wait(remaining)

    def _find_departed(self, arrived: dict[int, Sequence[Any]], where: str) -> PeerError | None:
        missing = {rank: member for member, rank in enumerate(self.ranks) if member not in arrived}
        if self.world.over.is_set():
            return PeerError(f"the run has ended; {where} cannot complete")
        if departed := self.world.first_departed(missing):
            rank, departure = departed
            text = f"rank {rank} {departure.text}; it does not arrive in {where}"
            return PeerError(text, rank=departure.rank, cause=departure.cause)
        for rank, member in missing.items():
            if member in self._closed:
                return PeerError(f"rank {rank} has closed this communicator; it does not arrive in {where}", rank=rank)
        return None
