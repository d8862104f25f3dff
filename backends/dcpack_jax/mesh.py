"""Meshes of devices: their groups as groups of processes, and their ranks as the ranks of plans."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from dcpack import Topology
from dcpack.errors import ArgumentError

__all__ = ["AXES", "MeshGroups", "topology_of_mesh"]

AXES = {
    "data": "dp",
    "dp": "dp",
    "replica": "dp_replicate",
    "fsdp": "dp_shard",
    "context": "cp",
    "sequence": "cp",
    "cp": "cp",
    "tensor": "tp",
    "model": "tp",
    "tp": "tp",
    "stage": "pp",
    "pp": "pp",
}
"""What axes of JAX meshes are called, and what they are called here."""


class MeshGroups:
    """The groups of processes along the axes of a mesh of devices.

    Args:
        mesh: a `jax.sharding.Mesh`.

    Attributes:
        processes: int64[one dim an axis], the process of each device.

    Example:
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "context"))
        >>> MeshGroups(mesh).groups("context")
        [(0,)]
    """

    def __init__(self, mesh: jax.sharding.Mesh) -> None:
        self._names: tuple[str, ...] = tuple(mesh.axis_names)
        self.processes = np.vectorize(lambda device: device.process_index, otypes=[np.int64])(mesh.devices)

    def groups(self, axes: Any, /) -> list[tuple[int, ...]]:
        """Return the groups of processes along `axes`, every process once, in mesh order.

        A process whose devices lie side by side along `axes` is in its group once; groups of the same processes are
        one.

        Raises:
            ArgumentError: the mesh has no such axes, or a process has devices in several different groups.
        """
        wanted = (axes,) if isinstance(axes, str) else tuple(axes)
        if not wanted or len(set(wanted)) < len(wanted) or not set(wanted) <= set(self._names):
            names = ", ".join(map(repr, self._names))
            raise ArgumentError(f"axes must be one or several axes of the mesh, each once: {names}; got {axes!r}")
        across = [dim for dim, name in enumerate(self._names) if name not in wanted]
        along = [dim for dim, name in enumerate(self._names) if name in wanted]
        size = int(np.prod([self.processes.shape[dim] for dim in along]))
        rows = np.transpose(self.processes, across + along).reshape(-1, size).tolist()
        groups = list(dict.fromkeys(tuple(dict.fromkeys(row)) for row in rows))
        homes: dict[int, list[tuple[int, ...]]] = {}
        for group in groups:
            for process in group:
                homes.setdefault(process, []).append(group)
        if torn := [f"process {process} in {found}" for process, found in homes.items() if len(found) > 1]:
            raise ArgumentError(f"the groups along {axes!r} are not whole processes: {'; '.join(torn[:4])}")
        return groups


def topology_of_mesh(
    mesh: jax.sharding.Mesh, *, axes: Mapping[str, str] = AXES, node_size: int | None = None
) -> Topology:
    """Return the topology whose ranks are the devices of `mesh`, and which process each lives on.

    Args:
        mesh: of devices, such as one with the axes ``data`` and ``context``.
        axes: what its axes are called in `Topology`; by default the usual names.
        node_size: consecutive plan ranks that share a node.

    Raises:
        ArgumentError: an axis has no name here.

    Example:
        >>> mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("data", "context"))
        >>> topology = topology_of_mesh(mesh)
        >>> topology.axes, topology.process_of_rank.tolist()
        (('dp', 'cp'), [0])
    """
    if unknown := [name for name in mesh.axis_names if name not in axes]:
        raise ArgumentError(f"axes of the mesh without a name in axes=: {unknown}; known: {sorted(axes)}")
    return Topology(
        axes=tuple(axes[name] for name in mesh.axis_names),
        sizes=tuple(mesh.devices.shape),
        process_of_rank=[device.process_index for device in mesh.devices.flat],
        node_size=node_size,
    )
