"""NumPy's files: ``.npy`` memory-mapped, ``.npz`` one array at a time. What would have to be unpickled is refused."""

from __future__ import annotations

import io
import struct
import tokenize
import warnings
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dcpack.data.errors import DataFileError, Fault
from dcpack.data.files import check_file, map_file, opened
from dcpack.data.values import first_bad_length, not_a_length
from dcpack.errors import ArgumentError, DcpackError

_MAGIC = b"\x93NUMPY"
# NumPy's own limit is 10,000 characters. The parser sees no more of the file than this.
_MAX_HEADER_BYTES = 1 << 14
# Deflate shrinks nothing further than this: an archive that claims more does not hold it.
_MAX_DEFLATE_RATIO = 1032
# What parsers of NumPy and the standard library raise over corrupt bytes.
_HEADER_ERRORS = (
    ValueError,
    TypeError,
    SyntaxError,
    KeyError,
    OverflowError,
    MemoryError,
    RecursionError,
    tokenize.TokenError,
)
_ZIP_ERRORS = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, ValueError, RuntimeError, OverflowError)


class _ArrayFault(Fault):
    """What is wrong with an array file, and at which of its bytes."""

    def __init__(self, reason: str, at: int) -> None:
        super().__init__(reason)
        self.at = at


class _Header(NamedTuple):
    """What an array file says of its array."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    size: int


def read_npy_lengths(path: str | Path) -> npt.NDArray[np.integer[Any]]:
    """Return the lengths in an ``.npy`` file, memory-mapped and read-only, in the integer dtype of the file."""
    data = map_file(path)
    try:
        return _lengths_in(data)
    except _ArrayFault as fault:
        raise DataFileError(path, str(fault), offset=fault.at) from fault.__cause__


def read_npz_lengths(path: str | Path, key: str | None) -> npt.NDArray[np.integer[Any]]:
    """Return the lengths in one array of an ``.npz`` file, read-only, in the integer dtype of the file.

    Args:
        path: the file.
        key: name of the array; None takes the only one.
    """
    file = check_file(path)
    with opened(file) as stream:
        try:
            with zipfile.ZipFile(stream) as archive:
                member = _find_member(archive, file, key)
                data = _read_member(archive, member, file)
        except DcpackError:
            raise
        except _ZIP_ERRORS as error:
            raise DataFileError(file, f"a broken .npz archive: {error or type(error).__name__}", offset=0) from error
    try:
        return _lengths_in(np.frombuffer(data, np.uint8))
    except _ArrayFault as fault:
        raise _member_error(file, member, str(fault)) from fault.__cause__


def _member_error(file: Path, member: zipfile.ZipInfo, reason: str) -> DataFileError:
    return DataFileError(file, reason, offset=member.header_offset, place=f"array {_array_name(member)!r}")


def _array_name(member: zipfile.ZipInfo) -> str:
    return member.filename.removesuffix(".npy")


def _find_member(archive: zipfile.ZipFile, file: Path, key: str | None) -> zipfile.ZipInfo:
    members = {_array_name(member): member for member in archive.infolist()}
    names = ", ".join(map(repr, members)) or "none"
    if key is not None and key not in members:
        raise ArgumentError(f"key {key!r} is no array of {file}, which has {names}")
    if key is None and len(members) != 1:
        raise ArgumentError(f"key must name one array of {file}, which has {names}")
    return members[key] if key is not None else next(iter(members.values()))


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, file: Path) -> bytes:
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise _member_error(file, member, f"compression type {member.compress_type} is neither stored nor deflated")
    most = member.compress_size * (_MAX_DEFLATE_RATIO if member.compress_type == zipfile.ZIP_DEFLATED else 1)
    if member.file_size > most:
        raise _member_error(file, member, f"{member.compress_size} bytes cannot hold the {member.file_size} announced")
    return archive.read(member)


def _lengths_in(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.integer[Any]]:
    """Return the lengths in the bytes of an ``.npy`` file, as a view of them."""
    dtype, shape, start = _read_header(data[:_MAX_HEADER_BYTES].tobytes())
    if dtype.hasobject:
        raise _ArrayFault("holds Python objects, which are never unpickled", 0)
    if dtype.kind not in "iu" or len(shape) != 1:
        raise _ArrayFault(f"holds {dtype} of shape {shape}, lengths are integers in one dimension", 0)
    count = shape[0]
    if not 0 <= count * dtype.itemsize <= data.size - start:  # in Python's integers, so that nothing overflows
        raise _ArrayFault(f"truncated: {count} values of {dtype} begin at byte {start}", data.size)
    values = np.frombuffer(data, dtype, count, start)
    if (bad := first_bad_length(values)) is not None:
        raise _ArrayFault(f"value {bad} is {not_a_length(int(values[bad]))}", start + bad * dtype.itemsize)
    return values


def _read_header(head: bytes) -> _Header:
    if not head or not head.startswith(_MAGIC[: len(head)]):
        raise _ArrayFault(f"no .npy file: it begins with {head[: len(_MAGIC)]!r}" if head else "empty", 0)
    stream = io.BytesIO(head)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # corrupt text makes Python's parser warn, besides failing
            version = np.lib.format.read_magic(stream)
            readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in readers:
                raise ValueError(f"version {version} is not one of {', '.join(map(str, readers))}")
            shape, _, dtype = readers[version](stream)
    except _HEADER_ERRORS as error:
        raise _ArrayFault(f"truncated or corrupt header: {error or type(error).__name__}", stream.tell()) from error
    return _Header(dtype, shape, stream.tell())
