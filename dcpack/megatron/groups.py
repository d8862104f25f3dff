"""The groups that one rank of a Megatron job works in."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np

from dcpack._checks import check_int, check_kinds, list_offenders
from dcpack.comm import Communicator
from dcpack.errors import ArgumentError
from dcpack.topology import Topology

__all__ = ["ParallelGroups", "build_groups"]

_DP_AXES = ("dp_replicate", "dp_shard", "dp")


@dataclass(frozen=True, kw_only=True, eq=False)
class ParallelGroups:
    """One rank's communicators along the axes of its mesh.

    Who is where follows from the members of these groups and never from dividing ranks, so any order of axes will do.

    Args:
        tp: the ranks that hold parts of the same layers and see the same data.
        pp: the pipeline, first stage first.
        dp: the ranks that read different data, at the same place of the other axes.
        dp_cp: the DPxCP domain, member p being plan rank p.

    Raises:
        ArgumentError: the groups do not fit one another.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> mesh = Topology(axes=("pp", "dp", "cp"), sizes=(2, 1, 2))
        >>> groups = run_ranks(4, lambda communicator: build_groups(communicator, mesh))[3]
        >>> groups.plan_rank, groups.cp_size, groups.is_first_stage, groups.is_last_stage, groups.dp_cp.ranks
        (1, 2, False, True, (2, 3))
    """

    tp: Communicator
    pp: Communicator
    dp: Communicator
    dp_cp: Communicator

    def __post_init__(self) -> None:
        check_kinds(**{name: (getattr(self, name), Communicator) for name in ("tp", "pp", "dp", "dp_cp")})
        if strangers := sorted(set(self.dp.ranks) - set(self.dp_cp.ranks)):
            listed = list_offenders([str(rank) for rank in strangers])
            raise ArgumentError(f"dp must be a part of dp_cp, which lacks ranks {listed}")
        if self.dp_cp.size % self.dp.size:
            raise ArgumentError(f"dp_cp must be a multiple of dp, got {self.dp_cp.size} and {self.dp.size} ranks")
        own = {name: getattr(self, name).ranks[getattr(self, name).rank] for name in ("tp", "pp", "dp", "dp_cp")}
        if len(set(own.values())) > 1:
            raise ArgumentError(f"the groups must be those of one rank, got {own}")

    @property
    def plan_rank(self) -> int:
        """The plan rank of this rank; the same on all stages of a pipeline."""
        return self.dp_cp.rank

    @property
    def cp_size(self) -> int:
        """The static CP size: ranks of the domain that read the same data."""
        return self.dp_cp.size // self.dp.size

    @property
    def is_first_stage(self) -> bool:
        """Whether this rank is on the first stage of its pipeline."""
        return self.pp.rank == 0

    @property
    def is_last_stage(self) -> bool:
        """Whether this rank is on the last stage of its pipeline."""
        return self.pp.rank == self.pp.size - 1

    def cp_group(self, cp_rank: int, cp_size: int) -> tuple[int, ...]:
        """Return the global ranks of the CP group in which this rank is number `cp_rank` of `cp_size`.

        Raises:
            ArgumentError: such a group would not lie in the domain.
        """
        cp_size = check_int("cp_size", cp_size, minimum=1, maximum=self.dp_cp.size)
        first = self.plan_rank - check_int("cp_rank", cp_rank, minimum=0, maximum=cp_size - 1)
        if first < 0 or first + cp_size > self.dp_cp.size:
            raise ArgumentError(
                f"cp_rank {cp_rank} of {cp_size} cannot be plan rank {self.plan_rank} of {self.dp_cp.size}"
            )
        return self.dp_cp.ranks[first : first + cp_size]

    def close(self) -> None:
        """Close the communicators."""
        for communicator in (self.tp, self.pp, self.dp, self.dp_cp):
            communicator.close()


def build_groups(world: Communicator, topology: Topology) -> ParallelGroups:
    """Return this rank's groups in a mesh. Collective over all ranks of the mesh.

    Args:
        world: the communicator of all ranks; member r is global rank r.
        topology: the mesh, one rank a process; axes that it lacks have size 1.

    Raises:
        PeerError: the mesh does not fit the world; on every rank.

    Example:
        >>> import dcpack
        >>> mesh = dcpack.Topology(axes=("dp", "tp"), sizes=(2, 2))
        >>> def fn(world):
        ...     groups = build_groups(world, mesh)
        ...     return groups.dp.ranks, groups.tp.ranks
        >>> dcpack.run_ranks(4, fn)[3]
        ((1, 3), (2, 3))
    """
    check_kinds(world=(world, Communicator))
    with world.guard():
        check_kinds(topology=(topology, Topology))
        if world.size != topology.num_ranks or world.ranks != tuple(range(world.size)):
            raise ArgumentError(f"the mesh has {topology.num_ranks} ranks, the world {world.size}: {world.ranks[:8]}")
        if not np.array_equal(topology.process_of_rank, np.arange(topology.num_ranks)):
            raise ArgumentError("the mesh must have one rank a process")
    axes = {"tp": ("tp",), "pp": ("pp",), "dp": _DP_AXES, "dp_cp": (*_DP_AXES, "cp")}
    with contextlib.ExitStack() as made:
        groups = {name: made.enter_context(world.split(topology.groups(along))) for name, along in axes.items()}
        found = ParallelGroups(**groups)
        made.pop_all()  # all is well, so none is closed
    return found
