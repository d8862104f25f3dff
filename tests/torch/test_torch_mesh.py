"""Which ranks are a group along the axes of a mesh; a stand-in for the mesh."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from dcpack_torch.mesh import DeviceMeshGroups

import dcpack
from dcpack.errors import ArgumentError


def test_groups_are_those_of_the_topology() -> None:
    mesh: Any = SimpleNamespace(mesh=torch.arange(24).reshape(2, 3, 4), mesh_dim_names=("dp", "cp", "tp"))
    topology = dcpack.Topology(axes=("dp", "cp", "tp"), sizes=(2, 3, 4))
    found = DeviceMeshGroups(mesh)
    assert found.axes == topology.axes
    assert found.ranks.tolist() == topology.ranks.tolist()
    for axes in ("tp", "cp", ("dp",), ("dp", "cp"), ("tp", "dp"), ("dp", "cp", "tp")):
        assert found.groups(axes) == list(topology.groups((axes,) if isinstance(axes, str) else axes))
        assert sorted(rank for group in found.groups(axes) for rank in group) == list(range(24))


def test_axes_that_are_not_there() -> None:
    named: Any = SimpleNamespace(mesh=torch.arange(2), mesh_dim_names=("dp",))
    nameless: Any = SimpleNamespace(mesh=torch.arange(2), mesh_dim_names=None)
    for axes in ("cp", (), ("dp", "dp")):
        with pytest.raises(ArgumentError, match="each once: 'dp'; got"):
            DeviceMeshGroups(named).groups(axes)
    with pytest.raises(ArgumentError, match="pass mesh_dim_names"):
        DeviceMeshGroups(nameless).groups("dp")
    with pytest.raises(ArgumentError, match="have no names"):
        _ = DeviceMeshGroups(nameless).axes
