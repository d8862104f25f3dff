"""Parquet: a column of lengths, of lists of token ids, or of texts. Needs pyarrow, which only these functions load."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_kinds, frozen
from dcpack.data.base import TokenSource
from dcpack.data.errors import DataFileError
from dcpack.data.files import check_file, map_file
from dcpack.data.text import byte_tokens, count_of
from dcpack.data.values import first_bad_length, not_a_length
from dcpack.errors import ArgumentError, BackendError

__all__ = ["ParquetSource"]

_LENGTH_COLUMNS = ("length", "input_ids", "text")
_TOKEN_COLUMNS = ("input_ids", "text")

# What a column may hold.
_LENGTHS, _TOKENS, _TEXTS = "whole numbers", "lists of whole numbers", "texts"

_MAGIC = b"PAR1"
# The magic at both ends, and the length of the footer before the second.
_SMALLEST = 12
_BATCH_ROWS = 1 << 14


def _load_pyarrow(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        reason = f"reading .parquet files needs pyarrow, which cannot be loaded ({error})"
        raise BackendError(f"{reason}; it comes with: pip install 'dcpack[data]'") from error


def _check_frame(path: Path) -> int:
    """Check both magics and the length of the footer; return the byte where the footer begins."""
    data = map_file(path)
    size = data.size
    head, tail = data[:4].tobytes(), data[-8:].tobytes()
    if not head:
        raise DataFileError(path, "empty", offset=0)
    if not _MAGIC.startswith(head):
        raise DataFileError(path, f"no .parquet file: it begins with {head!r}", offset=0)
    if size < _SMALLEST or tail[4:] != _MAGIC:
        raise DataFileError(
            path, f"truncated: it ends with {tail[-4:]!r}, not with {_MAGIC!r}", offset=max(size - 4, 0)
        )
    footer_bytes = int.from_bytes(tail[:4], "little")
    if footer_bytes > size - _SMALLEST:
        reason = f"the footer cannot take {footer_bytes} bytes of a file of {size}"
        raise DataFileError(path, reason, offset=size - 8)
    return size - 8 - footer_bytes


class _Column:
    """One column of a file: what it holds, and its values, a row group at a time."""

    def __init__(
        self, path: str | Path, column: str | int | None, defaults: tuple[str, ...], kinds: tuple[str, ...]
    ) -> None:
        parquet = _load_pyarrow("pyarrow.parquet")
        self.file = check_file(path)
        self._errors = (_load_pyarrow("pyarrow").ArrowException, OSError, ValueError)
        footer = _check_frame(self.file)
        try:
            self._parquet = parquet.ParquetFile(self.file, memory_map=True, page_checksum_verification=True)
            schema, self._metadata = self._parquet.schema_arrow, self._parquet.metadata
        except self._errors as error:
            raise DataFileError(self.file, f"corrupt footer: {error}", offset=footer) from error
        self.name = _choose_column(self.file, schema.names, column, defaults)
        arrow_type = schema.types[schema.names.index(self.name)]
        self.kind = _kind_of(arrow_type)
        if self.kind not in kinds:
            raise ArgumentError(f"column {self.name!r} of {self.file} holds {arrow_type}, not {' or '.join(kinds)}")
        rows = [self._metadata.row_group(group).num_rows for group in range(self._metadata.num_row_groups)]
        self.first_rows = np.concatenate([[0], np.cumsum(np.array(rows, np.int64))])

    @property
    def num_groups(self) -> int:
        """Number of row groups."""
        return self.first_rows.size - 1

    def read_group(self, group: int) -> Any:
        """Return the values of one row group (a ChunkedArray), decoded only as far as Arrow's own form."""
        try:
            values = self._parquet.read_row_group(group, columns=[self.name]).column(0)
            values.validate()
        except self._errors as error:
            raise self.error(f"corrupt: {error}", group=group) from error
        self._check_rows(group, len(values))
        return values

    def batches(self) -> Iterator[tuple[int, Any]]:
        """Yield (first row, values) in order; some thousand rows at a time."""
        for group in range(self.num_groups):
            row = first = int(self.first_rows[group])
            batches = self._parquet.iter_batches(batch_size=_BATCH_ROWS, row_groups=[group], columns=[self.name])
            while True:
                try:
                    batch = next(batches, None)
                except self._errors as error:
                    raise self.error(f"corrupt: {error}", group=group) from error
                if batch is None:
                    break
                yield row, batch.column(0)
                row += batch.num_rows
            self._check_rows(group, row - first)

    def _check_rows(self, group: int, found: int) -> None:
        announced = int(self.first_rows[group + 1] - self.first_rows[group])
        if found != announced:
            raise self.error(f"corrupt: the footer announces {announced} rows, there are {found}", group=group)

    def error(self, reason: str, *, group: int | None = None, row: int | None = None) -> DataFileError:
        """Return the error of a row group or a row.

        The offset is where the row groups begin: to ask pyarrow where the column lies in a corrupt file can end the
        process.
        """
        place = f"column {self.name!r}, " + (f"row {row}" if group is None else f"row group {group}")
        return DataFileError(self.file, reason, offset=len(_MAGIC), place=place)


