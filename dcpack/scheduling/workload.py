"""What the data-parallel schedulers balance: items with costs and amounts, and the slots that they go to.

A *slot* is one row of one rank in one micro-batch; it takes one bin. A *cell* is the work of one rank between two
meetings: its rows of one micro-batch where ranks meet in every micro-batch, all its rows of the step where they meet
once a step. A *meeting* is the set of cells that wait for each other. The step takes the sum over meetings of the
dearest cell. Example, 2 micro-batches, 3 ranks, 1 row, cells named by their numbers:

    sync             microbatch          step
    micro-batch 0    0 1 2  meeting 0    0 1 2  meeting 0
    micro-batch 1    3 4 5  meeting 1    0 1 2  meeting 0
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcpack._checks import Float64Array, Int64Array
from dcpack.errors import InfeasibleError
from dcpack.scheduling.base import Group, MicroBatch, Problem
from dcpack.topology import crosses_node

__all__ = ["Slots", "Workload", "data_parallel_size", "item_times", "make_microbatches", "workload_of"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Workload:
    """Items as a balancer of bins sees them.

    Attributes:
        costs: int64[n], cost of each item; additive over a bin.
        amounts: int64[n, d], what each item takes of each of d limits of a bin; column 0 is padded tokens, at least 1.
            An item that must be alone takes the whole limit of every column.
        limits: int64[d], what a bin holds.

    Example:
        >>> work = Workload(costs=np.array([9, 4]), amounts=np.array([[3], [2]]), limits=np.array([4]))
        >>> work.take(np.array([1])).costs
        array([4])
    """

    costs: Int64Array
    amounts: Int64Array
    limits: Int64Array

    @property
    def num_items(self) -> int:
        """Number of items."""
        return self.costs.size

    def take(self, items: Int64Array) -> Workload:
        """Return the workload of `items` (int64[k]) alone, in that order."""
        return Workload(costs=self.costs[items], amounts=self.amounts[items], limits=self.limits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slots:
    """How many rows there are, and which of them wait for each other.

    Slot s is rank ``s % num_ranks`` of row ``s // num_ranks % num_rows`` of micro-batch
    ``s // num_ranks // num_rows``.

    Attributes:
        num_microbatches: micro-batches.
        num_ranks: data-parallel ranks.
        num_rows: rows of a rank in a micro-batch.
        sync: ``"microbatch"`` or ``"step"``.

    Example:
        >>> slots = Slots(num_microbatches=2, num_ranks=3, num_rows=1, sync="microbatch")
        >>> slots.num_meetings, slots.rows_per_cell, slots.cell_of(np.arange(6)).tolist()
        (2, 1, [0, 1, 2, 3, 4, 5])
    """

    num_microbatches: int
    num_ranks: int
    num_rows: int
    sync: str

    @property
    def num_slots(self) -> int:
        """Number of slots, each for one bin."""
        return self.num_microbatches * self.num_ranks * self.num_rows

    @property
    def num_meetings(self) -> int:
        """How often the ranks meet."""
        return self.num_microbatches if self.sync == "microbatch" else 1

    @property
    def num_cells(self) -> int:
        """Number of cells; cell c is rank ``c % num_ranks`` at meeting ``c // num_ranks``."""
        return self.num_meetings * self.num_ranks

    @property
    def rows_per_cell(self) -> int:
        """Bins of a cell."""
        return self.num_slots // self.num_cells if self.num_cells else 0

    def cell_of(self, slot: Int64Array) -> Int64Array:
        """Return the cell of each of `slot` (int64[k])."""
        rank = slot % self.num_ranks
        if self.sync == "step":
            return rank
        return slot // (self.num_ranks * self.num_rows) * self.num_ranks + rank

    def cell_loads(self, costs: Int64Array, slot_of: Int64Array) -> Int64Array:
        """Return int64[num_meetings, num_ranks]: the summed cost of each cell.

        Args:
            costs: int64[n], cost of each item.
            slot_of: int64[n], slot of each item.
        """
        loads = np.zeros(self.num_cells, np.int64)
        np.add.at(loads, self.cell_of(slot_of), costs)  # unlike bincount, exact beyond 2**53
        return loads.reshape(self.num_meetings, self.num_ranks)


def data_parallel_size(name: str, problem: Problem) -> int:
    """Return the number of data-parallel ranks at the static CP size of `problem`.

    Raises:
        InfeasibleError: the CP size does not divide the ranks.
    """
    cp_size = problem.cp_sizes[0]
    if problem.num_ranks % cp_size:
        raise InfeasibleError(
            f"{name} needs a CP size that divides the ranks: {problem.num_ranks} ranks, CP size {cp_size}"
        )
    return problem.num_ranks // cp_size


def item_times(problem: Problem) -> Float64Array:
    """Return float64[p]: what each item adds to the time of a bin, in the unit of the cost model.

    That is its time alone in a bin, less the time of an empty bin, which every rank pays alike.
    """
    cp_size = problem.cp_sizes[0]
    columns = problem.cost.columns(problem.padded[0])
    with_empty = np.concatenate([np.zeros((1, columns.shape[1])), columns])
    sizes = np.full(len(with_empty), cp_size, np.int64)
    firsts = np.arange(0, problem.num_ranks, cp_size)
    crosses = bool(crosses_node(firsts, np.full_like(firsts, cp_size), problem.cost.node_size).any())
    times = problem.cost.bin_time(with_empty, sizes, np.full(len(with_empty), crosses))
    return np.maximum(times[1:] - times[0], 0.0)


def workload_of(
    problem: Problem, costs: Int64Array, amounts: Sequence[Int64Array] = (), limits: Sequence[int] = ()
) -> Workload:
    """Return the items of `problem` as a workload.

    Args:
        problem: the problem.
        costs: int64[p], cost of each item.
        amounts: further amounts, int64[p] each, beside padded tokens and (with `max_sequences`) the count.
        limits: the limit of each of them.
    """
    columns, bounds = [problem.padded[0]], [int(problem.limits[0])]
    if problem.max_sequences is not None:
        columns.append(np.ones_like(problem.lengths))
        bounds.append(min(problem.max_sequences, max(problem.lengths.size, 1)))
    # A limit beyond the whole batch is the same as none, and stays within int64 so.
    bounds += [min(limit, max(int(column.sum()), 1)) for column, limit in zip(amounts, limits, strict=True)]
    table = np.stack([*columns, *amounts], axis=1)
    limit_of = np.array(bounds, np.int64)
    return Workload(costs=costs, amounts=np.where(problem.oversized[:, np.newaxis], limit_of, table), limits=limit_of)


def make_microbatches(slots: Slots, slot_of: Int64Array, cp_size: int) -> list[MicroBatch]:
    """Return the micro-batches, groups by row and rank; a slot without items is a dummy.

    Args:
        slots: the slots.
        slot_of: int64[p], slot of each item.
        cp_size: ranks of every group.
    """
    order = np.argsort(slot_of, kind="stable")
    bounds = np.searchsorted(slot_of[order], np.arange(slots.num_slots + 1))
    items, starts = order.tolist(), bounds.tolist()
    groups = [
        Group(cp_size, items[starts[s] : starts[s + 1]], s // slots.num_ranks % slots.num_rows)
        for s in range(slots.num_slots)
    ]
    size = slots.num_ranks * slots.num_rows
    return [groups[start : start + size] for start in range(0, len(groups), size)]
