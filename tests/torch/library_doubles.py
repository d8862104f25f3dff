"""Stand-ins for NCCL, HCCL and their devices on a machine without: they refuse what those refuse, and take notes.

The bytes go over Gloo. Device memory is host memory here, so that what is tested is everything but the library itself.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from dcpack_torch.accelerator import Accelerator
from dcpack_torch.libraries import NcclLibrary

__all__ = ["DeviceModule", "RefusingGroup", "install_hccl", "install_nccl"]


class Stream:
    def __init__(self, module: DeviceModule) -> None:
        self._module = module

    def wait_stream(self, other: Stream) -> None:
        self._module.notes.append("wait_stream")

    def synchronize(self) -> None:
        self._module.notes.append("synchronize")


class DeviceModule(types.ModuleType):
    """Stands in for ``torch.cuda`` or ``torch.npu``."""

    def __init__(self, name: str, num_devices: int) -> None:
        super().__init__(name)
        self.notes: list[str] = []
        self.num_devices = num_devices
        self.default_stream = self.running_stream = Stream(self)
        self._threads = threading.local()

    @property
    def current_index(self) -> int:
        """The current device of this thread: each thread has its own, and begins with device 0."""
        return getattr(self._threads, "index", 0)

    @current_index.setter
    def current_index(self, index: int) -> None:
        self._threads.index = index

    def is_available(self) -> bool:
        return self.num_devices > 0

    def device_count(self) -> int:
        return self.num_devices

    def current_device(self) -> int:
        return self.current_index

    def set_device(self, index: int) -> None:
        self.current_index = index
        self.notes.append(f"set_device {index}")

    @contextlib.contextmanager
    def device(self, index: int) -> Any:
        before, self.current_index = self.current_index, index
        yield
        self.current_index = before

    def Stream(self) -> Stream:
        return Stream(self)

    def current_stream(self) -> Stream:
        return self.running_stream

    @contextlib.contextmanager
    def stream(self, stream: Stream) -> Any:
        before, self.running_stream = self.running_stream, stream
        yield
        self.running_stream = before


class RefusingGroup:
    """A process group of a device library: bytes go over Gloo, after the checks that the library would make."""

    def __init__(self, module: DeviceModule, dtypes: set[torch.dtype], store: Any, member: int, size: int) -> None:
        if not any(note.startswith("set_device") for note in module.notes):
            raise RuntimeError("the device must be set before the group is made")
        self._module = module
        self._index = module.current_index
        self._dtypes = dtypes
        self._inner: Any = dist.ProcessGroupGloo(store, member, size, timedelta(seconds=30))
        module.notes.append("group")

    def _check(self, *buffers: torch.Tensor) -> None:
        for buffer in buffers:
            if buffer.dtype not in self._dtypes:
                raise RuntimeError(f"dtype {buffer.dtype} is refused")
            if buffer.dim() != 1:
                raise RuntimeError(f"a buffer of {buffer.dim()} dims is refused")
            if not buffer.is_contiguous():
                raise RuntimeError("a buffer that is not contiguous is refused")
        if self._module.running_stream is self._module.default_stream:
            raise RuntimeError("the call would wait for the kernels of the training")
        if self._module.current_index != self._index:
            raise RuntimeError("another device is the current one")

    def allgather(self, parts: Any, sent: Any, options: Any) -> Any:
        self._check(*parts[0], *sent)
        if len({len(part) for part in (*parts[0], *sent)}) > 1:
            raise RuntimeError("parts of different sizes are refused")
        self._module.notes.append("allgather")
        data = [[part.view(torch.uint8) for part in parts[0]]]
        return self._inner.allgather(data, [sent[0].view(torch.uint8)], options)

    def alltoall_base(self, received: Any, sent: Any, recv_splits: Any, send_splits: Any, options: Any) -> Any:
        self._check(received, sent)
        self._module.notes.append("alltoall")
        width = sent.dtype.itemsize
        splits = [[width * count for count in counts] for counts in (recv_splits, send_splits)]
        return self._inner.alltoall_base(received.view(torch.uint8), sent.view(torch.uint8), *splits, options)

    def broadcast(self, buffers: Any, options: Any) -> Any:
        self._check(*buffers)
        self._module.notes.append("broadcast")
        return self._inner.broadcast([buffers[0].view(torch.uint8)], options)


def _host_memory_as_device_memory(module: DeviceModule) -> None:
    """Let tensors of the device live in host memory, and note what is pinned."""
    accelerator: Any = Accelerator
    accelerator.device = property(lambda self: torch.device("cpu"))
    tensor: Any = torch.Tensor
    tensor.pin_memory = lambda self: module.notes.append("pin") or self.clone()
    tensor.is_pinned = lambda self: False
    empty = torch.empty

    def empty_and_note(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        if pin_memory:
            module.notes.append("pinned empty")
        return empty(*args, **options)

    names: Any = torch
    names.empty = empty_and_note


def install_nccl(num_devices: int = 4) -> DeviceModule:
    """Make this process believe in NCCL and CUDA devices."""
    module = DeviceModule("torch.cuda", num_devices)

    class ProcessGroupNCCL(RefusingGroup):
        class Options:
            _timeout: Any = None

        def __init__(self, store: Any, member: int, size: int, options: Any) -> None:
            super().__init__(module, {torch.uint8}, store, member, size)
            module.notes.append(f"timeout {options._timeout.total_seconds():g}")

    names: Any = torch
    names.cuda = module
    distributed: Any = dist
    distributed.ProcessGroupNCCL = ProcessGroupNCCL
    distributed.is_nccl_available = lambda: True
    version: Any = types.ModuleType("torch.cuda.nccl")
    version.version = lambda: (2, 29, 7)
    sys.modules["torch.cuda.nccl"] = version
    _host_memory_as_device_memory(module)
    assert NcclLibrary.available()[0]
    return module


def install_hccl(dtypes: set[torch.dtype], num_devices: int = 4) -> DeviceModule:
    """Make this process believe in torch_npu: "hccl" is registered with torch.distributed and goes over Gloo."""
    module = DeviceModule("torch.npu", num_devices)
    package: Any = types.ModuleType("torch_npu")
    package.__version__ = "2.13.0"
    sys.modules["torch_npu"] = package
    names: Any = torch
    names.npu = module

    def make(options: Any, _: Any) -> Any:
        if options.global_ranks_in_group:
            module.notes.append(f"ranks {options.global_ranks_in_group}")
            return RefusingGroup(module, dtypes, options.store, options.group_rank, options.group_size)
        return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size, options.timeout)

    dist.Backend.register_backend("hccl", make, extended_api=True, devices=["cpu"])
    _host_memory_as_device_memory(module)
    return module
