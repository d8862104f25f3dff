"""The communicator of the fake back end: ranks are threads of this process, and bytes are copied between them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack.comm.communicator import Communicator
from dcpack.comm.faults import Fault
from dcpack.comm.rendezvous import Meeting

__all__ = ["FakeCommunicator", "RankVanishedError"]

_Bytes = npt.NDArray[np.uint8]


class RankVanishedError(BaseException):
    """Ends the thread of a rank that a fault made vanish; not an `Exception`, so that no handler keeps it alive."""


class FakeCommunicator(Communicator):
    """One rank's view of a group of threads; made by `run_ranks` or `FakeBackend.world`, not by hand.

    A sender copies what it sends before it hands it over, so that it may change its arrays at once, and a receiver
    copies what it got, so that no two ranks ever share memory.

    Args:
        meeting: where the group meets.
        member: group-local number of this rank.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> run_ranks(2, lambda communicator: communicator)[1]
        FakeCommunicator(rank=1, size=2, ranks=(0, 1))
    """

    def __init__(self, meeting: Meeting, member: int) -> None:
        world = meeting.world
        super().__init__(member, meeting.ranks, deadline_s=world.deadline_s, max_message_bytes=world.max_message_bytes)
        self._meeting = meeting
        self._schedule = world.schedules[meeting.ranks[member]]
        self._flips: list[Fault] = []
        self._num_left = 0  # payload bytes that left this rank in the present call

    def _begin_call(self, verb: str) -> None:
        self._num_left = 0
        due = self._schedule.due(verb)
        self._flips = [fault for fault in due if fault.action == "flip_byte"]
        for fault in due:
            if fault.action == "flip_byte":
                continue
            self._schedule.fire(fault)
            if fault.action == "delay":
                self._meeting.doze(self.rank, fault.seconds)
            elif fault.action == "vanish":
                self._meeting.world.vanish(fault.rank, self._where())
                raise RankVanishedError
            else:
                raise RuntimeError(f"fault on rank {fault.rank} in {self._where()}")

    def _exchange_control(self, record: bytes) -> list[bytes]:
        return self._hand_over([record] * self.size)

    def _all_gather_bytes(self, payload: Any, sizes: list[int]) -> list[Any]:
        copy = payload.copy()
        received = self._hand_over(self._flipped([copy] * self.size))
        return [part.copy() for part in received]

    def _all_to_all_bytes(self, payload: Any, send_sizes: list[int], recv_sizes: list[int]) -> Any:
        copy = payload.copy()
        blocks = [copy[end - size : end] for end, size in zip(accumulate(send_sizes), send_sizes, strict=True)]
        return np.concatenate(self._hand_over(self._flipped(blocks)))

    def _broadcast_bytes(self, payload: Any | None, size: int, root: int) -> Any:
        if payload is None:
            return self._hand_over([None] * self.size)[root].copy()
        self._hand_over(self._flipped([payload.copy()] * self.size))
        return payload

    def _split(self, partition: tuple[tuple[int, ...], ...], block: int) -> Communicator:
        ranks = tuple(self.ranks[member] for member in partition[block])
        member = partition[block].index(self.rank)
        child = FakeCommunicator(self._meeting.child(self._call, block, ranks, member), member)
        child.max_message_bytes = self.max_message_bytes
        return child

    def _close(self) -> None:
        self._meeting.close(self.rank)

    def _hand_over(self, messages: Sequence[Any]) -> list[Any]:
        until = time.monotonic() + self._remaining_s()
        return self._meeting.hand_over(
            self.rank, messages, where=self._where(), until=until, absent=self._missing_error
        )

    def _flipped(self, messages: list[_Bytes]) -> list[_Bytes]:
        """Return `messages` with the byte inverted that a fault asks for, if it leaves this rank now."""
        leaving = [0 if member == self.rank else len(message) for member, message in enumerate(messages)]
        for fault in self._flips:
            position = fault.offset - self._num_left
            for member, length in enumerate(leaving):
                if 0 <= position < length:
                    messages[member] = messages[member].copy()
                    messages[member][position] ^= 0xFF
                    self._schedule.fire(fault)
                position -= length
        self._num_left += sum(leaving)
        return messages
