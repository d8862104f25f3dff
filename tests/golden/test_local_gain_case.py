"""The local-gain case: two ranks of two rows, capacity 10, four sequences of 5 tokens, rank 0 with all dear ones."""

from __future__ import annotations

import pytest

import dcpack
from dcpack.scheduling.local_gain import LocalGain

REFERENCE = [[[0], [1]], [[2], [3]]]


@pytest.mark.parametrize(
    ("costs", "min_balance_gain", "expected"),
    [
        ([9, 9, 1, 1], 0.0, [10, 10]),
        ([9, 9, 1, 1], 0.6, [18, 2]),  # the gain is 0.444
        ([1, 1, 1, 1], 0.0, [2, 2]),  # a gain of 0 is not greater than 0
    ],
)
def test_local_gain(costs: list[int], min_balance_gain: float, expected: list[int]) -> None:
    """Faults: an absolute gain, a gate that takes equal ones, sequences that move for nothing."""
    scheduler = LocalGain(reference=REFERENCE, costs=costs, min_balance_gain=min_balance_gain)
    plan = dcpack.plan([5, 5, 5, 5], num_ranks=2, capacity=10, scheduler=scheduler)
    assert (plan.num_microbatches, plan.rows_per_rank) == (1, 2)
    bins = [plan.sequence_ids[a:b].tolist() for a, b in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)]
    rows = [[bins[b] for b in plan.bins_of_rank(rank)] for rank in range(2)]
    assert [sum(costs[s] for row in given for s in row) for given in rows] == expected
    if expected != [10, 10]:
        assert rows == REFERENCE
