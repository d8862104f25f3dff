"""Checks of real numbers that the cost models share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dcpack._checks import Int64Array, as_integers, list_offenders
from dcpack.errors import ArgumentError

__all__ = ["as_token_counts", "check_keys"]


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
