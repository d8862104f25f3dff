"""What a communicator has done so far, in numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """A snapshot of one communicator's work; its children count for themselves.

    Over the ranks of a group, all bytes sent are all bytes received. Control messages, padding that a back end adds,
    and what a rank sends to itself do not count.

    Attributes:
        calls: by verb, the calls begun.
        sent: by verb, payload bytes that left this rank; an all-gather or a broadcast counts once for each receiver.
        bytes_received: payload bytes that came from other ranks.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> def fn(communicator):
        ...     communicator.broadcast([1.0, 2.0] if communicator.rank == 0 else None, root=0)
        ...     return communicator.counters
        >>> [(counters.bytes_sent, counters.bytes_received) for counters in run_ranks(3, fn)]
        [(32, 0), (0, 16), (0, 16)]
    """

    calls: Mapping[str, int]
    sent: Mapping[str, int]
    bytes_received: int

    @property
    def bytes_sent(self) -> int:
        """Payload bytes that left this rank, over all verbs."""
        return sum(self.sent.values())
