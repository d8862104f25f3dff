"""Running a function on N ranks that are threads of this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dcpack._checks import check_int, check_kinds, list_offenders
from dcpack.comm.communicator import Communicator
from dcpack.comm.failures import Failure, name_ranks
from dcpack.comm.fake_communicator import FakeCommunicator, RankVanishedError
from dcpack.comm.faults import Fault
from dcpack.comm.membership import DEFAULT_DEADLINE_S, DEFAULT_MAX_MESSAGE_BYTES, check_deadline
from dcpack.comm.rendezvous import World
from dcpack.errors import ArgumentError, PeerError

__all__ = ["current_communicator", "make_world", "run_ranks"]

_Result = TypeVar("_Result")
_here = threading.local()
_MAX_SLEEP_S = 0.5
# Threads that have been told to end get this long to do so before they are left to the end of the process. Those whose
# rank is done have nothing of the caller's left to do, and are waited for.
_JOIN_S = 2.0


def current_communicator() -> Communicator | None:
    """Return the world communicator of the rank that this thread is, None outside `run_ranks`.

    Example:
        >>> current_communicator() is None
        True
    """
    return getattr(_here, "communicator", None)


MAX_FAKE_RANKS = 2**12
"""Most ranks of a run: each is a thread."""


def make_world(num_ranks: Any, deadline_s: Any, max_message_bytes: Any, faults: Sequence[Fault]) -> World:
    """Check the options that `run_ranks` and `FakeBackend` share and return a world of them.

    Example:
        >>> make_world(2, 1.0, 100, [Fault(rank=2, call=0, action="vanish")])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: faults name ranks that do not exist: rank 2 of 2
    """
    num_ranks = check_int("num_ranks", num_ranks, minimum=1, maximum=MAX_FAKE_RANKS)
    max_message_bytes = check_int("max_message_bytes", max_message_bytes, minimum=1, maximum=2**62)
    check_kinds(faults=(faults, list | tuple))
    if strangers := [f"{fault!r}" for fault in faults if not isinstance(fault, Fault)]:
        raise ArgumentError(f"faults must be Fault objects, got {list_offenders(strangers)}")
    if outside := sorted({fault.rank for fault in faults if fault.rank >= num_ranks}):
        raise ArgumentError(f"faults name ranks that do not exist: {name_ranks(outside)} of {num_ranks}")
    deadline_s = check_deadline(deadline_s)
    return World(num_ranks, deadline_s=deadline_s, max_message_bytes=max_message_bytes, faults=tuple(faults))


def run_ranks(
    num_ranks: int,
    fn: Callable[[Communicator], _Result],
    *,
    deadline_s: float = DEFAULT_DEADLINE_S,
    max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    faults: Sequence[Fault] = (),
) -> list[_Result]:
    """Run `fn(communicator)` on `num_ranks` ranks at the same time and return the results, by rank.

    Each rank is a thread. A rank that raises or returns ends the calls in which others wait for it, at once.

    Args:
        num_ranks: how many, from 1 to 4,096.
        fn: what each rank does; `communicator.rank` tells which one it is.
        deadline_s: seconds that a call may wait for the others. A rank that makes no call for a quarter longer, and
            does not return, counts as hanging.
        max_message_bytes: larger messages are sent in rounds.
        faults: faults to make on purpose. Each must come true.

    Returns:
        What `fn` returned on each rank.

    Raises:
        PeerError: some rank failed; its exception is the `__cause__`. Or some rank hangs or vanished.
        ArgumentError: an option is wrong, or a fault did not come true.

    Example:
        >>> run_ranks(3, lambda communicator: communicator.broadcast([communicator.rank], root=2).tolist())
        [[2], [2], [2]]
    """
    check_kinds(fn=(fn, Callable))
    return _Run(make_world(num_ranks, deadline_s, max_message_bytes, faults)).run(fn)


class _Run:
    """The threads of one run and what became of them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.results: dict[int, Any] = {}
        self.errors: dict[int, BaseException] = {}  # in the order of time
        self.hung: list[int] = []
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        world.on_vanish = self._wake

    def run(self, fn: Callable[[Communicator], Any]) -> list[Any]:
        """Start the ranks, wait for them, and raise the first cause if some failed."""
        try:
            for rank in range(self.world.num_ranks):
                thread = threading.Thread(target=self._be, args=(rank, fn), name=f"dcpack-rank-{rank}", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._wait()
        finally:
            # Also after Ctrl-C: whoever waits in a call, sleeps, or calls later is told that the run has ended.
            self.world.end()
            self._join()
        failure = self._first_cause()
        unfired = [str(fault) for schedule in self.world.schedules for fault in schedule.unfired()]
        if unfired:
            also = "" if failure is None else f"; the run failed, too: {failure}"
            raise ArgumentError(f"faults that did not come true: {list_offenders(unfired)}{also}") from failure
        if failure is not None:
            raise failure
        return [self.results[rank] for rank in range(self.world.num_ranks)]

    def _be(self, rank: int, fn: Callable[[Communicator], Any]) -> None:
        """Be one rank: the body of its thread."""
        communicator = _here.communicator = FakeCommunicator(self.world.root, rank)
        error: BaseException | None = None
        result: Any = None
        try:
            result = fn(communicator)
        except RankVanishedError:
            return
        except BaseException as caught:
            error = caught
        with self._changed:
            if self.world.over.is_set() or rank in self.hung:
                return  # nobody waits for this rank any more
            if error is None:
                self.results[rank] = result
            else:
                self.errors[rank] = error
            # Before the others are told: what they then raise comes after the first cause.
        self.world.depart(rank, "has finished" if error is None else "failed", error)
        self._wake()

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def _wait(self) -> None:
        """Wait until every rank has returned, raised, vanished, or been silent for too long."""
        with self._changed:
            while running := self._running():
                now = time.monotonic()
                limits = {rank: self.world.silent_until(rank) for rank in running}
                late = [rank for rank, limit in limits.items() if limit is not None and limit <= now]
                for rank in late:
                    self.hung.append(rank)
                    self.world.depart(rank, f"has made no call for {self.world.silence_s:g} s")
                if not late:
                    # A rank that waits in a call comes back by its own deadline.
                    wake_at = min(now + self.world.silence_s if limit is None else limit for limit in limits.values())
                    # Never for long at a time: a Ctrl-C that comes just before the sleep does not end it.
                    self._changed.wait(min(wake_at - now, _MAX_SLEEP_S))

    def _running(self) -> list[int]:
        gone = {*self.results, *self.errors, *self.hung, *self.world.vanished}
        return [rank for rank in range(self.world.num_ranks) if rank not in gone]

    def _join(self) -> None:
        until = time.monotonic() + _JOIN_S
        for rank, thread in enumerate(self._threads):
            if rank in self.results or rank in self.errors:
                thread.join()
            elif rank not in self.hung and thread.is_alive():
                thread.join(max(0.0, until - time.monotonic()))

    def _first_cause(self) -> PeerError | None:
        """Return the error of the run: the first that a rank raised of its own, else what ranks heard of each other."""
        own = {rank: error for rank, error in self.errors.items() if not isinstance(error, PeerError)}
        if own:
            rank, error = next(iter(own.items()))
            failure = Failure.of(error)
            others = sorted(set(own) - {rank})
            too = f"\n{name_ranks(others)} failed too" if others else ""
            text = f"rank {rank} failed: {failure.summary}{too}\nTraceback of rank {rank}:\n{failure.trace.rstrip()}"
            return _chained(PeerError(text, rank=rank, cause=failure.cause), error)
        errors = [error for error in self.errors.values() if isinstance(error, PeerError)]
        if errors:
            # All ranks raise one agreed error; on the failing rank it is chained to the original.
            equal = [error for error in errors if str(error) == str(errors[0])]
            return next((error for error in equal if error.__cause__ is not None), equal[0])
        if self.hung:
            text = f"{name_ranks(self.hung)} made no call and did not return for {self.world.silence_s:g} s"
            return PeerError(text, rank=self.hung[0])
        if self.world.vanished:
            rank, where = next(iter(self.world.vanished.items()))
            return PeerError(f"rank {rank} vanished in {where}", rank=rank)
        return None


def _chained(error: PeerError, cause: BaseException) -> PeerError:
    error.__cause__ = cause
    return error
