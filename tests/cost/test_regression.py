from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.cost.regression import nonnegative_least_squares, robust_regression


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_columns=st.integers(1, 5), num_rows=st.integers(5, 30))
def test_least_squares_meet_the_conditions_of_the_optimum(seed: int, num_columns: int, num_rows: int) -> None:
    """Karush-Kuhn-Tucker: the gradient is 0 where a coefficient is above 0, and points outwards where it is 0."""
    rng = np.random.default_rng(seed)
    matrix = rng.normal(size=(num_rows, num_columns)) * 10.0 ** rng.integers(-6, 7, num_columns)
    target = rng.normal(size=num_rows)
    found = nonnegative_least_squares(matrix, target)
    assert (found >= 0).all()
    gradient = (matrix.T @ (matrix @ found - target)) / np.linalg.norm(matrix, axis=0)
    assert np.abs(gradient[found > 0]).max(initial=0) < 1e-9
    assert (gradient[found == 0] > -1e-9).all()


def test_least_squares_of_dependent_columns_still_fit() -> None:
    column = np.array([1.0, 2.0, 3.0])
    found = nonnegative_least_squares(np.stack([column, 2 * column], axis=1), 4 * column)
    assert found[0] + 2 * found[1] == pytest.approx(4)
    assert nonnegative_least_squares(column[:, np.newaxis], -column).tolist() == [0.0]


@pytest.mark.parametrize("factor", [0.01, 0.3, 3.0, 100.0])
def test_a_fifth_of_outliers_on_one_side_do_not_move_the_fit(factor: float) -> None:
    x = np.arange(1.0, 51.0)
    matrix, times = np.stack([np.ones(50), x], axis=1), 2 + 3 * x
    times[::5] *= factor
    fit = robust_regression(matrix, times, np.zeros(50))
    assert fit.converged
    np.testing.assert_allclose(fit.coefficients, [2, 3], rtol=1e-6)
    assert np.flatnonzero(fit.weights == 0).tolist() == list(range(0, 50, 5))


def test_what_is_known_is_taken_off() -> None:
    x = np.arange(1.0, 11.0)
    fit = robust_regression(x[:, np.newaxis], 5 + 2 * x, np.full(10, 5.0))
    np.testing.assert_allclose(fit.coefficients, [2.0])


def test_standard_errors_say_how_far_fits_scatter() -> None:
    x = np.linspace(1, 10, 40)
    matrix, truth = np.stack([np.ones(40), x], axis=1), np.array([2.0, 3.0])
    fits = []
    for seed in range(200):
        noise = 1 + 0.05 * np.random.default_rng(seed).standard_normal(40)
        fits.append(robust_regression(matrix, matrix @ truth * noise, np.zeros(40)))
    scatter = np.std([fit.coefficients for fit in fits], axis=0)
    claimed = np.median([fit.standard_errors for fit in fits], axis=0)
    assert all(0.9 < claim / true < 1.1 for claim, true in zip(claimed, scatter, strict=True))
    assert np.abs(np.mean([fit.coefficients for fit in fits], axis=0) / truth - 1).max() < 0.01


def test_the_condition_number_tells_like_columns() -> None:
    x = np.arange(1.0, 21.0)
    apart = robust_regression(np.stack([np.ones(20), x], axis=1), 1 + x, np.zeros(20))
    alike = robust_regression(np.stack([x, x + 1e-6 * x**2], axis=1), x, np.zeros(20))
    assert apart.condition_number < 10
    assert alike.condition_number > 1e4
