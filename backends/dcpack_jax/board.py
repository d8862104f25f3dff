"""The messages of one group on the coordination service, and what it concludes when a member does not come.

An exchange ends for all members alike: one key says how, and it is written once. Either the last member to bring its
message writes that all are there, or a member whose time is up writes who is missing; whoever comes later reads that,
too. So a failure is one error on all ranks, and never a success on some. A member on which a collective of the devices
failed brings that instead of its next message, and all conclude the same.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable
from typing import Any

from dcpack.errors import PeerError

__all__ = ["Board"]

# A wait is cut into pieces of this length, so that Ctrl-C is heard.
_SLICE_S = 0.5
_GOOD, _FAILED = b"+", b"!"


class Board:
    """One member's view of the messages of a group.

    Args:
        client: the coordination service.
        uid: name of the group, the same on all members and used once.
        member: group-local number of this process.
        size: number of members.
    """

    def __init__(self, client: Any, uid: str, member: int, size: int) -> None:
        self._client = client
        self._uid = uid
        self._member = member
        self._size = size
        self._count = 0

    def exchange(self, message: bytes, until: float, make_error: Callable[[list[int]], PeerError]) -> list[bytes]:
        """Return every member's message; all members call this the same number of times.

        Args:
            message: of any length; the service is slow beyond some MiB.
            until: the deadline, by ``time.monotonic()``.
            make_error: makes the error from the group-local numbers that did not come.

        Raises:
            PeerError: some did not come, or brought a failure; the same on all members that come, now or later.
        """
        messages = self._exchange(_GOOD + message, until, make_error)
        if failures := [text[1:].decode() for text in messages if text[:1] == _FAILED]:
            raise PeerError(failures[0])
        return [text[1:] for text in messages]

    def report(self, failure: str, until: float, make_error: Callable[[list[int]], PeerError]) -> PeerError:
        """Bring a failure to the next exchange; return the error that all raise there.

        Args:
            failure: what went wrong here.
            until: how long the others may take.
            make_error: makes the error from the group-local numbers that did not come.
        """
        try:
            messages = self._exchange(_FAILED + failure.encode(), until, make_error)
        except PeerError as error:
            return error
        return PeerError(next(text[1:].decode() for text in messages if text[:1] == _FAILED))

    def _exchange(self, message: bytes, until: float, make_error: Callable[[list[int]], PeerError]) -> list[bytes]:
        here = f"{self._uid}/{self._count}"
        self._count += 1
        try:
            self._client.key_value_set_bytes(f"{here}/from/{self._member:08d}", message)
            is_last = self._client.key_value_increment(f"{here}/count", 1) == self._size
            if is_last:
                self._settle(here, b"")
            outcome = self._wait(f"{here}/outcome", until)
            if outcome is None:
                self._settle(here, self._verdict(here, make_error))
                outcome = self._client.blocking_key_value_get_bytes(f"{here}/outcome", 1000)
            if outcome:
                text, rank = json.loads(outcome)
                raise PeerError(text, rank=rank)
            found = sorted(self._client.key_value_dir_get_bytes(f"{here}/from/"))
            if is_last and self._count > 1:
                # Whoever is here has read all of the exchange before.
                self._client.key_value_delete(f"{self._uid}/{self._count - 2}/")
        except RuntimeError as error:  # what the service raises when it is gone
            if isinstance(error, PeerError):
                raise
            raise PeerError(
                f"the coordination service of JAX, which lives in process 0, cannot be reached: {_head(error)}",
                cause=type(error).__name__,
            ) from error
        return [data for _, data in found]

    def close(self) -> None:
        """Say that this member is done; the last one to say so removes what is left of the group's messages."""
        with contextlib.suppress(RuntimeError):
            if self._client.key_value_increment(f"{self._uid}/closed", 1) == self._size:
                self._client.key_value_delete(f"{self._uid}/")

    def _wait(self, key: str, until: float) -> bytes | None:
        """Return the value of `key`, None if there is none by the deadline."""
        while True:
            left = until - time.monotonic()
            slice_ms = int(1000 * min(_SLICE_S, left)) + 1 if left > 0 else 1
            try:
                return self._client.blocking_key_value_get_bytes(key, slice_ms)
            except RuntimeError as error:
                if not str(error).startswith("DEADLINE_EXCEEDED"):
                    raise
            if left <= 0:
                return None

    def _verdict(self, here: str, make_error: Callable[[list[int]], PeerError]) -> bytes:
        """Return how an exchange ends whose time is up: well, if the last has come since."""
        missing = self._missing(here)
        if not missing:
            return b""
        error = make_error(missing)
        return json.dumps([str(error), error.rank]).encode("ascii")

    def _missing(self, here: str) -> list[int]:
        present = {int(key.rpartition("/")[2]) for key, _ in self._client.key_value_dir_get_bytes(f"{here}/from/")}
        return [member for member in range(self._size) if member not in present]

    def _settle(self, here: str, outcome: bytes) -> None:
        """Write how the exchange ends, unless that is written already."""
        try:
            self._client.key_value_set_bytes(f"{here}/outcome", outcome)
        except RuntimeError as error:
            if not str(error).startswith("ALREADY_EXISTS"):
                raise


def _head(error: BaseException) -> str:
    return str(error).partition("\n")[0]
