"""Arrays as a source, and what all sources have in common."""

from __future__ import annotations

import numpy as np
import pytest

from dcpack.data import ArraySource, DataSource, TextDocuments
from dcpack.errors import ArgumentError


def test_a_list_of_arrays() -> None:
    arrays = [np.array([1, 2, 3], np.uint16), np.zeros(0, np.int32), np.array([-4])]
    source = ArraySource(arrays)
    assert len(source) == 3
    assert source.lengths().tolist() == [3, 0, 1]
    assert source.lengths().dtype == np.int64
    for index, array in enumerate(arrays):
        assert set(source[index]) == {"input_ids"}
        assert source[index]["input_ids"] is array  # not copied


def test_lists_of_numbers_and_the_rows_of_a_table() -> None:
    assert [sample["input_ids"].tolist() for sample in ArraySource([[1, 2], [], [3]])] == [[1, 2], [], [3]]
    assert ArraySource([[]])[0]["input_ids"].dtype == np.int64
    assert ArraySource(np.arange(6).reshape(2, 3)).lengths().tolist() == [3, 3]


def test_no_sequences() -> None:
    for source in (ArraySource([]), ArraySource([], offsets=[0])):
        assert len(source) == 0
        assert source.lengths().tolist() == []
        assert list(source) == []


def test_a_flat_array_and_offsets() -> None:
    flat = np.arange(10, 16, dtype=np.uint8)
    source = ArraySource(flat, offsets=[1, 3, 3, 5])
    assert source.lengths().tolist() == [2, 0, 2]
    assert [sample["input_ids"].tolist() for sample in source] == [[11, 12], [], [13, 14]]
    assert np.shares_memory(source[0]["input_ids"], flat)


@pytest.mark.parametrize(
    ("offsets", "reason"),
    [
        ([], "offsets must begin each sequence and end within the 6 tokens"),
        ([0, 7], "offsets must begin each sequence and end within the 6 tokens"),
        ([0, 4, 2, 3, 1], r"offsets must not fall: offsets\[2\] = 2 after 4, offsets\[4\] = 1 after 3"),
        ([-1, 4], r"offsets must be at least 0: offsets\[0\] = -1"),
        ([0.0, 4.0], "offsets must hold integers"),
    ],
)
def test_offsets_that_do_not_fit(offsets: list[int], reason: str) -> None:
    with pytest.raises(ArgumentError, match=reason):
        ArraySource(np.arange(6), offsets=offsets)


def test_arrays_that_are_none() -> None:
    with pytest.raises(
        ArgumentError, match=r"tokens\[1\] has shape \(2,\) and dtype float64, tokens\[2\] has shape \(\)"
    ):
        ArraySource([[1], [1.0, 2.0], 3])
    with pytest.raises(ArgumentError, match=r"tokens\[0\]: setting an array element"):
        ArraySource([[[1], [2, 3]]])
    with pytest.raises(ArgumentError, match="dtype object"):
        ArraySource([np.array([1, None])])
    with pytest.raises(ArgumentError, match="offsets must say where the sequences of a flat array of tokens begin"):
        ArraySource(np.arange(3))
    with pytest.raises(ArgumentError, match=r"tokens has shape \(2, 2\)"):
        ArraySource(np.zeros((2, 2), int), offsets=[0, 1])


@pytest.mark.parametrize("index", [-1, 2, 0.0, True, None])
def test_an_index_that_is_no_sample(index: int) -> None:
    with pytest.raises(ArgumentError, match="index must be"):
        ArraySource([[1], [2]])[index]


def test_lengths_cannot_be_changed_by_accident() -> None:
    for source in (ArraySource([[1]]), ArraySource([1], offsets=[0, 1])):
        with pytest.raises(ValueError, match="read-only"):
            source.lengths()[0] = 9


def test_documents_as_a_source() -> None:
    documents = TextDocuments.of([b"hi", b"there"])
    source = documents.as_source()
    assert isinstance(source, DataSource)
    assert source.lengths().tolist() == documents.lengths().tolist() == [3, 6]
    assert [sample["input_ids"].tolist() for sample in source] == [[*b"hi", 256], [*b"there", 256]]
    assert np.shares_memory(source[1]["input_ids"], documents.tokens)


def test_any_object_with_the_three_methods_is_a_source() -> None:
    class Own:
        def __len__(self) -> int:
            return 0

        def __getitem__(self, index: int) -> dict[str, np.ndarray]:
            raise IndexError(index)

        def lengths(self) -> np.ndarray:
            return np.zeros(0, np.int64)

    assert isinstance(Own(), DataSource)
    assert not isinstance([1, 2], DataSource)