def _choose_column(file: Path, names: list[str], column: Any, defaults: tuple[str, ...]) -> str:
    check_kinds(column=(column, str | int | None))
    if isinstance(column, int) and not isinstance(column, bool) and 0 <= column < len(names):
        return names[column]
    if column in names:
        return column
    listed = ", ".join(map(repr, names)) or "none"
    if column is not None:
        raise ArgumentError(f"column {column!r} is not in {file}, which has {listed}")
    for name in defaults:
        if name in names:
            return name
    if len(names) != 1:
        raise ArgumentError(f"column must name one column of {file}, which has {listed}")
    return names[0]


def _kind_of(arrow_type: Any) -> str:
    types = _load_pyarrow("pyarrow").types
    if types.is_integer(arrow_type):
        return _LENGTHS
    if types.is_string(arrow_type) or types.is_large_string(arrow_type):
        return _TEXTS
    is_list = types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type)
    return _TOKENS if is_list and types.is_integer(arrow_type.value_type) else "other"


def read_parquet_lengths(path: str | Path, column: str | int | None, tokenizer: str) -> Int64Array:
    """Return int64[n]: one length a row, decoded a few thousand rows at a time.

    Args:
        path: the file.
        column: name or number of a column of lengths, of lists of token ids or of texts; None takes the first of
            ``length``, ``input_ids``, ``text``, else the only column.
        tokenizer: one of `TOKENIZERS`, for texts.
    """
    return _lengths_of(_Column(path, column, _LENGTH_COLUMNS, (_LENGTHS, _TOKENS, _TEXTS)), tokenizer)


def _lengths_of(column: _Column, tokenizer: str) -> Int64Array:
    parts = [np.zeros(0, np.int64)]
    for row, values in column.batches():
        if values.null_count:
            bad = int(np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False))[0])
            raise column.error("no value", row=row + bad)
        try:
            counts = _count(values, column.kind, tokenizer)
        except ValueError as error:  # text that is no UTF-8
            raise column.error(str(error), row=row) from None
        if (bad := first_bad_length(counts)) is not None:
            raise column.error(not_a_length(int(counts[bad])), row=row + bad)
        parts.append(counts.astype(np.int64))
    return np.concatenate(parts)


def _count(values: Any, kind: str, tokenizer: str) -> npt.NDArray[np.integer[Any]]:
    """Return int[rows]. Lists and bytes are counted by their offsets; their content is not looked at."""
    if kind == _LENGTHS:
        return values.to_numpy(zero_copy_only=False)
    compute = _load_pyarrow("pyarrow.compute")
    if kind == _TOKENS:
        return compute.list_value_length(values).to_numpy(zero_copy_only=False)
    if tokenizer == "bytes":
        return compute.binary_length(values).to_numpy(zero_copy_only=False).astype(np.int64) + 1
    return np.array([count_of(text, tokenizer) for text in values.to_pylist()], np.int64)


class ParquetSource(TokenSource):
    """A source of Parquet rows: lists of token ids, or texts that become `byte_tokens`.

    The row group that was read last is kept, so rows are fast in order, and in any order if row groups are small.
    `lengths` decodes the column, once, but makes no tokens of it.

    Args:
        path: the file.
        column: name or number of a column of lists of whole numbers, or of texts; None takes ``input_ids``, else
            ``text``, else the only column.

    Raises:
        BackendError: pyarrow is not there.
        ArgumentError: no such file or column, or a column of another type.
        DataFileError: the file is truncated or corrupt, or a row has no value; names file, row, byte and reason.

    Example:
        >>> import pyarrow, pyarrow.parquet, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     table = pyarrow.table({"input_ids": [[1, 2, 3], [4]]})
        ...     pyarrow.parquet.write_table(table, f"{folder}/a.parquet")
        ...     source = ParquetSource(f"{folder}/a.parquet")
        ...     source.lengths(), source[0]
        (array([3, 1]), {'input_ids': array([1, 2, 3])})
    """

    def __init__(self, path: str | Path, *, column: str | int | None = None) -> None:
        self._column = _Column(path, column, _TOKEN_COLUMNS, (_TOKENS, _TEXTS))
        self._lengths: Int64Array | None = None
        self._group: tuple[int, Any] = (-1, None)
        self._lock = threading.Lock()  # a loader reads ahead in another thread, and Arrow's reader is not for two

    def __len__(self) -> int:
        return int(self._column.first_rows[-1])

    def lengths(self) -> Int64Array:
        """Return int64[n]: tokens of each row."""
        with self._lock:
            if self._lengths is None:
                self._lengths = frozen(_lengths_of(self._column, "bytes"))
            return self._lengths

    def _tokens(self, index: int) -> npt.NDArray[Any]:
        group = int(np.searchsorted(self._column.first_rows, index, side="right")) - 1
        with self._lock:
            if self._group[0] != group:
                self._group = (group, self._column.read_group(group))
            values = self._group[1]
        value = values[index - int(self._column.first_rows[group])]
        if not value.is_valid:
            raise self._column.error("no value", row=index)
        if self._column.kind == _TEXTS:
            return byte_tokens(value.as_buffer().to_pybytes())
        if value.values.null_count:
            raise self._column.error("a token has no value", row=index)
        return value.values.to_numpy(zero_copy_only=False)
