"""What the conformance checks are written with: requirements that hold under ``python -O``, and test arrays."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack.errors import PeerError

__all__ = ["DTYPE_NAMES", "as_dtype", "expect_peer_error", "pattern", "require", "require_identical"]

DTYPE_NAMES = (
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float8_e4m3fn", "float32", "float64", "complex64", "complex128"),
)
"""Names of the dtypes that every back end must move."""


def require(condition: Any, message: str) -> None:
    """Raise AssertionError with `message` unless `condition` holds.

    Example:
        >>> require(1 > 2, "one is not more than two")
        Traceback (most recent call last):
        ...
        AssertionError: one is not more than two
    """
    if not condition:
        raise AssertionError(message)


def as_dtype(name: str) -> np.dtype[Any]:
    """Return the dtype called `name`; bfloat16 and the float8 kinds need the package `ml_dtypes`.

    Example:
        >>> as_dtype("bfloat16").itemsize
        2
    """
    if name == "bfloat16" or name.startswith("float8_"):
        return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
    return np.dtype(name)


def pattern(dtype: str, shape: tuple[int, ...], seed: int) -> npt.NDArray[Any]:
    """Return an array of arbitrary bits, fixed by `seed`; one element has all bits set, which is a NaN in every float.

    Example:
        >>> pattern("int16", (2, 3), seed=1).shape
        (2, 3)
    """
    kind = as_dtype(dtype)
    size = int(np.prod(shape, dtype=np.int64))
    highest = 1 if dtype == "bool" else 255
    bits = np.random.default_rng(seed).integers(0, highest + 1, (size, kind.itemsize), dtype=np.uint8)
    if size:
        bits[seed % size] = highest
    return bits.reshape(-1).view(kind).reshape(shape)


def require_identical(actual: Any, expected: npt.NDArray[Any], what: str) -> None:
    """Require the same dtype, shape and bits, and that `actual` is a writable NumPy array.

    Example:
        >>> require_identical(np.zeros(2), -np.zeros(2), "the sum")
        Traceback (most recent call last):
        ...
        AssertionError: the sum: other bits than expected: got [0. 0.], expected [-0. -0.]
    """
    require(isinstance(actual, np.ndarray), f"{what}: got {type(actual).__name__}, expected a NumPy array")
    require(actual.dtype == expected.dtype, f"{what}: got dtype {actual.dtype}, expected {expected.dtype}")
    require(actual.shape == expected.shape, f"{what}: got shape {actual.shape}, expected {expected.shape}")
    equal = actual.tobytes() == expected.tobytes()
    require(equal, f"{what}: other bits than expected: got {actual}, expected {expected}")
    require(actual.flags.writeable, f"{what}: the result is read-only")


def expect_peer_error(fn: Callable[[], Any], *fragments: str) -> PeerError:
    """Require that `fn()` raises a PeerError whose text holds all `fragments`, and return it.

    Example:
        >>> def fail():
        ...     raise PeerError("rank 1 failed", rank=1)
        >>> expect_peer_error(fail, "rank 1").rank
        1
    """
    try:
        result = fn()
    except PeerError as error:
        for fragment in fragments:
            require(fragment in str(error), f"the error does not say {fragment!r}: {error}")
        return error
    raise AssertionError(f"expected a PeerError that says {', '.join(map(repr, fragments))}, got the result {result!r}")
