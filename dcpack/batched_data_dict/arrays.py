"""Columns that are arrays of NumPy, torch or JAX. No framework is imported: whoever made an array has loaded it."""

from __future__ import annotations

import sys
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_number, list_offenders
from dcpack.batched_data_dict.columns import ColumnKind
from dcpack.errors import ArgumentError

__all__ = ["ARRAY_KINDS", "ArrayKind", "array_kind_of", "array_kind_of_all", "describe_shape"]


def describe_shape(array: Any) -> str:
    """Return dtype and shape for a message.

    Example:
        >>> describe_shape(np.zeros((2, 3)))
        'float64 of shape (2, 3)'
    """
    return f"{array.dtype} of shape {tuple(array.shape)}"


class ArrayKind(ColumnKind):
    """Arrays whose first dim are the rows; from two dims on, the second is the length of the longest row."""

    def num_rows(self, column: Any) -> int:
        """Return the first dim."""
        if column.ndim == 0:
            raise ArgumentError(f"an array without dims has no rows: {describe_shape(column)}")
        return int(column.shape[0])

    def cut(self, column: Any, start: int, stop: int) -> Any:
        """Return a slice, which is a view."""
        return column[start:stop]

    def truncate(self, column: Any, dim: int, length: int) -> Any:
        """Return the first `length` of dim `dim`, a view where possible; the dim is there and long enough."""
        return column[(*[slice(None)] * dim, slice(length))]

    def stack(self, columns: Sequence[Any], pad_value: Any) -> Any:
        """Return all rows, padded along dim 1 to the longest; dtypes, devices and the dims from 2 on must be equal."""
        first = columns[0]
        self._require_alike(columns)
        shape = list(first.shape)
        shape[0] = sum(int(column.shape[0]) for column in columns)
        if first.ndim >= 2:
            shape[1] = max(int(column.shape[1]) for column in columns)
        is_padded = any(tuple(column.shape[1:]) != tuple(shape[1:]) for column in columns)
        if is_padded:
            pad_value = self._require_pad_value(first, pad_value)
        result = self.filled(first, tuple(shape), pad_value if is_padded else 0)
        start = 0
        for column in columns:
            stop = start + int(column.shape[0])
            place = (slice(start, stop), slice(int(column.shape[1]))) if first.ndim >= 2 else slice(start, stop)
            result[place] = column
            start = stop
        return result

    def _require_alike(self, columns: Sequence[Any]) -> None:
        kinds = [(str(each.dtype), each.ndim, tuple(each.shape[2:]), self.place(each)) for each in columns]
        if len(set(kinds)) > 1:
            listed = [f"part {i} is {describe_shape(each)}{self.place(each)}" for i, each in enumerate(columns)]
            raise ArgumentError(f"dtypes, numbers of dims, and dims from 2 on must be equal: {list_offenders(listed)}")

    def _require_pad_value(self, like: Any, pad_value: Any) -> Any:
        """Return the number; refuse one that would change: 0.5 or 300 in uint8, say. Floats may be rounded."""
        pad_value = as_number("the pad value", pad_value)
        may_round = "float" in str(like.dtype) or "complex" in str(like.dtype)
        try:
            held = self.filled(like, (1,), pad_value)
            kept = may_round or held[0].item() == pad_value
        except (AttributeError, OverflowError, RuntimeError, TypeError, ValueError):
            kept = False
        if not kept:
            raise ArgumentError(f"the pad value {pad_value!r} cannot be held by dtype {like.dtype}")
        return pad_value

    def place(self, column: Any) -> str:
        """Return where the array lies, for a message; empty if there is only one place."""
        del column
        return ""

    @abstractmethod
    def is_kind_of(self, array: Any) -> bool:
        """Return whether `array` is of this kind."""

    @property
    def is_loaded(self) -> bool:
        """Whether its framework is loaded in this process."""
        return True

    @abstractmethod
    def filled(self, like: Any, shape: tuple[int, ...], value: Any) -> Any:
        """Return an array of that shape that holds `value`, of the dtype and on the device of `like`."""

    @abstractmethod
    def from_host(self, array: npt.NDArray[Any]) -> Any:
        """Return a NumPy array as one of this kind."""

    def from_tree(self, tree: Any) -> Any:
        """Return the array as one of this kind, as back ends of other frameworks hand on NumPy arrays."""
        return self.from_host(tree) if isinstance(tree, np.ndarray) else tree


