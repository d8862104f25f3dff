"""JSON lines: one object a line, with a length, a list of token ids, or a text."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_kinds, check_path, frozen
from dcpack.data.base import TokenSource
from dcpack.data.errors import DataFileError, Fault
from dcpack.data.files import BYTE_ORDER_MARK, iter_lines, map_file
from dcpack.data.text import byte_tokens, count_of, encode
from dcpack.data.values import as_length, token_ids

__all__ = ["JsonlSource"]

_LENGTH_KEYS = ("length", "input_ids", "text")
_TOKEN_KEYS = ("input_ids", "text")

_NEWLINE = 10
_WHITE_SPACE = np.frombuffer(b" \t\r\v\f", np.uint8)
_BLOCK_BYTES = 1 << 24

_T = TypeVar("_T")


def read_jsonl_lengths(stream: BinaryIO, file: Path, key: str | None, tokenizer: str) -> Int64Array:
    """Return int64[n]: one length a record.

    Args:
        stream: the lines.
        file: their name in errors.
        key: where a record has its length, its token ids or its text; None takes ``length``, ``input_ids`` or
            ``text``, whichever the first record has first.
        tokenizer: one of `TOKENIZERS`, for texts.
    """
    lengths = array("q")
    for line in iter_lines(stream):
        try:
            record = _parse_record(line.data)
            if key is None:
                key = _choose_key(record, _LENGTH_KEYS)
            lengths.append(_length_of(_field(record, key), tokenizer))
        except Fault as fault:
            raise DataFileError(file, str(fault), offset=line.offset, place=line.place) from None
    return np.array(lengths, np.int64)


def _parse_record(data: bytes) -> dict[str, Any]:
    """Return the object of one line."""
    try:
        record = json.loads(data.decode())
    except json.JSONDecodeError as error:
        raise Fault(f"no JSON: {error.msg} at character {error.pos} of the line") from None
    except UnicodeDecodeError as error:
        raise Fault(f"no UTF-8: {error.reason} at byte {error.start} of the line") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, brackets without end
        raise Fault(f"no JSON that can be read: {error}") from None
    if not isinstance(record, dict):
        raise Fault(f"a record must be an object, got {type(record).__name__}")
    return record


def _choose_key(record: dict[str, Any], keys: Sequence[str]) -> str:
    """Return the first of `keys` that a record has."""
    for key in keys:
        if key in record:
            return key
    raise Fault(f"a record must have one of {', '.join(map(repr, keys))}, or name its key; got {_names(record)}")


def _field(record: dict[str, Any], key: str) -> Any:
    if key not in record:
        raise Fault(f"the record has no {key!r}, only {_names(record)}")
    return record[key]


def _names(record: dict[str, Any]) -> str:
    return ", ".join(repr(name) for name in list(record)[:8]) or "nothing"


def _length_of(value: Any, tokenizer: str) -> int:
    if isinstance(value, str):
        return count_of(value, tokenizer)
    return len(value) if isinstance(value, list) else as_length(value)


class JsonlSource(TokenSource):
    r"""A source of JSON lines with token ids or text. The file is memory-mapped; a record is parsed when asked for.

    One pass finds where the lines begin; blank lines are no records. Texts become `byte_tokens`. `lengths` has to parse
    every record, once.

    Args:
        path: the file.
        key: the key of the token ids (a list of whole numbers) or of the text; None takes ``input_ids``, or else
            ``text``, whichever the first record has.

    Raises:
        ArgumentError: the file is not there.
        DataFileError: on reading a record that is no JSON object, or has no tokens under `key`; names file, line,
            byte and reason.

    Example:
        >>> import pathlib, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     file = pathlib.Path(folder, "a.jsonl")
        ...     size = file.write_text('{"text": "hi"}\n{"text": "there"}\n')
        ...     source = JsonlSource(file)
        ...     source.lengths(), source[0]
        (array([3, 6]), {'input_ids': array([104, 105, 256], dtype=int32)})
    """

    def __init__(self, path: str | Path, *, key: str | None = None) -> None:
        check_kinds(key=(key, str | None))
        self._file = check_path("path", path)
        self._data = map_file(path)
        self._starts, self._ends = _find_lines(self._data)
        self._lengths: Int64Array | None = None
        self._key = key

    def __len__(self) -> int:
        return self._starts.size

    def lengths(self) -> Int64Array:
        """Return int64[n]: tokens of each record."""
        if self._lengths is None:
            counts = (self._convert(index, _count) for index in range(len(self)))
            self._lengths = frozen(np.fromiter(counts, np.int64, len(self)))
        return self._lengths

    def _tokens(self, index: int) -> npt.NDArray[Any]:
        return self._convert(index, _to_tokens)

    def _convert(self, index: int, convert: Callable[[Any], _T]) -> _T:
        key = self._key
        if key is None:
            key = self._key = self._look_into(0, lambda record: _choose_key(record, _TOKEN_KEYS))
        return self._look_into(index, lambda record: convert(_field(record, key)))

    def _look_into(self, index: int, look: Callable[[dict[str, Any]], _T]) -> _T:
        start, end = int(self._starts[index]), int(self._ends[index])
        try:
            return look(_parse_record(self._data[start:end].tobytes()))
        except Fault as fault:
            line = 1 + int(np.count_nonzero(self._data[:start] == _NEWLINE))
            raise DataFileError(self._file, str(fault), offset=start, place=f"line {line}") from None


def _to_tokens(value: Any) -> npt.NDArray[Any]:
    if isinstance(value, str):
        return byte_tokens(encode(value))
    if isinstance(value, list):
        return token_ids(value)
    raise Fault(f"tokens must be a list of whole numbers or a text, got {type(value).__name__}")


def _count(value: Any) -> int:
    return len(value) if isinstance(value, list) else _to_tokens(value).size


def _find_lines(data: npt.NDArray[np.uint8]) -> tuple[Int64Array, Int64Array]:
    r"""Return where each line that is not blank begins, and where it ends (its ``\n`` excluded).

    Of ``ab\n\ncd`` the newlines are at 2 and 3; lines begin at 0, 3, 4 and end at 2, 3, 6, and the second is empty.
    """
    blocks = range(0, data.size, _BLOCK_BYTES)
    found = [np.flatnonzero(data[at : at + _BLOCK_BYTES] == _NEWLINE) + at for at in blocks]
    newlines = np.concatenate([np.zeros(0, np.int64), *found])
    starts = np.concatenate([[0], newlines + 1])
    ends = np.concatenate([newlines, [data.size]])
    if data[: len(BYTE_ORDER_MARK)].tobytes() == BYTE_ORDER_MARK:
        starts[0] = len(BYTE_ORDER_MARK)
    keep = starts < ends
    # Only a line that begins with white space can be blank without being empty.
    for index in np.flatnonzero(keep)[np.isin(data[starts[keep]], _WHITE_SPACE)].tolist():
        keep[index] = bool(data[starts[index] : ends[index]].tobytes().strip())
    return starts[keep], ends[keep]
