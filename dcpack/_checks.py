"""Checks of arguments that several rooms share, so that the same fault has the same message everywhere."""

from __future__ import annotations

import contextlib
import math
import numbers
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import numpy.typing as npt

from dcpack._texts import list_no_integers, list_offenders, short_text, shorten
from dcpack.errors import ArgumentError

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]


def check_int(name: str, value: Any, *, minimum: int, maximum: int | None = None) -> int:
    """Return `value` as a Python int; a bool, a float or a number out of range is an error.

    Example:
        >>> check_int("capacity", np.int32(7), minimum=1)
        7
        >>> check_int("capacity", True, minimum=1)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: capacity must be an integer, got True (bool)
    """
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise ArgumentError(f"{name} must be an integer, got {shorten(value)}")
    number = int(value)
    if number < minimum or (maximum is not None and number > maximum):
        bound = f"at least {minimum}" if maximum is None else f"from {minimum} to {maximum}"
        raise ArgumentError(f"{name} must be {bound}, got {short_text(number)}")
    return number


def check_flags(**given: Any) -> dict[str, bool]:
    """Return each value as a Python bool; whatever is neither True nor False is an error, 0 and 1 among it.

    Example:
        >>> check_flags(shuffle=np.True_, drop_last=False)
        {'shuffle': True, 'drop_last': False}
        >>> check_flags(shuffle="no", drop_last=1)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: shuffle must be True or False, got 'no' (str); drop_last must be True or False, \
got 1 (int)
    """
    if wrong := [name for name, value in given.items() if not isinstance(value, bool | np.bool_)]:
        raise ArgumentError("; ".join(f"{name} must be True or False, got {shorten(given[name])}" for name in wrong))
    return {name: bool(value) for name, value in given.items()}


def check_flag(name: str, value: Any) -> bool:
    """Return `value` as a Python bool, as `check_flags`.

    Example:
        >>> check_flag("equal_size", np.False_)
        False
    """
    return check_flags(**{name: value})[name]


def check_kinds(**given: tuple[Any, Any]) -> None:
    """Raise unless each value is of its kind: a class, or a union of classes and None.

    Example:
        >>> check_kinds(capacity=(8, int), groups=(None, list | None))
        >>> check_kinds(capacity=("8", int), groups=(3, list | None), seed=(1, int))
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: capacity must be an int, got '8' (str); groups must be a list or None, got 3 (int)
    """
    wrong = [(name, value, kind) for name, (value, kind) in given.items() if not isinstance(value, kind)]
    if wrong:
        listed = [f"{name} must be {_name_kind(kind)}, got {shorten(value)}" for name, value, kind in wrong]
        raise ArgumentError("; ".join(listed))


def check_cost(cost: Any) -> None:
    """Raise unless `cost` has what a `dcpack.cost.CostModel` has.

    Example:
        >>> check_cost(3)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: cost must be a cost model, 3 has no columns, bin_time, node_size, unit
    """
    missing = [name for name in ("columns", "bin_time", "node_size", "unit") if not hasattr(cost, name)]
    if missing or isinstance(cost, type):
        fault = "is a class" if isinstance(cost, type) else f"has no {', '.join(missing)}"
        raise ArgumentError(f"cost must be a cost model, {short_text(cost)} {fault}")


def _name_kind(kind: Any) -> str:
    names = ["None" if part is type(None) else part.__name__ for part in get_args(kind) or (kind,)]
    article = "an" if names[0][0] in "aeiouAEIOU" else "a"
    return f"{article} {' or '.join(names)}"


def check_path(name: str, value: Any) -> Path:
    """Return `value`, a str or a path, as a path; what no file can be called is an error.

    Example:
        >>> check_path("path", "a folder/plan.npz").name
        'plan.npz'
        >>> check_path("path", 3)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: path must be a str or PathLike, got 3 (int)
    """
    check_kinds(**{name: (value, str | os.PathLike)})
    text = os.fspath(value)
    if not text or not isinstance(text, str) or "\0" in text:
        raise ArgumentError(f"{name} must be the path of a file, got {text!r}")
    return Path(text)


def check_items(name: str, values: Any) -> Iterator[Any]:
    """Return an iterator over `values`; a text or a mapping is none of items, though Python would iterate it.

    Example:
        >>> check_items("documents", b"ab")
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: documents must be a sequence of items, got b'ab' (bytes)
    """
    try:
        if isinstance(values, str | bytes | Mapping):
            raise TypeError
        return iter(values)
    except TypeError as error:
        raise ArgumentError(f"{name} must be a sequence of items, got {shorten(values)}") from error


