"""Data parallel only: pack and balance a window of micro-batches by cost."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dcpack._checks import Int64Array, check_flag, check_int, list_offenders
from dcpack.balancing import integer_costs
from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.scheduling.base import MicroBatch, Problem
from dcpack.scheduling.levelling import fill_slots, pack_items
from dcpack.scheduling.workload import (
    Slots,
    Workload,
    data_parallel_size,
    item_times,
    make_microbatches,
    workload_of,
)

__all__ = ["Balanced"]

_MOST_SLOTS = 2**24  # of one window; more are a mistake in rows_per_rank or microbatch_multiple


@dataclass(frozen=True, kw_only=True, slots=True)
class Balanced:
    """As few micro-batches as the packer's bins allow, and in them as little waiting as can be found.

    Best fit decreasing says how many micro-batches there are. Then sequences are spread over all their rows by cost, so
    that the sum over micro-batches of the slowest rank (``sync="microbatch"``) or the slowest rank's sum (``"step"``)
    is small: dearest first to the rank that lacks most, or by tokens where they are too tight for that; then a local
    search exchanges single sequences. A micro-batch that must wait for one dear sequence is given as much other work
    as it holds. The cost of a sequence is its time alone in a bin, less that of an empty bin: exact for cost models
    whose time at the static CP size is linear in the columns, as that of every built-in one is at CP 1.

    The CP size is static: the smallest legal one (1 unless `min_cp_size` or `cp_sizes` says otherwise).

    Args:
        rows_per_rank: rows of each rank in each micro-batch.
        window: micro-batches planned together. Sequences are taken in the order given, and each window is as many as
            pack into it, so none leaves its window. None plans all together, which needs fewest micro-batches and
            balances best.
        pipeline_order: put micro-batches with little work at both ends of the window, where a pipeline fills and
            drains; else the micro-batches with the most work come first.

    Raises:
        ArgumentError: an option of the wrong type or range.

    Example:
        >>> import dcpack
        >>> plan = dcpack.plan([7, 6, 3, 2], num_ranks=2, capacity=9, scheduler="balanced", cost=dcpack.QuadraticCost())
        >>> plan.to_sample_id_groups()
        [[[0, 3], [1, 2]]]
        >>> plan = dcpack.plan([7, 6, 3, 2], num_ranks=1, capacity=9, scheduler=Balanced(rows_per_rank=2))
        >>> plan.num_microbatches, plan.row.tolist()
        (1, [0, 1])
    """

    name = "balanced"

    rows_per_rank: int = 1
    window: int | None = None
    pipeline_order: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows_per_rank", check_int("rows_per_rank", self.rows_per_rank, minimum=1))
        if self.window is not None:
            object.__setattr__(self, "window", check_int("window", self.window, minimum=1))
        object.__setattr__(self, "pipeline_order", check_flag("pipeline_order", self.pipeline_order))

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        """Return the smallest legal size alone."""
        return legal[:1]

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        """Return the micro-batches; see `dcpack.scheduling.base.Scheduler`."""
        row_size = data_parallel_size(self.name, problem)
        bins = row_size * self.rows_per_rank  # of one micro-batch
        work = workload_of(problem, integer_costs(item_times(problem)))
        microbatches: list[MicroBatch] = []
        for items in self._windows(problem, work, bins):
            part = work.take(items)
            packed = pack_items(part)
            count = _num_microbatches(packed.num_bins, bins, problem.microbatch_multiple)
            slots = Slots(num_microbatches=count, num_ranks=row_size, num_rows=self.rows_per_rank, sync=problem.sync)
            _refuse_too_few(problem, items, slots)
            slot_of = fill_slots(part, slots, packed)
            assert slot_of is not None, "a packing into few enough bins can always be spread over all slots"
            if self.pipeline_order:
                slot_of = _small_at_both_ends(part, slots, slot_of)
            planned = make_microbatches(slots, slot_of, problem.cp_sizes[0])
            for group in (group for groups in planned for group in groups):
                group.items = items[group.items].tolist()
            microbatches += planned
        return microbatches

    def _windows(self, problem: Problem, work: Workload, bins: int) -> list[Int64Array]:
        """Return the items of each window, in the order given."""
        everything = np.arange(work.num_items)
        if self.window is None or work.num_items == 0:
            return [everything] if work.num_items else []
        if self.window % problem.microbatch_multiple:
            raise ArgumentError(
                f"window must be a multiple of microbatch_multiple, {problem.microbatch_multiple}, got {self.window}"
            )
        ends = [0]
        while ends[-1] < work.num_items:
            ends.append(_longest_prefix(work, ends[-1], self.window * bins))
        windows = [everything[start:end] for start, end in pairwise(ends)]
        if problem.on_empty == "dummy":
            return windows
        return _join_small(work, windows, bins, problem.microbatch_multiple)


def _num_microbatches(num_bins: int, bins_of_microbatch: int, multiple: int) -> int:
    fewest = -(-num_bins // bins_of_microbatch)
    return -(-fewest // multiple) * multiple


def _longest_prefix(work: Workload, start: int, num_bins: int) -> int:
    """Return an end such that the items from `start` to it pack into `num_bins` bins, by bisection."""
    tokens = np.cumsum(work.amounts[start:, 0])
    least = start + 1  # one item is one bin
    most = start + max(int(np.searchsorted(tokens, num_bins * int(work.limits[0]), side="right")), 1)
    while least < most:
        middle = (least + most + 1) // 2
        if pack_items(work.take(np.arange(start, middle))).num_bins <= num_bins:
            least = middle
        else:
            most = middle - 1
    return least


def _join_small(work: Workload, windows: list[Int64Array], bins: int, multiple: int) -> list[Int64Array]:
    """Join each window whose items are too few for its micro-batches to the one before it, the first to the second."""
    at = 0
    while len(windows) > 1 and at < len(windows):
        count = _num_microbatches(pack_items(work.take(windows[at])).num_bins, bins, multiple)
        if windows[at].size >= count * bins:
            at += 1
            continue
        first = max(at - 1, 0)
        windows[first : first + 2] = [np.concatenate(windows[first : first + 2])]
        at = first
    return windows


def _refuse_too_few(problem: Problem, items: Int64Array, slots: Slots) -> None:
    if slots.num_slots > _MOST_SLOTS:
        raise InfeasibleError(
            f"{slots.num_microbatches} micro-batches of {slots.num_ranks} bins and {slots.num_rows} rows a rank are "
            f"{slots.num_slots} bins; at most {_MOST_SLOTS} can be planned"
        )
    if items.size >= slots.num_slots or problem.on_empty == "dummy":
        return
    rows = f" and {slots.num_rows} rows a rank" if slots.num_rows > 1 else ""
    raise InfeasibleError(
        f"{items.size} sequences cannot give each of {problem.num_ranks} ranks work: {slots.num_microbatches} "
        f"micro-batches of {slots.num_ranks} bins{rows} need {slots.num_slots} sequences; there are "
        f"{list_offenders(problem.describe(items.tolist()))}; on_empty='dummy' fills up with empty sequences"
    )


def _small_at_both_ends(work: Workload, slots: Slots, slot_of: Int64Array) -> Int64Array:
    """Return the slots with micro-batches reordered: the cheapest first, the next last, and so on inwards."""
    size = slots.num_ranks * slots.num_rows
    microbatch = slot_of // size
    loads = np.zeros((slots.num_microbatches, slots.num_ranks), np.int64)
    np.add.at(loads, (microbatch, slot_of % slots.num_ranks), work.costs)
    ascending = np.argsort(loads.max(axis=1), kind="stable")
    place = np.empty_like(ascending)
    place[np.concatenate([ascending[0::2], ascending[1::2][::-1]])] = np.arange(slots.num_microbatches)
    return place[microbatch] * size + slot_of % size
