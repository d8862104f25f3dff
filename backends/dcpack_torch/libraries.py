"""What differs between Gloo, NCCL and HCCL: how a group is made, where its buffers live, whether a call can be stopped.

Groups are made through the library's own constructor and not by `torch.distributed.new_group`: that is a call of all
processes of the job, in one order, while a `split` is a call of the members of the parent alone.
"""

from __future__ import annotations

import contextlib
import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist

from dcpack.comm.environment import Launch
from dcpack.errors import ArgumentError, BackendError
from dcpack_torch.accelerator import Accelerator
from dcpack_torch.c10d import make_registered_group

__all__ = ["GlooLibrary", "HcclLibrary", "Library", "NcclLibrary"]

# The libraries of the devices watch over themselves, too, and end the process with a message that says less.
_OWN_WATCHDOG_S = 60.0


class Library(ABC):
    """One collective library, as one process uses it.

    Attributes:
        name: what torch.distributed calls it.
        wire_dtypes: what its payload may be viewed as, the usual one first.
        interruptible: whether a call that waits for a peer comes back at its deadline.
    """

    name: ClassVar[str]
    wire_dtypes: ClassVar[tuple[str, ...]] = ("uint8",)
    interruptible: ClassVar[bool] = False

    @abstractmethod
    def __init__(self, launch: Launch | None = None, device: int | str | None = None) -> None:
        """Choose the device of this process: see `TorchBackend`."""

    @classmethod
    @abstractmethod
    def available(cls) -> tuple[bool, str]:
        """Return whether it can be used here, and its version or what is missing."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where its buffers live."""

    @abstractmethod
    def make_group(
        self, store: Any, uid: str, member: int, ranks: Sequence[int], timeout_s: float
    ) -> dist.ProcessGroup | Any:
        """Return a new group; all its members call this together, and nobody else.

        Args:
            store: of this group alone.
            uid: name of the group, the same on all members.
            member: group-local number of this process.
            ranks: global numbers of the members.
            timeout_s: seconds that a call may wait for the others.
        """

    @abstractmethod
    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """Return a tensor of host memory on the device."""

    @abstractmethod
    def download(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the device in host memory."""

    @abstractmethod
    def apart(self) -> contextlib.AbstractContextManager[None]:
        """Return a context for a collective: apart from other work of the device, and done at its end."""


class GlooLibrary(Library):
    """Gloo: host memory, over TCP.

    Example:
        >>> GlooLibrary().device
        device(type='cpu')
    """

    name = "gloo"
    interruptible = True

    def __init__(self, launch: Launch | None = None, device: int | str | None = None) -> None:
        super().__init__(launch, device)
        if device not in (None, "cpu"):
            raise ArgumentError(f"device must be 'cpu' or None with Gloo, got {device!r}")

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """Return whether this torch was built with Gloo."""
        if not dist.is_available() or not dist.is_gloo_available():
            return False, f"torch {torch.__version__} was built without Gloo"
        return True, f"torch {torch.__version__}, Gloo"

    @property
    def device(self) -> torch.device:
        """The CPU."""
        return torch.device("cpu")

    def make_group(self, store: Any, uid: str, member: int, ranks: Sequence[int], timeout_s: float) -> Any:
        """Return a new Gloo group; its members are connected before this returns."""
        del uid  # the store is enough
        return dist.ProcessGroupGloo(store, member, len(ranks), timedelta(seconds=timeout_s))

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """Return `host`: it is there."""
        return host

    def download(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return `buffer`: it is there."""
        return buffer

    def apart(self) -> contextlib.AbstractContextManager[None]:
        """Return a context that does nothing."""
        return contextlib.nullcontext()


class _DeviceLibrary(Library):
    """What NCCL and HCCL share: buffers in device memory, and a call that has begun cannot be stopped."""

    kind: ClassVar[str]

    def __init__(self, launch: Launch | None = None, device: int | str | None = None) -> None:
        super().__init__(launch, device)
        self._accelerator = Accelerator(self.kind, getattr(torch, self.kind), launch, device)
        self._accelerator.make_current()  # the libraries want that before a group is made

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self._accelerator.device

    def upload(self, host: torch.Tensor) -> torch.Tensor:
        """Copy through pinned memory, so that the copy runs beside other work."""
        return self._accelerator.upload(host)

    def download(self, buffer: torch.Tensor) -> torch.Tensor:
        """Copy to pinned memory, which makes a later upload of the result cheap."""
        return self._accelerator.download(buffer)

    def apart(self) -> contextlib.AbstractContextManager[None]:
        """Return a context on a stream of this thread's own, so that no call waits for the kernels of the training."""
        return self._accelerator.side_stream()


class NcclLibrary(_DeviceLibrary):
    """NCCL, on CUDA devices."""

    name = "nccl"
    kind = "cuda"

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """Return whether there is NCCL and a CUDA device."""
        if not dist.is_available() or not dist.is_nccl_available():
            return False, f"torch {torch.__version__} was built without NCCL"
        if not torch.cuda.is_available():
            return False, f"torch {torch.__version__} finds no CUDA device"
        version = ".".join(map(str, importlib.import_module("torch.cuda.nccl").version()))
        return True, f"torch {torch.__version__}, NCCL {version}, {torch.cuda.device_count()} CUDA devices"

    def make_group(self, store: Any, uid: str, member: int, ranks: Sequence[int], timeout_s: float) -> Any:
        """Return a new NCCL group; it connects in its first call."""
        del uid  # the store is enough
        kind: Any = dist.ProcessGroupNCCL
        options = kind.Options()
        options._timeout = timedelta(seconds=timeout_s + _OWN_WATCHDOG_S)
        with self._accelerator.current():
            return kind(store, member, len(ranks), options)


class HcclLibrary(_DeviceLibrary):
    """HCCL, on Ascend NPUs, through the package torch_npu, which is imported when this library is chosen.

    Its all-to-all is documented for float32 alone, though the bytes of any dtype pass where that is not enforced; so
    the dtype that payload is viewed as can be chosen.
    """

    name = "hccl"
    kind = "npu"
    wire_dtypes = ("uint8", "int32", "float32")

    def __init__(self, launch: Launch | None = None, device: int | str | None = None) -> None:
        _import_torch_npu()  # it brings torch.npu
        super().__init__(launch, device)

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """Return whether torch_npu can be imported and finds an NPU."""
        try:
            package = _import_torch_npu()
        except BackendError as error:
            return False, str(error)
        npu: Any = getattr(torch, "npu", None)
        if npu is None or not npu.is_available():
            return False, f"torch_npu {package.__version__} finds no NPU"
        return True, f"torch {torch.__version__}, torch_npu {package.__version__}, {npu.device_count()} NPUs"

    def make_group(self, store: Any, uid: str, member: int, ranks: Sequence[int], timeout_s: float) -> Any:
        """Return a new HCCL group, by the constructor that torch_npu registered with torch.distributed."""
        with self._accelerator.current():
            return make_registered_group(self.name, store, uid, member, ranks, timeout_s + _OWN_WATCHDOG_S)


def _import_torch_npu() -> Any:
    try:
        return importlib.import_module("torch_npu")
    except (ImportError, RuntimeError, OSError) as error:  # without CANN it does not find libhccl.so, in several ways
        raise BackendError(
            f"torch_npu cannot be imported: {error}; HCCL needs the package torch_npu that fits torch "
            f"{torch.__version__}, and CANN, whose set_env.sh must have been sourced. Where torch_npu is installed "
            "without CANN, TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps a plain `import torch` working"
        ) from error
