"""The communicator of the torch-xla back end: control over Gloo, payload over the devices or over Gloo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from dcpack_torch.communicator import TorchCommunicator
from dcpack_torch.groups import Group, GroupPool
from dcpack_torch.wire import TENSOR_DTYPES, bytes_as_tensor, tensor_as_bytes

from dcpack.comm.buckets import as_words, bucket_bytes, place_blocks, take_blocks
from dcpack.comm.watchdog import end_process_after
from dcpack_xla.collectives import Collectives

__all__ = ["DEVICE_DTYPES", "Place", "XlaCommunicator"]

DEVICE_DTYPES = frozenset(TENSOR_DTYPES) - {"torch.complex128", "torch.float8_e4m3fnuz", "torch.float8_e5m2fnuz"}
"""Dtypes of tensors whose values an XLA device holds, if not the bits of a NaN; complex128 it cuts without a word."""

# On the wire a tensor on an XLA device has another name than one in host memory: so ranks that mix them are told, and
# receivers of a broadcast know where to put it.
_PREFIX = "xla."


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a rank is.

    Attributes:
        runtime: a `Runtime`.
        device: the rank's device.
    """

    runtime: Any
    device: torch.device


def _is_on_device(array: Any) -> bool:
    return isinstance(array, torch.Tensor) and array.device.type == "xla"


class XlaCommunicator(TorchCommunicator):
    """One rank's view of a group of ranks; made by `XlaBackend`, not by hand.

    NumPy arrays come out as NumPy arrays, tensors in host memory as tensors there, and tensors on XLA devices on the
    device of the rank that receives them. All members must bring the same of the three.

    Args:
        place: where this rank is.
        collectives: those of the devices; None to move payload over Gloo.
        pool: the groups of this rank.
        group: of these ranks; None for a group of one.
        uid: name of this communicator, the same on all members.
        rank: group-local number of this rank.
        ranks: global numbers of the members.
        deadline_s: seconds that a call may wait for the others.
        max_message_bytes: larger messages between two ranks are sent in rounds.
    """

    universal_dtypes = TorchCommunicator.universal_dtypes | {_PREFIX + name for name in DEVICE_DTYPES}

    def __init__(
        self,
        place: Place,
        collectives: Collectives | None,
        pool: GroupPool,
        group: Group | None,
        uid: str,
        rank: int,
        ranks: Sequence[int],
        *,
        deadline_s: float,
        max_message_bytes: int,
    ) -> None:
        super().__init__(pool, group, uid, rank, ranks, deadline_s=deadline_s, max_message_bytes=max_message_bytes)
        self._place = place
        self._collectives = collectives
        if collectives is not None:
            self.inline_bytes = 0

    def to_wire(self, array: Any) -> tuple[Any, str, tuple[int, ...]]:
        """Return the bytes of a tensor or an array in host memory, its dtype name and its shape."""
        if not _is_on_device(array):
            return super().to_wire(array)
        data, name, shape = tensor_as_bytes(self._place.runtime.fetch(array.detach()))
        return data, _PREFIX + name, shape

    def wire_size(self, array: Any) -> tuple[int, str, tuple[int, ...]]:
        """Return the number of the bytes of `to_wire`, and the rest of it, without moving any."""
        num_bytes, name, shape = super().wire_size(array)
        return num_bytes, _PREFIX + name if _is_on_device(array) else name, shape

    def _host_bytes(self, array: Any) -> tuple[npt.NDArray[np.uint8], str, tuple[int, ...]]:
        """Return what `to_wire` does; the bytes are on the host."""
        if not _is_on_device(array):
            return super()._host_bytes(array)
        data, name, shape = self.to_wire(array)
        return data.numpy(), name, shape

    def from_wire(self, buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return the tensor or the array whose bytes, dtype name and shape these are."""
        if not dtype.startswith(_PREFIX):
            return super().from_wire(buffer, dtype, shape)
        return bytes_as_tensor(buffer, dtype.removeprefix(_PREFIX), shape).to(self._place.device)

    def wire_itemsize(self, dtype: str) -> int:
        """Return the bytes of one element of the dtype of that name."""
        return super().wire_itemsize(dtype.removeprefix(_PREFIX))

    def _all_gather_bytes(self, payload: Any, sizes: list[int]) -> list[Any]:
        if self._collectives is None:
            return super()._all_gather_bytes(payload, sizes)
        words = as_words(payload.numpy(), bucket_bytes(max(sizes)))
        rows = self._run(self._collectives.all_gather, words)
        return [torch.from_numpy(take_blocks(row[None], [size])) for row, size in zip(rows, sizes, strict=True)]

    def _all_to_all_bytes(self, payload: Any, send_sizes: list[int], recv_sizes: list[int]) -> Any:
        if self._collectives is None:
            return super()._all_to_all_bytes(payload, send_sizes, recv_sizes)
        rows = place_blocks(payload.numpy(), send_sizes, bucket_bytes(self._largest_block))
        return torch.from_numpy(take_blocks(self._run(self._collectives.all_to_all, rows), recv_sizes))

    def _broadcast_bytes(self, payload: Any | None, size: int, root: int) -> Any:
        if self._collectives is None:
            return super()._broadcast_bytes(payload, size, root)
        # A sum in which all but one bring zeros: exact, as words are integers.
        words = as_words(np.zeros(0, np.uint8) if payload is None else payload.numpy(), bucket_bytes(size))
        return torch.from_numpy(take_blocks(self._run(self._collectives.sum, words)[None], [size]))

    def _make_child(self, group: Group | None, uid: str, member: int, ranks: Sequence[int]) -> XlaCommunicator:
        # A program with collectives is compiled for all devices, and all must start it in the same order. The members
        # of a group, or another thread, have an order of their own; so their payload goes over the hosts.
        return XlaCommunicator(
            self._place,
            None,
            self._pool,
            group,
            uid,
            member,
            ranks,
            deadline_s=self.deadline_s,
            max_message_bytes=self.max_message_bytes,
        )

    def _run(
        self, use: Callable[[npt.NDArray[np.uint32]], npt.NDArray[np.uint32]], words: npt.NDArray[np.uint32]
    ) -> npt.NDArray[np.uint32]:
        """Run a collective of the devices to its end: nothing can interrupt it but the end of the process."""
        with end_process_after(self._time_left().total_seconds(), self._overdue_error):
            return use(words)
