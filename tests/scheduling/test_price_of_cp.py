from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpack.scheduling.price_of_cp import doublings, priced


def test_doublings_are_exact_at_powers_of_two_and_linear_between_them() -> None:
    mean = np.array([1, 1.25, 1.5, 2, 3, 4, 7, 1024])
    assert doublings(mean).tolist() == [0, 0.25, 0.5, 1, 1.5, 2, 2.75, 10]
    assert [float(doublings(one)) for one in mean.tolist()] == doublings(mean).tolist()
    assert doublings(math.inf) == math.inf


@given(st.lists(st.floats(1, 1e6), min_size=2))
def test_doublings_grow_with_the_mean_and_are_near_the_logarithm(mean: list[float]) -> None:
    found = doublings(np.sort(mean))
    assert np.all(np.diff(found) >= 0)
    assert np.all(np.abs(found - np.log2(np.sort(mean))) < 0.0861)  # most at 1 / ln 2 between two powers


def test_each_doubling_is_four_percent_and_the_excess_comes_on_top() -> None:
    assert priced(1000.0, 2) == 1040
    assert priced(np.array([1000.0, 1000.0]), np.array([1.0, 6.0]), np.array([0.0, 0.1])).tolist() == [1000, 1200]
    assert priced(np.array([[10.0], [13.0]]), 2).tolist() == [[10], [14]]  # whole numbers
    assert priced(np.array([np.inf]), 1.0)[0] == pytest.approx(np.inf)
