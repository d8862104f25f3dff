"""Where the micro-batches of a chunk begin and end, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from dcpack.batched_data_dict.microbatches import ShardChunk, even_chunks
from dcpack.errors import ArgumentError


def test_micro_batches_lie_end_to_end_in_the_order_of_their_bins() -> None:
    padded = np.array([4, 8, 16, 32, 64])
    part = ShardChunk.of_bins([np.array([4]), np.array([1, 3, 0]), np.array([2])], padded)
    assert part.rows.tolist() == [4, 1, 3, 0, 2]
    assert part.bounds == [[0, 1], [1, 4], [4, 5]]
    assert part.lengths == [64, 8 + 32 + 4, 16]
    assert all(type(length) is int for length in part.lengths)
    for (start, end), length in zip(part.bounds, part.lengths, strict=True):
        assert padded[part.rows[start:end]].sum() == length


def test_sums_beyond_int32_stay_exact() -> None:
    part = ShardChunk.of_bins([np.array([0, 1])], np.array([2**53, 1]))
    assert part.lengths == [2**53 + 1]


def test_even_chunks_hold_every_row() -> None:
    assert even_chunks(6, 2) == [2, 2, 2]
    assert even_chunks(6, 6) == [6]
    assert even_chunks(0, 4) == []


def test_rows_that_would_be_in_no_chunk_are_counted() -> None:
    with pytest.raises(ArgumentError, match=r"^batch_size must divide the 7 rows, got 3: 1 would be in no chunk$"):
        even_chunks(7, 3)
    with pytest.raises(ArgumentError, match=r"batch_size must divide the 2 rows, got 5: 2 would be in no chunk"):
        even_chunks(2, 5)
    with pytest.raises(ArgumentError, match="get_batch needs a batch_size, as no micro-batches were made"):
        even_chunks(6, None)
