"""The back end `torch-xla`: XLA devices, one a rank."""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
from dcpack_torch.c10d import HashStore, PrefixStore
from dcpack_torch.communicator import grace_of
from dcpack_torch.groups import GroupPool
from dcpack_torch.libraries import GlooLibrary
from dcpack_torch.roll_call import assemble
from dcpack_torch.wire import map_tensors

from dcpack._checks import check_int
from dcpack.comm import Backend, Communicator
from dcpack.comm.environment import read_launch
from dcpack.comm.membership import DEFAULT_DEADLINE_S, check_deadline
from dcpack.errors import ArgumentError, BackendError, PeerError
from dcpack_xla.collectives import Collectives
from dcpack_xla.communicator import DEVICE_DTYPES, Place, XlaCommunicator
from dcpack_xla.runtime import load_runtime
from dcpack_xla.start import POOL_SIZE, Membership, find_membership

__all__ = ["XlaBackend"]

# Processes of a large job start minutes apart.
_DEFAULT_START_DEADLINE_S = 600.0
# All blocks of an all-to-all are padded to the largest: larger ones would cost device memory, smaller ones rounds.
_DEFAULT_MAX_MESSAGE_BYTES = 1 << 22
_DEFAULT_MAX_GROUPS = 64
# How many worlds each rank of this process has made: every world has keys of its own in the store.
_num_worlds: collections.Counter[int] = collections.Counter()

_Result = TypeVar("_Result")


class XlaBackend(Backend):
    """XLA devices: each is a rank, in a process of its own (TPU chips) or a thread (CPU devices, older TPUs).

    Processes are started by ``torchrun`` or ``torch_xla.launch``, threads by ``torch_xla.launch`` or `run`. The world
    is all devices that the runtime knows, and never fewer than the launcher says.

    Payload of the world's communicator goes over the devices, in equal blocks of few sizes, each one compiled program;
    the world's calls and the caller's own programs must therefore come in the same order on all ranks. Payload of
    communicators that `split` and `dup` give, and all control messages, go over Gloo between the hosts.

    Args:
        deadline_s: seconds that a call may wait for the others. A device that does not come back until then ends the
            process, as it cannot be interrupted.
        start_deadline_s: seconds that `world` may wait for all ranks to start.
        max_message_bytes: larger messages are sent in rounds. All blocks of an all-to-all are padded to the same power
            of two, at most twice this.
        max_groups: how many communicators of two or more ranks may be open at once.
    """

    name = "torch-xla"

    def __init__(
        self,
        *,
        deadline_s: float = DEFAULT_DEADLINE_S,
        start_deadline_s: float = _DEFAULT_START_DEADLINE_S,
        max_message_bytes: int = _DEFAULT_MAX_MESSAGE_BYTES,
        max_groups: int = _DEFAULT_MAX_GROUPS,
    ) -> None:
        self.deadline_s = check_deadline(deadline_s)
        self.start_deadline_s = check_deadline(start_deadline_s, "start_deadline_s")
        self.max_message_bytes = check_int("max_message_bytes", max_message_bytes, minimum=1)
        self.max_groups = check_int("max_groups", max_groups, minimum=1)
        self._runtime = load_runtime()
        self._lock = threading.Lock()
        self._here: Any = None  # the world of this process's rank, or of this thread's where it has several

    @classmethod
    def available(cls) -> tuple[bool, str]:
        """Return whether torch_xla can be imported, and its version; no device is touched, as ranks start first."""
        try:
            runtime = load_runtime()
        except BackendError as error:
            return False, str(error)
        return True, f"torch {torch.__version__}, torch_xla {runtime.version}, {runtime.kind}"

    @property
    def device(self) -> torch.device:
        """The device of this thread."""
        return self._runtime.device

    def world(self) -> Communicator:
        """Return the communicator of all ranks, the same one each time; the first time they call it together.

        Raises:
            PeerError: some rank did not come within `start_deadline_s`.
            BackendError: the ranks are not started as they must be.
        """
        if not hasattr(self._here, "world"):
            membership = find_membership(self._runtime)
            with self._lock:
                if self._here is None:
                    self._here = SimpleNamespace() if self._runtime.num_local_devices == 1 else threading.local()
            self._here.world = self._make_world(membership)
        return self._here.world

    def run(self, fn: Callable[[Communicator], _Result]) -> list[_Result]:
        """Run ``fn(world)`` on every rank of this process and return the results, by rank.

        Where no launcher was used and devices are the CPU's, ranks are threads, as many as CPU_NUM_DEVICES says.

        Raises:
            BackendError: as `world`.
        """
        if read_launch() is not None or self._runtime.kind != "CPU":
            return [fn(self.world())]
        count = os.environ.get("CPU_NUM_DEVICES", "")
        os.environ.setdefault(POOL_SIZE, str(max(os.cpu_count() or 1, int(count) if count.isdigit() else 1)))

        def be_rank() -> tuple[Any, Exception | None]:
            try:
                return fn(self.world()), None
            except Exception as error:
                return None, error

        outcomes = self._runtime.run_threads(be_rank)
        errors = [error for _, error in outcomes if error is not None]
        if errors:
            # What a rank raised of its own comes before what the others heard of it.
            raise next((error for error in errors if not isinstance(error, PeerError)), errors[0])
        return [result for result, _ in outcomes]

    def to_device(self, array: Any, device: Any = None) -> Any:
        """Return NumPy arrays and tensors as tensors on this thread's device.

        Args:
            array: an array, a tensor, or mappings, lists and tuples of them, of which anything else stays as it is.
            device: another device; None: this thread's.

        Raises:
            ArgumentError: a dtype that an XLA device would cut.
        """
        target = self.device if device is None else torch.device(device)
        return map_tensors(array, lambda tensor: _place(tensor, target))

    def _make_world(self, membership: Membership) -> XlaCommunicator:
        rank, size = membership.rank, membership.size
        uid = f"xla/{_num_worlds[rank]}"
        _num_worlds[rank] += 1
        ranks = tuple(range(size))
        place = Place(runtime=self._runtime, device=self.device)
        own_store = PrefixStore("dcpack", membership.store) if size > 1 else HashStore()
        timeout_s = self.deadline_s - grace_of(self.deadline_s)
        pool = GroupPool(GlooLibrary(), own_store, timeout_s=timeout_s, max_groups=self.max_groups)
        group = None
        if size > 1:
            assemble(PrefixStore(f"{uid}/start", own_store), rank, ranks, self.start_deadline_s)
            try:
                group = pool.create(uid, rank, ranks)
            except RuntimeError as error:
                raise PeerError(f"the ranks could not be connected: {error}", cause=type(error).__name__) from error
        return XlaCommunicator(
            place,
            Collectives(self._runtime, place.device) if size > 1 else None,
            pool,
            group,
            uid,
            rank,
            ranks,
            deadline_s=self.deadline_s,
            max_message_bytes=self.max_message_bytes,
        )


def _place(tensor: torch.Tensor, target: torch.device) -> torch.Tensor:
    if target.type == "xla" and str(tensor.dtype) not in DEVICE_DTYPES:
        known = ", ".join(sorted(name.removeprefix("torch.") for name in DEVICE_DTYPES))
        raise ArgumentError(f"an XLA device does not hold {tensor.dtype} exactly: {known} it does")
    return tensor.to(target)
