"""Checks that the cost models share, and of what a cost model returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, as_integers, list_offenders, shorten
from dcpack.cost.base import CostModel
from dcpack.errors import ArgumentError

__all__ = ["as_token_counts", "check_keys", "try_cost"]


def as_token_counts(name: str, values: Any) -> Int64Array:
    """Return `values` as int64[n], no copy where they are: what the columns of a cost model are computed from.

    Example:
        >>> as_token_counts("padded_lengths", [3.5])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: padded_lengths must hold integers, got dtype float64: padded_lengths[0] = 3.5
    """
    counts = as_integers(name, values)
    if counts.ndim != 1:
        raise ArgumentError(f"{name} must be one-dimensional, got shape {counts.shape}")
    return counts


def check_keys(name: str, value: Any, known: Iterable[str]) -> dict[str, Any]:
    """Return `value`, a mapping, as a dict; keys that nobody knows are an error that names them and the known ones.

    Example:
        >>> check_keys("device", {"latency": 0, "color": 1}, ["latency", "node_size"])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: device has unknown keys 'color'; known are 'latency', 'node_size'
    """
    options = tuple(known)
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name} must be a mapping, got {value!r} ({type(value).__name__})")
    if unknown := [repr(key) for key in value if key not in options]:
        listed = ", ".join(map(repr, options))
        raise ArgumentError(f"{name} has unknown keys {list_offenders(unknown)}; known are {listed}")
    return dict(value)


def try_cost(cost: CostModel, padded_lengths: Int64Array, cp_size: int) -> None:
    """Raise unless the columns and the times of two sequences, each in a bin of its own, are what they must be.

    A model of a user may return anything; what it returns for two sequences is looked at before thousands are planned.

    Args:
        cost: the cost model.
        padded_lengths: int64[2], tokens of the two. They should be some that will be planned, as should `cp_size`: a
            model need not know others.
        cp_size: ranks that share each of the two bins.

    Raises:
        ArgumentError: says what was returned.

    Example:
        >>> from dcpack.cost import QuadraticCost
        >>> class InALoop(QuadraticCost):
        ...     def bin_time(self, column_sums, cp_size, crosses_node):
        ...         return column_sums[:, 0].tolist()
        >>> try_cost(InALoop(), np.array([1, 2]), 1)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: cost.bin_time must return an array of 2 finite numbers of at least 0 for 2 bins, \
got [1.0, 4.0] (list)
    """
    columns = cost.columns(padded_lengths)
    if not _is_numbers(columns) or columns.ndim != 2 or columns.shape[0] != 2:
        raise ArgumentError(
            f"cost.columns must return an array [2, k] of numbers for 2 lengths, got {shorten(columns)}"
        )
    crosses_node = np.full(2, cost.node_size is not None and cp_size > cost.node_size)
    times = cost.bin_time(columns, np.full(2, cp_size, np.int64), crosses_node)
    if not _is_numbers(times) or times.shape != (2,) or not np.isfinite(times).all() or times.min() < 0:
        raise ArgumentError(
            f"cost.bin_time must return an array of 2 finite numbers of at least 0 for 2 bins, got {shorten(times)}"
        )


def _is_numbers(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "iuf"