def check_names(name: str, values: Any) -> tuple[str, ...]:
    """Return `values` as a tuple of str; a lone str is an error, as its letters would be taken for names.

    Example:
        >>> check_names("fields", "images")
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: fields must be a sequence of names, got 'images'
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ArgumentError(f"{name} must be a sequence of names, got {short_text(values)}")
    try:
        names = tuple(values)
    except TypeError as error:  # a 0-d array says that it is iterable
        raise ArgumentError(f"{name} must be a sequence of names, got {short_text(values)}") from error
    if wrong := [repr(value) for value in names if not isinstance(value, str)]:
        raise ArgumentError(f"{name} must be a sequence of names, got {list_offenders(wrong)}")
    return names


def as_real(
    name: str,
    value: Any,
    *,
    positive: bool = False,
    maximum: float = math.inf,
    below: float = math.inf,
    what: str = "number",
) -> float:
    """Return `value` as a finite Python float of at least 0 (above 0 where `positive`).

    Any real number is taken, a fraction too; a bool is none, nor is an array. It may be `maximum`, and not `below`.

    Example:
        >>> as_real("latency", np.float32(0.5))
        0.5
        >>> as_real("peak_flops", 0, positive=True)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: peak_flops must be a finite number above 0, got 0
    """
    number = math.nan
    if isinstance(value, numbers.Real) and not isinstance(value, bool):
        with contextlib.suppress(OverflowError):
            number = float(value)
    if not 0 <= number < below or number > maximum or (positive and number == 0):
        bound = "above 0" if positive else "of at least 0"
        bound += "" if maximum == math.inf else f" and at most {maximum:g}"
        bound += "" if below == math.inf else f" and below {below:g}"
        raise ArgumentError(f"{name} must be a finite {what} {bound}, got {short_text(value)}")
    return number


def as_number(name: str, value: Any) -> Any:
    """Return a number of any kind as it is, and a 0-d array as the number it holds.

    Example:
        >>> as_number("fill_value", np.array(3.5))
        np.float64(3.5)
        >>> as_number("fill_value", [3.5])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: fill_value must be a number, got [3.5] (list)
    """
    number = value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value
    if not isinstance(number, int | float | complex | np.number | np.bool_):
        raise ArgumentError(f"{name} must be a number, got {shorten(value)}")
    return number


def check_choice(name: str, value: Any, choices: Iterable[str]) -> str:
    """Return `value` if it is one of `choices`; otherwise an error that lists them.

    Example:
        >>> check_choice("sync", "never", ("microbatch", "step"))
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: sync must be one of 'microbatch', 'step', got 'never'
    """
    options = tuple(choices)
    if not isinstance(value, str) or value not in options:
        raise ArgumentError(f"{name} must be one of {', '.join(map(repr, options))}, got {short_text(value)}")
    return value


def as_array(name: str, values: Any) -> npt.NDArray[Any]:
    """Return `values` as an array of any shape; rows of unequal length and objects make none.

    Example:
        >>> as_array("outputs", [[1, 2]]).shape
        (1, 2)
        >>> as_array("outputs", [1, None])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: outputs must be an array, got one of objects
    """
    array = _as_it_is(name, values, "an array")
    if array.dtype.kind == "O":
        raise ArgumentError(f"{name} must be an array, got one of objects")
    return array


_LEAST = int(np.iinfo(np.int64).min)


def _numbers_of(name: str, values: Any, what: str) -> npt.NDArray[Any]:
    """Return `values` as an array; a list that mixes bools with numbers is none: NumPy would make 0 and 1 of them."""
    if isinstance(values, list | tuple) and not {bool, np.bool_}.isdisjoint(map(type, values)):
        wrong = [f"{name}[{i}] = {value}" for i, value in enumerate(values) if isinstance(value, bool | np.bool_)]
        raise ArgumentError(f"{name} must hold numbers, got bools: {list_offenders(wrong)}")
    return _as_it_is(name, values, what)


def _as_it_is(name: str, values: Any, what: str) -> npt.NDArray[Any]:
    if np.ma.is_masked(values):
        raise ArgumentError(f"{name} must be {what}, got a masked one: the values behind the mask would count")
    try:
        return np.asarray(values)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # ragged; a tensor that wants gradients
        raise ArgumentError(f"{name} must be {what}: {error}") from error


def _refuse_dims(name: str, array: npt.NDArray[Any], values: Any) -> None:
    if array.ndim != 1:
        what = f": {shorten(values)}" if array.ndim == 0 and array.dtype.kind == "O" else ""  # a generator, say
        raise ArgumentError(f"{name} must be one-dimensional, got shape {array.shape}{what}")


def as_integers(name: str, values: Any, *, minimum: int = 0) -> Int64Array:
    """Return `values` as int64 of the same shape: whole numbers of at least `minimum`; no copy where they are int64.

    Any integer width is taken, and floats that are whole numbers are not: a length that went through a float has
    usually lost its exactness somewhere.

    Raises:
        ArgumentError: not integers, beyond int64, or some value below `minimum` (all are named).

    Example:
        >>> as_integers("cp_size", np.uint8(3))
        array(3)
        >>> as_integers("cp_size", [[1, 0]], minimum=1)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: cp_size must be at least 1: cp_size[0, 1] = 0
    """
    array = _numbers_of(name, values, "an array of integers")
    if array.size == 0 and isinstance(values, list | tuple):
        array = array.astype(np.int64)
    return _to_int64(name, array, values, minimum)


def _to_int64(name: str, array: npt.NDArray[Any], values: Any, minimum: int) -> Int64Array:
    """Return `array`, which was made of `values`, as int64."""
    if array.dtype.kind not in "iu":
        such = list_no_integers(name, array, values)
        raise ArgumentError(f"{name} must hold integers, got dtype {array.dtype}{such and f': {such}'}")
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.max(initial=0) > np.iinfo(np.int64).max:
        raise ArgumentError(f"{name} must fit in int64, got a value of {array.max()}")
    result = array.astype(np.int64, copy=False)
    if minimum > _LEAST and result.size and result.min() < minimum:
        low = np.argwhere(result < minimum).tolist()
        listed = list_offenders([f"{name}{i if i else ''} = {result[tuple(i)]}" for i in low])
        raise ArgumentError(f"{name} must be at least {minimum}: {listed}")
    return result


def as_lengths(name: str, values: Any, *, minimum: int = 0) -> Int64Array:
    """Return `values` as a read-only int64[n] of its own: lengths, counts or other numbers of at least `minimum`.

    Raises:
        ArgumentError: not one-dimensional, or not as `as_integers` wants them.

    Example:
        >>> as_lengths("lengths", np.array([3, 1], np.uint16))
        array([3, 1])
        >>> as_lengths("lengths", [3, -1])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: lengths must be at least 0: lengths[1] = -1
    """
    array = _numbers_of(name, values, "a one-dimensional array of integers")
    _refuse_dims(name, array, values)
    if array.size == 0:
        array = array.astype(np.int64)
    result = _to_int64(name, array, values, minimum).copy()  # the caller may change its own array later
    result.setflags(write=False)
    return result


def as_costs(name: str, values: Any) -> npt.NDArray[Any]:
    """Return `values` as an array of integers, or of float64: finite and at least 0.

    Raises:
        ArgumentError: not one-dimensional, not numbers, or some value negative, infinite or NaN (all are named).

    Example:
        >>> as_costs("costs", [1, 2.5])
        array([1. , 2.5])
        >>> as_costs("costs", [1.0, float("nan")])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: costs must be finite and at least 0: costs[1] = nan
    """
    array = _numbers_of(name, values, "a one-dimensional array of numbers")
    _refuse_dims(name, array, values)
    if array.dtype.kind not in "iuf":
        raise ArgumentError(f"{name} must hold integers or floats, got dtype {array.dtype}")
    if array.dtype.kind == "f":
        array = array.astype(np.float64)
    refused = array < 0 if array.dtype.kind != "f" else ~np.isfinite(array) | (array < 0)
    if refused.any():
        bad = np.flatnonzero(refused).tolist()
        listed = list_offenders([f"{name}[{i}] = {array[i]}" for i in bad])
        raise ArgumentError(f"{name} must be finite and at least 0: {listed}")
    return array


def exact_sum(values: npt.NDArray[np.integer[Any]]) -> int:
    """Return the sum of integers of any width, exactly, however large.

    Example:
        >>> exact_sum(np.array([2**62, 2**62, 2**62]))
        13835058055282163712
    """
    high, low = np.asarray(values, np.int64) >> 32, np.asarray(values, np.int64) & 0xFFFFFFFF
    return (int(high.sum()) << 32) + int(low.sum())


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a contiguous, read-only version of `array` (a view of it where possible).

    Example:
        >>> frozen(np.arange(3)).flags.writeable
        False
    """
    result = np.asarray(array, order="C").view()  # unlike ascontiguousarray, keeps 0-d arrays 0-d
    result.setflags(write=False)
    return result
