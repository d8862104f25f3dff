"""What a column of a batch can be, and the few things that the rest of the room asks of it.

A column holds one value for each row of the batch. A `ColumnKind` knows how to cut, pick and join columns of one type;
`dcpack.batched_data_dict.kinds` finds the kind of a column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from dcpack._checks import Int64Array

__all__ = ["ColumnKind", "ListKind"]


class ColumnKind(ABC):
    """The operations on columns of one type; results are of that type, and inputs stay as they are."""

    name: str
    """What columns of this kind are called in errors, and in messages to other ranks."""

    @abstractmethod
    def num_rows(self, column: Any) -> int:
        """Return the number of rows."""

    @abstractmethod
    def take(self, column: Any, rows: Int64Array) -> Any:
        """Return the rows of these numbers, as a copy; they are known to be in range."""

    @abstractmethod
    def cut(self, column: Any, start: int, stop: int) -> Any:
        """Return the rows from `start` to before `stop`, without a copy where that is possible."""

    @abstractmethod
    def stack(self, columns: Sequence[Any], pad_value: Any) -> Any:
        """Return the rows of all `columns`, at least one, end to end; shorter rows are filled with `pad_value`.

        Raises:
            ArgumentError: they do not fit each other, or `pad_value` does not fit them; both are named.
        """

    @abstractmethod
    def to_host(self, column: Any) -> npt.ArrayLike:
        """Return the values as NumPy takes them."""

    def move(self, column: Any, device: Any) -> Any:
        """Return the column on `device`; here it lies on none."""
        del device
        return column

    def to_tree(self, column: Any) -> Any:
        """Return the column as `dcpack.comm.broadcast_tree` takes it."""
        return column

    def from_tree(self, tree: Any) -> Any:
        """Return the column that `to_tree` made into `tree`, on whatever rank."""
        return tree


class ListKind(ColumnKind):
    """Lists of anything, one item a row."""

    name = "list"

    def num_rows(self, column: list[Any]) -> int:
        """Return the number of rows."""
        return len(column)

    def take(self, column: list[Any], rows: Int64Array) -> list[Any]:
        """Return the items of these numbers."""
        return [column[row] for row in rows.tolist()]

    def cut(self, column: list[Any], start: int, stop: int) -> list[Any]:
        """Return the items from `start` to before `stop`."""
        return column[start:stop]

    def stack(self, columns: Sequence[list[Any]], pad_value: Any) -> list[Any]:
        """Return the items of all."""
        del pad_value
        return [item for column in columns for item in column]

    def to_host(self, column: list[Any]) -> npt.ArrayLike:
        """Return the list, as NumPy takes lists."""
        return column
