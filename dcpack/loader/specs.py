"""What the arrays of a batch look like, for ranks that receive it without a header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcpack._checks import check_int
from dcpack.comm.dtypes import dtype_from_name, wire_name
from dcpack.errors import ArgumentError, DcpackError

__all__ = ["TensorFieldSpec"]


@dataclass(frozen=True, slots=True)
class TensorFieldSpec:
    """Shape and dtype of one array of a batch, so that peers can receive it without a header.

    Args:
        shape: sizes; None where a size differs from batch to batch.
        dtype: a NumPy dtype or its name; or a native one of the back end, such as ``torch.bfloat16``.

    Raises:
        ArgumentError: sizes or a dtype that cannot be.

    Example:
        >>> spec = TensorFieldSpec(shape=(2, None), dtype=np.int64)
        >>> spec.dtype, spec.fits("int64", (2, 5)), spec.fits("int32", (2, 5))
        ('int64', True, False)
    """

    shape: tuple[int | None, ...]
    dtype: Any

    def __post_init__(self) -> None:
        if isinstance(self.shape, str | bytes) or not isinstance(self.shape, Sequence):
            raise ArgumentError(f"shape must be a tuple of sizes, got {self.shape!r}")
        sizes = tuple(None if size is None else check_int("shape", size, minimum=0) for size in self.shape)
        object.__setattr__(self, "shape", sizes)
        if str(self.dtype).startswith("torch."):
            object.__setattr__(self, "dtype", str(self.dtype))
            return
        try:
            if self.dtype is None:  # NumPy takes it for float64
                raise TypeError("no dtype")
            object.__setattr__(self, "dtype", wire_name(_as_dtype(self.dtype)))
        except (TypeError, DcpackError) as error:
            raise ArgumentError(f"dtype must be one that can be sent, got {self.dtype!r}: {error}") from error

    def fits(self, dtype: str, shape: Sequence[int]) -> bool:
        """Tell whether an array of that dtype (its name on the wire) and shape is one of these."""
        if not isinstance(dtype, str) or not isinstance(shape, Sequence):
            raise ArgumentError(f"dtype and shape must be a name and sizes, got {dtype!r:.60} and {shape!r:.60}")
        sizes_fit = len(shape) == len(self.shape) and all(
            wanted is None or wanted == size for wanted, size in zip(self.shape, shape, strict=True)
        )
        return sizes_fit and dtype == self.dtype


def _as_dtype(dtype: Any) -> np.dtype[Any]:
    return dtype_from_name(dtype) if isinstance(dtype, str) else np.dtype(dtype)
