"""The dtypes that travel, and their names on the wire.

An array travels as raw bytes and the name of its dtype. NumPy knows bfloat16 and the float8 kinds only through the
package `ml_dtypes`, which is imported here when such a name is met and not before.
"""

from __future__ import annotations

import importlib
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import check_kinds
from dcpack.errors import ArgumentError, BackendError

__all__ = ["NUMPY_DTYPES", "as_bytes", "as_sendable", "dtype_from_name", "from_bytes", "wire_name"]

NUMPY_DTYPES = frozenset(
    ["bool", "float16", "float32", "float64", "complex64", "complex128"]
    + [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
)
"""Names of the dtypes that every NumPy can hold."""

_TRAVELLERS = "bool, integers of 8 to 64 bits, float16 to float64, complex64, complex128, bfloat16 and float8_* can"


def _is_extension(name: str) -> bool:
    return name == "bfloat16" or name.startswith("float8_")


@lru_cache
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name  # which NumPy puts together anew each time


def wire_name(dtype: np.dtype[Any]) -> str:
    """Return the name under which `dtype` travels; its byte order is not part of it.

    Raises:
        ArgumentError: the dtype cannot travel as raw bytes (object, text, dates, records, platform-dependent floats).

    Example:
        >>> wire_name(np.dtype(">i4"))
        'int32'
        >>> wire_name(np.dtype(object))
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: dtype object cannot be sent: bool, integers of 8 to 64 bits, float16 to float64, \
complex64, complex128, bfloat16 and float8_* can
    """
    name = _name_of(dtype)
    if dtype.names is None and (name in NUMPY_DTYPES or _is_extension(name)):
        return name
    raise ArgumentError(f"dtype {dtype} cannot be sent: {_TRAVELLERS}")


def dtype_from_name(name: str) -> np.dtype[Any]:
    """Return the native NumPy dtype called `name`.

    Raises:
        BackendError: this process cannot hold it: `ml_dtypes` is not installed, or does not know the name.

    Example:
        >>> dtype_from_name("int16")
        dtype('int16')
    """
    check_kinds(dtype=(name, str))
    if name in NUMPY_DTYPES:
        return np.dtype(name)
    if not _is_extension(name):
        raise BackendError(f"dtype {name!r} cannot be received as a NumPy array: {_TRAVELLERS}")
    try:
        extension = importlib.import_module("ml_dtypes")
    except ImportError as error:
        raise BackendError(f"dtype {name} needs the package ml_dtypes here: pip install ml_dtypes") from error
    if not hasattr(extension, name):
        version = getattr(extension, "__version__", "unknown")
        raise BackendError(f"dtype {name} is unknown to ml_dtypes {version}: a newer version is needed")
    return np.dtype(getattr(extension, name))


def as_sendable(array: Any) -> tuple[npt.NDArray[Any], str]:
    """Return what can be sent as a NumPy array, and the name of its dtype.

    Raises:
        ArgumentError: no array, such as rows of unequal length, or one of a dtype that does not travel.

    Example:
        >>> as_sendable([[1.5]])
        (array([[1.5]]), 'float64')
    """
    try:
        converted = np.asarray(array)
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # ragged; a tensor that wants gradients
        raise ArgumentError(f"array cannot be sent: {error}") from error
    return converted, wire_name(converted.dtype)


def as_bytes(array: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the elements of `array` in C order and native byte order as uint8[nbytes]; a view where possible.

    Example:
        >>> as_bytes(np.array([[1, 2], [3, 4]], ">u2").T).tolist() == np.array([1, 3, 2, 4], "u2").view("u1").tolist()
        True
    """
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return np.ascontiguousarray(native.reshape(-1)).view(np.uint8)


def from_bytes(buffer: npt.NDArray[np.uint8], dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Return `buffer` as an array of that dtype and shape: a view of it, or a copy if it is not aligned or writable.

    Example:
        >>> from_bytes(np.array([1, 0, 2, 0], np.uint8), "int16", (2, 1)).shape
        (2, 1)
    """
    array = np.ascontiguousarray(buffer).view(dtype_from_name(dtype)).reshape(shape)
    return array if array.flags.aligned and array.flags.writeable else array.copy()
