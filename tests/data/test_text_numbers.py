"""Lengths as text: numbers one a line (.txt), and the column of a table (.csv)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dcpack.data import DataFileError, read_lengths
from dcpack.errors import ArgumentError

BIG = 2**63 - 1


def read(folder: Path, name: str, content: str | bytes, column: str | int | None = None) -> list[int]:
    file = folder / name
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    lengths = read_lengths(file, column=column)
    assert lengths.dtype == np.int64
    assert not lengths.flags.writeable
    return lengths.tolist()


# ---- one a line ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("", []),
        ("\n\n", []),
        ("12", [12]),
        ("12\n7\n", [12, 7]),
        ("12\r\n7\r\n", [12, 7]),
        ("  12\t\n\n   \n007", [12, 7]),
        ("\ufeff12\n7", [12, 7]),
        ("\ufeff", []),
        (f"0\n{BIG}\n", [0, BIG]),
    ],
)
def test_lines(tmp_path: Path, content: str, expected: list[int]) -> None:
    assert read(tmp_path, "a.txt", content) == expected


@pytest.mark.parametrize(
    ("content", "line", "offset", "shown"),
    [
        ("12\n-4\n5", 2, 3, "'-4'"),
        ("12\n\n4.0\n", 3, 4, "'4.0'"),
        ("nan\n", 1, 0, "'nan'"),
        ("12\n1_000", 2, 3, "'1_000'"),
        ("1e3", 1, 0, "'1e3'"),
        ("+3", 1, 0, r"'\+3'"),
        ("1 2\n", 1, 0, "'1 2'"),
        ("0x10", 1, 0, "'0x10'"),
        (f"{BIG + 1}", 1, 0, f"'{BIG + 1}'"),
        ("9" * 5000, 1, 0, "'9{39}[.][.][.]"),
        ("1\n\u0663\n", 2, 2, "'\u0663'"),
        ("1\n2\x00\n", 2, 2, r"'2\\x00'"),
        ("1\n2\n\ufeff3\n", 3, 4, r"'\\ufeff3'"),
        (b"1\n2\n\x89PNG\r\n", 3, 4, r"'\\\\x89PNG'"),
    ],
)
def test_faulty_lines(tmp_path: Path, content: str | bytes, line: int, offset: int, shown: str) -> None:
    reason = rf"a.txt, line {line}, byte {offset}: {shown} is no length: a whole number from 0 to {BIG}"
    with pytest.raises(DataFileError, match=reason) as caught:
        read(tmp_path, "a.txt", content)
    assert (caught.value.offset, caught.value.place) == (offset, f"line {line}")


def test_places_are_right_beyond_the_first_block(tmp_path: Path) -> None:
    # Each line has 8 bytes, the file three blocks of 1 MiB.
    lines = [f"{i:07d}\n" for i in range(400_000)]
    assert read(tmp_path, "a.txt", "".join(lines)) == list(range(400_000))
    lines[390_000] = "-000001\n"
    with pytest.raises(DataFileError, match="line 390001, byte 3120000: '-000001' is no length"):
        read(tmp_path, "a.txt", "".join(lines))


# ---- a column --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "column", "expected"),
    [
        ("", None, []),
        ("length\n", None, []),
        ("12\n7\n", None, [12, 7]),
        ("length\n12\n7\n", None, [12, 7]),
        ("id,length\n1,12\n2,7\n", None, [12, 7]),  # a column of that name goes before the first number
        ("name,tokens,rows\nx,12,1\ny,7,2\n", None, [12, 7]),
        ("x,12,1\ny,7,2\n", None, [12, 7]),
        ("name,tokens,rows\nx,12,1\ny,7,2\n", "rows", [1, 2]),
        ("name,tokens,rows\nx,12,1\ny,7,2\n", 2, [1, 2]),
        ("x,12,1\ny,7,2\n", 2, [1, 2]),
        ("2020,2021\n5,6\n", "2021", [6]),  # a name makes the first row a header, whatever is in it
        ('name,length\n"a,\nb","12"\n"c ""d""",7\n', None, [12, 7]),
        ("\ufeffname, length \r\nx, 12 \r\n\r\ny,7\r\n", None, [12, 7]),
    ],
)
def test_tables(tmp_path: Path, content: str, column: str | int | None, expected: list[int]) -> None:
    assert read(tmp_path, "a.csv", content, column) == expected


@pytest.mark.parametrize(
    ("content", "column", "line", "offset", "reason"),
    [
        ("name,length\nx,12\ny,-7\n", None, 3, 17, "'-7' is no length"),
        ("length\n1.5\n", None, 2, 7, "'1.5' is no length"),
        ("length\nNaN\n", None, 2, 7, "'NaN' is no length"),
        ("a,length\n1,\n", None, 2, 9, "'' is no length"),
        ("a,length\n1,2\n3\n", None, 3, 13, "the row has 1 cells, none in column 1"),
        ("a,b\nx,y\n", None, 2, 4, "no column holds a number"),
        ('a,length\n"x\ny",1\n"x",-1\n', None, 4, 17, "'-1' is no length"),
        ('length\n12\n"7', None, 3, 10, "no table: unexpected end of data"),
        ('length\n12\n"7"x\n', None, 3, 10, "no table: ',' expected"),
        (b"length\n12\n\xff7\n", None, 3, 10, "no UTF-8"),
        ("length\n" + "9" * 200_000 + "\n", None, 2, 7, "no table: field larger than field limit"),
    ],
)
def test_faulty_tables(
    tmp_path: Path, content: str | bytes, column: str | int | None, line: int, offset: int, reason: str
) -> None:
    with pytest.raises(DataFileError, match=f"a.csv, line {line}, byte {offset}: {reason}"):
        read(tmp_path, "a.csv", content, column)


@pytest.mark.parametrize("column", ["size", 2])
def test_a_column_that_is_not_there(tmp_path: Path, column: str | int) -> None:
    with pytest.raises(ArgumentError, match=f"column {column!r} is not in .*a.csv, which begins with 'name', 'length'"):
        read(tmp_path, "a.csv", "name,length\nx,1\n", column)


def test_a_number_beyond_a_table_without_header(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"column 1 is not in .*a.csv, which begins with '12'"):
        read(tmp_path, "a.csv", "12\n7\n", 1)
