"""Which kind a column is, here and on another rank, and that all columns have the same rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from array_libraries import ArrayLibrary

from dcpack.batched_data_dict import PackedColumn
from dcpack.batched_data_dict.arrays import ARRAY_KINDS
from dcpack.batched_data_dict.kinds import count_rows, kind_named, kind_of
from dcpack.errors import ArgumentError

NAMES = {"numpy": "NumPy array", "torch": "torch.Tensor", "jax": "jax.Array"}


def test_the_kind_of_every_column(library: ArrayLibrary) -> None:
    array = library.array([[1, 2], [3, 4]])
    packed = PackedColumn(array, [0, 2, 2])
    assert kind_of("x", array).name == NAMES[library.name]
    assert kind_of("x", packed).name == f"PackedColumn of {NAMES[library.name]}"
    assert (kind_of("x", array).num_rows(array), kind_of("x", packed).num_rows(packed)) == (2, 2)
    assert kind_of("x", []).name == kind_of("x", [array]).name == "list"


@pytest.mark.parametrize("column", [None, 3, "text", (1, 2), {"a": 1}, range(3), np.float32(1.5)])
def test_what_is_no_column_is_named(column: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"^column \('a', 1\) is of type {type(column).__name__}: it must be a"):
        kind_of(("a", 1), column)


def test_a_kind_is_found_by_the_name_under_which_it_travelled(library: ArrayLibrary) -> None:
    array = library.array([[1, 2], [3, 4]])
    for column in (array, ["a", "b"], PackedColumn(array, [0, 2, 2])):
        kind = kind_of("x", column)
        assert kind_named(kind.name) is kind
    with pytest.raises(KeyError):
        kind_named("set")


def test_a_framework_that_is_not_loaded_leaves_numpy_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    # As in a process that has only imported NumPy, to which a rank sends tensors.
    for kind in ARRAY_KINDS[1:]:
        monkeypatch.setattr(type(kind), "is_loaded", property(lambda self: False))
    for name in ("torch.Tensor", "jax.Array"):
        assert kind_named(name).name == "NumPy array"
        assert kind_named(f"PackedColumn of {name}").name == "PackedColumn of NumPy array"
    assert kind_named("NumPy array").name == "NumPy array"
    assert kind_named("list").name == "list"


def test_all_columns_have_the_same_rows(library: ArrayLibrary) -> None:
    array = library.array([[1], [2], [3]])
    columns = {"a": array, 2: ["x", "y", "z"], "p": PackedColumn(array, [0, 0, 1, 3])}
    assert count_rows(columns) == 3
    assert count_rows({}) == count_rows({"a": []}) == 0
    text = r"^all columns of batch 4 must have equally many rows: 'a' has 3, 'b' has 1, 'c' has 0$"
    with pytest.raises(ArgumentError, match=text):
        count_rows({"a": array, "b": ["x"], "c": []}, "batch 4")


def test_one_column_that_differs_from_all_others_is_enough() -> None:
    with pytest.raises(ArgumentError, match=r"equally many rows: 'a' has 1, 'b' has 1, 'c' has 2$"):
        count_rows({"a": [1], "b": [2], "c": [3, 4]})


def test_an_array_without_dims_is_named_with_its_column_and_batch() -> None:
    with pytest.raises(ArgumentError, match=r"^column 'loss' of batch 2: an array without dims has no rows: float64"):
        count_rows({"a": [1], "loss": np.array(0.5)}, "batch 2")
    with pytest.raises(ArgumentError, match=r"^column 'loss' of the batch: an array without dims"):
        count_rows({"loss": np.array(0.5)})
