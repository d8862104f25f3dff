"""Planning steps whose samples several ranks may share: options, and the plan that all constructors come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcpack._checks import Int64Array, as_lengths, check_choice, check_int, check_kinds, check_names
from dcpack.comm import Communicator
from dcpack.cost import CostModel
from dcpack.errors import ArgumentError
from dcpack.exchange import StaticShapes
from dcpack.loader.planning import report
from dcpack.loader.sharing import Planned, share_plans
from dcpack.padding import PaddingRule
from dcpack.plans import SYNC_MODES, Plan
from dcpack.scheduling import Scheduler
from dcpack.scheduling.driver import get_scheduler, make_plan
from dcpack.sharding import SHARDINGS
from dcpack.topology import Topology, legal_cp_sizes

__all__ = ["CPPlanner", "CPPlanning"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CPPlanning:
    """How steps with planned CP are planned and cut: what `dcpack.plan` and `exchange_samples` take beside the rest.

    Args:
        scheduler: a name, or an object that assigns CP sizes.
        cp_sizes: legal CP sizes, as in `dcpack.plan`.
        min_cp_size: smaller sizes are not legal.
        max_cp_size: larger sizes are not legal.
        block: tokens of a kernel block, as in `PaddingRule`; the TP size comes from the mesh.
        sequence_parallel: as in `PaddingRule`.
        sync: ``"microbatch"`` or ``"step"``, when ranks meet.
        microbatch_multiple: the number of micro-batches is a multiple of it.
        max_sequences: most sequences in a bin.
        sharding: the CP slicing.
        static_shapes: fixed shapes, or None.
        per_token: further fields that have one element a token.
        aligned_fields: optional fields that all ranks of a micro-batch get or none (`align_fields`).

    Raises:
        ArgumentError: an option of the wrong type or range.

    Example:
        >>> CPPlanning(scheduler="uniform_cp", max_cp_size=4).scheduler
        'uniform_cp'
    """

    scheduler: str | Scheduler = "dynamic_cp"
    cp_sizes: str | Sequence[int] = "powers_of_two"
    min_cp_size: int = 1
    max_cp_size: int | None = None
    block: int = 1
    sequence_parallel: bool = False
    sync: str = "microbatch"
    microbatch_multiple: int = 1
    max_sequences: int | None = None
    sharding: str = "zigzag"
    static_shapes: StaticShapes | None = None
    per_token: tuple[str, ...] = ()
    aligned_fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        get_scheduler(self.scheduler)
        check_choice("sync", self.sync, SYNC_MODES)
        check_choice("sharding", self.sharding, SHARDINGS)
        check_int("microbatch_multiple", self.microbatch_multiple, minimum=1)
        check_int("min_cp_size", self.min_cp_size, minimum=1)
        if self.max_cp_size is not None:
            check_int("max_cp_size", self.max_cp_size, minimum=self.min_cp_size)
        if isinstance(self.cp_sizes, str):
            legal_cp_sizes(1, self.cp_sizes)
        elif as_lengths("cp_sizes", self.cp_sizes, minimum=1).size == 0:
            raise ArgumentError("cp_sizes must hold at least one size")
        if self.max_sequences is not None:
            check_int("max_sequences", self.max_sequences, minimum=1)
        check_kinds(static_shapes=(self.static_shapes, StaticShapes | None))
        self.padding(1)
        for name in ("per_token", "aligned_fields"):
            object.__setattr__(self, name, check_names(name, getattr(self, name)))

    def padding(self, tp_size: int) -> PaddingRule:
        """Return the padding rule at a TP size."""
        return PaddingRule(tp=tp_size, block=self.block, sequence_parallel=self.sequence_parallel)

    def plan(
        self, lengths: Int64Array, *, num_ranks: int, capacity: int, tp_size: int, cost: CostModel, overlong: str
    ) -> Plan:
        """Return the plan of a step."""
        return make_plan(
            lengths,
            num_ranks=num_ranks,
            capacity=capacity,
            scheduler=self.scheduler,
            cost=cost,
            cp_sizes=self.cp_sizes,
            min_cp_size=self.min_cp_size,
            max_cp_size=self.max_cp_size,
            padding=self.padding(tp_size),
            sync=self.sync,
            microbatch_multiple=self.microbatch_multiple,
            max_sequences=self.max_sequences,
            on_empty="dummy",
            overlong=overlong,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class CPPlanner:
    """Plans whole steps.

    Attributes:
        options: how to plan and cut.
        capacity: padded tokens of a row on one rank.
        tp_size: of the mesh.
        cost: what is minimised.
        overlong: what becomes of samples that fit nowhere.
        planner: member that plans.
        broadcast: whether it alone does.
        logs: whether what was decided is logged.
        hosts: the ranks of the plan, and which member hosts each; None where member m is rank m.
    """

    options: CPPlanning
    capacity: int
    tp_size: int
    cost: CostModel
    overlong: str
    planner: int
    broadcast: bool
    logs: bool
    hosts: Topology | None = None

    def homes(self, num_members: int) -> Int64Array:
        """Return int64[ranks]: the member that hosts each rank of the plan."""
        return np.arange(num_members) if self.hosts is None else self.hosts.process_of_rank

    def plan(self, communicator: Communicator, lengths: Int64Array, holder: Int64Array) -> Planned:
        """Return the same plan of a step on all members. Collective.

        Args:
            communicator: of the constructors.
            lengths: int64[n], tokens of each sample, the same on all members.
            holder: int64[n], member that the sampler gave each to.
        """
        return share_plans(
            communicator,
            self.planner,
            lambda: self.plan_alone(lengths, holder, communicator.size),
            broadcast=self.broadcast,
        )

    def plan_alone(self, lengths: Int64Array, holder: Int64Array, num_members: int) -> Planned:
        """Return the plan of a step; a pure function of its samples, arguments as in `plan`."""
        homes = self.homes(num_members)
        num_ranks = homes.size
        plan = self.options.plan(
            lengths,
            num_ranks=num_ranks,
            capacity=self.capacity,
            tp_size=self.tp_size,
            cost=self.cost,
            overlong=self.overlong,
        )
        columns = self.cost.columns(lengths)
        alone = self.cost.bin_time(columns, np.ones(len(columns), np.int64), np.zeros(len(columns), np.bool_))
        of_bin = plan.entry_bin
        leaves = (plan.cp_size[of_bin] > 1) | (homes[plan.first_rank[of_bin]] != holder[plan.sequence_ids])
        # What a member of several ranks was given counts as the first one's.
        first_of_member = np.unique(homes, return_index=True)[1]
        return Planned(
            plans=(plan,),
            loads_before=tuple(np.bincount(first_of_member[holder], alone, minlength=num_ranks).tolist()),
            loads_after=tuple(plan.rank_times(self.cost).sum(axis=0).tolist()),
            num_moved=int(np.unique(plan.sequence_ids[leaves]).size),
        )

    def log(self, communicator: Communicator, planned: Planned) -> None:
        """Log what was decided: on the rank that plans, where the configuration asks for it."""
        if self.logs and communicator.rank == self.planner:
            report(planned)
