"""What each method asks of lengths, and its runs for many (sequence, rank) pairs at once, as routes ask for them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from dcpack.sharding import SHARDINGS, local_token_indices


@pytest.mark.parametrize(
    ("method", "by_row", "divisors"),
    [
        ("zigzag", False, [1, 4, 6, 16]),
        ("zigzag_per_row", True, [1, 4, 6, 16]),
        ("contiguous", True, [1, 2, 3, 8]),
        ("striped", True, [1, 2, 3, 8]),
    ],
)
def test_divisors_at_cp_1_2_3_8(method: str, by_row: bool, divisors: list[int]) -> None:
    sharding = SHARDINGS[method]
    assert sharding.divides_rows is by_row
    assert np.broadcast_to(sharding.divisor(np.array([1, 2, 3, 8])), 4).tolist() == divisors


@pytest.mark.parametrize("method", sorted(SHARDINGS))
def test_pairs_of_mixed_cp_sizes_are_worked_out_at_once(method: str) -> None:
    rows = [([0, 8, 16], 2), ([0, 24], 3), ([0, 5, 7], 1), ([0, 16, 32, 64], 4)]
    pairs, expected = [], []
    for offsets, cp in rows:
        for rank in range(cp):
            for start, stop in itertools.pairwise(offsets):
                pairs.append((start, stop - start, offsets[-1], cp, rank))
                slots = local_token_indices(offsets, cp, rank, method)
                expected += [slot - start for slot in slots.tolist() if start <= slot < stop]
    ranges = SHARDINGS[method].ranges(*np.array(pairs, np.int64).T)
    assert ranges.tokens().tolist() == expected
