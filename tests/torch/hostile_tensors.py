"""Tensors of odd kinds, and what a group of torch makes of them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from dcpack_torch.backend import TorchGlooBackend

from dcpack.comm import broadcast_tree
from dcpack.errors import DcpackError

__all__ = ["KINDS", "NO_HOST_ARRAYS", "NO_STORAGE", "over_gloo", "values_of"]


class Named(torch.Tensor):
    """A subclass of a user."""


def _read_only() -> torch.Tensor:
    array = np.arange(6)
    array.setflags(write=False)
    with warnings.catch_warnings(action="ignore"):  # torch says that writing to it would be undefined
        return torch.from_numpy(array)


def _of_inference() -> torch.Tensor:
    with torch.inference_mode():
        return torch.arange(6)


def _quiet(make: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    def made() -> torch.Tensor:
        with warnings.catch_warnings(action="ignore"):  # of beta states and of what goes in a later torch
            return make()

    return made


def _ragged(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.arange(2.0), torch.arange(3.0)], layout=layout)


# Made anew for every call. All have six rows, but for those that have no rows at all.
KINDS: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.arange(6),
    "strided": lambda: torch.arange(12)[::2],
    "transposed": lambda: torch.arange(12).reshape(2, 6).T,
    "expanded": lambda: torch.tensor([3]).expand(6),
    "inner": lambda: torch.arange(8)[1:7],
    "read-only": _read_only,
    "of inference": _of_inference,
    "subclass": lambda: torch.arange(6).as_subclass(Named),
    "bool": lambda: torch.arange(6) % 2 == 0,
    "uint16": lambda: torch.arange(6).to(torch.uint16),
    "uint64": lambda: torch.arange(6).to(torch.uint64),
    "half": lambda: torch.arange(6).half(),
    "complex": lambda: torch.arange(6) * 1j,
    "0-d": lambda: torch.tensor(3),
    "gradient": lambda: torch.arange(6.0).requires_grad_(),
    "parameter": lambda: torch.nn.Parameter(torch.arange(6.0)),
    "bfloat16": lambda: torch.arange(6).bfloat16(),
    "float8": lambda: torch.arange(6.0).to(torch.float8_e4m3fn),
    "conjugate": lambda: (torch.arange(6) * 1j).conj(),
    "negative": lambda: (torch.arange(6) * 1j).conj().imag,
    "meta": lambda: torch.arange(6, device="meta"),
    "sparse": lambda: torch.arange(6.0).to_sparse(),
    "sparse rows": _quiet(lambda: torch.eye(6).to_sparse_csr()),
    "quantised": _quiet(lambda: torch.quantize_per_tensor(torch.arange(6.0), 0.5, 0, torch.qint8)),
    "nested": _quiet(lambda: _ragged(torch.strided)),
    "jagged": _quiet(lambda: _ragged(torch.jagged)),
}
NO_STORAGE = {"meta", "sparse", "sparse rows", "quantised", "nested", "jagged"}
"""What has no values, or not one after the other: no back end sends it."""
NO_HOST_ARRAYS = NO_STORAGE | {"gradient", "parameter", "bfloat16", "float8", "conjugate", "negative"}
"""What NumPy makes no array of."""


def values_of(tensor: Any) -> Any:
    """Dtype and values, as plain lists."""
    if isinstance(tensor, np.ndarray | np.generic):
        return str(tensor.dtype), tensor.tolist()
    dense = tensor.detach().resolve_conj().resolve_neg()
    kept = dense.float() if dense.dtype is torch.float8_e4m3fn else dense
    return str(tensor.dtype).removeprefix("torch."), kept.tolist()


def over_gloo(rank: int, size: int) -> list[str]:
    """Send each kind from rank 0 in a tree; return what is wrong with what came."""
    wrong = []
    with TorchGlooBackend(deadline_s=60.0).world() as world:
        for name, make in KINDS.items():
            try:
                came = values_of(broadcast_tree(world, {"x": make()} if rank == 0 else None, 0)["x"])
            except DcpackError as error:
                is_named = "tree['x']" in str(error) and getattr(error, "cause", "ArgumentError") == "ArgumentError"
                came = "refused" if is_named else f"{type(error).__name__}: {error}"
            if came != ("refused" if name in NO_STORAGE else values_of(make())):
                wrong.append(f"{name}: {came}")
    return wrong
