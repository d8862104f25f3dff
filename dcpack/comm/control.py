"""The control record: what one rank tells all others at the start of every call.

Its size never depends on the size of the group, so that a back end can gather records with the simplest collective it
has. From the records of a group every rank concludes the same: go on, or raise the same error.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array
from dcpack.errors import ArgumentError

__all__ = ["MAX_NDIM", "RECORD_BYTES", "VERBS", "ControlRecord", "common_limit", "count_checksums", "shape_text"]

VERBS: tuple[str, ...] = ("all_gather", "all_to_all", "broadcast", "agree", "barrier", "split", "dup")
"""The calls that ranks make together, in the order of their numbers on the wire."""
MAX_NDIM = 8
"""Dims that an array in a call may have at most."""
_MAX_NAME = 32
_DIGEST_BYTES = 16
# call, verb, ok, root, ndim; dims; dtype; report, num_bytes, largest_message, max_message_bytes; digest; checksums
_LAYOUT = struct.Struct(f"<QB?qb{MAX_NDIM}q{_MAX_NAME}sqqqq{_DIGEST_BYTES}sQQ")
RECORD_BYTES = _LAYOUT.size
"""Size of an encoded control record, whatever the call and the group."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ControlRecord:
    """One rank's account of the call that it is making.

    Attributes:
        call: number of the call on this communicator, from 0.
        verb: one of `VERBS`.
        ok: False if this rank failed before the call; a report of `report_bytes` then follows.
        max_message_bytes: this rank's bound on one message; the smallest of the group holds for all.
        root: group-local root of a broadcast, -1 elsewhere.
        shape: shape of the array that this rank sends, None if it sends none; at most 8 dims.
        dtype: name of its dtype, at most 32 ASCII characters.
        num_bytes: bytes of that array.
        largest_message: bytes of the largest single message to one rank.
        report_bytes: bytes of the text that explains a failure or a partition, should it be asked for.
        digest: 16 bytes that stand for the partition of a split.
        send_checksum: see `count_checksums`.
        recv_checksum: see `count_checksums`.

    Example:
        >>> record = ControlRecord(call=4, verb="barrier", max_message_bytes=1 << 30)
        >>> ControlRecord.decode(record.encode()) == record
        True
    """

    call: int
    verb: str
    max_message_bytes: int
    ok: bool = True
    root: int = -1
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    num_bytes: int = 0
    largest_message: int = 0
    report_bytes: int = 0
    digest: bytes = bytes(_DIGEST_BYTES)
    send_checksum: int = 0
    recv_checksum: int = 0

    def encode(self) -> bytes:
        """Return the record as `RECORD_BYTES` bytes.

        Raises:
            ArgumentError: too many dims, or a dtype name that is too long.
        """
        shape = self.shape or ()
        if len(shape) > MAX_NDIM:
            raise ArgumentError(f"an array of {len(shape)} dims cannot be sent: at most {MAX_NDIM}, got shape {shape}")
        name = self.dtype.encode("ascii", "replace")
        if len(name) > _MAX_NAME:
            raise ArgumentError(f"the name of dtype {self.dtype!r} is longer than {_MAX_NAME} characters")
        return _LAYOUT.pack(
            self.call,
            VERBS.index(self.verb),
            self.ok,
            self.root,
            -1 if self.shape is None else len(shape),
            *shape,
            *[0] * (MAX_NDIM - len(shape)),
            name,
            self.report_bytes,
            self.num_bytes,
            self.largest_message,
            self.max_message_bytes,
            self.digest,
            self.send_checksum,
            self.recv_checksum,
        )

    @classmethod
    def decode(cls, data: bytes) -> ControlRecord:
        """Return the record that `encode` made into `data`."""
        call, verb, ok, root, ndim, *rest = _LAYOUT.unpack(data)
        name, report_bytes, num_bytes, largest, max_message, digest, send_checksum, recv_checksum = rest[MAX_NDIM:]
        return cls(
            call=call,
            verb=VERBS[verb],
            max_message_bytes=max_message,
            ok=ok,
            root=root,
            shape=None if ndim < 0 else tuple(rest[:ndim]),
            dtype=name.rstrip(b"\0").decode("ascii"),
            num_bytes=num_bytes,
            largest_message=largest,
            report_bytes=report_bytes,
            digest=digest,
            send_checksum=send_checksum,
            recv_checksum=recv_checksum,
        )


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood, 2014): each input bit changes half of the output bits."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _hash(
    senders: npt.NDArray[np.int64], receivers: npt.NDArray[np.int64], counts: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    mixed = _mix(senders.astype(np.uint64))
    mixed = _mix(mixed ^ receivers.astype(np.uint64))
    return _mix(mixed ^ counts.astype(np.uint64))


def count_checksums(rank: int, send_counts: Int64Array, recv_counts: Int64Array) -> tuple[int, int]:
    """Return two numbers whose sums over the group are equal if all counts are each other's transpose.

    With a 64-bit hash h, rank i gives ``S_i = sum_j h(i, j, send_i[j])`` and ``R_i = sum_j h(j, i, recv_i[j])``. What i
    sends to j appears in S_i and what j expects of i in R_j, so that sum S = sum R (mod 2^64) if all of them agree; if
    they do not, the sums are equal by a chance of 2^-64 only. So 16 bytes a rank check N x N counts.

    Args:
        rank: group-local number of this rank.
        send_counts: int64[n], elements for each rank.
        recv_counts: int64[n], elements from each rank.

    Example:
        >>> s0, r0 = count_checksums(0, np.array([1, 5]), np.array([1, 2]))
        >>> s1, r1 = count_checksums(1, np.array([2, 0]), np.array([5, 0]))
        >>> (s0 + s1) % 2**64 == (r0 + r1) % 2**64
        True
    """
    peers = np.arange(len(send_counts))
    here = np.full(len(send_counts), rank)
    sent = _hash(here, peers, send_counts).sum(dtype=np.uint64)
    received = _hash(peers, here, recv_counts).sum(dtype=np.uint64)
    return int(sent), int(received)


def shape_text(record: ControlRecord) -> str:
    """Return the shape with its free dim starred, for example ``(*, 3)``."""
    shape = record.shape or ()
    return f"({', '.join(['*', *map(str, shape[1:])])})" if shape else "()"


def common_limit(records: Sequence[ControlRecord]) -> int:
    """Return the bound on one message that holds for all."""
    return min(record.max_message_bytes for record in records)
