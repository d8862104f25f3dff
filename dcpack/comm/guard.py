"""The context of `Communicator.guard`."""

from __future__ import annotations

import contextlib
from types import TracebackType
from typing import TYPE_CHECKING

from dcpack.errors import PeerError

if TYPE_CHECKING:
    from dcpack.comm.communicator import Communicator

__all__ = ["Guard"]


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
