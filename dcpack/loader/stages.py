"""What each stage of a step took, and the end of a loader between two of them."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from dcpack.errors import DcpackError

__all__ = ["STAGES", "LoaderClosedError", "Span", "Stages"]

STAGES = ("read", "plan", "exchange", "pack")
"""What it takes to make a step, in order; each includes the calls to other ranks that belong to it."""


class LoaderClosedError(DcpackError):
    """A step is not made to its end, because its loader was closed.

    Example:
        >>> issubclass(LoaderClosedError, DcpackError)
        True
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Span:
    """A stretch of time on this rank, in seconds of `time.perf_counter`.

    Attributes:
        name: what was done.
        start: when it began.
        end: when it was done.

    Example:
        >>> Span(name="read", start=1.5, end=1.75).seconds
        0.25
    """

    name: str
    start: float
    end: float

    @property
    def seconds(self) -> float:
        """How long it took."""
        return self.end - self.start


class Stages:
    """Times the stages of steps; one thread works, another may stop it.

    Example:
        >>> stages = Stages()
        >>> with stages.stage("read"):
        ...     pass
        >>> [span.name for span in stages.take()], stages.take()
        (['read'], ())
    """

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the body."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spans.append(Span(name=name, start=start, end=time.perf_counter()))

    def take(self) -> tuple[Span, ...]:
        """Return what was timed since the last time."""
        spans, self._spans = tuple(self._spans), []
        return spans

    def stop(self) -> None:
        """Have every `check` from now on raise."""
        self._stopped.set()

    def check(self) -> None:
        """Go on, or raise if it was stopped: called where an error reaches all ranks.

        Raises:
            LoaderClosedError: it was stopped.
        """
        if self._stopped.is_set():
            raise LoaderClosedError("the loader was closed on this rank")
