from __future__ import annotations

import numpy as np
import pytest

from dcpack.demo.reference import reference_slice
from dcpack.errors import ArgumentError
from dcpack.sharding import SHARDINGS, local_token_indices


@pytest.mark.parametrize(
    ("sharding", "lengths", "by_rank"),
    [
        # Sequences of 4 and 8 slots, each in 4 chunks: rank 0 takes the outer ones, rank 1 the inner ones.
        ("zigzag", [4, 8], [[0, 3, 4, 5, 10, 11], [1, 2, 6, 7, 8, 9]]),
        # The row of 12 in 4 chunks of 3, wherever the sequences lie.
        ("zigzag_per_row", [4, 8], [[0, 1, 2, 9, 10, 11], [3, 4, 5, 6, 7, 8]]),
        ("contiguous", [4, 8], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]),
        ("striped", [4, 8], [[0, 2, 4, 6, 8, 10], [1, 3, 5, 7, 9, 11]]),
        # Three ranks, no power of two: 6 chunks.
        ("zigzag", [6, 12], [[0, 5, 6, 7, 16, 17], [1, 4, 8, 9, 14, 15], [2, 3, 10, 11, 12, 13]]),
        ("zigzag_per_row", [6, 12], [[0, 1, 2, 15, 16, 17], [3, 4, 5, 12, 13, 14], [6, 7, 8, 9, 10, 11]]),
        ("contiguous", [6, 12], [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11], [12, 13, 14, 15, 16, 17]]),
        ("striped", [6, 12], [[0, 3, 6, 9, 12, 15], [1, 4, 7, 10, 13, 16], [2, 5, 8, 11, 14, 17]]),
        # Four ranks, one sequence, chunks of one slot.
        ("zigzag", [8], [[0, 7], [1, 6], [2, 5], [3, 4]]),
        # Rows need not be made of sequences that divide.
        ("contiguous", [3, 5], [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("striped", [3, 5], [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("zigzag_per_row", [3, 5], [[0, 1, 6, 7], [2, 3, 4, 5]]),
    ],
)
def test_hand_worked_slices(sharding: str, lengths: list[int], by_rank: list[list[int]]) -> None:
    found = [reference_slice(lengths, len(by_rank), rank, sharding).tolist() for rank in range(len(by_rank))]
    assert found == by_rank


@pytest.mark.parametrize("sharding", sorted(SHARDINGS))
def test_without_cp_the_slice_is_the_row(sharding: str) -> None:
    assert reference_slice([3, 1, 5], 1, 0, sharding).tolist() == list(range(9))


@pytest.mark.parametrize("sharding", sorted(SHARDINGS))
@pytest.mark.parametrize("cp_size", [1, 2, 3, 4, 5, 8])
def test_every_slot_is_on_one_rank_and_the_library_agrees(sharding: str, cp_size: int) -> None:
    # Two independent ways to the same slots: np.split here, ranges of tokens there.
    lengths = [2 * cp_size * k for k in (1, 3, 2)]
    offsets = np.cumsum([0, *lengths])
    slices = [reference_slice(lengths, cp_size, rank, sharding) for rank in range(cp_size)]
    assert np.sort(np.concatenate(slices)).tolist() == list(range(sum(lengths)))
    for rank, found in enumerate(slices):
        assert found.tolist() == local_token_indices(offsets, cp_size, rank, sharding).tolist()


def test_every_sharding_has_a_reference_and_others_are_refused() -> None:
    for sharding in SHARDINGS:
        reference_slice([8], 2, 0, sharding)
    with pytest.raises(ArgumentError, match="no reference for sharding 'spiral'"):
        reference_slice([8], 2, 0, "spiral")
