"""JSON lines: their lengths, and as a source."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dcpack.data import DataFileError, JsonlSource, byte_tokens, read_lengths
from dcpack.errors import ArgumentError


def write(folder: Path, *lines: str | bytes, end: bytes = b"\n") -> Path:
    file = folder / "a b.jsonl"
    file.write_bytes(b"".join((line.encode() if isinstance(line, str) else line) + end for line in lines))
    return file


# ---- lengths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "key", "tokenizer", "expected"),
    [
        ([], None, "bytes", []),
        (["", "  \t "], None, "bytes", []),
        (['{"length": 12}', "", '{"length": 0, "x": [1]}'], None, "bytes", [12, 0]),
        (['{"input_ids": [5, 6, 7]}', '{"input_ids": []}'], None, "bytes", [3, 0]),
        (['{"text": "h\\u00e9 you"}', '{"text": ""}'], None, "bytes", [8, 1]),  # 7 bytes and the end; the end alone
        (['{"text": "h\u00e9 you"}', '{"text": " "}'], None, "whitespace", [2, 0]),
        (['{"text": "hi", "input_ids": [1], "length": 9}'], None, "bytes", [9]),
        (['{"text": "hi", "input_ids": [1], "length": 9}'], "text", "bytes", [3]),
        (['{"text": "hi", "input_ids": [1]}'], None, "bytes", [1]),
        (['{"n": 4}', '{"n": "two words"}', '{"n": [1, 2, 3]}'], "n", "whitespace", [4, 2, 3]),
    ],
)
def test_lengths(tmp_path: Path, lines: list[str], key: str | None, tokenizer: str, expected: list[int]) -> None:
    for end in (b"\n", b"\r\n"):
        lengths = read_lengths(write(tmp_path, *lines, end=end), key=key, tokenizer=tokenizer)
        assert lengths.dtype == np.int64
        assert not lengths.flags.writeable
        assert lengths.tolist() == expected


def test_a_byte_order_mark_and_no_last_line_end(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b'\xef\xbb\xbf{"text": "hi"}\n{"text": "you"}')
    assert read_lengths(file).tolist() == [3, 4]
    assert JsonlSource(file).lengths().tolist() == [3, 4]
    assert JsonlSource(file)[0]["input_ids"].tolist() == [*b"hi", 256]


GOOD = '{"length": 12}'


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"length": -1}', "-1 is no length"),
        ('{"length": 1.0}', "1.0 is no length"),
        ('{"length": NaN}', "nan is no length"),
        ('{"length": true}', "True is no length"),
        ('{"length": null}', "None is no length"),
        ('{"length": {}}', "{} is no length"),
        ('{"length": 9223372036854775808}', "9223372036854775808 is no length"),
        ('{"length": ' + "9" * 5000 + "}", "no JSON that can be read: Exceeds the limit"),
        ('{"length": ' + "[" * 200_000, "no JSON that can be read: maximum recursion depth"),
        ('{"size": 3, "b": 4}', "the record has no 'length', only 'size', 'b'"),
        ("{}", "the record has no 'length', only nothing"),
        ("[3]", "a record must be an object, got list"),
        ("3", "a record must be an object, got int"),
        ('{"length": 1', "no JSON: Expecting ',' delimiter at character 12 of the line"),
        ('{"length": 1} x', "no JSON: Extra data at character 14 of the line"),
        ('{"length": "\\ud800"}', "the text cannot be UTF-8: surrogates not allowed at character 0"),
        (b'{"length": "\xff"}', "no UTF-8: invalid start byte at byte 12 of the line"),
        ('{"length": 1}'.encode("utf-16-le"), "no JSON"),
    ],
)
def test_a_faulty_record(tmp_path: Path, line: str | bytes, reason: str) -> None:
    file = write(tmp_path, GOOD, "", line, GOOD)
    with pytest.raises(DataFileError, match=f"a b.jsonl, line 3, byte {len(GOOD) + 2}: {reason}") as caught:
        read_lengths(file)
    assert (caught.value.file, caught.value.offset) == (file, len(GOOD) + 2)


def test_a_first_record_without_a_known_key(tmp_path: Path) -> None:
    file = write(tmp_path, '{"content": "hi"}')
    with pytest.raises(DataFileError, match=r"must have one of 'length', 'input_ids', 'text', .*; got 'content'"):
        read_lengths(file)
    with pytest.raises(DataFileError, match="must have one of 'input_ids', 'text', or name its key; got 'content'"):
        JsonlSource(file).lengths()
    assert read_lengths(file, key="content").tolist() == [3]
    assert JsonlSource(file, key="content").lengths().tolist() == [3]


# ---- the source ------------------------------------------------------------------------------------------------------


def test_token_lists(tmp_path: Path) -> None:
    source = JsonlSource(write(tmp_path, '{"input_ids": [5, 6, 7]}', "", '{"input_ids": []}', '{"input_ids": [-1]}'))
    assert len(source) == 3
    assert [sample["input_ids"].tolist() for sample in source] == [[5, 6, 7], [], [-1]]
    assert {sample["input_ids"].dtype for sample in source} == {np.dtype(np.int64)}
    assert source.lengths().tolist() == [3, 0, 1]
    assert source.lengths().dtype == np.int64


def test_texts_become_byte_tokens(tmp_path: Path) -> None:
    source = JsonlSource(write(tmp_path, '{"text": "h\\u00e9"}', '{"text": ""}'))
    assert source[0]["input_ids"].tolist() == byte_tokens("h\u00e9".encode()).tolist() == [104, 195, 169, 256]
    assert source[0]["input_ids"].dtype == np.int32
    assert source.lengths().tolist() == [4, 1]


@pytest.mark.parametrize("num_lines", [0, 1, 1000])
def test_the_lines_are_found_in_any_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_lines: int) -> None:
    monkeypatch.setattr("dcpack.data.jsonl._BLOCK_BYTES", 64)
    records = [{"input_ids": list(range(i % 11))} for i in range(num_lines)]
    lines = [json.dumps(record) + "\n" * (i % 3) + " " * (i % 5) for i, record in enumerate(records)]
    source = JsonlSource(write(tmp_path, *lines))
    assert [sample["input_ids"].tolist() for sample in source] == [record["input_ids"] for record in records]


def test_other_records_are_not_looked_at(tmp_path: Path) -> None:
    source = JsonlSource(write(tmp_path, '{"text": "a"}', "broken", '{"text": "b"}'))
    assert source[2]["input_ids"].tolist() == [98, 256]
    for read in (source.lengths, lambda: source[1]):
        with pytest.raises(DataFileError, match="line 2, byte 14: no JSON: Expecting value"):
            read()


def test_an_error_names_the_first_record_where_its_key_is_chosen(tmp_path: Path) -> None:
    source = JsonlSource(write(tmp_path, "broken", '{"text": "b"}'))
    with pytest.raises(DataFileError, match="line 1, byte 0"):
        source[1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("3", "tokens must be a list of whole numbers or a text, got int"),
        ("null", "tokens must be a list of whole numbers or a text, got NoneType"),
        ("[1, 2.0]", "a token id is a whole number, got 2.0"),
        ("[1, true]", "a token id is a whole number, got True"),
        ("[[1], [2]]", r"a token id is a whole number, got \[1\]"),
        ("[9223372036854775808]", "a token id is beyond int64"),
        ('"\\ud800"', "the text cannot be UTF-8"),
    ],
)
def test_what_is_no_token(tmp_path: Path, value: str, reason: str) -> None:
    source = JsonlSource(write(tmp_path, '{"input_ids": [1]}', f'{{"input_ids": {value}}}'))
    with pytest.raises(DataFileError, match=f"line 2, byte 19: {reason}"):
        source[1]


@pytest.mark.parametrize("index", [-1, 1, 1.0, True])
def test_an_index_that_is_none(tmp_path: Path, index: int) -> None:
    with pytest.raises(ArgumentError, match="index must be"):
        JsonlSource(write(tmp_path, '{"text": "a"}'))[index]


def test_the_file_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"data not found: .*no.jsonl"):
        JsonlSource(tmp_path / "no.jsonl")
    with pytest.raises(ArgumentError, match="is a folder, a file is expected"):
        JsonlSource(tmp_path)
