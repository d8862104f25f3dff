"""Finding the kind of a column, by its type or by the name under which it travelled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dcpack._checks import list_offenders
from dcpack.batched_data_dict.arrays import ARRAY_KINDS, ArrayKind, array_kind_of, array_kind_of_all
from dcpack.batched_data_dict.columns import ColumnKind, ListKind
from dcpack.batched_data_dict.packed_column import PackedColumn, PackedKind
from dcpack.errors import ArgumentError

__all__ = ["count_rows", "kind_named", "kind_of"]

_LIST = ListKind()
_PACKED = {kind.name: PackedKind(kind) for kind in ARRAY_KINDS}
_BY_NAME: dict[str, ColumnKind] = {kind.name: kind for kind in (*ARRAY_KINDS, _LIST, *_PACKED.values())}


def kind_of(key: Any, column: Any) -> ColumnKind:
    """Return the kind of `column`.

    Raises:
        ArgumentError: it is of no kind; names the key and the type.

    Example:
        >>> import numpy as np
        >>> kind_of("names", ["a"]).name, kind_of("input_ids", np.zeros((1, 2))).name
        ('list', 'NumPy array')
        >>> kind_of("loss", 0.5)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: column 'loss' is of type float: it must be a NumPy array, a torch.Tensor, a \
jax.Array, a list or a PackedColumn
    """
    if isinstance(column, list):
        return _LIST
    if isinstance(column, PackedColumn):
        return _PACKED[array_kind_of_all([column.values]).name]
    array = array_kind_of(column)
    if array is None:
        raise ArgumentError(
            f"column {key!r} is of type {type(column).__name__}: it must be a NumPy array, a torch.Tensor, "
            "a jax.Array, a list or a PackedColumn"
        )
    return array


def kind_named(name: str) -> ColumnKind:
    """Return the kind of that name, with which a column came from another rank.

    Where its framework is not loaded here, the NumPy arrays that have come stay what they are.

    Example:
        >>> kind_named("list").name
        'list'
    """
    kind = _BY_NAME[name]
    if isinstance(kind, PackedKind):
        return kind if kind.values.is_loaded else _PACKED[ARRAY_KINDS[0].name]
    return kind if not isinstance(kind, ArrayKind) or kind.is_loaded else ARRAY_KINDS[0]


def count_rows(columns: Mapping[Any, Any], where: str = "the batch") -> int:
    """Return the number of rows of a batch; 0 if it has no column.

    Raises:
        ArgumentError: the columns have different numbers of rows; all are named.

    Example:
        >>> import numpy as np
        >>> count_rows({"a": [1, 2], "b": np.zeros((2, 5))})
        2
        >>> count_rows({"a": [1, 2], "b": np.zeros(3)})
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: all columns of the batch must have equally many rows: 'a' has 2, 'b' has 3
    """
    counts: dict[Any, int] = {}
    for key, column in columns.items():
        kind = kind_of(key, column)
        try:
            counts[key] = kind.num_rows(column)
        except ArgumentError as error:
            raise ArgumentError(f"column {key!r} of {where}: {error}") from error
    if len(set(counts.values())) > 1:
        listed = list_offenders([f"{key!r} has {count}" for key, count in counts.items()])
        raise ArgumentError(f"all columns of {where} must have equally many rows: {listed}")
    return next(iter(counts.values()), 0)
