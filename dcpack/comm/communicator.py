"""One process's view of one group of processes, and the seven calls that the group makes together.

`Communicator` holds everything that is the same for all back ends: checks, the control record, error agreement, dtypes,
rounds, counters. A back end adds how bytes move.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_int, list_offenders
from dcpack.comm.agreement import check_counts, check_partition, untransposed_counts
from dcpack.comm.control import ControlRecord, common_limit, count_checksums, shape_text
from dcpack.comm.dtypes import NUMPY_DTYPES, as_bytes, as_sendable, dtype_from_name, from_bytes
from dcpack.comm.guard import Guard
from dcpack.comm.membership import GroupMember, Prepared
from dcpack.comm.rounds import all_gather_in_rounds, all_to_all_in_rounds, broadcast_in_rounds
from dcpack.errors import ArgumentError, PeerError

__all__ = ["Communicator"]

# A partition is quoted in an error up to this many characters.
_MAX_QUOTED = 2_000


class Communicator(GroupMember):
    """A group of processes, seen from one of its members.

    All members make the same calls in the same order. Every call begins with a control message, so that a failure on
    one rank, or calls that do not fit each other, are one `PeerError` on all ranks; after such an error the group is
    in step and the communicator can be used on. A member that does not come within `deadline_s` seconds is a
    `PeerError` as well, and the communicator is then broken: later calls raise at once.

    A communicator belongs to the thread that calls it first. `root` and `partition` are group-local numbers; messages
    and `PeerError.rank` hold global ones. Arrays are NumPy arrays, or arrays native to the back end, which then come
    out native too. Results own their memory and are writable; inputs are neither changed nor kept.

    Args:
        rank: group-local number of this process.
        ranks: global numbers of the members, in the order of the group.
        deadline_s: seconds that a call may wait for the others.
        max_message_bytes: larger messages between two ranks are sent in rounds.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> run_ranks(2, lambda communicator: communicator.all_gather([communicator.rank] * 2)[1].tolist())
        [[1, 1], [1, 1]]
    """

    universal_dtypes: ClassVar[frozenset[str]] = NUMPY_DTYPES
    """Names of dtypes that every process can receive; for others a broadcast makes sure before it sends."""

    # The verbs.

    def all_gather(self, array: Any) -> list[Any]:
        """Return every member's array, in the order of the group.

        Args:
            array: of any shape. The first dim may differ between ranks; dtype and the other dims may not.

        Raises:
            PeerError: some rank failed, called something else, or its array does not fit.

        Example:
            >>> from dcpack.comm import run_ranks
            >>> [part.tolist() for part in run_ranks(3, lambda c: c.all_gather(np.full(c.rank, c.rank)))[0]]
            [[], [1], [2, 2]]
        """

        def prepare() -> Prepared:
            payload, fields = self._prepare_array(array)
            is_small = fields["num_bytes"] <= self.inline_bytes
            return Prepared(payload, fields, [payload] * self.size if is_small else ())

        payload, records, blocks = self._synchronise("all_gather", prepare)
        self._require_same("dtypes", [record.dtype for record in records])
        shapes = [record.shape or () for record in records]
        self._require_same("shapes (* may differ)", [shape_text(record) for record in records])
        sizes = [record.num_bytes for record in records]
        if self._came_inline(records):
            parts = [self._join([block], [size]) for block, size in zip(blocks, sizes, strict=True)]
        else:
            with self._transport():
                parts = all_gather_in_rounds(
                    self._all_gather_bytes,
                    payload,
                    sizes,
                    rank=self.rank,
                    limit=common_limit(records),
                    allocate=self._allocate,
                )
        self._sent[self._verb] += sizes[self.rank] * (self.size - 1)
        self._bytes_received += sum(sizes) - sizes[self.rank]
        dtype = records[self.rank].dtype
        return [self.from_wire(part, dtype, shape) for part, shape in zip(parts, shapes, strict=True)]

    def all_to_all(self, buffer: Any, send_counts: Any, recv_counts: Any) -> Any:
        """Send a part of `buffer` to each member and return the parts from each, end to end.

        Args:
            buffer: one-dimensional; the elements for member 0, then those for member 1, and so on.
            send_counts: int[size], elements for each member; zeros are fine. They add up to the length of `buffer`.
            recv_counts: int[size], elements from each member. They must be what the members send.

        Raises:
            PeerError: some rank failed, called something else, or the counts are not each other's transpose.

        Example:
            Rank 0 keeps 1 element and sends 2 to rank 1; rank 1 sends 1 and keeps none.

            >>> from dcpack.comm import run_ranks
            >>> def fn(communicator):
            ...     if communicator.rank == 0:
            ...         return communicator.all_to_all([10, 11, 12], [1, 2], [1, 1]).tolist()
            ...     return communicator.all_to_all([20], [1, 0], [2, 0]).tolist()
            >>> run_ranks(2, fn)
            [[10, 20], [11, 12]]
        """

        def prepare() -> Prepared:
            payload, fields = self._prepare_array(buffer)
            sent, expected = check_counts(fields["shape"], send_counts, recv_counts, self.size)
            itemsize = self.wire_itemsize(fields["dtype"])
            fields["largest_message"] = int(sent.max()) * itemsize
            fields["send_checksum"], fields["recv_checksum"] = count_checksums(self.rank, sent, expected)
            blocks = []
            if fields["largest_message"] <= self.inline_bytes:
                ends = (np.cumsum(sent) * itemsize).tolist()
                blocks = [payload[start:end] for start, end in zip([0, *ends], ends, strict=False)]
            return Prepared((payload, sent, expected, itemsize), fields, blocks)

        (payload, sent, expected, itemsize), records, blocks = self._synchronise("all_to_all", prepare)
        self._require_same("dtypes", [record.dtype for record in records])
        checksums = [sum(record.send_checksum for record in records), sum(record.recv_checksum for record in records)]
        if (checksums[0] - checksums[1]) % 2**64:
            self._raise_untransposed(sent, expected)
        send_sizes, recv_sizes = (sent * itemsize).tolist(), (expected * itemsize).tolist()
        largest, limit = max(record.largest_message for record in records), common_limit(records)
        self._largest_block = min(largest, limit)
        if self._came_inline(records):
            received = self._join(blocks, recv_sizes)
        else:
            with self._transport():
                received = all_to_all_in_rounds(
                    self._all_to_all_bytes,
                    payload,
                    send_sizes,
                    recv_sizes,
                    largest=largest,
                    limit=limit,
                    allocate=self._allocate,
                )
        self._sent[self._verb] += sum(send_sizes) - send_sizes[self.rank]
        self._bytes_received += sum(recv_sizes) - recv_sizes[self.rank]
        return self.from_wire(received, records[self.rank].dtype, (int(expected.sum()),))

    def broadcast(self, array: Any | None, root: int) -> Any:
        """Return the root's array on all members.

        Args:
            array: of any shape and dtype on the root; ignored elsewhere, where None will do.
            root: group-local number of the member that sends.

        Raises:
            PeerError: some rank failed or called something else, the roots differ, or a receiver cannot hold the dtype.

        Example:
            >>> from dcpack.comm import run_ranks
            >>> run_ranks(2, lambda c: c.broadcast(np.array([7, 8]) if c.rank == 1 else None, root=1).tolist())
            [[7, 8], [7, 8]]
        """

        def prepare() -> Prepared:
            source = check_int("root", root, minimum=0, maximum=self.size - 1)
            if self.rank != source:
                return Prepared(None, {"root": source})
            if array is None:
                raise ArgumentError(f"broadcast needs an array on its root, rank {self.ranks[source]}, got None")
            payload, fields = self._prepare_array(array)
            is_small = fields["num_bytes"] <= self.inline_bytes
            return Prepared(payload, {"root": source, **fields}, [payload] * self.size if is_small else ())

        payload, records, blocks = self._synchronise("broadcast", prepare)
        self._require_same("roots", [f"root {self.ranks[record.root]}" for record in records])
        source = records[self.rank].root
        sent = records[source]
        if sent.dtype not in self.universal_dtypes:
            self._agree_on_dtype(sent.dtype)
        if self._came_inline(records):
            received = self._join([blocks[source]], [sent.num_bytes])
        else:
            with self._transport():
                received = broadcast_in_rounds(
                    lambda chunk, size: self._broadcast_bytes(chunk, size, source),
                    payload,
                    sent.num_bytes,
                    limit=common_limit(records),
                    allocate=self._allocate,
                )
        if self.rank == source:
            self._sent[self._verb] += sent.num_bytes * (self.size - 1)
        else:
            self._bytes_received += sent.num_bytes
        return self.from_wire(received, sent.dtype, sent.shape or ())

    def agree(self, error: BaseException | None = None) -> None:
        """Go on, on all members; or, if any member brings an error, raise `PeerError` on all of them.

        Args:
            error: what went wrong here, None if nothing did.

        Raises:
            PeerError: with the first cause, which is the failure on the lowest global rank. Where `error` was given it
                is the `__cause__`.

        Example:
            >>> from dcpack.comm import run_ranks
            >>> def fn(communicator):
            ...     communicator.agree(ValueError("no data") if communicator.rank == 1 else None)
            >>> try:
            ...     run_ranks(2, fn)
            ... except PeerError as error:
            ...     print(error.rank, error.cause, str(error).splitlines()[0])
            1 ValueError rank 1 failed in agree (call 0): ValueError: no data
        """
        if error is not None and not isinstance(error, BaseException):
            error = ArgumentError(f"error must be an exception or None, got {error!r} ({type(error).__name__})")
        self._synchronise("agree", Prepared, failure=error)

    def guard(self) -> contextlib.AbstractContextManager[None]:
        """Return a context whose end is an `agree`: if its body raises on any rank, all ranks raise `PeerError`.

        The body must make no call on this communicator. Ctrl-C and exits are told to the others but stay what they are:
        they go on their way when the others have come here, or at the deadline. A second Ctrl-C ends the wait.

        Example:
            >>> from dcpack.comm import run_ranks
            >>> def fn(communicator):
            ...     with communicator.guard():
            ...         return 1 // communicator.rank
            >>> try:
            ...     run_ranks(2, fn)
            ... except PeerError as error:
            ...     print(str(error).splitlines()[0])
            rank 0 failed in agree (call 0): ZeroDivisionError: integer division or modulo by zero
        """
        return Guard(self)

    def barrier(self) -> None:
        """Return when all members have called it."""
        self._synchronise("barrier", Prepared)

    def split(self, partition: Iterable[Iterable[int]]) -> Communicator:
        """Return a communicator of the block of `partition` that holds this member.

        Args:
            partition: blocks of group-local numbers. Each member is in one block; all ranks pass the same partition.
                The members of a new group have the order of the block.

        Raises:
            PeerError: some rank failed or called something else, or the partitions differ.

        Example:
            >>> from dcpack.comm import run_ranks
            >>> run_ranks(3, lambda communicator: communicator.split([[2, 0], [1]]).ranks)
            [(2, 0), (1,), (2, 0)]
        """

        def prepare() -> Prepared:
            blocks = check_partition(partition, self.size)
            text = json.dumps(blocks).encode("ascii")
            quoted = text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + b"..."
            digest = hashlib.blake2b(text, digest_size=16).digest()
            return Prepared((blocks, quoted), {"digest": digest, "report_bytes": len(quoted)})

        (blocks, quoted), records, _ = self._synchronise("split", prepare)
        if len({record.digest for record in records}) > 1:
            texts = self._gather_reports(quoted, records)
            self._require_same("partitions", [text.decode("ascii") for text in texts])
            raise PeerError(f"partitions differ in {self._where()} beyond their first {_MAX_QUOTED} characters")
        with self._transport():
            return self._split(blocks, next(i for i, block in enumerate(blocks) if self.rank in block))

    def dup(self) -> Communicator:
        """Return another communicator of the same group, for another thread: its calls do not mix with these.

        Example:
            >>> from dcpack.comm import run_ranks
            >>> run_ranks(2, lambda communicator: communicator.dup().ranks)
            [(0, 1), (0, 1)]
        """
        self._synchronise("dup", Prepared)
        with self._transport():
            return self._split((tuple(range(self.size)),), 0)

    # What a back end writes.

    @abstractmethod
    def _all_gather_bytes(self, payload: Any, sizes: list[int]) -> list[Any]:
        """Return every member's bytes, this one's included, in new buffers; `sizes` are theirs."""

    @abstractmethod
    def _all_to_all_bytes(self, payload: Any, send_sizes: list[int], recv_sizes: list[int]) -> Any:
        """Send `send_sizes[j]` bytes to member j, this one included; return the bytes from all in a new buffer.

        ``self._largest_block`` is an upper bound of the bytes of every block between any two members, the same on all:
        what a library that moves equal blocks pads them to.
        """

    @abstractmethod
    def _broadcast_bytes(self, payload: Any | None, size: int, root: int) -> Any:
        """Return the root's `size` bytes in a new buffer; `payload` is None elsewhere, the root's result is unused."""

    @abstractmethod
    def _split(self, partition: tuple[tuple[int, ...], ...], block: int) -> Communicator:
        """Return this member's communicator of `partition[block]`; all members of this group enter together."""

    def _allocate(self, num_bytes: int) -> Any:
        """Return a new one-dimensional buffer of bytes of the kind that the primitives move."""
        return np.empty(num_bytes, np.uint8)

    def to_wire(self, array: Any) -> tuple[Any, str, tuple[int, ...]]:
        """Return the bytes of `array` (a view where possible), the name of its dtype, and its shape.

        Raises:
            ArgumentError: the array cannot travel.
        """
        converted, name = as_sendable(array)
        return as_bytes(converted), name, converted.shape

    def wire_size(self, array: Any) -> tuple[int, str, tuple[int, ...]]:
        """Return the number of the bytes of `to_wire`, and the rest of it, without moving any.

        Raises:
            ArgumentError: the array cannot travel.
        """
        data, name, shape = self.to_wire(array)
        return len(data), name, shape

    def _host_bytes(self, array: Any) -> tuple[npt.NDArray[np.uint8], str, tuple[int, ...]]:
        """Return what `to_wire` does, or raise its error; the bytes are on the host. `encode_tree` writes these."""
        data, name, shape = self.to_wire(array)
        return self.from_wire(data, "uint8", (len(data),)), name, shape

    def from_wire(self, buffer: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """Return the array whose bytes, dtype name and shape these are; it may take over `buffer`."""
        return from_bytes(buffer, dtype, shape)

    def wire_itemsize(self, dtype: str) -> int:
        """Return the bytes of one element of the dtype of that name.

        Raises:
            BackendError: this process cannot hold such a dtype.
        """
        return dtype_from_name(dtype).itemsize

    def _raise_untransposed(self, sent: Int64Array, expected: Int64Array) -> NoReturn:
        """Gather all counts and name the pairs that do not fit: rare, so only then is a long message worth it."""
        with self._transport():
            tables = self._exchange_control(np.concatenate([sent, expected]).astype("<i8").tobytes())
        table = np.array([np.frombuffer(data, "<i8") for data in tables])
        pairs = untransposed_counts(table[:, : self.size], table[:, self.size :], self.ranks)
        raise PeerError(f"counts differ in {self._where()}: {list_offenders(pairs)}")

    def _agree_on_dtype(self, dtype: str) -> None:
        """Make sure that every member can hold `dtype` before it is sent."""
        failure: Exception | None = None
        try:
            self.wire_itemsize(dtype)
        except Exception as error:
            failure = error
        self._exchange_records(self._record(), failure)

    def _came_inline(self, records: Sequence[ControlRecord]) -> bool:
        """Whether what this call moves came with the control records: all members find the same."""
        largest = max(record.largest_message for record in records)
        return self.inline_bytes > 0 and largest <= min(self.inline_bytes, common_limit(records))

    def _join(self, blocks: Sequence[Any], sizes: Sequence[int]) -> Any:
        """Return the first bytes of each block, end to end, in memory of their own."""
        joined = self._allocate(sum(sizes))
        start = 0
        for block, size in zip(blocks, sizes, strict=True):
            joined[start : start + size] = block[:size]
            start += size
        return joined

    def _prepare_array(self, array: Any) -> tuple[Any, dict[str, Any]]:
        payload, dtype, shape = self.to_wire(array)
        num_bytes = len(payload)
        return payload, {"dtype": dtype, "shape": shape, "num_bytes": num_bytes, "largest_message": num_bytes}
