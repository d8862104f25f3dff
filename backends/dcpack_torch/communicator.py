"""The communicator of the torch back ends: control over Gloo, payload as bytes over the library of the back end."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dcpack.comm import Communicator
from dcpack.comm.dtypes import NUMPY_DTYPES, as_bytes, as_sendable, dtype_from_name, from_bytes
from dcpack.comm.failures import name_ranks
from dcpack.comm.watchdog import end_process_after
from dcpack.errors import BackendError, PeerError
from dcpack_torch.c10d import AllgatherOptions, AllToAllOptions, BroadcastOptions
from dcpack_torch.groups import Group, GroupPool, encode_offer
from dcpack_torch.wire import (
    TENSOR_DTYPES,
    array_as_tensor,
    as_elements,
    bytes_as_tensor,
    pack_blocks,
    padded_size,
    tensor_as_bytes,
    unpack_blocks,
    wire_name_of,
)

__all__ = ["TorchCommunicator", "grace_of"]

# A wait is cut into pieces of this length, so that Ctrl-C is heard.
_SLICE_S = 0.5

# Small messages travel with the control messages, which all are longer for it: by so much, and by so much in all.
_MOST_INLINE = 8192
_MOST_INLINE_IN_ALL = 32768


def grace_of(deadline_s: float) -> float:
    """Return the seconds at the end of a call's deadline that are kept for finding out who is missing.

    Example:
        >>> grace_of(60.0), grace_of(2.0)
        (1.0, 0.2)
    """
    return min(1.0, 0.1 * deadline_s)


class TorchCommunicator(Communicator):
    """One process's view of a group of processes; made by a torch `Backend`, not by hand.

    NumPy arrays come out as NumPy arrays, and tensors as tensors on the device they came from (where a rank brings
    none, on the device of the library). All members must bring the same of the two.

    Args:
        pool: the groups of this process.
        group: of these ranks; None for a group of one.
        uid: name of this communicator, the same on all members.
        rank: group-local number of this process.
        ranks: global numbers of the members.
        deadline_s: seconds that a call may wait for the others.
        max_message_bytes: larger messages between two ranks are sent in rounds.
        wire_dtype: what payload is viewed as for the library.
    """

    universal_dtypes = NUMPY_DTYPES | TENSOR_DTYPES.keys()

    def __init__(
        self,
        pool: GroupPool,
        group: Group | None,
        uid: str,
        rank: int,
        ranks: Sequence[int],
        *,
        deadline_s: float,
        max_message_bytes: int,
        wire_dtype: torch.dtype = torch.uint8,
    ) -> None:
        super().__init__(rank, ranks, deadline_s=deadline_s, max_message_bytes=max_message_bytes)
        self._pool = pool
        self._group = group
        self._uid = uid
        self._library = pool.library
        self._wire_dtype = wire_dtype
        if group is not None and self._library.interruptible:  # payload goes over Gloo as control messages do
            self.inline_bytes = min(_MOST_INLINE, _MOST_INLINE_IN_ALL // self.size)
        self._grace_s = grace_of(self.deadline_s)
        self._device = self._library.device  # of the tensors of the present call
        self._is_moving = False

    # Arrays and bytes.

    def to_wire(self, array: Any) -> tuple[Any, str, tuple[int, ...]]:
        """Return the bytes of a tensor or an array in the memory of the library, its dtype name and its shape."""
        if isinstance(array, torch.Tensor):
            data, name, shape = tensor_as_bytes(array)
            self._device = array.device
            if data.device == self._library.device:
                return data, name, shape
            return data.to(self._library.device), name, shape
        converted, name = as_sendable(array)
        return self._library.upload(array_as_tensor(as_bytes(converted))), name, converted.shape

    def wire_size(self, array: Any) -> tuple[int, str, tuple[int, ...]]:
        """Return the number of the bytes of `to_wire`, and the rest of it, without moving any."""
        if isinstance(array, torch.Tensor):
            return array.numel() * array.itemsize, wire_name_of(array), tuple(array.shape)
        converted, name = as_sendable(array)
        return converted.nbytes, name, converted.shape

    def _host_bytes(self, array: Any) -> tuple[npt.NDArray[np.uint8], str, tuple[int, ...]]:
        """Return what `to_wire` does; the bytes are on the host, where most come from."""
        if isinstance(array, torch.Tensor):
            data, name, shape = tensor_as_bytes(array)
            return data.cpu().numpy(), name, shape
        converted, name = as_sendable(array)
        return as_bytes(converted), name, converted.shape

    def from_wire(self, buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return the tensor or the array whose bytes, dtype name and shape these are."""
        if dtype in TENSOR_DTYPES:
            return bytes_as_tensor(buffer, dtype, shape).to(self._device)
        return from_bytes(self._library.download(buffer).numpy(), dtype, shape)

    def wire_itemsize(self, dtype: str) -> int:
        """Return the bytes of one element of the dtype of that name."""
        if dtype in TENSOR_DTYPES:
            return TENSOR_DTYPES[dtype].itemsize
        if dtype.startswith("torch."):
            raise BackendError(f"dtype {dtype} is unknown to torch {torch.__version__} here")
        return dtype_from_name(dtype).itemsize

    def _allocate(self, num_bytes: int) -> torch.Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8, device=self._library.device)

    def _allocate_elements(self, num_bytes: int) -> torch.Tensor:
        return self._allocate(padded_size(num_bytes, self._wire_dtype)).view(self._wire_dtype)

    # The primitives.

    def _begin_call(self, verb: str) -> None:
        self._device = self._library.device
        if verb in ("split", "dup") and self.size > 1:
            self._pool.require_room()

    def _exchange_control(self, record: bytes) -> list[bytes]:
        if self._group is None:
            return [record]
        length = len(record)
        data = self._exchange(torch.frombuffer(bytearray(record * self.size), dtype=torch.uint8)).numpy().tobytes()
        return [data[start : start + length] for start in range(0, len(data), length)]

    def _exchange_inline(self, record: bytes, blocks: Sequence[Any]) -> tuple[list[bytes], Sequence[Any]]:
        length = len(record)
        sent = np.zeros((self.size, length + self.inline_bytes), np.uint8)
        sent[:, :length] = np.frombuffer(record, np.uint8)
        for row, block in zip(sent, blocks, strict=False):
            row[length : length + len(block)] = block.numpy()
        received = self._exchange(torch.from_numpy(sent.reshape(-1))).view(sent.shape)
        return [row.tobytes() for row in received.numpy()[:, :length]], list(received[:, length:])

    def _exchange(self, sent: torch.Tensor) -> torch.Tensor:
        """Return what all members sent to this one, in parts of one size."""
        assert self._group is not None
        # All-to-all and not all-gather: each rank then talks to each, and all see at once that one is gone.
        received = torch.empty_like(sent)
        splits = [len(sent) // self.size] * self.size
        options = AllToAllOptions()
        options.timeout = self._time_left()
        with self._translated():
            self._wait(self._group.control.alltoall_base(received, sent, splits, splits, options))
        return received

    def _all_gather_bytes(self, payload: Any, sizes: list[int]) -> list[Any]:
        if self._group is None:
            return [payload.clone()]
        largest = max(sizes)
        sent = as_elements(payload, self._wire_dtype, largest)
        parts = [self._allocate_elements(largest) for _ in sizes]
        options = self._timed(AllgatherOptions())
        self._move(lambda group: group.allgather([parts], [sent], options))
        data = [part.view(torch.uint8) for part in parts]
        return [part if len(part) == size else part[:size].clone() for part, size in zip(data, sizes, strict=True)]

    def _all_to_all_bytes(self, payload: Any, send_sizes: list[int], recv_sizes: list[int]) -> Any:
        if self._group is None:
            return payload.clone()
        sent, send_splits = pack_blocks(payload, send_sizes, self._wire_dtype)
        recv_splits = [padded_size(size, self._wire_dtype) // self._wire_dtype.itemsize for size in recv_sizes]
        received = self._allocate_elements(sum(recv_splits) * self._wire_dtype.itemsize)
        options = self._timed(AllToAllOptions())
        self._move(lambda group: group.alltoall_base(received, sent, recv_splits, send_splits, options))
        return unpack_blocks(received, recv_sizes)

    def _broadcast_bytes(self, payload: Any | None, size: int, root: int) -> Any:
        if self._group is None:
            return payload
        buffer = self._allocate_elements(size) if payload is None else as_elements(payload, self._wire_dtype)
        options = self._timed(BroadcastOptions())
        options.rootRank = root
        options.rootTensor = 0
        self._move(lambda group: group.broadcast([buffer], options))
        data = buffer.view(torch.uint8)
        return data if len(data) == size else data[:size].clone()

    def _split(self, partition: tuple[tuple[int, ...], ...], block: int) -> Communicator:
        members = partition[block]
        ranks = tuple(self.ranks[member] for member in members)
        uid = f"{self._uid}.{self._call}.{block}"
        group = None
        if self.size > 1:
            reserved = self._pool.reserve(ranks)
            offers = [encode_offer([])] * self.size
            try:
                offers = self._exchange_control(encode_offer(reserved))
            finally:
                group = self._pool.settle(reserved, [offers[member] for member in members])
            if group is None and len(ranks) > 1:
                with self._translated():
                    group = self._pool.create(uid, members.index(self.rank), ranks)
        return self._make_child(group, uid, members.index(self.rank), ranks)

    def _make_child(self, group: Group | None, uid: str, member: int, ranks: Sequence[int]) -> TorchCommunicator:
        """Return the communicator of a group that came out of this one."""
        return TorchCommunicator(
            self._pool,
            group,
            uid,
            member,
            ranks,
            deadline_s=self.deadline_s,
            max_message_bytes=self.max_message_bytes,
            wire_dtype=self._wire_dtype,
        )

    def _close(self) -> None:
        group, self._group = self._group, None
        if group is None:
            return
        owner = self._owner
        in_use = owner is not None and owner is not threading.current_thread() and owner.is_alive()
        if self._broken is None and not self._is_moving and not in_use:
            self._pool.give_back(group)
        else:
            group.discard(stuck=self._is_moving)

    # Waiting, and what comes of it.

    def _move(self, issue: Callable[[Any], Any]) -> None:
        """Run one collective of the library on payload, to its end."""
        group = self._group
        assert group is not None
        if self._library.interruptible:
            with self._translated():
                self._wait(issue(group.payload))
            return
        with (
            end_process_after(self._time_left().total_seconds(), self._overdue_error),
            self._translated(),
            self._library.apart(),
        ):
            issue(group.payload).wait()

    def _time_left(self) -> timedelta:
        """The time that the library may wait."""
        return timedelta(seconds=max(0.001, self._remaining_s() - self._grace_s))

    def _timed(self, options: Any) -> Any:
        """Have the library itself give up in time, where that is a failure of the call and not of the process."""
        if self._library.interruptible:
            options.timeout = self._time_left()
        return options

    def _wait(self, work: Any) -> None:
        """Wait for a call of Gloo until the deadline, less the grace."""
        until = time.monotonic() + self._time_left().total_seconds() + 0.5 * self._grace_s
        self._is_moving = True
        try:
            while not work.is_completed() and not self._closed and (left := until - time.monotonic()) > 0:
                with contextlib.suppress(RuntimeError):  # the end of the slice; a failure is raised again below
                    work.wait(timedelta(seconds=max(0.001, min(_SLICE_S, left))))
            if not work.is_completed():
                raise RuntimeError("closed" if self._closed else f"no answer within {self.deadline_s:g} s")
            self._is_moving = False
            work.wait()
        finally:
            del work  # the traceback would keep it, it the sockets, and they the other ranks waiting

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Raise what torch raises as a `PeerError`."""
        try:
            yield
        except PeerError:
            raise
        except RuntimeError as error:
            raise self._peer_error(error) from error

    def _peer_error(self, error: BaseException) -> PeerError:
        """Return the error for a failure in the library: who is missing, as far as it is known."""
        group = self._group
        if group is None:
            return PeerError(f"this communicator was closed in {self._where()}", cause=type(error).__name__)
        late = self._remaining_s() <= 2 * self._grace_s
        group.discard(stuck=self._is_moving)
        detail = f"{type(error).__name__}: {error}".partition("\n")[0]
        verdict = group.roll_call.conclude(late, self._describer(detail), self._grace_s)
        if verdict is not None:
            return PeerError(verdict.text, rank=verdict.rank)
        return PeerError(
            f"the connection to other ranks broke in {self._where()}, and the store of the job, which could tell "
            f"whose, cannot be reached (its host, often rank 0, may be gone): {detail}"
        )

    def _overdue_error(self) -> PeerError:
        """The error of the watchdog; it runs in another thread while this one is stuck."""
        assert self._group is not None
        detail = f"{self._library.name} did not come back within {self.deadline_s:g} s"
        verdict = self._group.roll_call.conclude(True, self._describer(detail), self._grace_s)
        return PeerError(verdict.text if verdict else f"{detail} in {self._where()}", rank=verdict and verdict.rank)

    def _describer(self, detail: str) -> Callable[[list[int], bool], str]:
        def describe(missing: list[int], late: bool) -> str:
            if not missing:
                return f"the connection between ranks broke in {self._where()}, though none is missing: {detail}"
            if late:
                return str(self._missing_error([self.ranks.index(rank) for rank in missing]))
            return f"lost {name_ranks(missing)} in {self._where()}: its process has ended, or the connection broke"

        return describe
