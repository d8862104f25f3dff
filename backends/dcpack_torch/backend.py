"""The three back ends on torch.distributed: torch-gloo, torch-nccl, torch-hccl."""

from __future__ import annotations

import atexit
import collections
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from dcpack._checks import check_choice, check_int
from dcpack.comm import Backend, Communicator
from dcpack.comm.backend import Mesh, MeshAxes
from dcpack.comm.environment import Launch, read_launch
from dcpack.comm.membership import DEFAULT_DEADLINE_S, DEFAULT_MAX_MESSAGE_BYTES, check_deadline
from dcpack.comm.reader import Indexable
from dcpack.errors import BackendError, PeerError
from dcpack_torch.c10d import HashStore, PrefixStore, default_store
from dcpack_torch.communicator import TorchCommunicator, grace_of
from dcpack_torch.copies import CopyStream, device_module
from dcpack_torch.environment import current_launch
from dcpack_torch.groups import GroupPool
from dcpack_torch.libraries import GlooLibrary, HcclLibrary, Library, NcclLibrary
from dcpack_torch.mesh import DeviceMeshGroups
from dcpack_torch.reader import WorkerReader, read_with_workers
from dcpack_torch.roll_call import assemble
from dcpack_torch.wire import WIRE_DTYPES, map_tensors

__all__ = ["TorchBackend", "TorchGlooBackend", "TorchHcclBackend", "TorchNcclBackend"]

# Processes of a large job start minutes apart.
_DEFAULT_START_DEADLINE_S = 600.0
_DEFAULT_MAX_GROUPS = 64
# How many worlds of the same kind and ranks this process has made: every world has keys of its own in the store.
_num_worlds: collections.Counter[tuple[str, tuple[int, ...]]] = collections.Counter()


