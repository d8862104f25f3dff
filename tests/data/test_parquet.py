"""Parquet files: their lengths, and as a source."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dcpack.data import DataFileError, JsonlSource, ParquetSource, read_lengths
from dcpack.errors import ArgumentError, BackendError


def write(folder: Path, columns: dict[str, Any], **options: Any) -> Path:
    file = folder / "a b.parquet"
    pq.write_table(pa.table(columns), file, **options)
    return file


LISTS = [[5, 6, 7], [], [8]]


# ---- lengths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "tokenizer", "expected"),
    [
        (pa.array([12, 0, 7]), "bytes", [12, 0, 7]),
        (pa.array([12, 0, 7], pa.uint64()), "bytes", [12, 0, 7]),
        (pa.array([12, 0, 7], pa.int8()), "bytes", [12, 0, 7]),
        (pa.array([], pa.int32()), "bytes", []),
        (pa.array(LISTS), "bytes", [3, 0, 1]),
        (pa.array(LISTS, pa.large_list(pa.uint16())), "bytes", [3, 0, 1]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), "bytes", [2, 2]),
        (pa.array(["h\u00e9 you", ""]), "bytes", [8, 1]),
        (pa.array(["h\u00e9 you", ""], pa.large_string()), "bytes", [8, 1]),
        (pa.array(["h\u00e9 you", ""]), "whitespace", [2, 0]),
    ],
)
def test_lengths(tmp_path: Path, values: pa.Array, tokenizer: str, expected: list[int]) -> None:
    lengths = read_lengths(write(tmp_path, {"column": values}), tokenizer=tokenizer)
    assert lengths.dtype == np.int64
    assert not lengths.flags.writeable
    assert lengths.tolist() == expected


def test_which_column(tmp_path: Path) -> None:
    file = write(
        tmp_path, {"id": [1, 2], "text": ["a", "bc"], "input_ids": [[1], [1, 2]], "length": [8, 9], "a.b": [3, 4]}
    )
    assert read_lengths(file).tolist() == [8, 9]
    assert read_lengths(file, column="text").tolist() == [2, 3]
    assert read_lengths(file, column="a.b").tolist() == [3, 4]
    assert read_lengths(file, column=2).tolist() == [1, 2]
    assert ParquetSource(file)[1]["input_ids"].tolist() == [1, 2]
    assert ParquetSource(file, column="text")[1]["input_ids"].tolist() == [*b"bc", 256]
    for column in ("size", 5):
        with pytest.raises(ArgumentError, match=f"column {column!r} is not in .*a b.parquet, which has 'id', 'text'"):
            read_lengths(file, column=column)
    other = write(tmp_path, {"x": [1], "y": [2]})
    with pytest.raises(ArgumentError, match=r"column must name one column of .*a b.parquet, which has 'x', 'y'"):
        read_lengths(other)


@pytest.mark.parametrize("values", [[1.5], [True], [[1.5]], [b"x"], [{"a": 1}], [[[1]]]])
def test_a_column_of_another_type(tmp_path: Path, values: list[Any]) -> None:
    file = write(tmp_path, {"x": values})
    with pytest.raises(
        ArgumentError, match=r"column 'x' of .* holds .*, not whole numbers or lists of whole numbers or"
    ):
        read_lengths(file)
    with pytest.raises(ArgumentError, match=r"holds .*, not lists of whole numbers or texts"):
        ParquetSource(file)


def test_a_source_needs_tokens(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"column 'x' of .* holds int64, not lists of whole numbers or texts"):
        ParquetSource(write(tmp_path, {"x": [1, 2]}))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (pa.array([1, 2, 3, 4, -5]), "-5 is no length"),
        (pa.array([1, 2, 3, 4, 2**63], pa.uint64()), "9223372036854775808 is no length"),
        (pa.array([1, 2, 3, 4, None]), "no value"),
        (pa.array([[1], [2], [3], [4], None]), "no value"),
        (pa.array(["a", "b", "c", "d", None]), "no value"),
    ],
)
def test_a_faulty_row(tmp_path: Path, values: pa.Array, reason: str) -> None:
    file = write(tmp_path, {"x": values}, row_group_size=2)
    with pytest.raises(DataFileError, match=f"a b.parquet, column 'x', row 4, byte 4: {reason}"):
        read_lengths(file)


def test_text_that_is_no_utf_8(tmp_path: Path) -> None:
    broken = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
    )
    file = write(tmp_path, {"text": broken})
    with pytest.raises(DataFileError, match="column 'text', row 0, byte 4: 'utf-8' codec can't decode"):
        read_lengths(file, tokenizer="whitespace")


# ---- the source ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows_per_group", [1, 2, 7, 100])
def test_rows_in_any_order(tmp_path: Path, rows_per_group: int) -> None:
    lists = [list(range(i, i + i % 5)) for i in range(20)]
    source = ParquetSource(write(tmp_path, {"input_ids": lists}, row_group_size=rows_per_group))
    assert len(source) == 20
    assert source.lengths().tolist() == [len(tokens) for tokens in lists]
    for index in (19, 0, 7, 8, 3, 19, *range(20)):
        assert source[index]["input_ids"].tolist() == lists[index]
    assert source.lengths().dtype == np.int64


def test_no_rows(tmp_path: Path) -> None:
    source = ParquetSource(write(tmp_path, {"input_ids": pa.array([], pa.list_(pa.int32()))}))
    assert (len(source), source.lengths().tolist(), list(source)) == (0, [], [])


def test_dtypes_are_those_of_the_file(tmp_path: Path) -> None:
    source = ParquetSource(write(tmp_path, {"x": pa.array(LISTS, pa.list_(pa.uint16()))}))
    assert {sample["input_ids"].dtype for sample in source} == {np.dtype(np.uint16)}


def test_texts_are_the_tokens_of_other_text_sources(tmp_path: Path) -> None:
    texts = ["h\u00e9", "", "two words"]
    source = ParquetSource(write(tmp_path, {"text": texts}))
    (tmp_path / "a.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in texts), encoding="utf-8")
    other = JsonlSource(tmp_path / "a.jsonl")
    assert [s["input_ids"].tolist() for s in source] == [s["input_ids"].tolist() for s in other]
    assert source.lengths().tolist() == other.lengths().tolist() == [4, 1, 10]


def test_a_row_or_a_token_without_value(tmp_path: Path) -> None:
    source = ParquetSource(write(tmp_path, {"x": [[1], None, [2, None]]}))
    assert source[0]["input_ids"].tolist() == [1]
    with pytest.raises(DataFileError, match="column 'x', row 1, byte 4: no value"):
        source[1]
    with pytest.raises(DataFileError, match="column 'x', row 2, byte 4: a token has no value"):
        source[2]


# ---- hostile files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "offset", "reason"),
    [
        (b"", 0, "empty"),
        (b"PAR", 0, "truncated: it ends with b'PAR'"),
        (b"PAR1", 0, "truncated"),
        (b"PAR1PAR1", 4, "truncated"),
        (b"PARE0000PARE", 0, "no .parquet file: it begins with b'PARE'"),  # encrypted
        (b"nothing like it", 0, "no .parquet file: it begins with b'noth'"),
        (b"PAR1\xff\xff\xff\x7fPAR1", 4, "the footer cannot take 2147483647 bytes of a file of 12"),
        (b"PAR1\0\0\0\0PAR1", 4, "corrupt footer"),
        (b"PAR1" + b"\xff" * 40 + b"\x28\0\0\0PAR1", 4, "corrupt footer"),
    ],
)
def test_what_is_no_parquet_file(tmp_path: Path, data: bytes, offset: int, reason: str) -> None:
    file = tmp_path / "a.parquet"
    file.write_bytes(data)
    for read in (read_lengths, ParquetSource):
        with pytest.raises(DataFileError, match=f"a.parquet, byte {offset}: {reason}"):
            read(file)


@pytest.mark.parametrize("read", [read_lengths, lambda file: ParquetSource(file)[0]])
def test_a_damaged_page(tmp_path: Path, read: Any) -> None:
    file = write(tmp_path, {"input_ids": [list(range(100))]}, write_page_checksum=True, compression="none")
    data = bytearray(file.read_bytes())
    data[300] ^= 0xFF
    file.write_bytes(data)
    with pytest.raises(DataFileError, match=r"column 'input_ids', row group 0, byte 4: corrupt: .*(CRC|checksum)"):
        read(file)


# ---- pyarrow ---------------------------------------------------------------------------------------------------------


def test_without_pyarrow_the_error_says_what_brings_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write(tmp_path, {"length": [1]})
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    for read in (read_lengths, ParquetSource):
        with pytest.raises(BackendError, match=r"needs pyarrow, .*; it comes with: pip install 'dcpack\[data\]'"):
            read(file)


def test_pyarrow_is_loaded_for_parquet_alone(tmp_path: Path) -> None:
    write(tmp_path, {"length": [4, 2]})
    (tmp_path / "a.txt").write_text("3")
    script = (
        "import sys; from dcpack.data import read_lengths\n"
        "print(read_lengths('a.txt'), 'pyarrow' in sys.modules)\n"
        "print(read_lengths('a b.parquet'), 'pyarrow' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[3] False", "[4 2] True"]
