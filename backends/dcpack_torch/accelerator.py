"""The device of one process: which one it is, copies to it and from it, and a stream beside the training's.

CUDA and NPU devices have the same interface in torch, as ``torch.cuda`` and ``torch.npu``.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch

from dcpack.comm.environment import Launch
from dcpack.errors import ArgumentError, BackendError

__all__ = ["Accelerator"]


class Accelerator:
    """The device of this process.

    Which one: `device` if given; the only one if there is one; else the local rank of the launcher; else the current
    one, where there is no launcher, or a default group is there already, for then the program has chosen it.

    Args:
        kind: device type, ``"cuda"`` or ``"npu"``.
        module: ``torch.cuda`` or ``torch.npu``.
        launch: what the launcher says.
        device: number of the device, or its name such as ``"cuda:1"``; None to choose by the rules above.
    """

    def __init__(self, kind: str, module: Any, launch: Launch | None, device: int | str | None) -> None:
        self._kind = kind
        self._module = module
        self._threads = threading.local()
        self.index = self._choose(launch, device)

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return torch.device(self._kind, self.index)

    def make_current(self) -> None:
        """Make it the current device of this thread, as collective libraries want it before a group is made."""
        self._module.set_device(self.index)

    def current(self) -> contextlib.AbstractContextManager[Any]:
        """Return a context in which it is the current device: each thread has its own."""
        return self._module.device(self.index)

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """Copy `host` to the device, through pinned memory and without waiting."""
        pinned = host if host.is_pinned() else host.pin_memory()
        return pinned.to(self.device, non_blocking=True)

    def download(self, buffer: torch.Tensor) -> torch.Tensor:
        """Copy `buffer` to new pinned memory and wait for it."""
        host = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
        with self.current():
            host.copy_(buffer, non_blocking=True)
            self._module.current_stream().synchronize()
        return host

    @contextlib.contextmanager
    def side_stream(self) -> Iterator[None]:
        """Run the body on a stream of this thread's own, after what is queued so far, and wait for its end."""
        with self.current():
            stream = getattr(self._threads, "stream", None)
            if stream is None:
                stream = self._threads.stream = self._module.Stream()
            # Buffers are made before, on the stream of the caller: so they are the caller's to use and to free.
            stream.wait_stream(self._module.current_stream())
            with self._module.stream(stream):
                yield
            stream.synchronize()

    def _choose(self, launch: Launch | None, device: int | str | None) -> int:
        count = self._module.device_count()
        if device is not None:
            return self._checked(device, count)
        if count == 1:
            return 0
        if launch is None or (launch.local_rank is None and torch.distributed.is_initialized()):
            return int(self._module.current_device())
        if launch.local_rank is None:
            raise BackendError(
                f"LOCAL_RANK is not set, so it is not known which of {count} {self._kind} devices is this process's; "
                "start with torchrun, set it, or pass device="
            )
        if launch.local_rank >= count:
            raise BackendError(
                f"LOCAL_RANK is {launch.local_rank}, but this process sees {count} {self._kind} devices; pass device="
            )
        return launch.local_rank

    def _checked(self, device: int | str, count: int) -> int:
        if isinstance(device, str):
            kind, _, number = device.partition(":")
            if kind != self._kind or not number.isdigit():
                raise ArgumentError(f"device must be a number or like '{self._kind}:0', got {device!r}")
            device = int(number)
        if isinstance(device, bool) or not isinstance(device, int) or not 0 <= device < count:
            raise ArgumentError(f"device must be from 0 to {count - 1} ({self._kind} devices here), got {device!r}")
        return device