class TorchBackend(Backend):
    """Processes of torch.distributed; the three back ends differ in the library that moves payload.

    The world is, in this order: the processes of `group`; those of the default group, if there is one; those that
    torchrun started (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT, LOCAL_RANK), and the default group is then made; or,
    where no variable of a launcher is set at all, this process alone. It is never smaller than it should be: variables
    that are set in part are an error.

    Communicators have process groups of their own, so that their calls never mix with those of the training. Control
    messages always go over Gloo.

    Args:
        group: the processes of the world, which alone make this back end's world; None for the default group.
        device: number or name of this process's device, such as 1 or ``"cuda:1"``; None for the only one that there
            is, or the one of LOCAL_RANK.
        deadline_s: seconds that a call may wait for the others.
        start_deadline_s: seconds that `world` may wait for all processes to start.
        max_message_bytes: larger messages are sent in rounds.
        max_groups: how many communicators of two or more ranks may be open at once.
        wire_dtype: what payload is viewed as for the library, and padded to; the same on all processes. Only HCCL has
            others than ``"uint8"``: ``"int32"`` and ``"float32"``.

    Example:
        >>> from dcpack_torch.backend import TorchGlooBackend
        >>> with TorchGlooBackend(deadline_s=5).world() as world:          # no launcher: this process alone
        ...     world.size, world.all_gather([1.5])[0].tolist()
        (1, [1.5])
    """

    _library_kind: ClassVar[type[Library]]

    def __init__(
        self,
        *,
        group: dist.ProcessGroup | None = None,
        device: int | str | None = None,
        deadline_s: float = DEFAULT_DEADLINE_S,
        start_deadline_s: float = _DEFAULT_START_DEADLINE_S,
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
        max_groups: int = _DEFAULT_MAX_GROUPS,
        wire_dtype: str = "uint8",
    ) -> None:
        self.deadline_s = check_deadline(deadline_s)
        self.start_deadline_s = check_deadline(start_deadline_s, "start_deadline_s")
        self.max_message_bytes = check_int("max_message_bytes", max_message_bytes, minimum=1)
        self.max_groups = check_int("max_groups", max_groups, minimum=1)
        self.wire_dtype = check_choice("wire_dtype", wire_dtype, self._library_kind.wire_dtypes)
        self._launch = current_launch() if dist.is_initialized() else read_launch()
        self._library = self._library_kind(self._launch, device)
        self._process_group = group
        self._world: TorchCommunicator | None = None
        self._copy_streams: dict[torch.device, CopyStream] = {}

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """Return whether the library can be used here, and the versions or what is missing."""
        return cls._library_kind.available()

    @property
    def device(self) -> torch.device:
        """The device of this process."""
        return self._library.device

    def world(self) -> Communicator:
        """Return the communicator of all processes, the same one each time; the first time they call it together.

        Raises:
            PeerError: some process did not come within `start_deadline_s`.
            BackendError: this process is not in the group that was given.
        """
        if self._world is None:
            self._world = self._make_world()
        return self._world

    def from_mesh(self, mesh: Mesh | DeviceMesh, axes: Any) -> Communicator:
        """Return the communicator of this process's group along `axes` of `mesh`; all processes call it together.

        Args:
            mesh: a `DeviceMesh` with names for its axes that holds every process of the world once; or a `Topology`, or
                whatever else has ``groups(axes)``.
            axes: the name of an axis, or several.
        """
        return super().from_mesh(DeviceMeshGroups(mesh) if isinstance(mesh, DeviceMesh) else mesh, axes)

    def to_device(self, array: Any, device: Any = None) -> Any:
        """Return NumPy arrays as tensors on this process's device, and tensors there; of any dtype.

        Args:
            array: an array, a tensor, or mappings, lists and tuples of them, of which anything else stays as it is. On
                the CPU a tensor shares the memory of its array where that is possible.
            device: another device; None: this process's.
        """
        target = self.device if device is None else torch.device(device)

        def upload(tensor: torch.Tensor) -> torch.Tensor:
            return self._library.upload(tensor) if target == self.device else tensor.to(target)

        def place(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device == target:
                return tensor
            return upload(tensor) if tensor.device.type == "cpu" else tensor.to(target)

        return map_tensors(array, place, upload)

    def begin_copy(self, array: Any, device: Any = None) -> Callable[[], Any]:
        """Begin what `to_device` does; to CUDA and NPU devices on a stream of its own, see `CopyStream`."""
        target = self._own_if_same_kind(device)
        module = device_module(target)
        if module is None:
            return super().begin_copy(array, device)
        if target.index is None:
            target = torch.device(target.type, module.current_device())
        if target not in self._copy_streams:
            self._copy_streams[target] = CopyStream(module, target)
        return self._copy_streams[target].begin(array)

    def copies_in_threads(self, device: Any) -> bool:
        """Return whether it is known which device is meant: each thread has a current one of its own."""
        return self._own_if_same_kind(device).index is not None

    def _own_if_same_kind(self, device: Any) -> torch.device:
        """Return a device; where its number is left open, that of this process, if that is of the kind."""
        target = self.device if device is None else torch.device(device)
        return self.device if target.index is None and target.type == self.device.type else target

    def describe_mesh(self, mesh: Any) -> MeshAxes:
        """Return the axes and ranks of a `DeviceMesh` with names for its axes, or of a `Topology`."""
        return super().describe_mesh(DeviceMeshGroups(mesh) if isinstance(mesh, DeviceMesh) else mesh)

    def make_reader(
        self, dataset: Indexable, indices: Iterable[int], *, num_workers: int = 0, **options: Any
    ) -> Iterator[Any]:
        """Yield ``dataset[i]`` for each i of `indices`, in their order; see `read_with_workers`."""
        return read_with_workers(dataset, indices, num_workers=num_workers, **options)

    def open_reader(
        self, dataset: Indexable, *, num_workers: int = 0, **options: Any
    ) -> Callable[[Sequence[int]], Iterator[Any]]:
        """Return a function that reads as `make_reader` does, any number of times; its workers stay."""
        return WorkerReader(dataset, num_workers=num_workers, **options)

    def _make_world(self) -> TorchCommunicator:
        rank, ranks = self._find_members()
        name = self._library.name
        digest = hashlib.blake2b(repr(ranks).encode(), digest_size=8).hexdigest()
        uid = f"{name}/{digest}/{_num_worlds[name, ranks]}"
        _num_worlds[name, ranks] += 1
        store = PrefixStore("dcpack", default_store()) if len(ranks) > 1 else HashStore()
        timeout_s = self.deadline_s - grace_of(self.deadline_s)
        pool = GroupPool(self._library, store, timeout_s=timeout_s, max_groups=self.max_groups)
        group = None
        if len(ranks) > 1:
            assemble(PrefixStore(f"{uid}/start", store), rank, ranks, self.start_deadline_s)
            try:
                group = pool.create(uid, rank, ranks)
            except RuntimeError as error:
                raise PeerError(f"the processes could not be connected: {error}", cause=type(error).__name__) from error
        return TorchCommunicator(
            pool,
            group,
            uid,
            rank,
            ranks,
            deadline_s=self.deadline_s,
            max_message_bytes=self.max_message_bytes,
            wire_dtype=WIRE_DTYPES[self.wire_dtype],
        )

    def _find_members(self) -> tuple[int, tuple[int, ...]]:
        """Return this process's number in the world and the global numbers of its members; start what is not there."""
        if not dist.is_initialized():
            if self._launch is None:
                return 0, (0,)
            self._start_default_group(self._launch)
        if self._process_group is None:
            return dist.get_rank(), tuple(range(dist.get_world_size()))
        rank = dist.get_rank(self._process_group)
        if rank < 0:
            raise BackendError(f"this process, rank {dist.get_rank()}, is not in the group of back end {self.name!r}")
        return rank, tuple(dist.get_process_group_ranks(self._process_group))

    def _start_default_group(self, launch: Launch) -> None:
        timeout = timedelta(seconds=self.start_deadline_s)
        try:
            dist.init_process_group(self._library.name, timeout=timeout)
        except RuntimeError as error:
            raise PeerError(
                f"the {launch.world_size} processes of the job did not all join within {self.start_deadline_s:g} s: "
                f"{error}",
                cause=type(error).__name__,
            ) from error
        atexit.register(_destroy_default_group)


class TorchGlooBackend(TorchBackend):
    """CPU processes, over TCP; see `TorchBackend` for which processes and for the options.

    Example:
        >>> import numpy as np
        >>> TorchGlooBackend().to_device({"input_ids": np.array([3, 4], np.uint16)})
        {'input_ids': tensor([3, 4], dtype=torch.uint16)}
    """

    name = "torch-gloo"
    allows_threads = True
    _library_kind = GlooLibrary


class TorchNcclBackend(TorchBackend):
    """CUDA devices, one a process; see `TorchBackend` for which processes and for the options.

    A call whose payload waits for a dead peer cannot be interrupted: after the deadline the process prints the error
    and ends, non-zero.
    """

    name = "torch-nccl"
    _library_kind = NcclLibrary


class TorchHcclBackend(TorchBackend):
    """Ascend NPUs, one a process; see `TorchBackend` for which processes and for the options.

    torch_npu is imported when this back end is chosen, and not before. A call whose payload waits for a dead peer
    cannot be interrupted: after the deadline the process prints the error and ends, non-zero.
    """

    name = "torch-hccl"
    _library_kind = HcclLibrary


def _destroy_default_group() -> None:
    """End the default group that this module started: torch warns about those that are left at exit."""
    if dist.is_initialized():
        dist.destroy_process_group()
