"""Checks of real numbers that the cost models share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, as_integers, list_offenders
from dcpack.errors import ArgumentError

__all__ = ["as_real", "as_token_counts", "check_keys"]


def as_real(name: str, value: Any, *, positive: bool = False, maximum: float = math.inf) -> float:
    """Return `value` as a finite Python float of at least 0 (above 0 where `positive`) and at most `maximum`.

    Args:
        name: what the error calls the value.
        value: any real number; a bool is none.
        positive: whether 0 is refused too.
        maximum: largest value that is taken.

    Raises:
        ArgumentError: not a number, not finite, or out of range; names the value and the bound.

    Example:
        >>> as_real("latency", np.float32(0.5))
        0.5
        >>> as_real("peak_flops", 0, positive=True)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: peak_flops must be a finite number above 0, got 0
    """
    is_number = isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)
    if not is_number or not 0 <= value < math.inf or value > maximum or (positive and value == 0):
        bound = "above 0" if positive else "of at least 0"
        bound += "" if maximum == math.inf else f" and at most {maximum:g}"
        raise ArgumentError(f"{name} must be a finite number {bound}, got {value!r}")
    return float(value)


def as_token_counts(name: str, values: Any) -> Int64Array:
    """Return `values` as int64[n], no copy where they are: what the columns of a cost model are computed from.

    Example:
        >>> as_token_counts("padded_lengths", [3.5])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: padded_lengths must hold integers, got dtype float64
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
