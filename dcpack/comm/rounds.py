"""Sending what is larger than one message may be: the same movement of bytes, in rounds.

All ranks derive the same number of rounds from the control records. A buffer is whatever the back end moves: anything
one-dimensional with slices and slice assignment whose elements are bytes, such as a NumPy array or a tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Any

__all__ = ["all_gather_in_rounds", "all_to_all_in_rounds", "broadcast_in_rounds"]

Buffer = Any
Allocate = Callable[[int], Buffer]


def _clip(sizes: Sequence[int], start: int, limit: int) -> list[int]:
    return [max(0, min(limit, size - start)) for size in sizes]


def all_gather_in_rounds(
    move: Callable[[Buffer, list[int]], list[Buffer]],
    payload: Buffer,
    sizes: list[int],
    *,
    rank: int,
    limit: int,
    allocate: Allocate,
) -> list[Buffer]:
    """Gather every member's bytes.

    Args:
        move: gathers one round: this rank's bytes and the bytes of each member in, one new buffer a member out.
        payload: this rank's bytes.
        sizes: bytes of each member.
        rank: group-local number of this rank.
        limit: the most bytes of one message.
        allocate: makes a buffer of so many bytes.

    Example:
        >>> import numpy as np
        >>> alone = lambda chunk, sizes: [chunk.copy()]
        >>> payload = np.arange(5, dtype=np.uint8)
        >>> all_gather_in_rounds(alone, payload, [5], rank=0, limit=2, allocate=lambda n: np.empty(n, np.uint8))
        [array([0, 1, 2, 3, 4], dtype=uint8)]
    """
    largest = max(sizes)
    if 0 < largest <= limit:
        return move(payload, sizes)
    parts = [allocate(size) for size in sizes]
    for start in range(0, largest, limit):
        lengths = _clip(sizes, start, limit)
        chunks = move(payload[start : start + lengths[rank]], lengths)
        for part, chunk, length in zip(parts, chunks, lengths, strict=True):
            part[start : start + length] = chunk
    return parts


def all_to_all_in_rounds(
    move: Callable[[Buffer, list[int], list[int]], Buffer],
    payload: Buffer,
    send_sizes: list[int],
    recv_sizes: list[int],
    *,
    largest: int,
    limit: int,
    allocate: Allocate,
) -> Buffer:
    """Send one block of bytes to each member and return the blocks from each, end to end.

    Args:
        move: one round: bytes for each member end to end, bytes for each, bytes from each in; bytes from each out.
        payload: the blocks of this rank, end to end.
        send_sizes: bytes for each member.
        recv_sizes: bytes from each member.
        largest: bytes of the largest block of any rank.
        limit: the most bytes of one message.
        allocate: makes a buffer of so many bytes.

    Example:
        >>> import numpy as np
        >>> alone = lambda chunk, send, recv: chunk.copy()
        >>> new = lambda n: np.empty(n, np.uint8)
        >>> payload = np.arange(5, dtype=np.uint8)
        >>> all_to_all_in_rounds(alone, payload, [5], [5], largest=5, limit=2, allocate=new)
        array([0, 1, 2, 3, 4], dtype=uint8)
    """
    if 0 < largest <= limit:
        return move(payload, send_sizes, recv_sizes)
    send_starts = [0, *accumulate(send_sizes)]
    recv_starts = [0, *accumulate(recv_sizes)]
    result = allocate(recv_starts[-1])
    for start in range(0, largest, limit):
        send_lengths, recv_lengths = _clip(send_sizes, start, limit), _clip(recv_sizes, start, limit)
        outgoing = allocate(sum(send_lengths))
        position = 0
        for block, length in zip(send_starts, send_lengths, strict=False):
            outgoing[position : position + length] = payload[block + start : block + start + length]
            position += length
        incoming = move(outgoing, send_lengths, recv_lengths)
        position = 0
        for block, length in zip(recv_starts, recv_lengths, strict=False):
            result[block + start : block + start + length] = incoming[position : position + length]
            position += length
    return result


def broadcast_in_rounds(
    move: Callable[[Buffer | None, int], Buffer], payload: Buffer | None, size: int, *, limit: int, allocate: Allocate
) -> Buffer:
    """Send the root's bytes to all; the result never shares memory with `payload`.

    Args:
        move: one round: the root's bytes (None elsewhere) and their number in, the bytes out; unused on the root.
        payload: the bytes on the root, None elsewhere.
        size: how many.
        limit: the most bytes of one message.
        allocate: makes a buffer of so many bytes.

    Example:
        >>> import numpy as np
        >>> alone = lambda chunk, size: chunk
        >>> payload = np.arange(3, dtype=np.uint8)
        >>> broadcast_in_rounds(alone, payload, 3, limit=2, allocate=lambda n: np.empty(n, np.uint8))
        array([0, 1, 2], dtype=uint8)
    """
    if payload is None and 0 < size <= limit:
        return move(None, size)
    result = allocate(size)
    for start in range(0, size, limit):
        length = min(limit, size - start)
        if payload is None:
            result[start : start + length] = move(None, length)
        else:
            move(payload[start : start + length], length)
    if payload is not None:
        result[:] = payload
    return result
