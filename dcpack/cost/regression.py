"""Robust regression with coefficients that cannot be negative.

Relative residuals, because the noise of a timing grows with it; a redescending weight, because a step that met a
checkpoint or another job says nothing about the work and must not count at all.
"""

from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np

from dcpack._checks import Float64Array

__all__ = ["RobustFit", "nonnegative_least_squares", "robust_regression"]

# Tukey's constant: 95% of the efficiency of least squares where the noise is normal.
_TUKEY = 4.685
# A normal distribution's standard deviation over its median absolute deviation.
_MAD = 1.4826
# Below this relative residual all is rounding: exact data must not look like outliers of each other.
_SMALLEST_SCALE = 1e-9
_MAX_ITERATIONS = 100
_TOLERANCE = 1e-8


class RobustFit(NamedTuple):
    """Coefficients and how they were found.

    Attributes:
        coefficients: float64[k].
        standard_errors: float64[k]; 0 where a coefficient is held at 0.
        weights: float64[n], from 0 (an outlier) to 1.
        converged: whether the last iteration changed nothing that counts.
        condition_number: of the weighted columns, each scaled to length 1.
    """

    coefficients: Float64Array
    standard_errors: Float64Array
    weights: Float64Array
    converged: bool
    condition_number: float


def nonnegative_least_squares(matrix: Float64Array, target: Float64Array) -> Float64Array:
    """Return float64[k], the coefficients of at least 0 that bring ``matrix @ coefficients`` closest to `target`.

    The optimum is the plain solution on some subset of the columns, so for the handful of columns of a cost model all
    subsets are tried, after one QR decomposition.

    Args:
        matrix: float64[n, k], k small (2**k subsets).
        target: float64[n].

    Example:
        >>> columns = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
        >>> nonnegative_least_squares(columns, np.array([3.0, 2.0, 1.0])).round(9).tolist()
        [2.0, 0.0]
    """
    norms = np.sqrt(np.square(matrix).sum(axis=0))
    norms[norms == 0] = 1.0  # columns differ by many orders of magnitude
    q, r = np.linalg.qr(matrix / norms)
    rotated = q.T @ target
    num_columns = matrix.shape[1]
    best, best_error = np.zeros(num_columns), float(rotated @ rotated)
    for size in range(num_columns, 0, -1):
        for subset in itertools.combinations(range(num_columns), size):
            solution = np.linalg.lstsq(r[:, subset], rotated, rcond=None)[0]
            error = float(np.square(r[:, subset] @ solution - rotated).sum())
            if error < best_error and (solution >= 0).all():
                best, best_error = np.zeros(num_columns), error
                best[list(subset)] = solution
        if size == num_columns and best.any():
            break  # nothing is closer than the plain solution
    return best / norms


def robust_regression(matrix: Float64Array, times: Float64Array, offset: Float64Array) -> RobustFit:
    """Fit ``offset + matrix @ coefficients`` to `times`, with coefficients of at least 0.

    Starts from the least sum of absolute relative errors, then reweights by Tukey's biweight of the relative residuals,
    whose scale is their median absolute deviation (Huber and Ronchetti, "Robust Statistics", 2009, chapter 7).

    Args:
        matrix: float64[n, k].
        times: float64[n], above 0.
        offset: float64[n], the part that is known.

    Example:
        >>> x = np.arange(1.0, 9.0)
        >>> times = 3 * x
        >>> times[2] = 100.0
        >>> fit = robust_regression(x[:, np.newaxis], times, np.zeros(8))
        >>> fit.coefficients.round(9).tolist(), fit.weights.round(9).tolist()
        ([3.0], [1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    """
    coefficients = _least_absolute(matrix, times, offset)
    weights, scale, converged = np.ones_like(times), times, False
    for _ in range(_MAX_ITERATIONS):
        predicted = offset + matrix @ coefficients
        # Relative to the prediction: dividing by a noisy time would favor the times that came out short.
        scale = np.maximum(predicted, 1e-3 * np.median(times))
        residuals = np.abs(times - predicted) / scale
        spread = max(_MAD * float(np.median(residuals)), _SMALLEST_SCALE)
        weights = np.square(np.maximum(1 - np.square(residuals / (_TUKEY * spread)), 0.0))
        row = np.sqrt(weights) / scale
        updated = nonnegative_least_squares(matrix * row[:, np.newaxis], (times - offset) * row)
        change = np.abs(matrix @ (updated - coefficients)) / scale
        coefficients = updated
        if change.max(initial=0.0) < _TOLERANCE:
            converged = True
            break
    errors, condition = _uncertainty(matrix, times - offset, coefficients, weights, scale)
    return RobustFit(coefficients, errors, weights, converged, condition)


def _least_absolute(matrix: Float64Array, times: Float64Array, offset: Float64Array) -> Float64Array:
    """Return float64[k], about the least sum of absolute errors relative to `times`, by reweighting."""
    relative, target = matrix / times[:, np.newaxis], (times - offset) / times
    row = np.ones_like(times)
    coefficients = np.zeros(matrix.shape[1])
    for _ in range(_MAX_ITERATIONS):
        updated = nonnegative_least_squares(relative * row[:, np.newaxis], target * row)
        settled = np.abs(relative @ (updated - coefficients)).max(initial=0.0) < 1e-6  # a start is enough
        coefficients = updated
        if settled:
            break
        row = 1 / np.sqrt(np.maximum(np.abs(relative @ coefficients - target), 1e-6))
    return coefficients


def _uncertainty(
    matrix: Float64Array, target: Float64Array, coefficients: Float64Array, weights: Float64Array, scale: Float64Array
) -> tuple[Float64Array, float]:
    """Return the standard errors of the coefficients, and the condition number of the weighted, scaled columns.

    The variance is Huber's for M-estimates (same book, 7.6): ``sum(psi**2) / (n - k) / mean(psi')**2 * inverse``. With
    ``weight = (1 - u*u)**2`` and u the residual over Tukey's cut, ``psi' = (1 - u*u) * (1 - 5*u*u)``.
    """
    relative = matrix / scale[:, np.newaxis]
    condition = _condition(relative * np.sqrt(weights)[:, np.newaxis])
    errors = np.zeros_like(coefficients)
    active = np.flatnonzero(coefficients)
    norms = np.sqrt(np.square(relative[:, active]).sum(axis=0))
    scaled = relative[:, active] / norms
    residuals = (target - matrix @ coefficients) / scale
    root = np.sqrt(weights)  # 1 - u*u, or 0 beyond the cut
    slope = float((root * (5 * root - 4)).mean())
    freedom = max(scale.size - active.size, 1)
    variance = float(np.square(weights * residuals).sum()) / freedom / slope**2 if slope > 0 else np.inf
    inverse = np.linalg.pinv(scaled.T @ scaled)
    errors[active] = np.sqrt(variance * np.diag(inverse)) / norms
    return errors, condition


def _condition(columns: Float64Array) -> float:
    """Return the condition number of `columns`, each scaled to length 1."""
    norms = np.sqrt(np.square(columns).sum(axis=0))
    norms[norms == 0] = 1.0
    singular = np.linalg.svd(columns / norms, compute_uv=False)
    return float(singular[0] / singular[-1]) if singular[-1] > 0 else float(np.finfo(np.float64).max)
