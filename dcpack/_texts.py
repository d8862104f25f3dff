"""Short texts of values and of offenders, for errors of all rooms."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["MAX_LISTED", "list_no_integers", "list_offenders", "short_text", "shorten"]

MAX_LISTED = 8
"""Offenders that an error names; the others are counted."""


class _Repr(reprlib.Repr):
    """Makes short texts of values of any kind, also where their own text cannot be made."""

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python makes no text of thousands of digits
            return f"<an int of {x.bit_length()} bits>"


_REPR = _Repr()
_REPR.maxstring = _REPR.maxother = 160


def list_offenders(texts: Sequence[str], count: int | None = None) -> str:
    """Join the first few offenders and count the rest.

    Args:
        texts: a text for each offender, or for the first ones where there are many.
        count: offenders altogether; None is one for each text.

    Example:
        >>> list_offenders([f"sequence {i}" for i in range(10)])
        'sequence 0, sequence 1, sequence 2, sequence 3, sequence 4, sequence 5, sequence 6, sequence 7 and 2 more'
    """
    listed = texts[:MAX_LISTED]
    more = (len(texts) if count is None else count) - len(listed)
    return ", ".join(listed) + (f" and {more} more" if more else "")


def short_text(value: Any) -> str:
    """Return what Python shows of a value, in at most a few hundred letters, also where its own text cannot be made.

    Example:
        >>> short_text([1, 10**5000])
        '[1, <an int of 16610 bits>]'
    """
    return _REPR.repr(value)


def shorten(value: Any) -> str:
    """Describe a value of any kind in a line, also where its own text cannot be made.

    Example:
        >>> shorten("3")
        "'3' (str)"
    """
    return f"{short_text(value)} ({type(value).__name__})".replace("\n", " ")


def list_no_integers(name: str, array: npt.NDArray[Any], values: Any) -> str:
    """List which elements kept `array` from being one of integers, those that are no whole numbers where there are.

    Args:
        name: what errors call the values.
        array: the array, of any shape, whose dtype is none of integers.
        values: what it was made of.

    Example:
        >>> list_no_integers("lengths", np.array([1.0, 3.5]), [1, 3.5])
        'lengths[1] = 3.5'
    """
    if array.ndim == 1 and isinstance(values, list | tuple):
        flat: Any = values  # in the array, a whole number beside a float is a float too
        wrong = [i for i, value in enumerate(flat) if not _is_int64(value)]
    else:
        flat = array.ravel()
        wrong = [i for i in range(array.size) if array.dtype.kind != "O" or not _is_int64(flat[i])]
    wrong = [i for i in wrong if not _is_whole(flat[i])] or wrong
    texts = []
    for i in wrong[:MAX_LISTED]:
        place = [int(k) for k in np.unravel_index(i, array.shape)]
        value = flat[i].item() if isinstance(flat[i], np.number | np.bool_ | np.character) else flat[i]
        texts.append(f"{name}{place or ''} = {short_text(value)}")
    return list_offenders(texts, len(wrong))


def _is_int64(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and -(2**63) <= int(value) < 2**63


def _is_whole(value: Any) -> bool:
    return isinstance(value, float | np.floating) and float(value).is_integer()
