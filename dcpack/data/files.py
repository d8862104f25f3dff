"""Opening data files: what is there, how long it is, its bytes mapped, its lines with their places."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from dcpack._checks import check_path
from dcpack.data.errors import DataFileError
from dcpack.errors import ArgumentError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def check_file(path: str | Path) -> Path:
    """Return `path` if it is a regular file."""
    file = check_path("path", path)
    if not file.exists():
        raise ArgumentError(f"data not found: {file}")
    if not file.is_file():
        what = "a folder" if file.is_dir() else "no regular file"
        raise ArgumentError(f"{file} is {what}, a file is expected")
    return file


@contextmanager
def reading(file: Path) -> Iterator[None]:
    """Turn errors of the operating system into ours."""
    try:
        yield
    except OSError as error:
        raise DataFileError(file, f"cannot be read: {error.strerror or error}", offset=0) from error


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes."""
    file = check_file(path)
    with reading(file), file.open("rb") as stream:
        yield stream


def size_of(stream: BinaryIO) -> int:
    """Return the bytes of an open file."""
    return os.fstat(stream.fileno()).st_size


def map_file(path: str | Path) -> npt.NDArray[np.uint8]:
    """Return uint8[size]: all bytes of a file, read-only, mapped into memory and not read yet."""
    with opened(path) as stream:
        if size_of(stream) == 0:  # nothing cannot be mapped
            return np.frombuffer(b"", np.uint8)
        return np.memmap(stream, np.uint8, mode="r").view(np.ndarray)


class Line(NamedTuple):
    """A line without its end."""

    number: int
    offset: int
    data: bytes

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"line {self.number}"


def iter_lines(stream: BinaryIO, *, first_line: int = 1, offset: int = 0) -> Iterator[Line]:
    """Yield the lines of a stream that are not blank, without a byte order mark at the start of the file.

    Args:
        stream: where to read.
        first_line: number of the first line.
        offset: bytes of the file before the stream begins.
    """
    for number, raw in enumerate(stream, start=first_line):
        start, data = offset, raw.rstrip(b"\r\n")
        offset += len(raw)
        if start == 0 and data.startswith(BYTE_ORDER_MARK):
            start, data = len(BYTE_ORDER_MARK), data[len(BYTE_ORDER_MARK) :]
        if data.strip():
            yield Line(number, start, data)
