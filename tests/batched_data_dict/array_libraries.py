"""What the tests need of NumPy, torch and JAX: making arrays, and telling their types."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import torch

__all__ = ["LIBRARIES", "ArrayLibrary"]


@dataclass(frozen=True)
class ArrayLibrary:
    """One library.

    Attributes:
        name: its name.
        kind: the type of its arrays.
        from_numpy: makes an array of a NumPy array.
    """

    name: str
    kind: type[Any]
    from_numpy: Callable[[Any], Any]

    def array(self, values: Any, dtype: str = "int32") -> Any:
        """Return an array; int32 and float32 are what all three have by default or can be told."""
        return self.from_numpy(np.array(values, dtype))

    def values(self, column: Any) -> Any:
        """Return the values of an array as lists, after making sure that it is of this library."""
        assert isinstance(column, self.kind), type(column)
        return np.asarray(column).tolist()


LIBRARIES = {
    "numpy": ArrayLibrary("numpy", np.ndarray, np.array),
    "torch": ArrayLibrary("torch", torch.Tensor, torch.tensor),
    "jax": ArrayLibrary("jax", jax.Array, jax.device_put),
}
