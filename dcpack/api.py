"""The three calls that most users need: `pack`, `balance`, `plan`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, as_lengths, check_choice
from dcpack._plan_faults import refuse_huge_bins
from dcpack.balancing import get_balancer
from dcpack.bounds import packing_lower_bound
from dcpack.cost import CostModel, get_cost
from dcpack.errors import ArgumentError
from dcpack.packing import (
    EFFORTS,
    OVERLONG_POLICIES,
    PACKERS,
    Bins,
    Pieces,
    apply_overlong,
    coarse_lengths,
    concat_then_split,
    get_packer,
    merge_groups,
    refill,
)
from dcpack.padding import (
    PaddingRule,
    check_capacity,
    longest_fitting_length,
    padded_lengths,
    padding_multiple,
    row_capacity,
)
from dcpack.plans import Plan
from dcpack.scheduling import Budget, Scheduler, make_plan

__all__ = ["DEFAULT_COST", "balance", "pack", "plan"]

DEFAULT_COST = "llama3-8b@h100"
"""The cost model of `plan` where none is given, as `dcpack.cost.get_cost` takes it."""


def pack(
    lengths: Any,
    *,
    capacity: int,
    method: str = "best_fit_decreasing",
    padding: PaddingRule | None = None,
    max_sequences: int | None = None,
    overlong: str = "error",
    groups: Any = None,
    effort: str = "exact",
) -> Plan:
    """Pack sequences into as few bins as the method manages, without ranks.

    Args:
        lengths: int64[n], real tokens of each sequence; sequences of length 0 end in no bin.
        capacity: padded tokens that a bin holds.
        method: ``"best_fit_decreasing"``, ``"first_fit_decreasing"``, ``"first_fit"``, ``"next_fit"``, or
            ``"concat_then_split"``, which fills bins to the last token by cutting sequences.
        padding: the padding rule at CP size 1; None pads nothing.
        max_sequences: most sequences in a bin, or None.
        overlong: what to do with sequences that fit in no bin: ``"error"``, ``"truncate"``, ``"split"``, ``"drop"`` or
            ``"single"`` (alone in a bin that is marked oversized). `concat_then_split` cuts them anyway.
        groups: int64[n], the group of each sequence, any numbers from 0 on; all sequences of a group share a bin. None
            is no groups. Not for `concat_then_split`.
        effort: ``"exact"``, the bins of the method; for `best_fit_decreasing` also ``"fast"``, with lengths rounded up
            to 10 significant bits, hence less time and at most a little more bins, or ``"best"``, which packs the
            emptiest bins again where the bins are more than the lower bound.

    Returns:
        A plan with ``num_ranks`` 0; `Plan.bounds` holds ``num_bins``, the lower bound of any packing.

    Raises:
        ArgumentError: an argument of the wrong type or range.
        InfeasibleError: a sequence is longer than a bin and `overlong` is ``"error"``, or a group fits in no bin; all
            such are named.

    Example:
        >>> plan = pack([5, 4, 3, 3], capacity=8)
        >>> plan.num_bins, plan.sequence_ids.tolist(), plan.offsets.tolist()
        (2, [0, 2, 1, 3], [0, 2, 4])
        >>> pack([5, 4, 3, 3], capacity=8, groups=[0, 1, 1, 2]).sequence_ids.tolist()
        [1, 2, 0, 3]
    """
    lengths = as_lengths("lengths", lengths)
    capacity = check_capacity(capacity, padding)
    check_choice("method", method, (*PACKERS, "concat_then_split"))
    check_choice("overlong", overlong, OVERLONG_POLICIES)
    if check_choice("effort", effort, EFFORTS) != "exact" and method != "best_fit_decreasing":
        raise ArgumentError(f"effort={effort!r} needs method='best_fit_decreasing', got method={method!r}")
    if groups is not None and method == "concat_then_split":
        raise ArgumentError("groups cannot be kept whole by method='concat_then_split', which cuts sequences")
    row = row_capacity(capacity, padding)
    if method == "concat_then_split":
        cut = concat_then_split(lengths, row, multiple=padding_multiple(padding, 1), max_sequences=max_sequences)
        parts = (cut.sequence_ids, cut.starts, cut.lengths, cut.offsets)
        return _rankless_plan(lengths, parts, np.zeros_like(lengths), (), capacity, padding, max_sequences)
    pieces = apply_overlong(lengths, longest_fitting_length(capacity, 1, padding), overlong)
    padded = padded_lengths(pieces.lengths, 1, padding)
    bins = _pack_pieces(pieces, padded, row, method, max_sequences, groups, effort)
    items = bins.items
    parts = (pieces.sequence_ids[items], pieces.starts[items], pieces.lengths[items], bins.offsets)
    oversized = bins.bin_of(padded.size)[pieces.oversized]
    return _rankless_plan(lengths, parts, pieces.dropped, oversized, capacity, padding, max_sequences)


def _pack_pieces(
    pieces: Pieces,
    padded: Int64Array,
    row: int,
    method: str,
    max_sequences: int | None,
    groups: Any,
    effort: str,
) -> Bins:
    """Pack pieces or, where there are groups, whole groups of them."""
    lengths, sizes, alone, merged = padded, None, pieces.oversized, None
    if groups is not None:
        groups = as_lengths("groups", groups)
        if groups.size != pieces.dropped.size:
            raise ArgumentError(f"groups must name one for each of {pieces.dropped.size} sequences, got {groups.size}")
        of_each = groups[pieces.sequence_ids]
        merged = merge_groups(padded, of_each, row, max_sequences=max_sequences, alone=alone)
        lengths, sizes, alone = merged.lengths, merged.sizes, merged.alone
    limits: dict[str, Any] = {"max_sequences": max_sequences, "alone": alone, "sizes": sizes}
    bins = get_packer(method)(coarse_lengths(lengths, row) if effort == "fast" else lengths, row, **limits)
    if effort == "best":
        fewest = packing_lower_bound(lengths, row, max_sequences=None if groups is not None else max_sequences)
        bins = refill(bins, lengths, row, enough=fewest, **limits)
    return bins if merged is None else merged.apart(bins)


def _rankless_plan(
    lengths: Int64Array,
    parts: tuple[Int64Array, Int64Array, Int64Array, Int64Array],
    dropped: Int64Array,
    oversized_bins: Any,
    capacity: int,
    padding: PaddingRule | None,
    max_sequences: int | None,
) -> Plan:
    sequence_ids, starts, entry_lengths, offsets = parts
    nowhere = np.full(offsets.size - 1, -1, np.int64)
    oversized = np.zeros(offsets.size - 1, np.bool_)
    oversized[np.asarray(oversized_bins, np.int64)] = True
    entry_bin = np.repeat(np.arange(nowhere.size), np.diff(offsets))
    fitting = padded_lengths(entry_lengths, 1, padding)[~oversized[entry_bin]]
    fewest = packing_lower_bound(fitting, row_capacity(capacity, padding), max_sequences=max_sequences)
    result = Plan(
        microbatch=nowhere,
        first_rank=nowhere,
        cp_size=np.ones_like(nowhere),
        row=nowhere,
        oversized=oversized,
        dummy=np.zeros_like(oversized),
        offsets=offsets,
        sequence_ids=sequence_ids,
        starts=starts,
        entry_lengths=entry_lengths,
        lengths=lengths,
        dropped=dropped,
        num_ranks=0,
        num_microbatches=0,
        rows_per_rank=0,
        capacity=capacity,
        padding=padding,
        bounds={"num_bins": fewest + int(oversized.sum())},
    )
    refuse_huge_bins(result)
    result.validate()
    return result


def balance(
    costs: Any,
    *,
    num_parts: int,
    method: str = "karmarkar_karp",
    equal_size: bool = False,
    effort: str = "best",
) -> Int64Array:
    """Deal items to parts so that the costliest part costs as little as the method manages.

    Args:
        costs: [n], integers or floats, finite and at least 0. They are rounded to integers before they are compared, so
            that every machine decides alike.
        num_parts: number of parts; none is empty where there are at least as many items.
        method: ``"karmarkar_karp"`` or ``"lpt"``.
        equal_size: sizes of parts differ by at most 1.
        effort: ``"fast"`` is the method alone; ``"best"`` then moves and swaps items between parts, which never makes
            the costliest part cost more.

    Returns:
        int64[n], the part of each item.

    Raises:
        ArgumentError: costs that are negative, NaN or infinite (all are named), or an argument out of range.

    Example:
        >>> parts = balance([8, 7, 6, 5, 4], num_parts=2)
        >>> sorted(int(np.array([8, 7, 6, 5, 4])[parts == p].sum()) for p in range(2))
        [15, 15]
    """
    return get_balancer(method)(costs, num_parts, equal_size=equal_size, effort=effort)


def plan(
    lengths: Any,
    *,
    num_ranks: int,
    capacity: int,
    scheduler: str | Scheduler = "dynamic_cp",
    cost: CostModel | None = None,
    cp_sizes: str | Sequence[int] = "powers_of_two",
    min_cp_size: int = 1,
    max_cp_size: int | None = None,
    padding: PaddingRule | None = None,
    sync: str = "microbatch",
    microbatch_multiple: int = 1,
    max_sequences: int | None = None,
    on_empty: str = "error",
    overlong: str = "error",
    num_heads: int | Sequence[int] | None = None,
    max_groups: int | None = None,
    budgets: Sequence[Budget] = (),
    groups: Any = None,
    max_displacement: int | None = None,
    effort: str | None = None,
) -> Plan:
    """Plan one step: which sequences share a bin, on which ranks, over how many of them, in which micro-batch.

    A pure function: the same arguments give the same plan in any process on any machine.

    Args:
        lengths: int64[n], real tokens of every sequence of the global batch; sequences of length 0 end in no bin.
        num_ranks: ranks of the DPxCP domain.
        capacity: padded tokens of one row on one rank.
        scheduler: ``"dynamic_cp"``, ``"packing_aware"``, ``"uniform_cp"``, ``"balanced"``, ``"local_gain"``,
            ``"in_order"``, or an object of your own (`dcpack.scheduling.Scheduler`).
        cost: the cost model that prices `Plan.bounds`, and that says how many ranks a node has; default
            `DEFAULT_COST`, a 7B-class model on H100. `dynamic_cp`, `uniform_cp`, `balanced` and `local_gain`
            minimise it; `packing_aware` and `in_order` decide by rules of their own.
        cp_sizes: legal CP sizes: ``"powers_of_two"``, ``"divisors"``, ``"any"`` or the sizes; see
            `dcpack.topology.legal_cp_sizes`. `in_order`, `balanced` and `local_gain` use the smallest legal one;
            `uniform_cp` those that divide the ranks.
        min_cp_size: smaller sizes are not legal.
        max_cp_size: larger sizes are not legal, the whole domain included.
        padding: the padding rule; None pads nothing (then the lengths must divide by what the sharding needs).
        sync: ``"microbatch"`` or ``"step"``, when ranks meet; for schedulers that minimise the step time.
        microbatch_multiple: the number of micro-batches is a multiple of it (virtual pipeline stages).
        max_sequences: most sequences in a bin, or None.
        on_empty: where sequences are too few to give each rank work: ``"error"``, or ``"dummy"`` to add bins with one
            zero-weight sequence.
        overlong: what to do with sequences that fit on no legal CP size: ``"error"``, ``"truncate"``, ``"split"``,
            ``"drop"`` or ``"single"``.
        num_heads: head counts that every CP size must divide, as Ulysses deals heads to ranks; None is no such limit.
        max_groups: how many different CP groups of two ranks or more a job may ever create: CP sizes are left out, the
            smallest first, until no batch can ask for more (`dcpack.topology.limit_cp_groups`).
        budgets: hard limits of every bin beside its tokens (`dcpack.scheduling.Budget`).
        groups: int64[n], the group of each sequence, any numbers from 0 on; all sequences of a group are in one
            micro-batch (not in one bin). None is no groups.
        max_displacement: how many micro-batches a sequence may be away from where `in_order` puts it, at the smallest
            legal CP size that divides the ranks and holds the longest sequence; None is no limit.
        effort: ``"fast"``, ``"balanced"`` (None) or ``"best"``: how many candidates and moves are tried, never how much
            time is spent. `budgets`, `groups`, `max_displacement` and `effort` are for `dynamic_cp`; other schedulers
            refuse them by name.

    Returns:
        A validated plan. `Plan.bounds` holds lower bounds of the step time and of the micro-batches.

    Raises:
        ArgumentError: an argument of the wrong type or range.
        InfeasibleError: no plan was found; names the sequences, their lengths and the limits.

    Example:
        >>> step = plan([150, 60, 30], num_ranks=4, capacity=100)
        >>> step.num_microbatches, step.cp_size.tolist()
        (1, [2, 2])
        >>> plan([900], num_ranks=8, capacity=100)
        Traceback (most recent call last):
        ...
        dcpack.errors.InfeasibleError: 1 sequence is longer than the limit of 800 tokens (100 x 8 ranks): sequence 0 \
has 900
    """
    return make_plan(
        lengths,
        num_ranks=num_ranks,
        capacity=capacity,
        scheduler=scheduler,
        cost=get_cost(DEFAULT_COST) if cost is None else cost,
        cp_sizes=cp_sizes,
        min_cp_size=min_cp_size,
        max_cp_size=max_cp_size,
        padding=padding,
        sync=sync,
        microbatch_multiple=microbatch_multiple,
        max_sequences=max_sequences,
        on_empty=on_empty,
        overlong=overlong,
        num_heads=num_heads,
        max_groups=max_groups,
        budgets=budgets,
        groups=groups,
        max_displacement=max_displacement,
        effort=effort,
    )
