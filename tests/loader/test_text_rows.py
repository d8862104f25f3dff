from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack.errors import ArgumentError
from dcpack.loader import TextRows


def sequences(tokens: list[list[int]], labels: list[list[int]]) -> list[dict[str, np.ndarray]]:
    return [
        {"input_ids": np.array(t, np.int64), "labels": np.array(x, np.int64)}
        for t, x in zip(tokens, labels, strict=True)
    ]


def test_indexed_text() -> None:
    # The padding tail is a segment of its own; offsets of the second row go on from the first.
    text = TextRows(seq_len=5, pad_token_id=0)
    rows = [
        text.pack(sequences([[1, 2], [3]], [[2, 9], [9]])),
        text.pack(sequences([[4, 5, 6, 7, 8]], [[5, 6, 7, 8, 9]])),
    ]
    batch = text.collate(rows)
    assert batch["input_ids"].tolist() == [[1, 2, 3, 0, 0], [4, 5, 6, 7, 8]]
    assert batch["labels"][0].tolist() == [2, 9, 9, -100, -100]
    assert batch["cu_seq_lens"].tolist() == [0, 2, 3, 5, 10]
    assert {name: str(array.dtype) for name, array in batch.items()} == {
        "input_ids": "int64",
        "labels": "int64",
        "cu_seq_lens": "int32",
    }


def test_trim() -> None:
    # Only trailing tokens that equal the pad id and are labelled -100 go.
    record = {"input_ids": [7, 0, 8, 0, 0], "labels": [0, 8, -100, -100, -100], "cu_seq_lens": [0, 5]}
    (sequence,) = TextRows(seq_len=5, pad_token_id=0).split(record)
    assert (sequence["input_ids"].tolist(), sequence["labels"].tolist()) == ([7, 0, 8], [0, 8, -100])
    (kept,) = TextRows(seq_len=5, pad_token_id=None).split(record)
    assert kept["input_ids"].tolist() == [7, 0, 8, 0, 0]
    real = {**record, "labels": [0, 8, -100, -100, 4]}  # a pad token with a label is real
    assert len(TextRows(seq_len=5, pad_token_id=0).split(real)[0]["input_ids"]) == 5


def test_a_record_is_cut_at_its_offsets() -> None:
    record = {"input_ids": [1, 2, 3, 9, 9], "labels": [2, -100, 4, -100, -100], "cu_seq_lens": [0, 2, 2, 3, 5]}
    found = TextRows(seq_len=5, pad_token_id=9).split(record)
    assert [sequence["input_ids"].tolist() for sequence in found] == [[1, 2], [3]]  # the padding was a segment
    padding = {"input_ids": [9, 9], "labels": [-100, -100], "cu_seq_lens": [0, 2]}
    assert TextRows(seq_len=5, pad_token_id=9).split(padding) == []


def test_rows_without_sequences_are_padding() -> None:
    row = TextRows(seq_len=3, pad_token_id=7).pack([])
    assert row["input_ids"].tolist() == [7, 7, 7]
    assert row["labels"].tolist() == [-100] * 3
    assert row["cu_seq_lens"].tolist() == [0, 3]
    assert TextRows(seq_len=2, pad_token_id=None).pack([])["input_ids"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"cu_seq_lens": [0, 4]}, "the last is 4, not the 3 tokens"),
        ({"cu_seq_lens": [1, 3]}, "the first is 1, not 0"),
        ({"cu_seq_lens": [0, 2, 1, 3]}, "number 2 is below the one before"),
        ({"cu_seq_lens": [0]}, "cu_seq_lens must be at least 2 integers"),
        ({"labels": [1, 2]}, "labels must be as many as input_ids, 3, got 2"),
        ({"input_ids": [[1, 2, 3]]}, r"input_ids of a text record must be integers \[t\]"),
        ({"input_ids": [1.0, 2.0, 3.0]}, "input_ids of a text record must be integers"),
    ],
)
def test_records_that_do_not_fit_together_are_refused(change: dict[str, Any], text: str) -> None:
    record = {"input_ids": [1, 2, 3], "labels": [2, 3, 4], "cu_seq_lens": [0, 3]}
    with pytest.raises(ArgumentError, match=text):
        TextRows(seq_len=5, pad_token_id=0).split({**record, **change})


def test_a_record_needs_its_three_fields() -> None:
    text = TextRows(seq_len=5, pad_token_id=0)
    with pytest.raises(ArgumentError, match=r"a text record needs labels, cu_seq_lens; it has \['input_ids'\]"):
        text.split({"input_ids": [1]})
    with pytest.raises(ArgumentError, match="a text record must be a mapping, got list"):
        text.split([1])
    with pytest.raises(ArgumentError, match=r"sequences of \[3, 3\] tokens are 6 together, more than seq_len 5"):
        text.pack(sequences([[1, 2, 3]] * 2, [[1, 2, 3]] * 2))


def test_a_batch_beyond_int32_offsets_is_an_error_and_never_wraps() -> None:
    rows = TextRows(seq_len=2**30, pad_token_id=None)
    tokens = np.broadcast_to(np.int64(7), 2**30)  # takes no memory
    row = {"input_ids": tokens, "labels": tokens, "cu_seq_lens": np.array([0, 2**30], np.int32)}
    with pytest.raises(ArgumentError, match=f"2 rows of {2**30} tokens are over the {2**31 - 1}"):
        rows.collate([row, row])
