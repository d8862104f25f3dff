from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dcpack.comm.buckets import as_words, bucket_bytes, place_blocks, take_blocks


def test_buckets_are_powers_of_two_that_hold_what_they_must():
    sizes = [0, 1, 1023, 1024, 1025, 4096, 4097, (1 << 24) - 1, 1 << 24]
    assert [bucket_bytes(size) for size in sizes] == [1024, 1024, 1024, 1024, 2048, 4096, 8192, 1 << 24, 1 << 24]


def test_words_are_padded_and_their_own():
    data = np.array([1, 0, 0, 0, 2], np.uint8)
    words = as_words(data, 12)
    assert words.tolist() == [1, 2, 0]
    data[:] = 9
    assert words.tolist() == [1, 2, 0]


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=6))
def test_blocks_come_back(blocks: list[bytes]):
    data = np.frombuffer(b"".join(blocks), np.uint8)
    sizes = [len(block) for block in blocks]
    rows = place_blocks(data, sizes, 40)
    assert (rows.shape, rows.dtype) == ((len(blocks), 10), np.dtype(np.uint32))
    for row, block in zip(rows, blocks, strict=True):
        assert row.tobytes() == block.ljust(40, b"\0")
    back = take_blocks(rows, sizes)
    assert back.tobytes() == b"".join(blocks)
    assert not np.shares_memory(back, rows)
