"""What went wrong on a rank, in a form that travels, and the PeerError that all ranks make of it.

A failure travels as JSON text: an exception object would need pickle, and its classes may not exist elsewhere.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from dcpack._checks import list_offenders
from dcpack.errors import PeerError

__all__ = ["Failure", "agreed_error", "name_ranks"]

# Of a long traceback the end is kept, where the error is; texts this size pass through any control channel.
_MAX_SUMMARY = 2_000
_MAX_TRACEBACK = 12_000
_PEER_ERROR = f"{PeerError.__module__}.{PeerError.__name__}: "  # as a traceback ends


def name_ranks(ranks: tuple[int, ...] | list[int]) -> str:
    """Return "rank 3" or "ranks 0, 1 and 4 more" for a message.

    Example:
        >>> name_ranks([3]), name_ranks((0, 2))
        ('rank 3', 'ranks 0, 2')
    """
    return ("rank " if len(ranks) == 1 else "ranks ") + list_offenders([str(rank) for rank in ranks])


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text.

    Attributes:
        cause: name of the exception type, for example ``"KeyError"``.
        summary: type and text, as a traceback ends.
        trace: the traceback.
        rank: global rank where the first cause lies, where that is known to be elsewhere: the failure is a `PeerError`
            of another group, and is passed on here.

    Example:
        >>> failure = Failure.of(KeyError("x"))
        >>> failure.cause, failure.summary
        ('KeyError', "KeyError: 'x'")
        >>> Failure.decode(failure.encode()) == failure
        True
    """

    cause: str
    summary: str
    trace: str
    rank: int | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Describe `error`; works for exceptions whose own text cannot be made, too."""
        cause, rank = type(error).__name__, None
        summary = "".join(traceback.format_exception_only(error)).strip()
        if isinstance(error, PeerError):
            summary = summary.partition("\n")[0]  # the rest is another rank's traceback, which `trace` holds
            cause, rank = error.cause or cause, error.rank
        trace = "".join(traceback.format_exception(error))
        return cls(cause=cause, summary=summary[:_MAX_SUMMARY], trace=trace[-_MAX_TRACEBACK:], rank=rank)

    def encode(self) -> bytes:
        """Return the failure as JSON (ASCII, so that any text survives)."""
        return json.dumps(asdict(self)).encode("ascii")

    @classmethod
    def decode(cls, data: bytes) -> Failure:
        """Return the failure that `encode` made into `data`."""
        return cls(**json.loads(data))


def agreed_error(failures: Mapping[int, Failure], where: str) -> PeerError:
    """Return the one error for the failures of a group: the lowest global rank is the first cause.

    An error of another group that a rank passes on keeps its cause and the rank where that lies.

    Args:
        failures: by global rank, at least one.
        where: the call, for example ``"all_gather (call 3)"``.

    Example:
        >>> error = agreed_error({2: Failure.of(KeyError("x")), 1: Failure.of(ValueError("y"))}, "agree (call 0)")
        >>> print(str(error).splitlines()[0])
        rank 1 failed in agree (call 0): ValueError: y
        >>> print(str(error).splitlines()[1])
        rank 2 failed too: KeyError: 'x'
        >>> passed_on = agreed_error({0: Failure.of(error)}, "agree (call 5)")
        >>> print(str(passed_on).splitlines()[0])
        rank 1 failed in agree (call 0): ValueError: y (told by rank 0 in agree (call 5))
        >>> passed_on.rank, passed_on.cause
        (1, 'ValueError')
    """
    first, *others = sorted(failures)
    source = failures[first].rank
    told = f"{failures[first].summary.removeprefix(_PEER_ERROR)} (told by rank {first} in {where})"
    lines = [f"rank {first} failed in {where}: {failures[first].summary}" if source is None else told]
    lines += [f"rank {rank} failed too: {failures[rank].summary}" for rank in others[:8]]
    if len(others) > 8:
        lines.append(f"{len(others) - 8} more ranks failed too")
    lines.append(f"Traceback of rank {first}:\n{failures[first].trace.rstrip()}")
    return PeerError("\n".join(lines), rank=first if source is None else source, cause=failures[first].cause)
