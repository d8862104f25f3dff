"""Copies to a device beside the training: from pinned memory, on a stream of their own.

CUDA and NPU devices have the same interface in torch, as ``torch.cuda`` and ``torch.npu``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dcpack_torch.wire import map_tensors

__all__ = ["CopyStream", "device_module"]


def device_module(device: torch.device) -> Any:
    """Return ``torch.cuda`` or its like for a device whose work goes in streams; None for others, such as the CPU.

    Example:
        >>> device_module(torch.device("cpu")) is None
        True
    """
    module = getattr(torch, device.type, None)
    has_streams = device.type != "cpu" and all(hasattr(module, name) for name in ("Stream", "Event", "current_stream"))
    return module if has_streams else None


class CopyStream:
    """Copies batches to one device, on one stream, which no kernel of the training is on.

    A copy waits for nothing, as it reads host memory alone; tensors on other devices are moved when they are used. Who
    uses a copy waits for it on his own stream, and not on the host. The memory goes back to the allocator when his
    stream has come to the place where he let go of it.

    Args:
        module: ``torch.cuda`` or ``torch.npu``.
        device: where to.
    """

    def __init__(self, module: Any, device: torch.device) -> None:
        self._module = module
        self._device = device
        with module.device(device):
            self._stream = module.Stream()  # here, as two threads may begin the first copies at once

    def begin(self, tree: Any) -> Callable[[], Any]:
        """Begin to copy the arrays and host tensors of `tree`; return what makes them usable, to be called once.

        The second call is made by the thread that uses them, and counts for its current stream.
        """
        module = self._module
        copied: list[torch.Tensor] = []
        pinned: list[torch.Tensor] = []  # kept until the copies are used

        def copy(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device.type != "cpu":
                return tensor
            pinned.append(tensor if tensor.is_pinned() else tensor.pin_memory())
            copied.append(pinned[-1].to(self._device, non_blocking=True))
            return copied[-1]

        with module.device(self._device), module.stream(self._stream):
            moved = map_tensors(tree, copy)
            done = module.Event()
            done.record(self._stream)

        def finish() -> Any:
            with module.device(self._device):
                stream = module.current_stream()
                stream.wait_event(done)
                for tensor in copied:
                    tensor.record_stream(stream)
                pinned.clear()
                return map_tensors(moved, lambda tensor: tensor.to(self._device))  # most are there

        return finish
