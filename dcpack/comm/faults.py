"""Faults that the fake back end makes on purpose, so that tests can see what others do about them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from dcpack._checks import as_real, check_choice, check_int
from dcpack.comm.control import VERBS
from dcpack.comm.membership import MAX_DEADLINE_S
from dcpack.errors import ArgumentError

__all__ = ["Fault", "FaultSchedule"]

_ACTIONS = ("delay", "raise", "vanish", "flip_byte")


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault on one rank in one call.

    Attributes:
        rank: global number of the rank that misbehaves.
        call: which of its calls, from 0: of `verb`, or of all verbs; the world communicator and its children count
            together.
        action: ``"delay"``: sleep before the call; ``"raise"``: raise RuntimeError in the call, which all agree upon;
            ``"vanish"``: take part in nothing more, without a word, so that only deadlines tell the others;
            ``"flip_byte"``: invert one byte of the payload on its way to one other rank.
        verb: the verb to count, None for all.
        seconds: how long ``"delay"`` sleeps.
        offset: which byte ``"flip_byte"`` inverts, counted over the bytes that leave the rank in that call, in the
            order of the receivers (a gathered array leaves once for each of them).

    Example:
        >>> from dcpack.comm import run_ranks
        >>> fn = lambda communicator: communicator.all_gather([1, 1])[0].tolist()
        >>> run_ranks(3, fn, faults=[Fault(rank=0, call=0, action="flip_byte", offset=16)])
        [[1, 1], [1, 1], [254, 1]]
    """

    rank: int
    call: int
    action: str
    verb: str | None = None
    seconds: float = 0.0
    offset: int = 0

    def __post_init__(self) -> None:
        check_int("fault rank", self.rank, minimum=0)
        check_int("fault call", self.call, minimum=0)
        check_choice("fault action", self.action, _ACTIONS)
        check_int("fault offset", self.offset, minimum=0)
        if self.verb is not None:
            check_choice("fault verb", self.verb, VERBS)
        object.__setattr__(self, "seconds", as_real("seconds", self.seconds, maximum=MAX_DEADLINE_S))
        if (self.action == "delay") != (self.seconds > 0):
            raise ArgumentError(f"seconds must be above 0 for a delay and 0 otherwise, got {self.seconds} in {self}")
        if self.action != "flip_byte" and self.offset:
            raise ArgumentError(f"offset is for flip_byte only, got {self.offset} in {self}")


@dataclass(slots=True)
class FaultSchedule:
    """Counts the calls of one rank, over all its communicators, and says which faults are due.

    Example:
        >>> schedule = FaultSchedule(0, [Fault(rank=0, call=1, action="raise", verb="barrier")])
        >>> schedule.due("barrier"), schedule.due("agree"), len(schedule.due("barrier"))
        ([], [], 1)
    """

    rank: int
    faults: Sequence[Fault]
    _num_calls: dict[str | None, int] = field(default_factory=lambda: dict.fromkeys((None, *VERBS), 0))
    _fired: list[Fault] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)  # a rank may call from two threads, with dup()

    def __post_init__(self) -> None:
        self.faults = [fault for fault in self.faults if fault.rank == self.rank]

    def due(self, verb: str) -> list[Fault]:
        """Count one call of `verb` and return the faults that belong to it."""
        with self._lock:
            found = [
                fault
                for fault in self.faults
                if fault.verb in (None, verb) and fault.call == self._num_calls[fault.verb]
            ]
            self._num_calls[None] += 1
            self._num_calls[verb] += 1
        return found

    def fire(self, fault: Fault) -> None:
        """Note that `fault` has happened."""
        with self._lock:
            self._fired.append(fault)

    def unfired(self) -> list[Fault]:
        """Return the faults that have not happened."""
        with self._lock:
            return [fault for fault in self.faults if fault not in self._fired]
