from __future__ import annotations

import numpy as np

from dcpack.cost import CostModel, QuadraticCost

COST: CostModel = QuadraticCost()


def test_squares_add_up_over_a_bin_and_are_shared_by_its_ranks() -> None:
    columns = COST.columns(np.array([3, 4, 12]))
    assert columns.tolist() == [[9.0], [16.0], [144.0]]
    sums = np.array([[25.0], [144.0], [0.0]])
    times = COST.bin_time(sums, np.array([1, 8, 2]), np.array([True, False, True]))
    assert times.tolist() == [25.0, 18.0, 0.0]  # nodes cost nothing


def test_long_sequences_do_not_overflow() -> None:
    assert COST.columns(np.array([2**40]))[0, 0] == 2.0**80


def test_it_says_what_it_does_not_know() -> None:
    assert (COST.node_size, COST.unit) == (None, "cost")
    assert COST.columns(np.zeros(0, np.int64)).shape == (0, 1)
