"""Measured times and the work that they cover."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpack._checks import (
    BoolArray,
    Float64Array,
    Int64Array,
    as_lengths,
    as_real,
    check_choice,
    check_flag,
    check_int,
)
from dcpack.cost.attention import AttentionPattern, count_pairs
from dcpack.errors import ArgumentError
from dcpack.topology import crosses_node

if TYPE_CHECKING:
    from dcpack.plans import Plan

__all__ = ["BinTiming", "StepRecorder", "StepTiming", "WorkTable", "tabulate"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class BinTiming:
    """The time of each rank of one bin, for example from a benchmark.

    Args:
        lengths: int64[n], padded tokens of the sequences of the bin, over all its ranks.
        time: seconds, above 0.
        cp_size: ranks that share the bin.
        crosses_node: whether those ranks lie on more than one node.

    Raises:
        ArgumentError: an argument of the wrong type or range.

    Example:
        >>> BinTiming(lengths=[4096, 512], time=0.31, cp_size=2).lengths.tolist()
        [4096, 512]
    """

    lengths: Any
    time: float
    cp_size: int = 1
    crosses_node: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "lengths", as_lengths("lengths", self.lengths))
        object.__setattr__(self, "time", as_real("time", self.time, positive=True))
        object.__setattr__(self, "cp_size", check_int("cp_size", self.cp_size, minimum=1))
        object.__setattr__(self, "crosses_node", check_flag("crosses_node", self.crosses_node))


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class StepTiming:
    """The time of one planned step: of the whole step, or of what one rank computed in it.

    Args:
        plan: the plan of the step, with ranks.
        time: seconds, above 0, without the optimizer and what else does not depend on the plan where that is long.
        sync: for the whole step, when ranks meet: ``"microbatch"`` makes it the sum over micro-batches of the slowest
            rank, ``"step"`` the slowest sum.
        rank: None for the whole step, or the plan rank that worked for `time` seconds, waiting for others left out.

    Raises:
        ArgumentError: an argument of the wrong type or range, or a plan without ranks.

    Example:
        >>> import dcpack
        >>> StepTiming(plan=dcpack.plan([64, 32], num_ranks=2, capacity=64), time=0.2).sync
        'microbatch'
    """

    plan: Plan
    time: float
    sync: str = "microbatch"
    rank: int | None = None

    def __post_init__(self) -> None:
        # Plans import cost models, so that the class cannot be had here.
        if not all(hasattr(self.plan, name) for name in ("num_ranks", "bin_times", "entry_padded_lengths")):
            raise ArgumentError(f"plan must be a Plan, got {type(self.plan).__name__}")
        object.__setattr__(self, "time", as_real("time", self.time, positive=True))
        check_choice("sync", self.sync, ("microbatch", "step"))
        if self.plan.num_ranks == 0:
            raise ArgumentError("plan must have ranks; make it with dcpack.plan")
        if self.rank is not None:
            last = self.plan.num_ranks - 1
            object.__setattr__(self, "rank", check_int("rank", self.rank, minimum=0, maximum=last))


class StepRecorder:
    """Collects the times of real steps together with their plans, for `MeasuredCost.fit`.

    Args:
        sync: when ranks meet, ``"microbatch"`` or ``"step"``.
        warmup: steps to leave out at the start, which compile and allocate.
        max_samples: samples that are kept, the newest ones.

    Raises:
        ArgumentError: an argument of the wrong type or range.

    Example:
        >>> import dcpack
        >>> recorder = StepRecorder(warmup=1)
        >>> for seconds in (9.0, 0.2, 0.21):
        ...     recorder.record(dcpack.plan([64, 32], num_ranks=2, capacity=64), seconds)
        >>> [sample.time for sample in recorder.samples]
        [0.2, 0.21]
    """

    def __init__(self, *, sync: str = "microbatch", warmup: int = 1, max_samples: int = 1000) -> None:
        self._sync = check_choice("sync", sync, ("microbatch", "step"))
        self._to_skip = check_int("warmup", warmup, minimum=0)
        kept = check_int("max_samples", max_samples, minimum=1, maximum=2**31 - 1)
        self._samples: deque[StepTiming] = deque(maxlen=kept)

    def record(self, plan: Plan, time: float, *, rank: int | None = None) -> None:
        """Add one step: its plan, and the seconds of the whole step or (with `rank`) of one rank's own work.

        Raises:
            ArgumentError: as `StepTiming`.
        """
        sample = StepTiming(plan=plan, time=time, sync=self._sync, rank=rank)
        if self._to_skip:
            self._to_skip -= 1
        else:
            self._samples.append(sample)

    @property
    def samples(self) -> tuple[StepTiming, ...]:
        """What was recorded, oldest first."""
        return tuple(self._samples)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class WorkTable:
    """Samples as arrays: a sample is a sum of groups, a group lasts as long as its slowest cell, a cell is bins.

    A cell is what one rank does between two meetings: a whole step, one micro-batch, or one bin. Worked example, one
    step of two ranks that meet in each of two micro-batches, rank 0 with bins 0 and 2, rank 1 with bins 1 and 3:

        part_bin 0 1 2 3; part_cell 0 1 2 3; cell_group 0 0 1 1; group_sample 0 0

    Attributes:
        sums: float64[b, 2], tokens and pairs of each bin.
        cp_size: int64[b].
        crosses: bool[b].
        part_bin: int64[p], bin of each (bin, cell) that belong together.
        part_cell: int64[p].
        cell_group: int64[c], ascending.
        group_sample: int64[g], ascending.
        times: float64[n], seconds of the samples.
    """

    sums: Float64Array
    cp_size: Int64Array
    crosses: BoolArray
    part_bin: Int64Array
    part_cell: Int64Array
    cell_group: Int64Array
    group_sample: Int64Array
    times: Float64Array

    def rows(self, bin_rows: Float64Array, bin_times: Float64Array) -> Float64Array:
        """Return float64[n, k]: `bin_rows` (float64[b, k]) summed over the bins that decide the time of each sample.

        Those are the bins of the slowest cell of each group, by `bin_times` (float64[b]); the first of equals.
        """
        cell_times = np.bincount(self.part_cell, bin_times[self.part_bin], minlength=self.cell_group.size)
        starts = np.flatnonzero(np.diff(self.cell_group, prepend=-1))
        slowest = np.maximum.reduceat(cell_times, starts)
        candidates = np.flatnonzero(cell_times == slowest[self.cell_group])
        chosen = candidates[np.unique(self.cell_group[candidates], return_index=True)[1]]
        is_chosen = np.zeros(self.cell_group.size, np.bool_)
        is_chosen[chosen] = True
        parts = np.flatnonzero(is_chosen[self.part_cell])
        sample = self.group_sample[self.cell_group[self.part_cell[parts]]]
        values = bin_rows[self.part_bin[parts]].T
        rows = np.zeros((self.times.size, bin_rows.shape[1]))
        for k, column in enumerate(values):
            rows[:, k] = np.bincount(sample, column, minlength=self.times.size)
        return rows


def tabulate(
    samples: Sequence[BinTiming | StepTiming], attention: AttentionPattern, node_size: int | None
) -> WorkTable:
    """Return the arrays of `samples`.

    Example:
        >>> import dcpack
        >>> from dcpack.cost.attention import full_pairs
        >>> plan = dcpack.plan([4, 3, 2, 2], num_ranks=2, capacity=4)
        >>> table = tabulate([StepTiming(plan=plan, time=1.0)], full_pairs, 8)
        >>> table.rows(table.sums, table.sums[:, 1]).tolist()  # micro-batches of (4, 3) and of (2, 2)
        [[6.0, 20.0]]
    """
    pieces: list[tuple[Any, ...]] = []
    num_bins = num_cells = num_groups = 0
    for index, sample in enumerate(samples):
        work = (
            _bin_work(sample, attention) if isinstance(sample, BinTiming) else _step_work(sample, attention, node_size)
        )
        sums, cp_size, crosses, part_bin, part_cell, cell_group = work
        groups = int(cell_group[-1]) + 1
        shifted = (part_bin + num_bins, part_cell + num_cells, cell_group + num_groups)
        pieces.append((sums, cp_size, crosses, *shifted, np.full(groups, index)))
        num_bins, num_cells, num_groups = num_bins + len(sums), num_cells + cell_group.size, num_groups + groups
    names = ("sums", "cp_size", "crosses", "part_bin", "part_cell", "cell_group", "group_sample")
    arrays = {name: np.concatenate(parts) for name, parts in zip(names, zip(*pieces, strict=True), strict=True)}
    return WorkTable(**arrays, times=np.array([sample.time for sample in samples]))


def _columns(lengths: Int64Array, attention: AttentionPattern) -> Float64Array:
    return np.stack([lengths.astype(np.float64), count_pairs(attention, lengths)], axis=1)


def _bin_work(sample: BinTiming, attention: AttentionPattern) -> tuple[Any, ...]:
    sums = _columns(sample.lengths, attention).sum(axis=0, keepdims=True)
    one = np.zeros(1, np.int64)
    return sums, np.array([sample.cp_size]), np.array([sample.crosses_node]), one, one, one


def _step_work(sample: StepTiming, attention: AttentionPattern, node_size: int | None) -> tuple[Any, ...]:
    plan = sample.plan
    sums = np.zeros((plan.num_bins, 2))
    np.add.at(sums, plan.entry_bin, _columns(plan.entry_padded_lengths, attention))
    crosses = crosses_node(plan.first_rank, plan.cp_size, node_size)
    if sample.rank is not None:
        part_bin = plan.bins_of_rank(sample.rank)
        return sums, plan.cp_size, crosses, part_bin, np.zeros_like(part_bin), np.zeros(1, np.int64)
    part_bin = np.repeat(np.arange(plan.num_bins), plan.cp_size)
    first_part = np.cumsum(plan.cp_size) - plan.cp_size
    rank = np.arange(part_bin.size) - np.repeat(first_part - plan.first_rank, plan.cp_size)
    if sample.sync == "step":
        return sums, plan.cp_size, crosses, part_bin, rank, np.zeros(plan.num_ranks, np.int64)
    cell = plan.microbatch[part_bin] * plan.num_ranks + rank
    return sums, plan.cp_size, crosses, part_bin, cell, np.repeat(np.arange(plan.num_microbatches), plan.num_ranks)
