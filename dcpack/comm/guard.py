"""Contexts whose failure is one of all ranks: `Communicator.guard`, and `tell_failure`, which costs no call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING

from dcpack.errors import PeerError

if TYPE_CHECKING:
    from dcpack.comm.communicator import Communicator

__all__ = ["Guard", "as_failure", "tell_failure"]


class Guard(contextlib.AbstractContextManager[None]):
    """See `Communicator.guard`; a class, so that a forgotten context never calls a verb when it is collected."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, Exception):
            self._communicator.agree(error)
        else:
            with contextlib.suppress(PeerError):
                self._communicator.agree(error)


def as_failure(error: Exception) -> Exception:
    """Return what to tell of an error: itself, but for a StopIteration, which would look like an end on its way up.

    Example:
        >>> as_failure(KeyError("x")), as_failure(StopIteration())
        (KeyError('x'), RuntimeError('StopIteration was raised by what cannot end here'))
    """
    if not isinstance(error, StopIteration):
        return error
    failure = RuntimeError("StopIteration was raised by what cannot end here")
    failure.__cause__ = error
    return failure


@contextlib.contextmanager
def tell_failure(communicator: Communicator, *, peer_errors: bool = False) -> Iterator[None]:
    """Raise what the body raises on all ranks, which are or will be in their next call of `communicator`.

    Without a failure it costs no call, unlike `Communicator.guard`. Ctrl-C and exits are told as there, and then go on
    their way: the others hear of it in their next call, for which this rank waits until the deadline at most. A second
    Ctrl-C ends the wait.

    Args:
        communicator: whose ranks are told.
        peer_errors: tell of a `PeerError` too, as it is one of another group; else all ranks know of it.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> def fn(communicator):
        ...     with tell_failure(communicator):
        ...         1 // communicator.rank
        ...     communicator.barrier()
        >>> try:
        ...     run_ranks(2, fn)
        ... except PeerError as error:
        ...     print(error.rank, error.cause)
        0 ZeroDivisionError
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, PeerError) and not peer_errors:
            raise
        communicator.agree(as_failure(error))
        raise  # not reached: agree raises where it is given an error
    except BaseException as error:
        with contextlib.suppress(PeerError):
            communicator.agree(error)
        raise
