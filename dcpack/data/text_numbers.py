"""Lengths as text: one a line (``.txt``), or a column of a table (``.csv``)."""

from __future__ import annotations

import csv
import io
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

from dcpack._checks import Int64Array
from dcpack.data.errors import DataFileError, Fault
from dcpack.data.files import BYTE_ORDER_MARK, iter_lines
from dcpack.data.values import parse_length
from dcpack.errors import ArgumentError

_DEFAULT_COLUMN = "length"
_BLOCK_BYTES = 1 << 20
# One number a line, or a blank line. Up to 18 digits always fit in int64, so what matches needs no further check.
_PLAIN_NUMBERS = re.compile(rb"(?:[ \t]*+(?:[0-9]{1,18}+[ \t]*+)?\r?+\n)*+(?:[ \t]*+[0-9]{1,18}+[ \t]*+)?")


def read_number_lines(stream: BinaryIO, file: Path) -> Int64Array:
    """Return int64[n]: the numbers of a stream, one a line; blank lines count for nothing.

    A block of lines that are all plain numbers is converted at once. Any other is gone through line by line, which
    finds the fault.
    """
    parts = [np.zeros(0, np.int64)]
    offset, line = 0, 1
    while block := stream.read(_BLOCK_BYTES):
        block += stream.readline()
        plain = block.removeprefix(BYTE_ORDER_MARK) if offset == 0 else block
        if _PLAIN_NUMBERS.fullmatch(plain):
            parts.append(np.array(list(map(int, plain.split())), np.int64))
        else:
            parts.append(_parse_lines(block, file, first_line=line, offset=offset))
        offset += len(block)
        line += block.count(b"\n")
    return np.concatenate(parts)


def _parse_lines(block: bytes, file: Path, *, first_line: int, offset: int) -> Int64Array:
    numbers = array("q")
    for line in iter_lines(io.BytesIO(block), first_line=first_line, offset=offset):
        try:
            numbers.append(parse_length(line.data.decode(errors="backslashreplace").strip()))
        except Fault as fault:
            raise DataFileError(file, str(fault), offset=line.offset, place=line.place) from None
    return np.array(numbers, np.int64)


class _Rows:
    """The rows of a table, each with the place where it begins; a quoted cell may hold line ends."""

    def __init__(self, stream: BinaryIO, file: Path) -> None:
        self._stream = stream
        self._file = file
        self._reader = csv.reader(self._lines(), strict=True)
        self._next_offset = 0
        self.offset = 0
        self.line = 1

    def _lines(self) -> Iterator[str]:
        for number, raw in enumerate(self._stream):
            start = self._next_offset
            self._next_offset += len(raw)
            try:
                yield raw.decode("utf-8-sig" if number == 0 else "utf-8")
            except UnicodeDecodeError as error:
                self.offset, self.line = start + error.start, number + 1
                raise self.error("no UTF-8") from None

    def __iter__(self) -> Iterator[list[str]]:
        while True:
            self.offset, self.line = self._next_offset, self._reader.line_num + 1
            try:
                row = next(self._reader, None)
            except csv.Error as error:
                raise self.error(f"no table: {error}") from None
            if row is None:
                return
            if any(cell.strip() for cell in row):
                yield row

    def error(self, reason: str) -> DataFileError:
        """Return the error of the current row."""
        return DataFileError(self._file, reason, offset=self.offset, place=f"line {self.line}")


def read_csv_column(stream: BinaryIO, file: Path, column: str | int | None) -> Int64Array:
    """Return int64[n]: one column of a table.

    The first row is a header if it holds no number, or if `column` is a name.

    Args:
        stream: UTF-8 text, cells divided by commas, quoted where need be.
        file: its name in errors.
        column: a name in the header, or a number from 0; None takes the column ``length`` of the header, else the
            first that holds a number.
    """
    rows = _Rows(stream, file)
    numbers = array("q")
    index = None
    for count, row in enumerate(rows):
        if count == 0 and (isinstance(column, str) or not any(map(_is_number, row))):
            index = _index_in_header([cell.strip() for cell in row], column, file)
            continue
        if index is None:
            index = _first_number(row, rows) if column is None else _check_index(row, column, file)
        try:
            if index >= len(row):
                raise Fault(f"the row has {len(row)} cells, none in column {index}")
            numbers.append(parse_length(row[index].strip()))
        except Fault as fault:
            raise rows.error(str(fault)) from None
    return np.array(numbers, np.int64)


def _index_in_header(header: list[str], column: str | int | None, file: Path) -> int | None:
    """Return the column that the header decides on; None leaves it to the first row of numbers."""
    if column is None:
        return header.index(_DEFAULT_COLUMN) if _DEFAULT_COLUMN in header else None
    if isinstance(column, str) and column in header:
        return header.index(column)
    return _check_index(header, column, file)


def _check_index(row: list[str], column: str | int, file: Path) -> int:
    if isinstance(column, int) and column < len(row):
        return column
    raise ArgumentError(f"column {column!r} is not in {file}, which begins with {', '.join(map(repr, row))}")


def _first_number(row: list[str], rows: _Rows) -> int:
    for index, cell in enumerate(row):
        if _is_number(cell):
            return index
    raise rows.error("no column holds a number")


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
