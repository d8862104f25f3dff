"""Copies to the device ahead of the training: the next micro-batches of a rank that builds them itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from dcpack.comm import Backend
from dcpack.loader.batches import LoaderBatch

__all__ = ["DeviceQueue"]


class DeviceQueue:
    """Puts batches on the device: some when they are asked for, some before.

    Copies are begun on the caller's thread and run beside the kernels that are queued already, as far as the back end's
    `to_device` does not wait.

    Args:
        backend: whose `to_device` copies.
        device: where to; None leaves batches where they are.
        depth: most batches on the device ahead of the one that is handed out; 0: each when it is asked for.
    """

    def __init__(self, backend: Backend, device: Any, depth: int) -> None:
        self._backend = backend
        self._device = device
        self._depth = 0 if device is None or str(device).partition(":")[0] == "cpu" else depth
        self._copies: deque[Any] = deque()  # of the first batches that wait

    def take(self, batch: LoaderBatch, *, is_own: bool) -> LoaderBatch:
        """Return `batch` on the device.

        Args:
            batch: the next one.
            is_own: whether it comes from this rank, so that it may have been copied ahead.
        """
        if self._device is None:
            return batch
        if is_own and self._copies:
            return batch.with_data(self._copies.popleft())
        return batch.with_data(self._copy(batch))

    def stage(self, waiting: Sequence[LoaderBatch]) -> None:
        """Begin copies of the first of the batches that wait, as far as the depth goes.

        Args:
            waiting: batches in the order in which they will be taken.
        """
        for number in range(len(self._copies), min(self._depth, len(waiting))):
            self._copies.append(self._copy(waiting[number]))

    def clear(self) -> None:
        """Forget the copies of batches that will not be taken."""
        self._copies.clear()

    def _copy(self, batch: LoaderBatch) -> Any:
        return self._backend.to_device(batch.data, self._device)
