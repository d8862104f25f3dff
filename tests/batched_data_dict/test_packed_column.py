"""Packed columns, alone, on arrays of NumPy, torch and JAX; values by hand."""

from __future__ import annotations

import numpy as np
import pytest
from array_libraries import LIBRARIES, ArrayLibrary

from dcpack.batched_data_dict import PackedColumn
from dcpack.batched_data_dict.arrays import array_kind_of
from dcpack.batched_data_dict.packed_column import PackedKind
from dcpack.errors import ArgumentError


def kind_of_values(column: PackedColumn) -> PackedKind:
    kind = array_kind_of(column.values)
    assert kind is not None
    return PackedKind(kind)


def rows_of(library: ArrayLibrary, column: PackedColumn) -> list[list[int]]:
    return [library.values(row) for row in column]


def test_packed_columns_from_rows(library: ArrayLibrary):
    column = PackedColumn.from_rows([None, library.array([1, 2]), library.array([]), library.array([3])])
    assert column.counts.tolist() == [0, 2, 0, 1]
    assert library.values(column.values) == [1, 2, 3]
    assert [library.values(column[i]) for i in range(len(column))] == [[], [1, 2], [], [3]]


def test_rows_of_a_packed_column_count_from_the_end_as_those_of_a_list(library: ArrayLibrary):
    column = PackedColumn(library.array([1, 2, 3]), [0, 2, 2, 3])
    expected = [[1, 2], [], [3]]
    assert [library.values(column[row]) for row in range(-3, 3)] == expected * 2
    assert [library.values(row) for row in column] == expected
    for row in (3, -4):
        with pytest.raises(IndexError):
            column[row]


def test_packed_columns_refuse_what_does_not_fit(library: ArrayLibrary):
    values = library.array([1, 2, 3])
    for offsets in ([0, 2], [1, 3], [0, 3, 2, 3], []):
        with pytest.raises(ArgumentError, match="offsets"):
            PackedColumn(values, offsets)
    with pytest.raises(ArgumentError, match="values must be an array of at least one dim, got list"):
        PackedColumn([1], [0, 1])
    with pytest.raises(ArgumentError, match=r"at least one dim: row 1 is float64 of shape \(\)"):
        PackedColumn.from_rows([None, np.array(1.0)])
    with pytest.raises(ArgumentError, match="needs a row with an array to know its dtype, got 2 x None"):
        PackedColumn.from_rows([None, None])
    other = next(each for each in LIBRARIES.values() if each is not library)
    with pytest.raises(ArgumentError, match="all rows must be arrays of one of NumPy, torch, JAX: row 0 is"):
        PackedColumn.from_rows([values, other.array([1])])


def test_rows_are_taken_cut_and_stacked(library: ArrayLibrary):
    column = PackedColumn(library.array([10, 11, 12]), [0, 2, 2, 3])
    kind = kind_of_values(column)
    taken = kind.take(column, np.array([2, 0, 0, 1]))
    assert rows_of(library, taken) == [[12], [10, 11], [10, 11], []]
    assert taken.offsets.tolist() == [0, 1, 3, 5, 5]
    cut = kind.cut(column, 1, 3)
    assert (rows_of(library, cut), cut.offsets.tolist()) == ([[], [12]], [0, 0, 1])
    stacked = kind.stack([cut, column], None)
    assert (rows_of(library, stacked), stacked.counts.tolist()) == ([[], [12], [10, 11], [], [12]], [0, 1, 2, 0, 1])


def test_rows_without_items_keep_dtype_and_dims(library: ArrayLibrary):
    column = PackedColumn(library.array([[1.0, 2.0]], "float32"), [0, 1])
    empty = kind_of_values(column).empty_rows(column, 2)
    assert (empty.offsets.tolist(), tuple(empty.values.shape)) == ([0, 0, 0], (0, 2))
    assert empty.values.dtype == column.values.dtype


def test_a_packed_column_goes_through_a_tree(library: ArrayLibrary):
    column = PackedColumn(library.array([10, 11, 12]), [0, 2, 2, 3])
    kind = kind_of_values(column)
    values, offsets = kind.to_tree(column)
    assert (library.values(values), offsets.tolist()) == ([10, 11, 12], [0, 2, 2, 3])
    assert rows_of(library, kind.from_tree([np.array([10, 11, 12]), offsets])) == [[10, 11], [], [12]]


def test_a_packed_column_is_no_number_a_row():
    column = PackedColumn(np.zeros((3, 2)), [0, 3])
    with pytest.raises(ArgumentError, match=r"^one number for each row is needed, got PackedColumn\(1 rows, values "):
        kind_of_values(column).to_host(column)


def test_rows_that_do_not_fit_each_other_are_named():
    with pytest.raises(
        ArgumentError, match=r"must be equal: part 0 is float64 of shape \(1, 2\), part 1 is .*\(1, 3\)"
    ):
        PackedColumn.from_rows([np.zeros((1, 2)), None, np.zeros((1, 3))])


def test_a_row_without_items_has_no_say_in_dtype_and_dims(library: ArrayLibrary):
    empty, filled = library.array(np.zeros((0, 5)), "int32"), library.array([[1.0, 2.0]], "float32")
    column = PackedColumn.from_rows([empty, filled])
    assert (column.offsets.tolist(), library.values(column.values)) == ([0, 0, 1], [[1.0, 2.0]])
    assert column.values.dtype == filled.dtype
