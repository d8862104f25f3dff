"""Give all ranks of a micro-batch an optional field, or none of them.

A vision encoder under FSDP must run on all ranks of a micro-batch or on none: its collectives would wait otherwise.
First bins are regrouped, so that few micro-batches mix; where one still does, the bins without the field get a
zero-weight stand-in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dcpack._checks import BoolArray, Int64Array, check_kinds, check_names
from dcpack.errors import ArgumentError
from dcpack.exchange.table import SampleTable
from dcpack.plans import Plan

__all__ = ["align_fields"]


def align_fields(plan: Plan, table: SampleTable, fields: Sequence[str]) -> tuple[Plan, dict[str, BoolArray]]:
    """Regroup bins so that micro-batches agree on `fields`, and say which bins need a stand-in.

    Only bins of the same CP size change places, so the partition of the ranks stays as it was. The time of single
    micro-batches may change, the work of the step does not. Pure, and the same on every process.

    Args:
        plan: the plan.
        table: what the samples are.
        fields: names of optional fields, not per-token ones; the first sorts first.

    Returns:
        The regrouped plan, and for each field bool[num_bins]: bins to be given a zero-weight stand-in.

    Raises:
        ArgumentError: a per-token field, or a plan or table that is none.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import gather_samples
        >>> samples = [{"input_ids": [1, 2]}, {"input_ids": [3, 4], "image": np.ones((1, 4))}]
        >>> table = dcpack.run_ranks(1, lambda c: gather_samples(c, samples))[0].table
        >>> plan = dcpack.plan(table.lengths, num_ranks=2, capacity=2)      # one micro-batch, a sequence on each rank
        >>> aligned, needed = align_fields(plan, table, ["image"])
        >>> aligned.to_sample_id_groups(), needed["image"].tolist()         # rank 1 has no image and gets a stand-in
        ([[[1], [0]]], [False, True])
    """
    check_kinds(plan=(plan, Plan), table=(table, SampleTable))
    fields = check_names("fields", fields)
    if not fields:
        return plan, {}
    per_token = sorted({kind.name for kind in table.kinds if kind.per_token} & set(fields))
    if per_token:
        raise ArgumentError(f"fields must not be per-token fields, got {per_token}")
    held = np.stack([_bins_with(plan, table, name) for name in fields], axis=1)
    order = _regroup(plan, held)
    aligned = _take_bins(plan, order)
    held = held[order]
    needed = {}
    for f, name in enumerate(fields):
        somewhere = np.zeros(aligned.num_microbatches, np.bool_)
        somewhere[aligned.microbatch[held[:, f]]] = True
        needed[name] = somewhere[aligned.microbatch] & ~held[:, f]
    aligned.validate()
    return aligned, needed


def _bins_with(plan: Plan, table: SampleTable, name: str) -> BoolArray:
    """Tell which bins receive the field: with the first piece of a sample that has it."""
    scalar = {kind.name for kind in table.kinds if kind.is_scalar}
    has = table.has_field(name)[plan.sequence_ids] & ((plan.starts == 0) | (name in scalar))
    return np.bincount(plan.entry_bin[has], minlength=plan.num_bins) > 0


def _regroup(plan: Plan, held: BoolArray) -> Int64Array:
    """Return which bin goes into the place of each bin: per CP size, those with fields into the first micro-batches."""
    order = np.arange(plan.num_bins)
    keys = [~held[:, f] for f in reversed(range(held.shape[1]))]
    for size in np.unique(plan.cp_size):
        places = np.flatnonzero(plan.cp_size == size)
        places = places[np.argsort(plan.microbatch[places], kind="stable")]
        order[places] = places[np.lexsort([key[places] for key in keys])]
    return order


def _take_bins(plan: Plan, order: Int64Array) -> Plan:
    """Return the plan whose bin b, in the old place of b, holds what bin ``order[b]`` held."""
    sizes = np.diff(plan.offsets)[order]
    offsets = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    entries = np.repeat(plan.offsets[order] - offsets[:-1], sizes) + np.arange(int(offsets[-1]))
    return replace(
        plan,
        offsets=offsets,
        oversized=plan.oversized[order],
        dummy=plan.dummy[order],
        sequence_ids=plan.sequence_ids[entries],
        starts=plan.starts[entries],
        entry_lengths=plan.entry_lengths[entries],
    )
