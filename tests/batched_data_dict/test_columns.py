"""Columns that are lists, and what every kind of column does unless it says otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack.batched_data_dict.columns import ColumnKind, ListKind


def test_rows_of_a_list_by_hand() -> None:
    kind, column = ListKind(), ["a", None, ["c", 3], "a"]
    assert (kind.name, kind.num_rows(column), kind.num_rows([])) == ("list", 4, 0)
    assert kind.take(column, np.array([2, 0, 2])) == [["c", 3], "a", ["c", 3]]
    assert kind.take(column, np.array([], np.int64)) == []
    assert kind.cut(column, 1, 3) == [None, ["c", 3]]
    assert kind.stack([column, [], ["z"]], pad_value=7) == ["a", None, ["c", 3], "a", "z"]
    assert kind.to_host(column) is column
    assert column == ["a", None, ["c", 3], "a"]


def test_results_are_lists_of_their_own() -> None:
    kind, column = ListKind(), ["a", "b"]
    for made in (kind.cut(column, 0, 2), kind.take(column, np.array([0, 1])), kind.stack([column], None)):
        made.append("more")
    assert column == ["a", "b"]


def test_a_column_that_lies_on_no_device_stays_and_travels_as_it_is() -> None:
    kind, column = ListKind(), [1]
    assert kind.move(column, "cuda:7") is column
    assert kind.to_tree(column) is column
    assert kind.from_tree(column) is column


@pytest.mark.parametrize("name", ["num_rows", "take", "cut", "stack", "to_host"])
def test_a_kind_must_write_every_operation(name: str) -> None:
    class Whole(ListKind):
        pass

    body: dict[str, Any] = {each: getattr(Whole, each) for each in ColumnKind.__abstractmethods__ if each != name}
    assert len(body) == 4
    with pytest.raises(TypeError, match=f"abstract method '?{name}'?"):
        type("Partial", (ColumnKind,), body)()
