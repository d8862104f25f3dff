from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack.batched_data_dict import PackedColumn
from dcpack.batched_data_dict.stacking import gather_columns, stack_columns
from dcpack.comm import Communicator, run_ranks
from dcpack.errors import ArgumentError, PeerError


def test_columns_are_joined_end_to_end_and_padded() -> None:
    joined = stack_columns(
        [{"x": np.array([[1, 2]]), "names": ["a"]}, {"x": np.array([[3], [4]]), "names": ["b", "c"]}], {"x": -1}
    )
    assert joined["x"].tolist() == [[1, 2], [3, -1], [4, -1]]
    assert joined["names"] == ["a", "b", "c"]


def test_keys_are_in_the_order_in_which_they_first_appear() -> None:
    assert list(stack_columns([{"b": []}, {"c": [1], "b": [2], "a": [3]}])) == ["b", "c", "a"]
    assert stack_columns([]) == {}


def test_batches_without_rows_say_nothing_of_dtypes_while_others_have_rows() -> None:
    joined = stack_columns([{"x": np.zeros(0, np.float64)}, {}, {"x": np.array([5], np.int16)}])
    assert joined["x"].dtype == np.int16
    assert joined["x"].tolist() == [5]


def test_where_there_are_no_rows_arrays_decide_the_kind() -> None:
    joined = stack_columns([{"x": []}, {"x": np.zeros(0, np.int16)}])
    assert isinstance(joined["x"], np.ndarray)
    assert joined["x"].dtype == np.int16


def test_a_packed_column_that_a_batch_lacks_has_rows_without_items_there() -> None:
    images = PackedColumn(np.array([7, 8, 9]), [0, 1, 3])
    joined = stack_columns([{"n": [0]}, {"n": [1, 2], "images": images}])
    assert joined["n"] == [0, 1, 2]
    assert [row.tolist() for row in joined["images"]] == [[], [7], [8, 9]]


@pytest.mark.parametrize(
    ("batches", "text"),
    [
        ([{"x": [1]}, 3, None], "batches must be mappings: part 1 is int, part 2 is NoneType"),
        (
            [{"x": [1], "y": [2]}, {"y": [3]}, {"y": [4, 5]}],
            "key 'x' is missing from part 1, which has 1 row, part 2, which has 2 rows",
        ),
        (
            [{"x": [1]}, {"x": np.array([2])}],
            "key 'x' must be of one kind in all: list in part 0, NumPy array in part 1",
        ),
        ([{}, {"x": [1, 2], "y": [3]}], "all columns of part 1 must have equally many rows: 'x' has 2, 'y' has 1"),
    ],
)
def test_columns_that_do_not_fit_are_named(batches: Any, text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        stack_columns(batches, noun="part")
    assert str(caught.value) == text


def test_a_fault_of_a_column_names_its_key_and_the_batches_used() -> None:
    batches = [{"x": np.array([1])}, {}, {"x": np.array([2.5])}]
    with pytest.raises(ArgumentError, match=r"^key 'x' of batch 0, 2: .*int64.*float64"):
        stack_columns(batches)


def test_pad_values_are_a_mapping() -> None:
    with pytest.raises(ArgumentError, match=r"^pad_value_dict must be a mapping, got 3$"):
        stack_columns([], 3)  # pyright: ignore[reportArgumentType]


def test_columns_of_all_ranks_are_joined_in_the_order_of_the_group() -> None:
    def fn(communicator: Communicator) -> Any:
        rank = communicator.rank
        return gather_columns({"x": np.full((1, rank + 1), rank)}, communicator, {"x": 9})["x"].tolist()

    assert run_ranks(3, fn) == [[[0, 9, 9], [1, 1, 9], [2, 2, 2]]] * 3


def test_pad_values_that_differ_are_an_error_on_all_ranks() -> None:
    def fn(communicator: Communicator) -> str:
        with pytest.raises(ArgumentError) as caught:
            gather_columns({"x": [1]}, communicator, {"x": communicator.rank})
        return str(caught.value)

    text = "pad_value_dict must be equal on all ranks: rank 0 has {'x': 0}, rank 1 has {'x': 1}"
    assert run_ranks(2, fn) == [text] * 2


def test_a_wrong_column_of_one_rank_is_an_error_on_all_ranks() -> None:
    def fn(communicator: Communicator) -> str:
        with pytest.raises(PeerError) as caught:
            gather_columns({"x": 0.5 if communicator.rank else [1]}, communicator, None)
        return str(caught.value)

    texts = run_ranks(2, fn)
    assert texts[0] == texts[1]
    assert "column 'x' is of type float" in texts[0]


def test_a_group_is_a_communicator() -> None:
    with pytest.raises(ArgumentError, match=r"^group must be a dcpack Communicator, got str; for a process group of"):
        gather_columns({}, "world", None)  # pyright: ignore[reportArgumentType]
