from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack.batched_data_dict.row_numbers import row_numbers, rows_in_order
from dcpack.errors import ArgumentError


@pytest.mark.parametrize(
    "indices", [[2, 0, 2], (2, 0, 2), np.array([2, 0, 2], np.int8), np.array([2, 0, 2], np.uint64)]
)
def test_row_numbers_of_any_kind_become_int64_and_may_repeat(indices: Any) -> None:
    rows = row_numbers("indices", indices, 3)
    assert rows.dtype == np.int64
    assert rows.tolist() == [2, 0, 2]


def test_no_row_numbers_fit_a_batch_without_rows() -> None:
    assert row_numbers("indices", [], 0).tolist() == []
    with pytest.raises(ArgumentError, match=r"^rows must be below the 0 rows: rows\[0\] = 0$"):
        row_numbers("rows", [0], 0)


def test_every_row_number_out_of_range_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"^rows must be below the 3 rows: rows\[1\] = 3, rows\[3\] = 9$"):
        row_numbers("rows", [2, 3, 0, 9], 3)
    with pytest.raises(
        ArgumentError, match=r"^rows must be below the 1 rows: rows\[0\] = 1, .*rows\[7\] = 1 and 2 more$"
    ):
        row_numbers("rows", [1] * 10, 1)
    with pytest.raises(ArgumentError, match=r"^rows must be at least 0: rows\[1\] = -1$"):
        row_numbers("rows", [0, -1], 3)


def test_rows_are_put_in_the_order_of_their_indices() -> None:
    assert rows_in_order([2, 0, 1], 3).tolist() == [1, 2, 0]
    assert rows_in_order(np.array([70, 5, 1000], np.int16), 3).tolist() == [1, 0, 2]
    assert rows_in_order([], 0).tolist() == []


@pytest.mark.parametrize(("indices", "count"), [([0], 1), ([0, 1, 2], 3), ([], 0)])
def test_each_row_has_one_index(indices: list[int], count: int) -> None:
    with pytest.raises(ArgumentError, match=f"^indices must hold one number for each of 2 rows, got {count}$"):
        rows_in_order(indices, 2)


def test_every_repeated_index_is_named_once() -> None:
    with pytest.raises(ArgumentError, match=r"^indices must be all different, repeated: 4, 7$"):
        rows_in_order([7, 4, 1, 7, 4, 7], 6)


def test_indices_below_zero_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"^indices must be at least 0: indices\[0\] = -1$"):
        rows_in_order([-1, 0], 2)
