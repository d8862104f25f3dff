"""The invariants of a plan, each as a vectorised check that names every offender."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from dcpack._checks import BoolArray, list_offenders
from dcpack.errors import InfeasibleError
from dcpack.layout import MAX_OFFSET
from dcpack.padding import row_capacity

if TYPE_CHECKING:
    from dcpack.plans import Plan

__all__ = ["plan_faults", "refuse_huge_bins"]


def refuse_huge_bins(plan: Plan) -> None:
    """Raise `InfeasibleError` where a bin is over what int32 offsets can hold: no kernel could take it."""
    if huge := np.flatnonzero(plan.bin_padded_tokens > MAX_OFFSET).tolist():
        listed = list_offenders([f"bin {b} of {plan.bin_padded_tokens[b]}" for b in huge])
        raise InfeasibleError(f"bins over the {MAX_OFFSET} padded tokens that int32 offsets can hold: {listed}")


def plan_faults(plan: Plan) -> list[str]:
    """Return what is wrong with `plan`, one text a broken invariant; empty for a valid plan."""
    return [*_entry_faults(plan), *_bin_faults(plan), *_rank_faults(plan)]


def _entry_faults(plan: Plan) -> list[str]:
    ids, starts, ends = plan.sequence_ids, plan.starts, plan.starts + plan.entry_lengths
    if bad := np.flatnonzero((ids < 0) | (ids >= plan.num_sequences)).tolist():
        return [f"unknown sequences: {list_offenders([f'entry {e} names {ids[e]}' for e in bad])}"]
    bad_part = (starts < 0) | (plan.entry_lengths < 1) | (starts > plan.lengths[ids] - plan.entry_lengths)
    faults = _faults("parts outside their sequence", bad_part, lambda e: f"{ids[e]}[{starts[e]}:{ends[e]}]")
    order = np.lexsort((starts, ids))
    overlap = (ids[order][1:] == ids[order][:-1]) & (starts[order][1:] < ends[order][:-1])
    faults += _faults("tokens in two entries", overlap, lambda i: f"sequence {ids[order][i]}")
    covered = np.bincount(ids, weights=plan.entry_lengths, minlength=plan.num_sequences).astype(np.int64)
    uncounted = (covered + plan.dropped != plan.lengths) | (plan.dropped < 0)
    faults += _faults(
        "tokens neither placed nor reported as dropped",
        uncounted,
        lambda s: f"sequence {s}: {covered[s]} placed, {plan.dropped[s]} dropped of {plan.lengths[s]}",
    )
    return faults


def _bin_faults(plan: Plan) -> list[str]:
    sizes = np.diff(plan.offsets)
    faults = _faults("dummy bins hold entries, others none", (sizes == 0) != plan.dummy, lambda b: f"bin {b}")
    if np.any(plan.cp_size < 1):
        return [*faults, "cp_size below 1"]
    limit = row_capacity(plan.capacity, plan.padding) * plan.cp_size
    over = (plan.bin_padded_tokens > limit) & ~plan.oversized
    faults += _faults(
        "over capacity", over, lambda b: f"bin {b}: {plan.bin_padded_tokens[b]} padded tokens of {limit[b]}"
    )
    faults += _faults("oversized bins not alone", plan.oversized & (sizes != 1), lambda b: f"bin {b}")
    huge = plan.bin_padded_tokens > MAX_OFFSET
    faults += _faults("over the int32 offsets", huge, lambda b: f"bin {b}: {plan.bin_padded_tokens[b]} tokens")
    illegal = ~np.isin(plan.cp_size, plan.cp_sizes)
    faults += _faults(f"CP size not in {plan.cp_sizes}", illegal, lambda b: f"bin {b}: {plan.cp_size[b]}")
    return faults


def _rank_faults(plan: Plan) -> list[str]:
    if plan.num_ranks == 0:
        placed = (plan.microbatch != -1) | (plan.first_rank != -1) | (plan.row != -1)
        return _faults("placed bins in a plan without ranks", placed, lambda b: f"bin {b}")
    outside = (plan.microbatch < 0) | (plan.microbatch >= plan.num_microbatches)
    outside |= (plan.row < 0) | (plan.row >= plan.rows_per_rank)
    if outside.any():
        return _faults("bins outside the micro-batches and rows", outside, lambda b: f"bin {b}")
    slot = plan.microbatch * plan.rows_per_rank + plan.row
    order = np.lexsort((plan.first_rank, slot))
    ends = (plan.first_rank + plan.cp_size)[order]
    is_first = np.concatenate([[True], np.diff(slot[order]) != 0]) if order.size else np.zeros(0, np.bool_)
    expected = np.where(is_first, 0, np.concatenate([[0], ends[:-1]]) if order.size else ends)
    is_last = np.concatenate([is_first[1:], [True]]) if order.size else is_first
    torn = (plan.first_rank[order] != expected) | (is_last & (ends != plan.num_ranks))
    faults = _faults(
        f"CP groups do not partition {plan.num_ranks} ranks",
        torn,
        lambda i: f"micro-batch {plan.microbatch[order][i]}, bin {order[i]}",
    )
    num_slots = plan.num_microbatches * plan.rows_per_rank
    if num_slots > plan.num_bins:
        return [f"micro-batches or rows without a bin: {num_slots} slots, {plan.num_bins} bins"]
    missing = np.bincount(slot, minlength=num_slots) == 0
    faults += _faults("micro-batches or rows without a bin", missing, lambda s: f"slot {s}")
    power = plan.cp_size & (plan.cp_size - 1) == 0
    all_powers = np.bincount(slot, weights=~power, minlength=num_slots)[slot] == 0
    unaligned = all_powers & (plan.first_rank % np.maximum(plan.cp_size, 1) != 0)
    faults += _faults("blocks not aligned to their size", unaligned, lambda b: f"bin {b}")
    return faults


def _faults(what: str, bad: BoolArray, describe: Callable[[int], str]) -> list[str]:
    """Return one text that names every offender, or nothing."""
    found = np.flatnonzero(bad).tolist()
    return [f"{what}: {list_offenders([describe(i) for i in found])}"] if found else []
