"""Placements that are given: rows of sequence ids, or the micro-batches of a scheduler, as slots."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dcpack._checks import Int64Array, list_offenders
from dcpack.errors import ArgumentError, PlanError
from dcpack.scheduling.base import MicroBatch, Problem
from dcpack.scheduling.workload import Slots

__all__ = ["slots_of_microbatches", "slots_of_rows"]


def slots_of_rows(
    problem: Problem, rows: Sequence[Sequence[Sequence[int]]], num_ranks: int, rows_per_rank: int | None
) -> tuple[Slots, Int64Array]:
    """Turn ``[rank][row] -> sequence ids`` into the slot of each item.

    Args:
        problem: the problem; ids without an item (no tokens, or dropped) may be in `rows` or not.
        rows: for each data-parallel rank the ids of each of its rows, as many rows on every rank.
        num_ranks: data-parallel ranks.
        rows_per_rank: rows of a micro-batch; None is all rows of a rank.

    Returns:
        The slots, and int64[p], the slot of each item.

    Raises:
        ArgumentError: another number of ranks, ragged rows, ids that are unknown, twice or missing (all are named), or
            sequences that were cut.
    """
    if len(rows) != num_ranks:
        raise ArgumentError(f"reference must give rows for {num_ranks} data-parallel ranks, got {len(rows)}")
    per_rank = len(rows[0])
    if ragged := [f"rank {r} has {len(given)}" for r, given in enumerate(rows) if len(given) != per_rank]:
        raise ArgumentError(
            f"reference must give each rank as many rows as rank 0, {per_rank}: {list_offenders(ragged)}"
        )
    num_rows = rows_per_rank or max(per_rank, 1)
    if per_rank % num_rows:
        raise ArgumentError(f"reference must give a multiple of rows_per_rank, {num_rows}, rows a rank, got {per_rank}")
    slots = Slots(num_microbatches=per_rank // num_rows, num_ranks=num_ranks, num_rows=num_rows, sync=problem.sync)
    sizes = [len(row) for given in rows for row in given]
    flat = np.fromiter((item for given in rows for row in given for item in row), np.int64, sum(sizes))
    # Row k of rank r is, in this order, number r * per_rank + k, and slot k * num_ranks + r.
    rank, row = np.divmod(np.repeat(np.arange(len(sizes)), sizes), max(per_rank, 1))
    _check_ids(problem, flat)
    slot_of_sequence = np.full(problem.num_sequences, -1, np.int64)
    slot_of_sequence[flat] = row * num_ranks + rank
    slot_of = slot_of_sequence[problem.sequence_ids]
    if missing := problem.sequence_ids[slot_of < 0].tolist():
        raise ArgumentError(f"reference misses sequences: {list_offenders(list(map(str, missing)))}")
    return slots, slot_of


def _check_ids(problem: Problem, ids: Int64Array) -> None:
    if unknown := ids[(ids < 0) | (ids >= problem.num_sequences)].tolist():
        listed = list_offenders(list(map(str, unknown)))
        raise ArgumentError(f"reference names sequences that are not among {problem.num_sequences}: {listed}")
    times = np.bincount(ids, minlength=problem.num_sequences)
    if twice := np.flatnonzero(times > 1).tolist():
        raise ArgumentError(f"reference names sequences more than once: {list_offenders(list(map(str, twice)))}")
    pieces = np.bincount(problem.sequence_ids, minlength=problem.num_sequences)
    if cut := np.flatnonzero(pieces > 1).tolist():
        texts = [f"sequence {s} into {pieces[s]}" for s in cut]
        raise ArgumentError(f"reference places whole sequences, some were cut: {list_offenders(texts)}")


def slots_of_microbatches(problem: Problem, microbatches: list[MicroBatch], num_ranks: int) -> tuple[Slots, Int64Array]:
    """Turn the micro-batches of a data-parallel scheduler into the slot of each item.

    Args:
        problem: the problem they were made for.
        microbatches: groups of the static CP size, of items that there are, in each row in the order of their ranks.
        num_ranks: data-parallel ranks.

    Returns:
        The slots, and int64[p], the slot of each item.

    Raises:
        PlanError: items that are twice or missing, or groups that are not one for each rank of a row.
    """
    num_rows = 1 + max((group.row for groups in microbatches for group in groups), default=0)
    slots = Slots(num_microbatches=len(microbatches), num_ranks=num_ranks, num_rows=num_rows, sync=problem.sync)
    _check_groups(problem, microbatches, num_ranks, num_rows)
    slot_of = np.empty(problem.lengths.size, np.int64)
    for m, groups in enumerate(microbatches):
        rank_in_row = [0] * num_rows
        for group in groups:
            slot_of[group.items] = (m * num_rows + group.row) * num_ranks + rank_in_row[group.row]
            rank_in_row[group.row] += 1
    return slots, slot_of


def _check_groups(problem: Problem, microbatches: list[MicroBatch], num_ranks: int, num_rows: int) -> None:
    faults = []
    for m, groups in enumerate(microbatches):
        counts = np.bincount([group.row for group in groups], minlength=num_rows).tolist()
        faults += [f"{n} groups in micro-batch {m}, row {row}" for row, n in enumerate(counts) if n != num_ranks]
        sizes = {group.cp_size for group in groups} - {problem.cp_sizes[0]}
        faults += [f"CP size {size} in micro-batch {m}" for size in sorted(sizes)]
    if faults:
        wanted = f"{num_ranks} groups of CP size {problem.cp_sizes[0]} in each row"
        raise PlanError(f"the reference scheduler must give {wanted}: {list_offenders(faults)}")
    items = np.array([item for groups in microbatches for group in groups for item in group.items], np.int64)
    times = np.bincount(items, minlength=problem.lengths.size)
    if wrong := np.flatnonzero(times != 1).tolist():
        texts = [f"item {i} {times[i]} times" for i in wrong]
        raise PlanError(f"the reference scheduler must give each item once: {list_offenders(texts)}")
