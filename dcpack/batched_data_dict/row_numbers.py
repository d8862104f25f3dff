"""Numbers of rows as callers give them: arrays of any kind, lists; checked, as int64 on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from dcpack._checks import Int64Array, as_lengths, list_offenders
from dcpack.batched_data_dict.arrays import array_kind_of
from dcpack.errors import ArgumentError

__all__ = ["row_numbers", "rows_in_order"]


def row_numbers(name: str, indices: Any, size: int) -> Int64Array:
    """Return `indices` of a batch of `size` rows as int64[k].

    Example:
        >>> row_numbers("indices", [2, 0], 3).tolist()
        [2, 0]
    """
    rows = as_lengths(name, _host(indices))
    if over := np.flatnonzero(rows >= size).tolist():
        listed = list_offenders([f"{name}[{i}] = {rows[i]}" for i in over])
        raise ArgumentError(f"{name} must be below the {size} rows: {listed}")
    return rows


def rows_in_order(indices: Any, size: int) -> Int64Array:
    """Return int64[size]: the rows in the order of their `indices`, which are all different.

    Example:
        >>> rows_in_order([2, 0, 1], 3).tolist()
        [1, 2, 0]
    """
    keys = as_lengths("indices", _host(indices))
    if keys.size != size:
        raise ArgumentError(f"indices must hold one number for each of {size} rows, got {keys.size}")
    rows = np.argsort(keys, kind="stable")
    if repeated := np.unique(keys[rows][1:][np.diff(keys[rows]) == 0]).tolist():
        raise ArgumentError(f"indices must be all different, repeated: {list_offenders([str(i) for i in repeated])}")
    return rows


def _host(indices: Any) -> Any:
    kind = array_kind_of(indices)
    return indices if kind is None else kind.to_host(indices)
