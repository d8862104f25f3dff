"""JAX arrays as bytes and back, and NumPy arrays on devices; no value is ever cut to 32 bits unsaid."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from dcpack.comm.dtypes import NUMPY_DTYPES, as_bytes, dtype_from_name, from_bytes, wire_name
from dcpack.errors import ArgumentError, BackendError

__all__ = ["PREFIX", "SAFE_DTYPES", "array_as_wire", "check_width", "device_array", "narrowed", "wire_as_array"]

PREFIX = "jax."
"""On the wire a JAX array and a NumPy array of the same dtype have different names: so ranks that mix them are told,
and receivers of a broadcast know which of the two to make."""

_WIDE = {name for name in NUMPY_DTYPES if name.endswith("64") and name != "complex64"} | {"complex128"}
SAFE_DTYPES = NUMPY_DTYPES | {PREFIX + name for name in NUMPY_DTYPES - _WIDE} | {f"{PREFIX}bfloat16"}
"""Names that every process can receive: without x64, JAX has no arrays of 64-bit numbers."""


def array_as_wire(array: jax.Array) -> tuple[npt.NDArray[np.uint8], str, tuple[int, ...]]:
    """Return the elements of a JAX array in C order as uint8[n] in host memory, its name on the wire and its shape.

    Raises:
        ArgumentError: parts of it lie in other processes, or its dtype does not travel (random keys, 4-bit numbers).

    Example:
        >>> data, name, shape = array_as_wire(jax.numpy.array([[1, 256]], "int16"))
        >>> data.tolist(), name, shape
        ([1, 0, 0, 1], 'jax.int16', (1, 2))
    """
    if not array.is_fully_addressable:
        raise ArgumentError(
            f"an array of shape {array.shape} that spans processes cannot be sent: its addressable shards can"
        )
    if jax.numpy.issubdtype(array.dtype, jax.dtypes.extended):
        raise ArgumentError(f"dtype {array.dtype} cannot be sent: jax.random.key_data of it can")
    host = np.asarray(array)
    return as_bytes(host), PREFIX + wire_name(host.dtype), host.shape


def wire_as_array(buffer: npt.NDArray[np.uint8], name: str, shape: tuple[int, ...], device: Any) -> jax.Array:
    """Return the JAX array whose bytes, name on the wire and shape these are.

    Example:
        >>> wire_as_array(np.array([1, 0, 0, 1], np.uint8), "jax.int16", (1, 2), jax.devices()[0]).tolist()
        [[1, 256]]
    """
    check_width(name.removeprefix(PREFIX))
    return jax.device_put(from_bytes(buffer, name.removeprefix(PREFIX), shape), device)


def check_width(dtype: str) -> None:
    """Raise where a JAX array of this dtype would be cut to 32 bits.

    Example:
        >>> check_width("int64")
        Traceback (most recent call last):
        ...
        dcpack.errors.BackendError: a JAX array of dtype int64 needs jax_enable_x64 in this process
    """
    kind = dtype_from_name(dtype)
    if jax.dtypes.canonicalize_dtype(kind) != kind:
        raise BackendError(f"a JAX array of dtype {dtype} needs jax_enable_x64 in this process")


def device_array(array: npt.NDArray[Any], place: Any) -> jax.Array:
    """Return a NumPy array on a device, or laid out by a sharding.

    Without x64, 64-bit integers become 32-bit ones if all of them fit, and anything else of 64 bits is an error.

    Args:
        array: the array.
        place: a device or a `jax.sharding.Sharding` of this process's devices.

    Raises:
        ArgumentError: values would be cut.

    Example:
        >>> device_array(np.array([3, -100]), jax.devices()[0]).dtype
        dtype('int32')
        >>> device_array(np.array([2**40]), jax.devices()[0])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: int64 values from 1099511627776 to 1099511627776 do not fit in int32, and \
jax_enable_x64 is off
    """
    return jax.device_put(narrowed(array), place)


def narrowed(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return `array` as JAX can hold it; see `device_array`."""
    target = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if target == array.dtype:
        return array
    if target.kind not in "iu":
        raise ArgumentError(f"dtype {array.dtype} would lose bits: convert to {target}, or set jax_enable_x64")
    if array.size:
        low, high = int(array.min()), int(array.max())
        if low < np.iinfo(target).min or high > np.iinfo(target).max:
            raise ArgumentError(
                f"{array.dtype} values from {low} to {high} do not fit in {target}, and jax_enable_x64 is off"
            )
    return array.astype(target)
