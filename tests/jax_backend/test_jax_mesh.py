"""Groups and topology of a mesh, read from stand-ins: no second process needed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from dcpack_jax.mesh import MeshGroups, topology_of_mesh

from dcpack.errors import ArgumentError


def mesh_of(processes: list[list[int]], *names: str) -> Any:
    """Stand in for a mesh whose devices are of these processes."""
    devices = np.empty((len(processes), len(processes[0])), object)
    for place in np.ndindex(devices.shape):
        devices[place] = SimpleNamespace(process_index=processes[place[0]][place[1]])
    return SimpleNamespace(axis_names=names, devices=devices)


def test_devices_of_a_process_count_once() -> None:
    # Processes 0 and 1 have two devices each, side by side along the second axis.
    groups = MeshGroups(mesh_of([[0, 0], [1, 1]], "data", "context"))
    assert groups.groups("context") == [(0,), (1,)]
    assert groups.groups("data") == [(0, 1)]
    assert groups.groups(("data", "context")) == [(0, 1)]


def test_groups_that_cut_a_process_are_refused() -> None:
    # Along "data" process 0 would be in (0, 1) and in (0, 2).
    torn = MeshGroups(mesh_of([[0, 0], [1, 2]], "data", "context"))
    with pytest.raises(ArgumentError, match=r"not whole processes: process 0 in \[\(0, 1\), \(0, 2\)\]"):
        torn.groups("data")
    for axes in ("tensor", (), ("data", "data")):
        with pytest.raises(ArgumentError, match="axes must be one or several axes of the mesh"):
            torn.groups(axes)


def test_the_topology_has_our_names_and_a_process_for_each_rank() -> None:
    topology = topology_of_mesh(mesh_of([[0, 0], [1, 1]], "fsdp", "context"), node_size=2)
    assert topology.axes == ("dp_shard", "cp")
    assert topology.process_of_rank.tolist() == [0, 0, 1, 1]
    assert topology.node_size == 2
    with pytest.raises(ArgumentError, match=r"without a name in axes=: \['expert'\]"):
        topology_of_mesh(mesh_of([[0]], "data", "expert"))
    assert topology_of_mesh(mesh_of([[0]], "data", "expert"), axes={"data": "dp", "expert": "tp"}).axes == ("dp", "tp")
