"""How the steps of a Megatron job are planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcpack._checks import as_lengths, check_choice, check_cost, check_int, check_kinds
from dcpack.api import DEFAULT_COST, plan
from dcpack.cost import CostModel, get_cost
from dcpack.errors import ArgumentError
from dcpack.megatron.stages import MAX_STAGES
from dcpack.padding import MAX_CP_SIZE, PaddingRule, check_capacity
from dcpack.plans import SYNC_MODES, Plan
from dcpack.scheduling import ON_EMPTY, Scheduler, get_scheduler
from dcpack.sharding import SHARDINGS
from dcpack.topology import legal_cp_sizes

__all__ = ["StepOptions", "plain_options", "plan_step"]


@dataclass(frozen=True, kw_only=True)
class StepOptions:
    """The options of `wrap_data_iterator`, checked when they are made.

    Args:
        capacity: padded tokens of one row on one rank; Megatron's ``max_seqlen_per_dp_cp_rank``.
        scheduler: a name of ``dcpack.scheduling.SCHEDULERS`` or an object of your own. ``"in_order"`` and the other
            schedulers without dynamic CP use the CP size of the mesh.
        cp_size: ranks of the mesh that read the same data.
        tp_size: ranks of a tensor-parallel group.
        pp_size: stages of a pipeline.
        vpp_size: virtual stages of a rank; 1 without virtual pipelining.
        microbatch_group_size: micro-batches that a virtual stage takes in a row, at least `pp_size`, which is the
            default; Megatron's ``microbatch_group_size_per_vp_stage``. The number of micro-batches is a multiple of it
            where `vpp_size` is over 1.
        padding: the padding rule; None is ``PaddingRule(tp=tp_size)``.
        sharding: how CP ranks slice a row.
        cp_sizes: legal sizes under dynamic CP.
        min_cp_size: smaller sizes are not legal; Megatron's ``min_dynamic_context_parallel_size``.
        max_cp_size: larger sizes are not legal.
        max_sequences: most sequences of a row; Megatron's ``thd_max_num_seqs``.
        on_empty: ``"error"`` or ``"dummy"``, where sequences are too few to give each rank work.
        cost: a cost model, or the name of one; see `dcpack.cost.get_cost`.
        sync: ``"microbatch"`` or ``"step"``, when ranks meet.

    Raises:
        ArgumentError: a value out of range, or values that do not go together.

    Example:
        >>> StepOptions(capacity=64, pp_size=4, vpp_size=2).microbatch_multiple
        4
        >>> StepOptions(capacity=64, pp_size=4, vpp_size=2, microbatch_group_size=3)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: microbatch_group_size must be from 4 to 65536, got 3
    """

    capacity: int
    scheduler: str | Scheduler = "dynamic_cp"
    cp_size: int = 1
    tp_size: int = 1
    pp_size: int = 1
    vpp_size: int = 1
    microbatch_group_size: int | None = None
    padding: PaddingRule | None = None
    sharding: str = "zigzag"
    cp_sizes: str | Sequence[int] = "powers_of_two"
    min_cp_size: int = 1
    max_cp_size: int | None = None
    max_sequences: int | None = None
    on_empty: str = "error"
    cost: CostModel | str = DEFAULT_COST
    sync: str = "microbatch"

    def __post_init__(self) -> None:
        for name in ("cp_size", "tp_size", "pp_size", "vpp_size", "min_cp_size"):
            limit = MAX_CP_SIZE if "cp" in name else MAX_STAGES
            check_int(name, getattr(self, name), minimum=1, maximum=limit)
        for name in ("max_cp_size", "max_sequences"):
            if getattr(self, name) is not None:
                check_int(name, getattr(self, name), minimum=self.min_cp_size if name == "max_cp_size" else 1)
        if isinstance(self.cp_sizes, str):
            legal_cp_sizes(1, self.cp_sizes)
        else:
            largest = as_lengths("cp_sizes", self.cp_sizes, minimum=1).max(initial=0)
            if not 1 <= largest <= MAX_CP_SIZE:
                raise ArgumentError(f"cp_sizes must hold sizes from 1 to {MAX_CP_SIZE}, got {self.cp_sizes}")
        check_cost(get_cost(self.cost) if isinstance(self.cost, str) else self.cost)
        if self.microbatch_group_size is not None:
            if self.vpp_size == 1:
                raise ArgumentError("microbatch_group_size has no meaning without virtual stages (vpp_size 1)")
            check_int("microbatch_group_size", self.microbatch_group_size, minimum=self.pp_size, maximum=MAX_STAGES)
        get_scheduler(self.scheduler)
        check_capacity(self.capacity, self.rule)
        check_choice("sharding", self.sharding, SHARDINGS)
        check_choice("on_empty", self.on_empty, ON_EMPTY)
        check_choice("sync", self.sync, SYNC_MODES)

    @property
    def rule(self) -> PaddingRule:
        """The padding rule."""
        return PaddingRule(tp=self.tp_size) if self.padding is None else self.padding

    @property
    def is_static(self) -> bool:
        """Whether every micro-batch has the CP size of the mesh: the scheduler takes one size of many."""
        return len(get_scheduler(self.scheduler).usable_cp_sizes((1, 2, 4, 8))) == 1

    @property
    def microbatch_multiple(self) -> int:
        """What the number of micro-batches is a multiple of."""
        if self.vpp_size == 1:
            return 1
        return self.pp_size if self.microbatch_group_size is None else self.microbatch_group_size


def plan_step(padded_lengths: Any, options: StepOptions, *, num_ranks: int) -> Plan:
    """Plan one step over the lengths that the datasets padded to. Pure.

    Args:
        padded_lengths: int64[n], padded tokens of every sequence.
        options: how.
        num_ranks: ranks of the DPxCP domain.

    Returns:
        A validated plan.

    Raises:
        InfeasibleError: no plan was found; names the sequences, their lengths and the limits.

    Example:
        >>> plan_step([8, 8, 16, 4], StepOptions(capacity=16), num_ranks=2).num_microbatches
        2
        >>> plan_step([8, 8, 16, 4], StepOptions(capacity=16, vpp_size=2, pp_size=2), num_ranks=2).num_microbatches
        2
    """
    check_kinds(options=(options, StepOptions))
    cost = get_cost(options.cost) if isinstance(options.cost, str) else options.cost
    return plan(
        padded_lengths,
        num_ranks=num_ranks,
        capacity=options.capacity,
        scheduler=options.scheduler,
        cost=cost,
        cp_sizes=(options.cp_size,) if options.is_static else options.cp_sizes,
        min_cp_size=1 if options.is_static else options.min_cp_size,
        max_cp_size=None if options.is_static else options.max_cp_size,
        padding=options.rule,
        sync=options.sync,
        microbatch_multiple=options.microbatch_multiple,
        max_sequences=options.max_sequences,
        on_empty=options.on_empty,
    )


_PLAIN = ("capacity", "cp_size", "tp_size", "pp_size", "vpp_size", "min_cp_size", "max_cp_size", "max_sequences")
_CHOICES = ("sharding", "on_empty", "sync")


def plain_options(options: StepOptions) -> dict[str, Any]:
    """Return the options by name as plain values, which ranks can send each other to compare.

    A scheduler is its class; what it was made with, and the cost model, are compared by the plans that come of them.

    Example:
        >>> found = plain_options(StepOptions(capacity=64, tp_size=2, cp_sizes=(4, 2)))
        >>> found["scheduler"], found["cp_sizes"], found["padding"]["tp"], found["max_sequences"]
        ('DynamicCP', [2, 4], 2, None)
    """
    given = {name: getattr(options, name) for name in _PLAIN}
    sizes = options.cp_sizes
    return {
        **{name: None if value is None else int(value) for name, value in given.items()},
        **{name: str(getattr(options, name)) for name in _CHOICES},
        "scheduler": type(get_scheduler(options.scheduler)).__name__,
        "microbatch_group_size": int(options.microbatch_multiple),
        "padding": {name: int(getattr(options.rule, name)) for name in ("tp", "block", "sequence_parallel")},
        "cp_sizes": str(sizes) if isinstance(sizes, str) else sorted(set(as_lengths("cp_sizes", sizes).tolist())),
    }
