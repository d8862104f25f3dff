"""What a length may be, and the checks of lengths and tokens that all formats share."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack.data.errors import Fault

MAX_LENGTH = int(np.iinfo(np.int64).max)
# Values looked at in one go: far below the size of a mapped table, large enough that the loop costs nothing.
CHUNK = 1 << 20

_DIGITS = re.compile("[0-9]{1,19}")
_SHOWN = 40


def not_a_length(value: Any) -> str:
    """Say that `value` is none; a long one is shown in part."""
    return f"{_short(value)} is no length: a whole number from 0 to {MAX_LENGTH}"


def parse_length(text: str) -> int:
    """Return the length that `text` spells in plain digits: no sign, no point, no underscores."""
    if not _DIGITS.fullmatch(text) or (number := int(text)) > MAX_LENGTH:
        raise Fault(not_a_length(text))
    return number


def as_length(value: Any) -> int:
    """Return `value`, which came out of a file, if it is a length."""
    if type(value) is not int or not 0 <= value <= MAX_LENGTH:
        raise Fault(not_a_length(value))
    return value


def first_bad_length(values: npt.NDArray[Any]) -> int | None:
    """Return the index of the first value that is no length, or None; looks at a chunk at a time.

    Args:
        values: integers of any width, perhaps memory-mapped.
    """
    for start in range(0, values.size, CHUNK):
        chunk = values[start : start + CHUNK]
        bad = chunk < 0 if chunk.dtype.kind == "i" else chunk > np.uint64(MAX_LENGTH)
        if bad.any():
            return start + int(bad.argmax())
    return None


def token_ids(value: list[Any]) -> npt.NDArray[np.int64]:
    """Return a list of token ids as int64[length]."""
    if not set(map(type, value)) <= {int}:  # a bool is no token, though NumPy would make it one
        wrong = next(item for item in value if type(item) is not int)
        raise Fault(f"a token id is a whole number, got {_short(wrong)}")
    try:
        return np.array(value, np.int64)
    except OverflowError:
        raise Fault("a token id is beyond int64") from None


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
