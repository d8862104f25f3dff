"""Who does what: which ranks build batches, which receive them, which plans.

A *lane* is one rank of the plan and its model-parallel peers: the ranks that get the same batch. Its first member, at
coordinate 0 on every axis but the data axes, is the *constructor*. Example, axes (dp, cp, tp) of 2, 2 and 2:

    planned by DP alone     lanes (0 1 2 3) (4 5 6 7)          constructors 0, 4
    planned by DP and CP    lanes (0 1) (2 3) (4 5) (6 7)      constructors 0, 2, 4, 6
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcpack._checks import list_offenders
from dcpack.comm.backend import MeshAxes
from dcpack.errors import ArgumentError

__all__ = ["DP_AXES", "Roles", "assign_roles"]

DP_AXES = ("dp_replicate", "dp_shard", "dp")
"""The axes that are data parallel where the configuration names none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """The lanes of a mesh, and who plans.

    Attributes:
        lanes: for each plan rank the global ranks of its lane, the constructor first.
        planner: plan rank that plans.
        tp_size: length of the axis ``tp``, 1 without one.
        cp_size: length of the axis ``cp``, 1 without one.
    """

    lanes: tuple[tuple[int, ...], ...]
    planner: int
    tp_size: int
    cp_size: int

    @property
    def constructors(self) -> tuple[int, ...]:
        """Global rank of each constructor, by plan rank."""
        return tuple(lane[0] for lane in self.lanes)

    @property
    def has_peers(self) -> bool:
        """Whether some rank receives its batches from another one."""
        return len(self.lanes[0]) > 1

    def lane_of(self, rank: int) -> int:
        """Return the plan rank whose lane holds global rank `rank`."""
        return next(p for p, lane in enumerate(self.lanes) if rank in lane)

    def cp_group(self, rank: int, plan_ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the global ranks at the place of `rank` in the lanes of `plan_ranks`: its CP group."""
        place = self.lanes[self.lane_of(rank)].index(rank)
        return tuple(self.lanes[p][place] for p in plan_ranks)


def assign_roles(
    mesh: MeshAxes,
    *,
    dp_dim_names: Sequence[str] | None = None,
    plans_cp: bool = False,
    planner_rank: int | None = None,
) -> Roles:
    """Return the roles of all ranks of a mesh.

    Args:
        mesh: names and ranks.
        dp_dim_names: the data-parallel axes; None: those of `DP_AXES` that the mesh has.
        plans_cp: whether the plan decides on CP; then the axis ``cp`` is a data axis too.
        planner_rank: global rank of a constructor; None: the lowest.

    Raises:
        ArgumentError: axes that the mesh does not have, or a planner that is no constructor.

    Example:
        >>> mesh = MeshAxes(names=("dp", "cp", "tp"), ranks=np.arange(8).reshape(2, 2, 2))
        >>> assign_roles(mesh).lanes, assign_roles(mesh, plans_cp=True).constructors
        (((0, 1, 2, 3), (4, 5, 6, 7)), (0, 2, 4, 6))
    """
    if len(set(mesh.names)) < len(mesh.names):
        raise ArgumentError(f"the axes of the mesh must have different names, got {mesh.names}")
    if unknown := [repr(name) for name in dp_dim_names or () if name not in mesh.names]:
        raise ArgumentError(f"dp_dim_names must be axes of the mesh {mesh.names}, got {list_offenders(unknown)}")
    data = set(DP_AXES if dp_dim_names is None else dp_dim_names) | ({"cp"} if plans_cp else set())
    outer = [dim for dim, name in enumerate(mesh.names) if name in data]
    inner = [dim for dim, name in enumerate(mesh.names) if name not in data]
    width = int(np.prod([mesh.ranks.shape[dim] for dim in inner], dtype=np.int64))
    lanes = tuple(tuple(row) for row in np.transpose(mesh.ranks, outer + inner).reshape(-1, width).tolist())
    constructors = [lane[0] for lane in lanes]
    if planner_rank is not None and planner_rank not in constructors:
        raise ArgumentError(f"planner_rank must be one of the constructors {constructors}, got {planner_rank}")
    sizes = dict(zip(mesh.names, mesh.ranks.shape, strict=True))
    return Roles(
        lanes=lanes,
        planner=constructors.index(min(constructors) if planner_rank is None else planner_rank),
        tp_size=int(sizes.get("tp", 1)),
        cp_size=int(sizes.get("cp", 1)),
    )
