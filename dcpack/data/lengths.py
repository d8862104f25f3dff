"""Lengths out of any file, by the ending of its name."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_choice, check_int, check_path, frozen
from dcpack.data.files import BYTE_ORDER_MARK, check_file, opened, reading
from dcpack.data.jsonl import read_jsonl_lengths
from dcpack.data.megatron import read_idx_lengths
from dcpack.data.numpy_files import read_npy_lengths, read_npz_lengths
from dcpack.data.parquet import read_parquet_lengths
from dcpack.data.text import TOKENIZERS, count_of, find_text_files, read_document
from dcpack.data.text_numbers import read_csv_column, read_number_lines
from dcpack.errors import ArgumentError

__all__ = ["LENGTH_FORMATS", "STANDARD_INPUT", "read_lengths"]

STANDARD_INPUT = "-"
"""The path that stands for standard input."""

LENGTH_FORMATS = (".csv", ".idx", ".jsonl", ".npy", ".npz", ".parquet", ".txt")
"""Endings of the files that `read_lengths` reads. A folder, and standard input, have none."""

# Which formats take which option.
_KEY_FORMATS = (".jsonl", ".npz", STANDARD_INPUT)
_COLUMN_FORMATS = (".csv", ".parquet")


def read_lengths(
    path: str | Path, *, key: str | None = None, column: str | int | None = None, tokenizer: str = "bytes"
) -> npt.NDArray[np.integer[Any]]:
    r"""Read the lengths of sequences, in tokens, without reading the tokens where the format allows that.

    ============ =======================================================================================
    path         what is read
    ============ =======================================================================================
    ``.npy``     one integer array in one dimension
    ``.npz``     the same, the only array or the one named `key`
    ``.txt``     one length a line
    ``.csv``     `column`; else the column ``length`` of a header, else the first that holds a number
    ``.jsonl``   `key`, else the first of ``length``, ``input_ids``, ``text`` that the first record has
    ``.parquet`` `column`, else the first of ``length``, ``input_ids``, ``text``, else the only column;
                 needs the extra ``data``
    ``.idx``     the table of lengths of a Megatron-Core index
    a folder     its text files, one document each; empty and unreadable ones are left out
    ``-``        standard input: records if the first line begins with ``{``, else one length a line
    ============ =======================================================================================

    A key or column may hold lengths, lists of token ids, or texts that `tokenizer` counts.

    Args:
        path: a file, a folder, or ``-``.
        key: for ``.jsonl``, ``.npz`` and standard input.
        column: for ``.csv`` and ``.parquet``, a name or a number from 0.
        tokenizer: how texts are counted: ``"bytes"`` (UTF-8 bytes and the end of the document, the tokens that the
            text sources give) or ``"whitespace"`` (words).

    Returns:
        int[n], read-only, all values from 0 to 2^63 - 1. Out of ``.idx`` and ``.npy`` it is the file itself,
        memory-mapped, in its own integer dtype; ``.npz`` keeps its dtype too; all else is int64.

    Raises:
        ArgumentError: no such file, an unknown ending, or an option that does not fit.
        DataFileError: the file is truncated or corrupt, or holds what is no length; names file, byte and reason.
        BackendError: a ``.parquet`` file without pyarrow.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "a.csv")
        ...     size = file.write_text("name,length\none,12\ntwo,7\n")
        ...     read_lengths(file).tolist()
        [12, 7]
    """
    check_choice("tokenizer", tokenizer, TOKENIZERS)
    if str(path) == STANDARD_INPUT:
        _check_options(STANDARD_INPUT, key, column)
        return _read_stream(sys.stdin.buffer, key, tokenizer)
    place = check_path("path", path)
    suffix = place.suffix.lower()
    if place.is_dir() and suffix not in LENGTH_FORMATS:
        _check_options("a folder", key, column)
        return _read_folder(place, tokenizer)
    file = check_file(place)
    if suffix not in LENGTH_FORMATS:
        raise ArgumentError(f"path must end in one of {', '.join(LENGTH_FORMATS)}, or be a folder or '-'; got {path}")
    _check_options(suffix, key, column)
    return _read_file(file, suffix, key, column, tokenizer)


def _check_options(kind: str, key: str | None, column: str | int | None) -> None:
    if key is not None and kind not in _KEY_FORMATS:
        raise ArgumentError(f"key is for {', '.join(_KEY_FORMATS)}, not for {kind}; got {key!r}")
    if key is not None and not isinstance(key, str):
        raise ArgumentError(f"key must be a name, got {key!r} ({type(key).__name__})")
    if column is not None and kind not in _COLUMN_FORMATS:
        raise ArgumentError(f"column is for {', '.join(_COLUMN_FORMATS)}, not for {kind}; got {column!r}")
    if column is not None and not isinstance(column, str):
        check_int("column", column, minimum=0)


def _read_file(
    file: Path, suffix: str, key: str | None, column: str | int | None, tokenizer: str
) -> npt.NDArray[np.integer[Any]]:
    match suffix:
        case ".idx":
            return read_idx_lengths(file)
        case ".npy":
            return read_npy_lengths(file)
        case ".npz":
            return read_npz_lengths(file, key)
        case ".parquet":
            return frozen(read_parquet_lengths(file, column, tokenizer))
    with opened(file) as stream:
        match suffix:
            case ".csv":
                return frozen(read_csv_column(stream, file, column))
            case ".jsonl":
                return frozen(read_jsonl_lengths(stream, file, key, tokenizer))
            case _:
                return frozen(read_number_lines(stream, file))


def _read_folder(folder: Path, tokenizer: str) -> Int64Array:
    documents = (read_document(file) for file in find_text_files([folder]))
    counts = [count_of(document.decode(), tokenizer) for document in documents if document]
    return frozen(np.array(counts, np.int64))


def _read_stream(stream: BinaryIO, key: str | None, tokenizer: str) -> Int64Array:
    """Read standard input, which says by its first line what it is."""
    name = Path("<standard input>")
    with reading(name):
        head = b""
        for line in stream:
            head += line
            if line.strip():
                break
        whole = io.BufferedReader(_Rejoined(head, stream))
        if head.removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"{"):
            return frozen(read_jsonl_lengths(whole, name, key, tokenizer))
        if key is not None:
            raise ArgumentError(f"key is for records, standard input begins with {head[:20]!r}; got {key!r}")
        return frozen(read_number_lines(whole, name))


class _Rejoined(io.RawIOBase):
    """A stream with what was already taken from it put back in front. Closing it leaves the stream open."""

    def __init__(self, head: bytes, rest: BinaryIO) -> None:
        super().__init__()
        self._head = io.BytesIO(head)
        self._rest = rest

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        view = memoryview(buffer)
        data = self._head.read(len(view)) or self._rest.read(len(view))
        view[: len(data)] = data
        return len(data)
