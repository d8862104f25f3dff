"""The end of a process that is stuck in a call which cannot be interrupted.

A collective of NCCL or HCCL that waits for a dead peer, and the start of JAX, give control back to nobody. To hang
until the job's time is up costs the whole cluster, so the process says what it knows and ends; the launcher then ends
the others.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import sys
import threading
from collections.abc import Callable, Iterator

from dcpack.errors import PeerError

__all__ = ["EXIT_STATUS", "end_process_after"]

EXIT_STATUS = 75
"""Exit status of a process that the watchdog ended (EX_TEMPFAIL: it may work another time)."""


@contextlib.contextmanager
def end_process_after(seconds: float, make_error: Callable[[], PeerError]) -> Iterator[None]:
    """End this process, non-zero, unless the body is done within `seconds`.

    Args:
        seconds: how long the body may take.
        make_error: called in another thread when time is up; the error is printed, with where every thread stands.

    Example:
        >>> with end_process_after(60.0, lambda: PeerError("rank 1 did not arrive")):
        ...     pass
    """
    timer = threading.Timer(seconds, _end_process, args=(make_error,))
    timer.name, timer.daemon = "dcpack-watchdog", True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _end_process(make_error: Callable[[], PeerError]) -> None:
    try:
        print(f"dcpack.errors.PeerError: {make_error()}\nThis process ends. Its threads:", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.stderr)
    finally:
        os._exit(EXIT_STATUS)  # no exception can reach a thread that is stuck inside a library
