"""Tensors and arrays as bytes, and bytes as what a collective library takes.

All payload is moved as bytes, because every library refuses some dtypes and none refuses uint8; where one is trusted
with other dtypes only, the bytes are viewed as those and padded to whole elements. Nothing is converted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dcpack.comm.dtypes import as_bytes, wire_name
from dcpack.errors import ArgumentError

__all__ = [
    "TENSOR_DTYPES",
    "WIRE_DTYPES",
    "array_as_tensor",
    "as_elements",
    "bytes_as_tensor",
    "map_tensors",
    "pack_blocks",
    "padded_size",
    "tensor_as_bytes",
    "unpack_blocks",
    "wire_name_of",
]

_NAMES = (
    *("bool", "uint8", "int8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "bfloat16", "float32", "float64", "complex64", "complex128"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
)
TENSOR_DTYPES: dict[str, torch.dtype] = {f"torch.{name}": getattr(torch, name) for name in _NAMES}
"""Dtypes of tensors that travel, by their names on the wire. There a tensor and a NumPy array of the same dtype have
different names: so ranks that mix them are told, and receivers of a broadcast know which of the two to make."""

WIRE_DTYPES: dict[str, torch.dtype] = {"uint8": torch.uint8, "int32": torch.int32, "float32": torch.float32}
"""What bytes can be viewed as for the library."""


def tensor_as_bytes(tensor: torch.Tensor) -> tuple[torch.Tensor, str, tuple[int, ...]]:
    """Return the elements of `tensor` in C order as uint8[n] (a view where possible), its dtype name and its shape.

    Raises:
        ArgumentError: the tensor cannot travel: sparse, quantised, without memory, or of a dtype of less than a byte.

    Example:
        >>> data, name, shape = tensor_as_bytes(torch.tensor([[1, 256]], dtype=torch.int16))
        >>> data.tolist(), name, shape
        ([1, 0, 0, 1], 'torch.int16', (1, 2))
    """
    name = wire_name_of(tensor)
    plain = tensor.detach().resolve_conj().resolve_neg()
    flat = plain.reshape(-1).contiguous()
    # Without elements, or with one, a tensor may have any stride, such as that of a column of one row: it has no view.
    flat = flat.as_strided(flat.shape, (1,))
    data = flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
    return data, name, tuple(tensor.shape)


def wire_name_of(tensor: torch.Tensor) -> str:
    """Return the name of the dtype of a tensor that can travel.

    Raises:
        ArgumentError: as in `tensor_as_bytes`.

    Example:
        >>> wire_name_of(torch.tensor([True]))
        'torch.bool'
    """
    if tensor.layout != torch.strided or tensor.is_meta:
        raise ArgumentError(
            f"a tensor of layout {tensor.layout} on device {tensor.device} cannot be sent: strided ones with memory can"
        )
    name = str(tensor.dtype)
    if name not in TENSOR_DTYPES:
        known = ", ".join(name.removeprefix("torch.") for name in TENSOR_DTYPES)
        raise ArgumentError(f"dtype {name} cannot be sent: {known} can")
    return name


def bytes_as_tensor(buffer: torch.Tensor, name: str, shape: Sequence[int]) -> torch.Tensor:
    """Return the tensor whose bytes, dtype name and shape these are: a view of `buffer`, or a copy if it is unaligned.

    Example:
        >>> bytes_as_tensor(torch.tensor([1, 0, 0, 1], dtype=torch.uint8), "torch.int16", (1, 2)).tolist()
        [[1, 256]]
    """
    dtype = TENSOR_DTYPES[name]
    if len(buffer) == 0:
        return torch.empty(tuple(shape), dtype=dtype, device=buffer.device)
    if buffer.storage_offset() % dtype.itemsize:
        buffer = buffer.clone()
    return buffer.view(dtype).reshape(tuple(shape))


def array_as_tensor(array: npt.NDArray[Any]) -> torch.Tensor:
    """Return a NumPy array as a CPU tensor of the same dtype, bfloat16 and float8 of `ml_dtypes` included.

    The memory is shared where the array is contiguous, native in byte order and writable, and copied elsewhere.

    Raises:
        ArgumentError: torch has no such dtype.

    Example:
        >>> import numpy as np
        >>> array_as_tensor(np.array([1, 2], ">u2"))
        tensor([1, 2], dtype=torch.uint16)
    """
    name = f"torch.{wire_name(array.dtype)}"
    if name not in TENSOR_DTYPES:
        raise ArgumentError(f"a NumPy array of dtype {array.dtype} cannot be made a tensor: torch has no such dtype")
    data = as_bytes(array)
    if not data.flags.writeable:
        data = data.copy()  # a tensor of read-only memory would let its user write there
    return bytes_as_tensor(torch.from_numpy(data), name, array.shape)


def map_tensors(
    tree: Any,
    place: Callable[[torch.Tensor], torch.Tensor],
    place_array: Callable[[torch.Tensor], torch.Tensor] | None = None,
) -> Any:
    """Return `tree` with ``place(tensor)`` for each tensor, and for each NumPy array as a tensor of the same dtype.

    Args:
        tree: an array, a tensor, or mappings, lists and tuples of them, of which anything else stays as it is.
        place: what becomes of a tensor.
        place_array: what becomes of a tensor that was a NumPy array; None is `place`.

    Example:
        >>> import numpy as np
        >>> map_tensors({"input_ids": [np.array([3, 4], np.uint16)], "name": "a"}, lambda tensor: tensor)
        {'input_ids': [tensor([3, 4], dtype=torch.uint16)], 'name': 'a'}
    """
    if isinstance(tree, np.ndarray | np.generic):
        return (place_array or place)(array_as_tensor(np.asarray(tree)))
    if isinstance(tree, torch.Tensor):
        return place(tree)
    if isinstance(tree, Mapping):
        return {key: map_tensors(value, place, place_array) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        moved = [map_tensors(value, place, place_array) for value in tree]
        return moved if isinstance(tree, list) else tuple(moved)
    return tree


def padded_size(num_bytes: int, dtype: torch.dtype) -> int:
    """Return `num_bytes` rounded up to whole elements of `dtype`.

    Example:
        >>> padded_size(5, torch.int32), padded_size(5, torch.uint8)
        (8, 5)
    """
    return -(-num_bytes // dtype.itemsize) * dtype.itemsize


def as_elements(buffer: torch.Tensor, dtype: torch.dtype, num_bytes: int | None = None) -> torch.Tensor:
    """Return uint8[n] as elements of `dtype`: a view, or a padded copy where it is too short or unaligned.

    Args:
        buffer: uint8[n].
        dtype: one of `WIRE_DTYPES`.
        num_bytes: bytes of the result; None for n, rounded up to whole elements.

    Example:
        >>> as_elements(torch.tensor([1, 0, 0, 0, 2], dtype=torch.uint8), torch.int32).view(torch.uint8).tolist()[:5]
        [1, 0, 0, 0, 2]
    """
    size = padded_size(len(buffer) if num_bytes is None else num_bytes, dtype)
    if len(buffer) != size or buffer.storage_offset() % dtype.itemsize:
        padded = torch.zeros(size, dtype=torch.uint8, device=buffer.device)
        padded[: len(buffer)] = buffer
        buffer = padded
    return buffer.view(dtype)


def pack_blocks(buffer: torch.Tensor, sizes: Sequence[int], dtype: torch.dtype) -> tuple[torch.Tensor, list[int]]:
    """Return blocks of bytes, end to end, as elements of `dtype`, and the elements of each: each block is padded.

    Example:
        Blocks of 1 and 4 bytes become one element each.

        >>> elements, counts = pack_blocks(torch.arange(5, dtype=torch.uint8), [1, 4], torch.int32)
        >>> elements.view(torch.uint8).tolist(), counts
        ([0, 0, 0, 0, 1, 2, 3, 4], [1, 1])
    """
    padded = [padded_size(size, dtype) for size in sizes]
    if padded != list(sizes):
        spread = torch.zeros(sum(padded), dtype=torch.uint8, device=buffer.device)
        for source, target, size in zip(_starts(sizes), _starts(padded), sizes, strict=True):
            spread[target : target + size] = buffer[source : source + size]
        buffer = spread
    return as_elements(buffer, dtype), [size // dtype.itemsize for size in padded]


def unpack_blocks(elements: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Return the bytes of blocks that were padded to whole elements, end to end: the inverse of `pack_blocks`.

    Example:
        >>> elements, counts = pack_blocks(torch.arange(5, dtype=torch.uint8), [1, 4], torch.int32)
        >>> unpack_blocks(elements, [1, 4]).tolist()
        [0, 1, 2, 3, 4]
    """
    data = elements.view(torch.uint8)
    padded = [padded_size(size, elements.dtype) for size in sizes]
    if padded == list(sizes):
        return data
    return torch.cat([data[start : start + size] for start, size in zip(_starts(padded), sizes, strict=True)])


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *accumulate(sizes)][: len(sizes)]
