"""Who does what: which ranks build batches, which receive them, which plans.

A *lane* is one rank of the plan and its model-parallel peers: the ranks that get the same batch. Its first member, at
coordinate 0 on every axis but the data axes, is the *constructor*. Example, axes (dp, cp, tp) of 2, 2 and 2:

    planned by DP alone     lanes (0 1 2 3) (4 5 6 7)          constructors 0, 4
    planned by DP and CP    lanes (0 1) (2 3) (4 5) (6 7)      constructors 0, 2, 4, 6

Where processes host several ranks of the mesh, as a process of JAX does with its devices, lanes are of processes: those
whose ranks have the same data coordinates get the same batch. Where CP is planned, the plan is for the ranks all the
same, and a process gets the batches of all that it hosts. Example, the mesh above on two processes of 4 ranks:

    planned by DP alone     lanes (0) (1)
    planned by DP and CP    lanes (0) (1)                      plan ranks 0, 1 on process 0 and 2, 3 on process 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcpack._checks import Int64Array, list_offenders
from dcpack.comm.backend import MeshAxes
from dcpack.errors import ArgumentError
from dcpack.topology import Topology

__all__ = ["DP_AXES", "Roles", "assign_roles"]

DP_AXES = ("dp_replicate", "dp_shard", "dp")
"""The axes that are data parallel where the configuration names none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Roles:
    """The lanes of a mesh, and who plans.

    Attributes:
        lanes: for each member of the plane of constructors the global ranks (processes) of its lane, it itself first.
        planner: member that plans.
        tp_size: length of the axis ``tp``, 1 without one.
        cp_size: length of the axis ``cp``, 1 without one.
        hosts: the ranks of plans, and which member hosts each; None where member m is rank m.
    """

    lanes: tuple[tuple[int, ...], ...]
    planner: int
    tp_size: int
    cp_size: int
    hosts: Topology | None = None

    @property
    def constructors(self) -> tuple[int, ...]:
        """Global rank of each constructor, by plan rank."""
        return tuple(lane[0] for lane in self.lanes)

    @property
    def has_peers(self) -> bool:
        """Whether some rank receives its batches from another one."""
        return any(len(lane) > 1 for lane in self.lanes)

    def lane_of(self, rank: int) -> int:
        """Return the plan rank whose lane holds global rank `rank`."""
        return next(p for p, lane in enumerate(self.lanes) if rank in lane)

    def cp_group(self, rank: int, plan_ranks: Sequence[int]) -> tuple[int, ...]:
        """Return the global ranks at the place of `rank` in the lanes of `plan_ranks`: its CP group.

        Where members host several ranks it is the plan ranks themselves, which number the devices.
        """
        if self.hosts is not None:
            return tuple(plan_ranks)
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
        mesh: names and processes.
        dp_dim_names: the data-parallel axes; None: those of `DP_AXES` that the mesh has.
        plans_cp: whether the plan decides on CP; then the axis ``cp`` is a data axis too.
        planner_rank: global rank of a constructor; None: the lowest.

    Raises:
        ArgumentError: axes that the mesh does not have, a planner that is no constructor, or processes that host parts
            of several lanes.

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
    rows = np.transpose(mesh.ranks, outer + inner).reshape(-1, width)
    hosts = None
    if len(np.unique(mesh.ranks)) == mesh.ranks.size:
        lanes = tuple(tuple(row) for row in rows.tolist())
    elif plans_cp:
        lanes, hosts = _hosts_of_plan_ranks(rows)
    else:
        lanes = _lanes_of_processes(rows)
    constructors = [lane[0] for lane in lanes]
    if planner_rank is not None and planner_rank not in constructors:
        raise ArgumentError(f"planner_rank must be one of the constructors {constructors}, got {planner_rank}")
    sizes = dict(zip(mesh.names, mesh.ranks.shape, strict=True))
    return Roles(
        lanes=lanes,
        planner=constructors.index(min(constructors) if planner_rank is None else planner_rank),
        tp_size=int(sizes.get("tp", 1)),
        cp_size=int(sizes.get("cp", 1)),
        hosts=hosts,
    )


def _lanes_of_processes(rows: Int64Array) -> tuple[tuple[int, ...], ...]:
    """Return the processes that get the same batches, from the processes of each data coordinate.

    Example:
        >>> _lanes_of_processes(np.array([[0, 1], [0, 1], [2, 3], [2, 3]]))
        ((0, 1), (2, 3))
    """
    coordinates: dict[int, list[int]] = {}
    for number, row in enumerate(rows.tolist()):
        for process in dict.fromkeys(row):
            coordinates.setdefault(process, []).append(number)
    lanes: dict[tuple[int, ...], list[int]] = {}
    for process, found in coordinates.items():
        lanes.setdefault(tuple(found), []).append(process)
    if sum(map(len, lanes)) > len(rows):
        torn = [f"process {process} at {found}" for process, found in coordinates.items()]
        raise ArgumentError(
            f"processes must host the same data coordinates or others, not some of them: {list_offenders(torn)}"
        )
    return tuple(tuple(processes) for processes in lanes.values())


def _hosts_of_plan_ranks(rows: Int64Array) -> tuple[tuple[tuple[int, ...], ...], Topology]:
    """Return a lane for each process, and which member hosts each rank of the plan.

    Example:
        >>> lanes, hosts = _hosts_of_plan_ranks(np.array([[3], [3], [1], [1]]))
        >>> lanes, hosts.process_of_rank.tolist()
        (((3,), (1,)), [0, 0, 1, 1])
    """
    if torn := [f"plan rank {p} on {sorted(set(row))}" for p, row in enumerate(rows.tolist()) if len(set(row)) > 1]:
        raise ArgumentError(
            "where processes host several ranks and CP is planned, all ranks that get the same batch must be on one "
            f"process: {list_offenders(torn)}"
        )
    homes = rows[:, 0].tolist()
    members = {process: member for member, process in enumerate(dict.fromkeys(homes))}
    hosts = Topology.of_domain(len(homes), process_of_rank=[members[process] for process in homes])
    return tuple((process,) for process in members), hosts
