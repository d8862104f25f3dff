from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.comm.rounds import all_gather_in_rounds, all_to_all_in_rounds, broadcast_in_rounds

# One rank of a group whose other members are played by the functions below: each round they give the next bytes.


def _new(size: Any):
    return np.full(size, 255, np.uint8)


def _bytes(size: Any, first: Any = 0):
    return (np.arange(size) + first).astype(np.uint8)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(1, 25), st.data())
def test_all_gather(sizes: Any, limit: Any, data: Any):
    rank = data.draw(st.integers(0, len(sizes) - 1))
    parts = [_bytes(size, 20 * member) for member, size in enumerate(sizes)]
    position = [0] * len(sizes)
    num_rounds = 0

    def move(chunk: Any, lengths: Any):
        nonlocal num_rounds
        num_rounds += 1
        assert max(lengths) <= limit
        assert chunk.tolist() == parts[rank][position[rank] : position[rank] + lengths[rank]].tolist()
        result = []
        for member, length in enumerate(lengths):
            result.append(parts[member][position[member] : position[member] + length].copy())
            position[member] += length
        return result

    gathered = all_gather_in_rounds(move, parts[rank], sizes, rank=rank, limit=limit, allocate=_new)
    assert [part.tolist() for part in gathered] == [part.tolist() for part in parts]
    assert num_rounds == -(-max(sizes) // limit)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 4), st.integers(1, 12), st.integers(0, 5), st.data())
def test_all_to_all(size: Any, limit: Any, extra: Any, data: Any):
    counts = st.lists(st.integers(0, 10), min_size=size, max_size=size)
    send_sizes, recv_sizes = data.draw(counts), data.draw(counts)
    largest = max(*send_sizes, *recv_sizes) + extra  # some other pair of ranks may send more
    blocks_out = [_bytes(length, 20 * member) for member, length in enumerate(send_sizes)]
    blocks_in = [_bytes(length, 100 + 20 * member) for member, length in enumerate(recv_sizes)]
    sent: list[list[int]] = [[] for _ in range(size)]
    position = [0] * size
    num_rounds = 0

    def move(chunk: Any, send_lengths: Any, recv_lengths: Any):
        nonlocal num_rounds
        num_rounds += 1
        assert max(send_lengths) <= limit
        assert len(chunk) == sum(send_lengths)
        start = 0
        for member, length in enumerate(send_lengths):
            sent[member] += chunk[start : start + length].tolist()
            start += length
        incoming = []
        for member, length in enumerate(recv_lengths):
            incoming.append(blocks_in[member][position[member] : position[member] + length])
            position[member] += length
        return np.concatenate(incoming)

    payload = np.concatenate(blocks_out)
    received = all_to_all_in_rounds(move, payload, send_sizes, recv_sizes, largest=largest, limit=limit, allocate=_new)
    assert received.tolist() == np.concatenate(blocks_in).tolist()
    assert sent == [block.tolist() for block in blocks_out]
    assert num_rounds == -(-largest // limit)  # the same on all ranks, also where nothing is left to send


@pytest.mark.parametrize("limit", [1, 3, 4, 100])
@pytest.mark.parametrize("size", [0, 1, 4, 10])
def test_broadcast(size: Any, limit: Any):
    payload = _bytes(size)
    wire: list[Any] = []

    def send(chunk: Any, length: Any):
        assert len(chunk) == length <= limit
        wire.append(chunk.copy())
        return None  # unused on the root

    mine = broadcast_in_rounds(send, payload, size, limit=limit, allocate=_new)
    assert mine.tolist() == payload.tolist()
    assert not np.shares_memory(mine, payload)
    assert len(wire) == -(-size // limit)

    def receive(chunk: Any, length: Any):
        assert chunk is None
        assert length == len(wire[0])
        return wire.pop(0)

    assert broadcast_in_rounds(receive, None, size, limit=limit, allocate=_new).tolist() == payload.tolist()
    assert not wire
