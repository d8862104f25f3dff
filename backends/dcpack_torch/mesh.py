"""A `DeviceMesh` of torch as a mesh that back ends know."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.distributed.device_mesh import DeviceMesh

from dcpack._checks import Int64Array
from dcpack.errors import ArgumentError

__all__ = ["DeviceMeshGroups"]


class DeviceMeshGroups:
    """The axes of a `DeviceMesh`, and the groups of global ranks along them.

    Args:
        mesh: with names for its axes.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        self._names: tuple[str, ...] = tuple(mesh.mesh_dim_names or ())
        self._ranks = mesh.mesh

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes, outermost first.

        Raises:
            ArgumentError: they have none.
        """
        if not self._names:
            raise ArgumentError("the axes of the mesh have no names: pass mesh_dim_names")
        return self._names

    @property
    def ranks(self) -> Int64Array:
        """int64[one dim an axis]: the global rank at each position."""
        return self._ranks.cpu().numpy().astype(np.int64)

    def groups(self, axes: Any, /) -> list[tuple[int, ...]]:
        """Return the groups along `axes`, every rank of the mesh once, in mesh order like those of a `Topology`.

        Args:
            axes: a name or several.

        Raises:
            ArgumentError: the mesh has no such axes, or no names.
        """
        wanted = (axes,) if isinstance(axes, str) else tuple(axes)
        if not wanted or len(set(wanted)) < len(wanted) or not set(wanted) <= set(self._names):
            names = ", ".join(map(repr, self._names)) or "none (pass mesh_dim_names)"
            raise ArgumentError(f"axes must be one or several axes of the mesh, each once: {names}; got {axes!r}")
        across = [dim for dim, name in enumerate(self._names) if name not in wanted]
        along = [dim for dim, name in enumerate(self._names) if name in wanted]
        size = 1
        for dim in along:
            size *= self._ranks.shape[dim]
        return [tuple(group) for group in self._ranks.permute(across + along).reshape(-1, size).tolist()]
