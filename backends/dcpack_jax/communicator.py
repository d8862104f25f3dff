"""The communicator of the JAX back end: control over the coordination service, payload as words over the devices."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from dcpack.comm import Communicator
from dcpack.comm.buckets import as_words, bucket_bytes, place_blocks, take_blocks
from dcpack.comm.dtypes import dtype_from_name
from dcpack.comm.failures import name_ranks
from dcpack.errors import PeerError
from dcpack_jax.board import Board
from dcpack_jax.programs import Programs
from dcpack_jax.start import Ending
from dcpack_jax.turns import Runner, Turns
from dcpack_jax.wire import PREFIX, SAFE_DTYPES, array_as_wire, check_width, wire_as_array

__all__ = ["JaxCommunicator", "Process"]

_Bytes = npt.NDArray[np.uint8]
# What a member says before payload moves: whether it grants the turn, whether its time is up, its largest block.
_OFFER = struct.Struct("<??q")
_MAX_PAUSE_S = 0.02


@dataclass(frozen=True, kw_only=True, slots=True)
class Process:
    """What the communicators of one process share.

    Attributes:
        client: the coordination service; None for a process that is alone.
        devices: the device of each process that carries payload.
        service_bytes: payload of a call that is at most this, over all members, goes through the service.
        turns: whose turn it is to use the devices.
        runner: the thread that uses them.
        ending: what to tell of lost processes.
    """

    client: Any
    devices: tuple[Any, ...]
    service_bytes: int
    turns: Turns
    runner: Runner
    ending: Ending


class JaxCommunicator(Communicator):
    """One process's view of a group of processes; made by `JaxBackend`, not by hand.

    NumPy arrays come out as NumPy arrays, and JAX arrays as JAX arrays on the device they came from (where a rank
    brings none, on this process's first). All members must bring the same of the two.

    Args:
        process: what all communicators of this process share.
        uid: name of this communicator, the same on all members.
        rank: group-local number of this process.
        ranks: global numbers of the members.
        deadline_s: seconds that a call may wait for the others.
        max_message_bytes: larger messages between two ranks are sent in rounds.
    """

    universal_dtypes = SAFE_DTYPES

    def __init__(
        self,
        process: Process,
        uid: str,
        rank: int,
        ranks: Sequence[int],
        *,
        deadline_s: float,
        max_message_bytes: int,
    ) -> None:
        super().__init__(rank, ranks, deadline_s=deadline_s, max_message_bytes=max_message_bytes)
        self._process = process
        self._uid = uid
        self._board = Board(process.client, uid, rank, self.size) if self.size > 1 else None
        self._programs: Programs | None = None
        self._grace_s = min(1.0, 0.1 * self.deadline_s)
        self._device: Any = None  # of the JAX array of the present call

    # Arrays and bytes.

    def to_wire(self, array: Any) -> tuple[Any, str, tuple[int, ...]]:
        """Return the bytes of a JAX array or of anything NumPy takes, its dtype name and its shape."""
        if isinstance(array, jax.Array):
            self._device = next(iter(array.devices()))
            return array_as_wire(array)
        return super().to_wire(array)

    def from_wire(self, buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return the array whose bytes, dtype name and shape these are."""
        if dtype.startswith(PREFIX):
            return wire_as_array(buffer, dtype, shape, self._device or jax.local_devices()[0])
        return super().from_wire(buffer, dtype, shape)

    def wire_itemsize(self, dtype: str) -> int:
        """Return the bytes of one element of the dtype of that name."""
        if dtype.startswith(PREFIX):
            check_width(dtype.removeprefix(PREFIX))
        return dtype_from_name(dtype.removeprefix(PREFIX)).itemsize

    # The primitives.

    def _begin_call(self, verb: str) -> None:
        self._device = None

    def _exchange_control(self, record: bytes) -> list[bytes]:
        if self._board is None:
            return [record]
        try:
            return self._board.exchange(record, self._deadline_at, self._missing_error)
        except PeerError:
            self._process.ending.note_loss()
            raise

    def _all_gather_bytes(self, payload: Any, sizes: list[int]) -> list[Any]:
        if self._board is None:
            return [payload.copy()]
        if sum(sizes) <= self._process.service_bytes:
            return [_as_array(message) for message in self._exchange_control(payload.tobytes())]
        largest = bucket_bytes(max(sizes))
        self._offer(max(sizes))
        rows = self._run(lambda programs: programs.all_gather(as_words(payload, largest)))
        return [take_blocks(row[None], [size]) for row, size in zip(rows, sizes, strict=True)]

    def _all_to_all_bytes(self, payload: Any, send_sizes: list[int], recv_sizes: list[int]) -> Any:
        if self._board is None:
            return payload.copy()
        inline = payload.tobytes() if len(payload) <= self._process.service_bytes // self.size else None
        offers = self._offer(max(*send_sizes, *recv_sizes), send_sizes, inline)
        if all(offer.inline is not None for offer in offers):
            self._process.turns.leave(self._uid)
            return np.concatenate([offer.block(self.rank) for offer in offers])
        largest = bucket_bytes(max(offer.largest for offer in offers))
        rows = self._run(lambda programs: programs.all_to_all(place_blocks(payload, send_sizes, largest)))
        return take_blocks(rows, recv_sizes)

    def _broadcast_bytes(self, payload: Any | None, size: int, root: int) -> Any:
        if self._board is None:
            return payload
        if size <= self._process.service_bytes:
            return _as_array(self._exchange_control(b"" if payload is None else payload.tobytes())[root])
        self._offer(size)
        # A sum in which all but one bring zeros: exact, as words are integers.
        words = as_words(np.zeros(0, np.uint8) if payload is None else payload, bucket_bytes(size))
        return take_blocks(self._run(lambda programs: programs.sum(words))[None], [size])

    def _split(self, partition: tuple[tuple[int, ...], ...], block: int) -> Communicator:
        members = partition[block]
        return JaxCommunicator(
            self._process,
            f"{self._uid}.{self._call}.{block}",
            members.index(self.rank),
            tuple(self.ranks[member] for member in members),
            deadline_s=self.deadline_s,
            max_message_bytes=self.max_message_bytes,
        )

    def _close(self) -> None:
        self._process.turns.leave(self._uid)
        if self._board is not None:
            self._board.close()

    # Turns, and what comes of them.

    def _offer(self, largest: int, sizes: Sequence[int] = (), inline: bytes | None = None) -> list[_Offer]:
        """Return what all members say when all have granted this communicator its turn, or sent their payload inline.

        Raises:
            PeerError: some member did not come, or other collectives kept its devices until the deadline.
        """
        turns, attempt = self._process.turns, 0
        try:
            while True:
                is_granted = turns.ask(self._uid, attempt)
                is_late = self._remaining_s() <= self._grace_s
                mine = _Offer(is_granted, is_late, largest, sizes, inline)
                offers = [_Offer.decode(data) for data in self._exchange_control(mine.encode(self.size))]
                if all(offer.is_granted for offer in offers) or all(offer.inline is not None for offer in offers):
                    return offers
                turns.give_up(self._uid)
                if any(offer.is_late for offer in offers):
                    busy = [rank for rank, offer in zip(self.ranks, offers, strict=True) if not offer.is_granted]
                    raise PeerError(
                        f"{self._where()} did not get its turn within {self.deadline_s:g} s: other collectives keep "
                        f"the devices of {name_ranks(busy)}"
                    )
                attempt += 1
                time.sleep(min(_MAX_PAUSE_S, 0.001 * attempt))
        except BaseException:
            turns.leave(self._uid)
            raise

    def _run(self, use: Callable[[Programs], Any]) -> Any:
        """Run a collective of the devices, whose turn it is, to its end."""
        wait = self._process.runner.start(lambda: use(self._made_programs()))
        # A collective that does not come back keeps the turn for good: nothing could run behind it.
        is_over = False
        try:
            result = wait(max(0.001, self._remaining_s() - self._grace_s))
            is_over = True
            return result
        except TimeoutError as error:
            raise self._failure(f"the devices did not come back within {self.deadline_s:g} s") from error
        except Exception as error:
            is_over = True
            raise self._failure(f"{type(error).__name__}: {error}".partition("\n")[0]) from error
        finally:
            if is_over:
                self._process.turns.leave(self._uid)

    def _made_programs(self) -> Programs:
        if self._programs is None:
            self._programs = Programs([self._process.devices[rank] for rank in self.ranks], self.rank)
        return self._programs

    def _failure(self, detail: str) -> PeerError:
        """Return the error for a failure of the devices: who is missing, as far as it is known."""
        assert self._board is not None
        self._process.ending.note_loss()

        def lost(members: list[int]) -> PeerError:
            ranks = sorted(self.ranks[member] for member in members)
            return PeerError(
                f"lost {name_ranks(ranks)} in {self._where()}: its process has ended, or the connection broke",
                rank=ranks[0],
            )

        text = f"the devices of rank {self.ranks[self.rank]} failed in {self._where()}: {detail}"
        return self._board.report(text, time.monotonic() + self._grace_s, lost)


@dataclass(frozen=True, slots=True)
class _Offer:
    """What one member says before payload moves.

    Attributes:
        is_granted: its devices are free for this collective.
        is_late: its deadline is near.
        largest: bytes of its largest block.
        sizes: bytes of its block for each member, if it sends them inline.
        inline: these blocks, end to end; None if they are too long.
    """

    is_granted: bool
    is_late: bool
    largest: int
    sizes: Sequence[int]
    inline: bytes | None

    def encode(self, size: int) -> bytes:
        head = _OFFER.pack(self.is_granted, self.is_late, self.largest)
        if self.inline is None:
            return head
        assert len(self.sizes) == size
        return head + struct.pack("<q", size) + np.array(self.sizes, "<i8").tobytes() + self.inline

    @classmethod
    def decode(cls, data: bytes) -> _Offer:
        is_granted, is_late, largest = _OFFER.unpack_from(data)
        if len(data) == _OFFER.size:
            return cls(is_granted, is_late, largest, (), None)
        (count,) = struct.unpack_from("<q", data, _OFFER.size)
        start = _OFFER.size + 8
        sizes = np.frombuffer(data, "<i8", count, start).tolist()
        return cls(is_granted, is_late, largest, sizes, data[start + 8 * count :])

    def block(self, member: int) -> _Bytes:
        """Return the block for `member`."""
        assert self.inline is not None
        start = sum(self.sizes[:member])
        return np.frombuffer(self.inline, np.uint8, self.sizes[member], start)


def _as_array(data: bytes) -> _Bytes:
    return np.frombuffer(bytearray(data), np.uint8)
