"""Copies to the device ahead of the training: of the next micro-batches of a rank that builds them itself."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dcpack.comm import Backend
from dcpack.loader.batches import LoaderBatch, Step

__all__ = ["DeviceQueue"]

_Copy = Callable[[], Any]


class DeviceQueue:
    """Puts batches on the device: some when they are asked for, some before.

    Two threads may begin copies: the one that trains, of what waits, and the one that made the next step, of its first
    batches. What is on the device ahead of the batch that is handed out is never more than `depth`.

    Args:
        backend: whose `begin_copy` and `to_device` copy.
        device: where to; None leaves batches where they are.
        depth: most batches on the device ahead of the one that is handed out; 0: each when it is asked for. On the CPU
            it is 0.
    """

    def __init__(self, backend: Backend, device: Any, depth: int) -> None:
        self._backend = backend
        self._device = device
        self._depth = 0 if device is None or str(device).partition(":")[0] == "cpu" else depth
        self._lock = threading.Lock()
        self._copies: deque[_Copy] = deque()  # of the first batches that wait
        self._next: list[_Copy] = []  # of the first batches of the next step
        self._room = 0  # for copies of the next step
        self._present: Sequence[LoaderBatch] = ()
        self._is_closed = False

    def begin_step(self, batches: Sequence[LoaderBatch]) -> None:
        """Go on with the copies of a step that is now the present one."""
        with self._lock:
            self._present = batches
            self._copies, self._next = deque(self._next), []

    def take(self, batch: LoaderBatch, *, is_own: bool) -> LoaderBatch:
        """Return `batch` on the device.

        Args:
            batch: the next one.
            is_own: whether it comes from this rank, so that it may have been copied ahead.
        """
        if self._device is None:
            return batch
        if is_own and self._copies:
            return batch.with_data(self._copies.popleft()())
        return batch.with_data(self._backend.to_device(batch.data, self._device))

    def stage(self, waiting: Sequence[LoaderBatch]) -> bool:
        """Begin copies of the first batches that wait, and return whether there may be some of the next step, too.

        Args:
            waiting: the rest of the present step.
        """
        for number in range(len(self._copies), min(self._depth, len(waiting))):
            self._copies.append(self._begin(waiting[number]))
        self._room = max(0, self._depth - len(waiting))  # without the lock: the other thread may be copying under it
        return self._room > 0

    def stage_next(self, batches: Sequence[LoaderBatch]) -> None:
        """Begin copies of the first batches of the step behind the present one, as many as `stage` said; any thread.

        Args:
            batches: all of that step. Those of the present step are left alone: it came to be while this call did.
        """
        self._stage_next(batches, self._begin)

    def stage_made(self, step: Step) -> None:
        """Do as `stage_next` in the thread that made the step; the thread that trains gets an error with its batch."""
        self._stage_next(step.batches, self._begin_or_keep)

    def _stage_next(self, batches: Sequence[LoaderBatch], begin: Callable[[LoaderBatch], _Copy]) -> None:
        with self._lock:
            if batches is not self._present and not self._is_closed:
                self._next += [begin(batch) for batch in batches[len(self._next) : self._room]]

    def clear(self) -> None:
        """Forget the copies of batches that will not be taken."""
        with self._lock:
            self._copies.clear()
            self._next.clear()

    def close(self) -> None:
        """Do so, and begin none any more: the thread that makes steps may come to them later."""
        with self._lock:
            self._is_closed = True
        self.clear()

    def _begin(self, batch: LoaderBatch) -> _Copy:
        return self._backend.begin_copy(batch.data, self._device)

    def _begin_or_keep(self, batch: LoaderBatch) -> _Copy:
        try:
            return self._begin(batch)
        except BaseException as error:
            return _raises(error)


def _raises(error: BaseException) -> _Copy:
    def copy() -> Any:
        raise error

    return copy
