"""The end of a loader that cannot go on: what went wrong first, and who is told of it."""

from __future__ import annotations

import contextlib

from dcpack.errors import ArgumentError, PeerError
from dcpack.loader.ahead import StepsAhead
from dcpack.loader.deliver import Delivery

__all__ = ["Ending"]


class Ending:
    """Whether a loader can be used, and if not, why.

    Args:
        delivery: to the ranks that get the same batches.
        ahead: of the steps that this rank builds with others; None on ranks that only receive.
    """

    def __init__(self, delivery: Delivery, ahead: StepsAhead | None) -> None:
        self._delivery = delivery
        self._ahead = ahead
        self._failure: BaseException | None = None
        self._peers_know = False
        self.is_closed = False

    def require_usable(self) -> None:
        """Go on, or raise if it was closed or has failed.

        Raises:
            ArgumentError: says which.
        """
        if self.is_closed:
            raise ArgumentError("this loader is closed")
        if self._failure is not None:
            raise ArgumentError(f"this loader has failed: {type(self._failure).__name__}: {self._failure}")

    def fail(self, error: BaseException) -> None:
        """Be of no more use from the first error on; all other ranks are told, those that build by those that do."""
        if self._failure is not None or self.is_closed:
            return
        self._failure = error
        self.tell_peers(error)
        if self._ahead is not None:
            self._ahead.tell(error)

    def tell_peers(self, error: BaseException) -> None:
        """Tell the ranks that get the same batches; they raise in their next call, and so will this one."""
        if self._peers_know or self.is_closed:
            return
        self._peers_know = True
        with contextlib.suppress(PeerError):
            self._delivery.tell(error)

    def peers_know(self) -> None:
        """Note that the error came from them."""
        self._peers_know = True

    def close(self) -> None:
        """Have nobody told of anything from now on."""
        self.is_closed = True
        self._failure = self._ahead = None
