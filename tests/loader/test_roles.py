from __future__ import annotations

import numpy as np
import pytest

from dcpack.comm import FakeBackend
from dcpack.comm.backend import MeshAxes
from dcpack.errors import ArgumentError
from dcpack.loader.roles import assign_roles

from loader_helpers import mesh  # isort: skip


def test_constructors_are_zero_on_all_axes_but_dp() -> None:
    axes = FakeBackend().describe_mesh(mesh(pp=2, dp=2, cp=2, tp=2))
    roles = assign_roles(axes)
    assert roles.constructors == (0, 4)
    assert roles.lanes[0] == (0, 1, 2, 3, 8, 9, 10, 11)
    assert (roles.tp_size, roles.cp_size, roles.planner, roles.has_peers) == (2, 2, 0, True)
    planned = assign_roles(axes, plans_cp=True, planner_rank=4)
    assert planned.constructors == (0, 2, 4, 6)
    assert planned.planner == 2
    assert planned.lane_of(13) == 2
    # The CP group of plan ranks 2 and 3 at the place of rank 13 (pp 1, dp 1, cp 0, tp 1).
    assert planned.cp_group(13, (2, 3)) == (13, 15)


def test_other_names_of_data_parallel_axes() -> None:
    axes = MeshAxes(names=("replica", "model"), ranks=np.array([[3, 1], [2, 0]]))
    assert assign_roles(axes).constructors == (3,)  # none of the usual names: one lane of all
    roles = assign_roles(axes, dp_dim_names=("replica",))
    assert roles.lanes == ((3, 1), (2, 0))
    assert roles.planner == 1  # rank 2, the lowest constructor


def test_peers_are_found_in_any_lane_of_processes() -> None:
    roles = assign_roles(MeshAxes(names=("dp", "tp"), ranks=np.array([[2, 2], [0, 1], [0, 1]])))
    assert roles.lanes == ((2,), (0, 1))
    assert roles.has_peers


def test_what_the_mesh_does_not_have_is_named() -> None:
    axes = FakeBackend().describe_mesh(mesh(dp=2, tp=2))
    with pytest.raises(ArgumentError, match=r"dp_dim_names must be axes of the mesh \('dp', 'tp'\), got 'data'"):
        assign_roles(axes, dp_dim_names=("data",))
    with pytest.raises(ArgumentError, match=r"planner_rank must be one of the constructors \[0, 2\], got 1"):
        assign_roles(axes, planner_rank=1)
    with pytest.raises(ArgumentError, match="mesh must be a Topology or a mesh of back end 'fake'"):
        FakeBackend().describe_mesh({"dp": 2})
