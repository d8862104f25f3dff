"""Ragged side fields, such as images: the values of all rows end to end, and where each row starts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_lengths, check_items, check_kinds, list_offenders
from dcpack.batched_data_dict.arrays import ArrayKind, array_kind_of, array_kind_of_all, describe_shape
from dcpack.batched_data_dict.columns import ColumnKind
from dcpack.errors import ArgumentError

__all__ = ["PackedColumn", "PackedKind"]


class PackedColumn:
    """A column whose rows hold any number of items each: row i is ``values[offsets[i]:offsets[i + 1]]``.

    Args:
        values: array [total items, ...] of NumPy, torch or JAX.
        offsets: int64[rows + 1], from 0 to the total, never falling.

    Raises:
        ArgumentError: offsets that do not fit.

    Example:
        Two images, none, one.

        >>> images = PackedColumn(np.arange(6).reshape(3, 2), [0, 2, 2, 3])
        >>> len(images), images[0].tolist(), images[1].shape
        (3, [[0, 1], [2, 3]], (0, 2))
    """

    def __init__(self, values: Any, offsets: npt.ArrayLike) -> None:
        self.values = values
        self.offsets: Int64Array = as_lengths("offsets", offsets)
        kind = array_kind_of(values)
        if kind is None:
            raise ArgumentError(f"values must be an array of at least one dim, got {type(values).__name__}")
        try:
            num_items = kind.num_rows(values)
        except ArgumentError as error:
            raise ArgumentError(f"values must be an array of at least one dim: {error}") from error
        ends = (self.offsets[0], self.offsets[-1]) if self.offsets.size else None
        if ends != (0, num_items) or np.any(np.diff(self.offsets) < 0):
            raise ArgumentError(f"offsets must rise from 0 to the {num_items} items, got {self.offsets.tolist()}")

    @classmethod
    def from_rows(cls, rows: Sequence[Any]) -> PackedColumn:
        """Build a column from one array [items, ...] for each row, or None for a row without items.

        The order does not matter: dtype and dims are those of the rows that have an array.

        Raises:
            ArgumentError: the arrays do not fit each other, or no row has one, so that nobody knows a dtype.

        Example:
            >>> PackedColumn.from_rows([None, np.ones((2, 3)), None]).offsets.tolist()
            [0, 0, 2, 2]
        """
        rows = list(check_items("rows", rows))
        given = [row for row in rows if row is not None]
        if not given:
            raise ArgumentError(f"a packed column needs a row with an array to know its dtype, got {len(rows)} x None")
        kind = array_kind_of_all(given)
        if flat := [
            f"row {i} is {describe_shape(row)}" for i, row in enumerate(rows) if row is not None and not row.ndim
        ]:
            raise ArgumentError(f"rows must be arrays [items, ...] of at least one dim: {list_offenders(flat)}")
        counts = [0 if row is None else int(row.shape[0]) for row in rows]
        return cls(join_items(kind, given), np.cumsum([0, *counts]))

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, row: int) -> Any:
        check_kinds(row=(row, int | np.integer))
        first, last = self.offsets[:-1][row], self.offsets[1:][row]  # negative ones count from the end, as in a list
        return self.values[int(first) : int(last)]

    def __repr__(self) -> str:
        return f"PackedColumn({len(self)} rows, values {describe_shape(self.values)})"

    @property
    def counts(self) -> Int64Array:
        """Items of each row, int64[rows].

        Example:
            >>> PackedColumn(np.zeros(3), [0, 2, 2, 3]).counts
            array([2, 0, 1])
        """
        return np.diff(self.offsets)


def join_items(kind: ArrayKind, parts: Sequence[Any]) -> Any:
    """Return the items of all parts end to end; a part without items has no say in dtype and dims."""
    filled = [part for part in parts if part.shape[0]] or list(parts[:1])
    shapes = {(str(part.dtype), tuple(part.shape[1:])) for part in filled}
    if len(shapes) > 1:
        listed = list_offenders([f"part {i} is {describe_shape(part)}" for i, part in enumerate(parts)])
        raise ArgumentError(f"dtypes and the dims from 1 on of packed values must be equal: {listed}")
    return kind.stack(filled, 0)


class PackedKind(ColumnKind):
    """Packed columns whose values are arrays of one kind.

    Args:
        values: the kind of the values.
    """

    def __init__(self, values: ArrayKind) -> None:
        self.values = values
        self.name = f"PackedColumn of {values.name}"

    def num_rows(self, column: PackedColumn) -> int:
        """Return the number of rows."""
        return len(column)

    def take(self, column: PackedColumn, rows: Int64Array) -> PackedColumn:
        """Return the rows of these numbers.

        Rows 2 and 0 of offsets 0, 2, 2, 3 have 1 and 2 items: new offsets 0, 1, 3. Item k of the result is the old
        item k plus what the start of its row moved by: 2 - 0 and 0 - 1, so old items 2, 0, 1.
        """
        counts = column.counts[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        items = np.arange(offsets[-1]) + np.repeat(column.offsets[rows] - offsets[:-1], counts)
        return PackedColumn(self.values.take(column.values, items), offsets)

    def cut(self, column: PackedColumn, start: int, stop: int) -> PackedColumn:
        """Return the rows from `start` to before `stop`."""
        first, last = int(column.offsets[start]), int(column.offsets[stop])
        return PackedColumn(self.values.cut(column.values, first, last), column.offsets[start : stop + 1] - first)

    def stack(self, columns: Sequence[PackedColumn], pad_value: Any) -> PackedColumn:
        """Return all rows, end to end; nothing is padded."""
        del pad_value
        counts = np.concatenate([column.counts for column in columns])
        values = join_items(self.values, [column.values for column in columns])
        return PackedColumn(values, np.concatenate([[0], np.cumsum(counts)]))

    def empty_rows(self, like: PackedColumn, num_rows: int) -> PackedColumn:
        """Return rows without items, with values of the dtype and dims of `like`."""
        return PackedColumn(self.values.cut(like.values, 0, 0), np.zeros(num_rows + 1, np.int64))

    def to_host(self, column: PackedColumn) -> npt.ArrayLike:
        """Refuse: rows of several items are not one value each."""
        raise ArgumentError(f"one number for each row is needed, got {column!r}")

    def move(self, column: PackedColumn, device: Any) -> PackedColumn:
        """Return the column with its values on `device`."""
        return PackedColumn(self.values.move(column.values, device), column.offsets)

    def to_tree(self, column: PackedColumn) -> Any:
        """Return values and offsets."""
        return [column.values, np.asarray(column.offsets)]

    def from_tree(self, tree: Any) -> PackedColumn:
        """Return the column of these values and offsets."""
        values, offsets = tree
        return PackedColumn(self.values.from_tree(values), offsets)
