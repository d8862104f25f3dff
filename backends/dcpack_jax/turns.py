"""Whose turn it is to run a collective on the devices, where several threads of a process want to.

JAX runs collectives of the same devices in the order in which they were started, so all members must start them in the
same order. Communicators of different threads do not have one. So a collective runs only when every member has granted
it its turn: each process runs one at a time, and where two ask, the one that asked longer goes first.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

__all__ = ["Runner", "Turns"]


class Turns:
    """The turns of this process.

    Example:
        >>> turns = Turns()
        >>> turns.ask("a", 0), turns.ask("b", 0), turns.ask("b", 1)
        (True, False, False)
        >>> turns.leave("a")
        >>> turns.ask("b", 2), turns.ask("c", 3)
        (True, False)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._asking: dict[str, int] = {}
        self._holder: str | None = None

    def ask(self, uid: str, attempt: int) -> bool:
        """Tell whether communicator `uid` may go now; it then holds the turn until `give_up` or `leave`.

        Args:
            uid: the communicator.
            attempt: how often it has asked for this turn before; who has asked more often goes first.
        """
        with self._lock:
            self._asking[uid] = attempt
            # Of equals the same one on all processes, whoever came first here.
            first = max(self._asking, key=lambda other: (self._asking[other], other))
            if self._holder is None and first == uid:
                self._holder = uid
            return self._holder == uid

    def give_up(self, uid: str) -> None:
        """Let others have the turn for now: some member did not grant it."""
        with self._lock:
            if self._holder == uid:
                self._holder = None

    def leave(self, uid: str) -> None:
        """Let others have the turn; `uid` is done, or failed."""
        self.give_up(uid)
        with self._lock:
            self._asking.pop(uid, None)


class Runner:
    """A thread that runs collectives, so that the caller of one can stop waiting for it.

    JAX gives control back when a collective on CPU devices is over, and not before; a peer that is gone may mean never.

    Example:
        >>> Runner().start(lambda: 1 + 1)(60.0)
        2
    """

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], queue.SimpleQueue[Any]]] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="dcpack-jax", daemon=True).start()

    def start(self, task: Callable[[], Any]) -> Callable[[float], Any]:
        """Start `task` behind what was started before; return a function that waits so many seconds for its result.

        That function raises `TimeoutError` when time is up, and what the task raised.
        """
        answer: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._tasks.put((task, answer))

        def wait(seconds: float) -> Any:
            try:
                result, error = answer.get(timeout=seconds)
            except queue.Empty:
                raise TimeoutError from None
            if error is not None:
                raise error
            return result

        return wait

    def _run(self) -> None:
        while True:
            task, answer = self._tasks.get()
            try:
                answer.put((task(), None))
            except BaseException as error:
                answer.put((None, error))
            del task, answer
