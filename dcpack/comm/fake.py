"""The fake back end: N ranks in one process, really concurrent, without any device.

It moves real bytes between threads, and it is the specification of all other back ends: they pass the same checks (see
`dcpack.testing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from dcpack.comm.backend import Backend
from dcpack.comm.communicator import Communicator
from dcpack.comm.fake_communicator import FakeCommunicator
from dcpack.comm.faults import Fault
from dcpack.comm.launch import current_communicator, make_world, run_ranks
from dcpack.comm.membership import DEFAULT_DEADLINE_S, DEFAULT_MAX_MESSAGE_BYTES
from dcpack.errors import ArgumentError

__all__ = ["FakeBackend"]

_Result = TypeVar("_Result")


class FakeBackend(Backend):
    """Ranks that are threads of this process.

    Args:
        num_ranks: how many ranks `run` starts.
        deadline_s: seconds that a call may wait for the others.
        max_message_bytes: larger messages are sent in rounds.
        faults: faults to make on purpose, see `Fault`.

    Example:
        >>> backend = FakeBackend(num_ranks=2)
        >>> backend.run(lambda communicator: backend.world() is communicator)
        [True, True]
    """

    name = "fake"
    allows_threads = True

    def __init__(
        self,
        num_ranks: int = 1,
        deadline_s: float = DEFAULT_DEADLINE_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        faults: Sequence[Fault] = (),
    ) -> None:
        make_world(num_ranks, deadline_s, max_message_bytes, faults)  # checks the options
        self.num_ranks = int(num_ranks)
        self.deadline_s = deadline_s
        self.max_message_bytes = max_message_bytes
        self.faults = tuple(faults)

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """Return that it can be used: it needs nothing."""
        return True, "threads of this process"

    def world(self) -> Communicator:
        """Return the communicator of the rank that this thread is; outside of `run_ranks`, a world of one rank.

        Raises:
            ArgumentError: outside of `run_ranks` with more ranks than one, or with faults, which nobody would check; or
                inside a run with another number of ranks.
        """
        communicator = current_communicator()
        if communicator is not None:
            if self.num_ranks not in (1, communicator.size):
                raise ArgumentError(f"num_ranks is {self.num_ranks}, but this run has {communicator.size} ranks")
            return communicator
        if self.num_ranks > 1 or self.faults:
            what = "faults" if self.num_ranks == 1 else f"{self.num_ranks} ranks"
            raise ArgumentError(f"a fake world with {what} exists only inside run_ranks(num_ranks, fn)")
        world = make_world(1, self.deadline_s, self.max_message_bytes, ())
        return FakeCommunicator(world.root, 0)

    def copies_in_threads(self, device: Any) -> bool:
        """Return True: there is nothing to copy."""
        del device
        return True

    def run(self, fn: Callable[[Communicator], _Result]) -> list[_Result]:
        """Run `fn(communicator)` on all ranks with the options of this back end; see `run_ranks`."""
        return run_ranks(
            self.num_ranks,
            fn,
            deadline_s=self.deadline_s,
            max_message_bytes=self.max_message_bytes,
            faults=self.faults,
        )