class NumpyKind(ArrayKind):
    """NumPy arrays."""

    name = "NumPy array"

    def is_kind_of(self, array: Any) -> bool:
        """Return whether it is a NumPy array."""
        return isinstance(array, np.ndarray)

    def take(self, column: npt.NDArray[Any], rows: Int64Array) -> npt.NDArray[Any]:
        """Return the rows of these numbers."""
        return np.take(column, rows, axis=0)

    def to_host(self, column: npt.NDArray[Any]) -> npt.ArrayLike:
        """Return the array itself."""
        return column

    def from_host(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the array itself."""
        return array

    def filled(self, like: npt.NDArray[Any], shape: tuple[int, ...], value: Any) -> npt.NDArray[Any]:
        """Return a new array."""
        result = np.empty(shape, like.dtype)
        result[...] = value
        return result

    def move(self, column: npt.NDArray[Any], device: Any) -> npt.NDArray[Any]:
        """Return the array itself: NumPy knows the CPU only."""
        if str(device) != "cpu":
            raise ArgumentError(f"a NumPy array cannot be moved to device {device!r}: make it a tensor or a JAX array")
        return column


class TorchKind(ArrayKind):
    """Tensors of torch."""

    name = "torch.Tensor"

    @property
    def _torch(self) -> Any:
        return sys.modules["torch"]

    @property
    def is_loaded(self) -> bool:
        """Whether torch is loaded in this process."""
        return sys.modules.get("torch") is not None

    def is_kind_of(self, array: Any) -> bool:
        """Return whether it is a tensor."""
        return self.is_loaded and isinstance(array, self._torch.Tensor)

    def num_rows(self, column: Any) -> int:
        """Return the first dim; rows can be cut out of dense tensors alone."""
        names = ("nested", "sparse", "quantised")
        is_so = (column.is_nested, column.layout is not self._torch.strided, column.is_quantized)
        if odd := [name for name, flag in zip(names, is_so, strict=True) if flag]:
            raise ArgumentError(f"a tensor must be dense, got a {odd[0]} one of {column.dtype}")
        return super().num_rows(column)

    def take(self, column: Any, rows: Int64Array) -> Any:
        """Return the rows of these numbers."""
        index = self._torch.from_numpy(np.array(rows)).to(column.device)
        name = str(column.dtype).removeprefix("torch.")
        if name not in ("uint16", "uint32", "uint64"):
            return column.index_select(0, index)
        signed = column.view(getattr(self._torch, name[1:]))  # torch does not pick rows of these
        return signed.index_select(0, index).view(column.dtype)

    def to_host(self, column: Any) -> npt.ArrayLike:
        """Return a NumPy array, of the same memory where the tensor lies on the CPU."""
        return column.detach().cpu().numpy()

    def from_host(self, array: npt.NDArray[Any]) -> Any:
        """Return a tensor on the CPU, of the same memory."""
        return self._torch.from_numpy(array)

    def filled(self, like: Any, shape: tuple[int, ...], value: Any) -> Any:
        """Return a new tensor."""
        return self._torch.full(shape, value, dtype=like.dtype, device=like.device)

    def place(self, column: Any) -> str:
        """Return the device."""
        return f" on {column.device}"

    def move(self, column: Any, device: Any) -> Any:
        """Return the tensor on `device`."""
        return column.to(device)


class JaxKind(ArrayKind):
    """Arrays of JAX. Rows are picked and joined on the host, since every new shape would be compiled on a device.

    The results lie on the device of the (first) input where that is one device, on the default device otherwise.
    """

    name = "jax.Array"

    def __init__(self) -> None:
        self._numpy = NumpyKind()

    @property
    def _jax(self) -> Any:
        return sys.modules["jax"]

    @property
    def is_loaded(self) -> bool:
        """Whether JAX is loaded in this process."""
        return sys.modules.get("jax") is not None

    def is_kind_of(self, array: Any) -> bool:
        """Return whether it is an array of JAX."""
        return self.is_loaded and isinstance(array, self._jax.Array)

    def _back(self, array: npt.NDArray[Any], like: Any) -> Any:
        devices = like.devices()
        return self._jax.device_put(array, next(iter(devices)) if len(devices) == 1 else None)

    def take(self, column: Any, rows: Int64Array) -> Any:
        """Return the rows of these numbers."""
        return self._back(np.take(np.asarray(column), rows, axis=0), column)

    def cut(self, column: Any, start: int, stop: int) -> Any:
        """Return the rows from `start` to before `stop`."""
        return self._back(np.asarray(column)[start:stop], column)

    def truncate(self, column: Any, dim: int, length: int) -> Any:
        """Return the first `length` of dim `dim`."""
        return self._back(self._numpy.truncate(np.asarray(column), dim, length), column)

    def stack(self, columns: Sequence[Any], pad_value: Any) -> Any:
        """Return all rows, padded along dim 1 to the longest; dtypes and the dims from 2 on must be equal."""
        return self._back(self._numpy.stack([np.asarray(column) for column in columns], pad_value), columns[0])

    def to_host(self, column: Any) -> npt.ArrayLike:
        """Return a NumPy array."""
        return np.asarray(column)

    def from_host(self, array: npt.NDArray[Any]) -> Any:
        """Return an array on the default device."""
        return self._jax.device_put(array)

    def filled(self, like: Any, shape: tuple[int, ...], value: Any) -> Any:
        """Return a new array."""
        return self._back(self._numpy.filled(np.asarray(like), shape, value), like)

    def move(self, column: Any, device: Any) -> Any:
        """Return the array on `device`."""
        return self._jax.device_put(column, device)


ARRAY_KINDS: tuple[ArrayKind, ...] = (NumpyKind(), TorchKind(), JaxKind())
"""All kinds of arrays."""


def array_kind_of(array: Any) -> ArrayKind | None:
    """Return the kind of `array`, None if it is no array.

    Example:
        >>> array_kind_of(np.zeros(1)).name, array_kind_of([0.0])
        ('NumPy array', None)
    """
    return next((kind for kind in ARRAY_KINDS if kind.is_kind_of(array)), None)


def array_kind_of_all(arrays: Sequence[Any]) -> ArrayKind:
    """Return the one kind of all `arrays`, at least one.

    Raises:
        ArgumentError: something is no array, or they are of several kinds.

    Example:
        >>> array_kind_of_all([np.zeros(1), np.ones(2)]).name
        'NumPy array'
    """
    kinds = [array_kind_of(array) for array in arrays]
    first = kinds[0]
    if first is None or any(kind is not first for kind in kinds):
        found = [f"row {i} is {type(array).__name__}" for i, array in enumerate(arrays)]
        raise ArgumentError(f"all rows must be arrays of one of NumPy, torch, JAX: {list_offenders(found)}")
    return first
