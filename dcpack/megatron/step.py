"""One call for the whole path: from an iterator over samples to iterators over packed micro-batches.

The first rank of each tensor-parallel group works on the first and the last stage (and where there are MTP layers): it
fetches, gathers lengths, plans, reroutes and packs, each stage for the fields that it computes on. One message tells
the other stages of the pipeline where sequences lie, and the last stage that it decided alike; one more tells the other
ranks of the tensor-parallel group the totals. A fault, or the end of the data, on any rank reaches all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dcpack._checks import as_lengths, check_int, check_kinds, exact_sum, list_offenders
from dcpack.comm import broadcast_tree
from dcpack.errors import ArgumentError
from dcpack.loss import count_valid_tokens
from dcpack.megatron.broadcast import broadcast_metadata
from dcpack.megatron.everywhere import everywhere
from dcpack.megatron.global_batch import EndOfData, GlobalBatch, get_batch_and_global_lengths
from dcpack.megatron.groups import ParallelGroups
from dcpack.megatron.iterators import make_data_iterators, pick_data_iterator
from dcpack.megatron.options import StepOptions, plain_options, plan_step
from dcpack.megatron.pack import MicroBatch, build_packed_microbatches, move_row
from dcpack.megatron.reroute import complete_sample, per_token_fields, reroute_samples
from dcpack.megatron.samples import Sample
from dcpack.megatron.stages import StageNeeds, fields_left_out, is_needed, needs_of_virtual_stages
from dcpack.plans import Plan

__all__ = ["StepData", "StepTotals", "wrap_data_iterator"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTotals:
    """Sums over the sequences of one step, exact Python integers.

    Attributes:
        num_microbatches: the same on every rank.
        num_sequences: sequences of the step.
        num_empty: sequences without a token, which were left out.
        num_tokens: real tokens.
        num_padded_tokens: tokens as they are computed on, each sequence padded for the CP size that it was assigned.
        squared_length_sum: sum of the squares of those padded lengths, which the work of attention grows with.
        global_valid_tokens: tokens that count in the loss, by which its sum is divided once.

    Example:
        >>> counts = {"num_microbatches": 1, "num_sequences": 2, "num_empty": 0, "global_valid_tokens": 7}
        >>> totals = StepTotals(**counts, num_tokens=9, num_padded_tokens=12, squared_length_sum=80)
        >>> totals.num_padded_tokens - totals.num_tokens
        3
    """

    num_microbatches: int
    num_sequences: int
    num_empty: int
    num_tokens: int
    num_padded_tokens: int
    squared_length_sum: int
    global_valid_tokens: int


@dataclass(frozen=True, kw_only=True, eq=False)
class StepData:
    """What a rank trains on in one step.

    Attributes:
        data_iterator: over this rank's micro-batches, a list with one for each virtual stage where there are several;
            None in place of each off the first rank of a tensor-parallel group.
        totals: sums over the step, on every rank.
        plan: the plan, on ranks that made it, else None.

    Example:
        >>> import dcpack
        >>> from dcpack.megatron import build_groups
        >>> def fn(communicator):
        ...     groups = build_groups(communicator, dcpack.Topology(axes=("dp",), sizes=(1,)))
        ...     samples = iter([{"tokens": np.arange(4), "padded_seq_len": 4}])
        ...     step = wrap_data_iterator(samples, groups, StepOptions(capacity=8), num_microbatches=1)
        ...     return len(list(step.data_iterator)), step.totals.num_tokens
        >>> dcpack.run_ranks(1, fn)
        [(1, 4)]
    """

    data_iterator: Any
    totals: StepTotals
    plan: Plan | None


@dataclass(frozen=True, kw_only=True, slots=True)
class _Own:
    """What a rank made of its own data."""

    rows: list[MicroBatch]
    totals: StepTotals
    plan: Plan


@dataclass(frozen=True, kw_only=True, slots=True)
class _Rows:
    """What a rank without data of its own was told."""

    rows: list[MicroBatch]
    totals: StepTotals


def wrap_data_iterator(
    data_iterator: Any,
    groups: ParallelGroups,
    options: StepOptions,
    *,
    num_microbatches: int,
    mtp_stages: Sequence[int] = (),
    to_host: Callable[[Any], Any] = np.asarray,
    to_device: Callable[[Any], Any] | None = None,
) -> StepData:
    """Read one step, plan it, move every sequence to its ranks and return iterators over the packed micro-batches.

    Collective over all ranks of the mesh.

    Args:
        data_iterator: over samples (see `unpack_samples`), or a list with one for each virtual stage. Needed on the
            first rank of a tensor-parallel group on the first and last stage, and where there are MTP layers; all of
            them, and all CP ranks of one data-parallel rank, must yield the same. Elsewhere it is not read.
        groups: this rank's groups.
        options: how to plan, the same on all ranks; cost models, and what schedulers were made with, are compared by
            the plans that come of them.
        num_microbatches: items that each data-parallel rank reads, the same on all ranks; the number of micro-batches
            that comes out is another, see `StepTotals`.
        mtp_stages: virtual stages of this rank that hold MTP layers, the same on all ranks of a stage; 0 without
            virtual pipelining.
        to_host: makes a NumPy array of a field; pass one that fetches from a device where the data lies there.
        to_device: moves the arrays of the micro-batches at once, for a training loop that slices them itself; None
            leaves them on the host, where `get_batch_for_rank` wants them.

    Returns:
        The iterators, the sums over the step, and the plan where it was made.

    Raises:
        EndOfData: the data ended before the step was complete; on every rank.
        PeerError: some rank failed, or was given other arguments than the rest; on every rank.

    Example:
        >>> import dcpack
        >>> from dcpack.megatron import build_groups, get_batch_for_rank
        >>> mesh = dcpack.Topology(axes=("dp",), sizes=(2,))
        >>> def fn(communicator):
        ...     groups = build_groups(communicator, mesh)
        ...     samples = iter([{"tokens": np.arange(4 + communicator.rank), "padded_seq_len": 4 + communicator.rank}])
        ...     step = wrap_data_iterator(samples, groups, StepOptions(capacity=8), num_microbatches=1)
        ...     batches = [get_batch_for_rank(step.data_iterator, groups) for _ in range(step.totals.num_microbatches)]
        ...     return step.totals.num_tokens, [batch.fields["tokens"].shape for batch in batches]
        >>> dcpack.run_ranks(2, fn)
        [(9, [(1, 5)]), (9, [(1, 4)])]
    """
    check_kinds(groups=(groups, ParallelGroups))
    alike: dict[str, Any] = {}
    with everywhere(groups, alike):
        check_kinds(options=(options, StepOptions), to_host=(to_host, Callable), to_device=(to_device, Callable | None))
        num_microbatches = check_int("num_microbatches", num_microbatches, minimum=1)
        _check_sizes(groups, options)
        stages = as_lengths("mtp_stages", mtp_stages).tolist()
        needs = needs_of_virtual_stages(
            is_first=groups.is_first_stage,
            is_last=groups.is_last_stage,
            vpp_size=options.vpp_size,
            mtp_stages=stages,
        )
        iterator = pick_data_iterator(data_iterator, options.vpp_size)
        _check_iterator(iterator, groups, needs)
        alike |= plain_options(options)
        alike |= {"num_microbatches": num_microbatches, "mtp_stages": sorted(set(stages))}
    found: _Own | _Rows | EndOfData | None = None
    iterators: Any = None
    with everywhere(groups):
        if groups.tp.rank == 0:
            found = _run_pipeline(iterator, groups, options, needs, num_microbatches, to_host)
        if not isinstance(found, EndOfData):
            rows = None if found is None else found.rows
            if rows is not None and to_device is not None:  # now that the other stages were sent the host's
                rows = [move_row(row, to_device) for row in rows]
            iterators = make_data_iterators(rows, needs, is_tp_first=groups.tp.rank == 0)
    totals = _tell_totals(groups, found)
    return StepData(data_iterator=iterators, totals=totals, plan=found.plan if isinstance(found, _Own) else None)


def _check_sizes(groups: ParallelGroups, options: StepOptions) -> None:
    sizes = {"tp_size": groups.tp.size, "pp_size": groups.pp.size, "cp_size": groups.cp_size}
    wrong = {name: size for name, size in sizes.items() if getattr(options, name) != size}
    if wrong:
        listed = list_offenders([f"{name} {getattr(options, name)}, not {size}" for name, size in wrong.items()])
        raise ArgumentError(f"options must be those of the groups: {listed}")


def _check_iterator(iterator: Any, groups: ParallelGroups, needs: Sequence[StageNeeds]) -> None:
    if groups.tp.rank > 0 and iterator is not None:
        raise ArgumentError("data_iterator must be None on all but the first rank of a tensor-parallel group")
    if groups.tp.rank == 0 and iterator is None and is_needed(needs):
        raise ArgumentError("data_iterator must not be None on a stage that computes on data")


def _tell_totals(groups: ParallelGroups, found: _Own | _Rows | EndOfData | None) -> StepTotals:
    """Return the totals on all ranks of the tensor-parallel group, or raise the end of the data on all."""
    message = None
    if isinstance(found, EndOfData):
        message = {"end": _end_message(found)}
    elif found is not None:
        message = {"totals": asdict(found.totals)}
    message = broadcast_tree(groups.tp, message, 0)
    if "end" in message:
        raise EndOfData(**message["end"])
    return StepTotals(**message["totals"])


def _end_message(end: EndOfData) -> dict[str, Any]:
    return {"num_items": list(end.num_items), "num_sequences": end.num_sequences, "num_tokens": end.num_tokens}


def _run_pipeline(
    iterator: Any,
    groups: ParallelGroups,
    options: StepOptions,
    needs: Sequence[StageNeeds],
    num_microbatches: int,
    to_host: Callable[[Any], Any],
) -> _Own | _Rows | EndOfData:
    """Do the work of this stage and tell the other stages, or be told. Collective over the pipeline."""
    own: _Own | EndOfData | None = None
    with groups.pp.guard():
        if is_needed(needs):
            own = _run_stage(iterator, groups, options, needs, num_microbatches, to_host)
    if groups.pp.size == 1:
        assert own is not None
        return own
    rows, told = broadcast_metadata(groups.pp, *_first_stage_message(groups, own))
    with groups.pp.guard():
        if own is not None:
            _check_same_totals(_message_of(own)[1], told)
    if own is not None:
        return own
    if "num_items" in told:
        return EndOfData(**told)
    return _Rows(rows=rows, totals=StepTotals(**{name: told[name] for name in StepTotals.__slots__}))


def _check_same_totals(own: dict[str, Any], told: dict[str, Any]) -> None:
    names = [name for name in {**own, **told} if own.get(name) != told.get(name)]
    if names:
        listed = list_offenders([f"{name} {own.get(name)}, not {told.get(name)}" for name in names])
        raise ArgumentError(f"all stages must read the same data; against the first: {listed}")


def _first_stage_message(
    groups: ParallelGroups, own: _Own | EndOfData | None
) -> tuple[list[MicroBatch] | None, dict[str, Any] | None]:
    return _message_of(own) if groups.is_first_stage and own is not None else (None, None)


def _message_of(own: _Own | EndOfData) -> tuple[list[MicroBatch], dict[str, Any]]:
    if isinstance(own, EndOfData):
        return [], _end_message(own)
    return own.rows, {**asdict(own.totals), "plan_digest": own.plan.digest()}


def _run_stage(
    iterator: Any,
    groups: ParallelGroups,
    options: StepOptions,
    needs: Sequence[StageNeeds],
    num_microbatches: int,
    to_host: Callable[[Any], Any],
) -> _Own | EndOfData:
    """Fetch, plan, move and pack. Collective over the DPxCP domain of this stage."""
    batch: GlobalBatch | None = None
    end: EndOfData | None = None
    samples: list[Sample] = []
    with groups.dp_cp.guard():
        try:
            batch = get_batch_and_global_lengths(
                groups.dp, iterator, num_microbatches=num_microbatches, to_host=to_host
            )
        except EndOfData as error:
            end = error
        if batch is not None:
            samples = [complete_sample(sample) for sample in batch.samples]
    global_valid = _check_same_data(groups, batch, samples)
    if batch is None:
        assert end is not None
        return end
    left_out = set.intersection(*(fields_left_out(stage) for stage in needs))
    with groups.dp_cp.guard():
        plan = plan_step(batch.padded_lengths, options, num_ranks=groups.dp_cp.size)
        kept = [{name: values for name, values in sample.items() if name not in left_out} for sample in samples]
    per_token = per_token_fields(groups.dp_cp, kept)
    found = reroute_samples(groups.dp_cp, kept, batch.ids, plan, sharding=options.sharding, per_token=per_token)
    with groups.dp_cp.guard():
        ranks = groups.dp_cp.ranks
        rows = build_packed_microbatches(found, plan, groups.plan_rank, ranks=ranks, per_token=per_token)
    return _Own(rows=rows, totals=_totals_of(batch, plan, global_valid), plan=plan)


def _check_same_data(groups: ParallelGroups, batch: GlobalBatch | None, samples: Sequence[Sample]) -> int:
    """Return the valid tokens of the step, after making sure that CP ranks of one data-parallel rank read the same.

    Raises:
        PeerError: labels or a loss mask do not fit their sequence; on every rank.
        ArgumentError: they read other lengths, or labels of which others count; on every rank.
    """
    text = b"end" if batch is None else batch.lengths.tobytes() + batch.padded_lengths.tobytes()
    digest = int.from_bytes(hashlib.sha256(text).digest()[:7], "little")
    with groups.dp_cp.guard():
        valid = sum(_num_valid(sample) for sample in samples)
    parts = np.stack(groups.dp_cp.all_gather(np.array([groups.dp.rank, valid, digest])))
    _, first, place = np.unique(parts[:, 0], return_index=True, return_inverse=True)
    same = (parts[:, 1] == parts[first[place], 1]) & (parts[:, 2] == parts[0, 2])
    if not same.all():
        listed = list_offenders([f"rank {groups.dp_cp.ranks[p]}" for p in np.flatnonzero(~same).tolist()])
        raise ArgumentError(
            f"CP ranks of one data-parallel rank must read the same data; other than the first: {listed}"
        )
    return exact_sum(parts[first, 1])


def _num_valid(sample: Sample) -> int:
    real = int(sample["original_seq_len"][0])
    return count_valid_tokens(sample["labels"][:real], sample["loss_mask"][:real])


def _totals_of(batch: GlobalBatch, plan: Plan, global_valid: int) -> StepTotals:
    padded = plan.entry_padded_lengths
    return StepTotals(
        num_microbatches=plan.num_microbatches,
        num_sequences=batch.lengths.size,
        num_empty=batch.num_empty,
        num_tokens=batch.num_tokens,
        num_padded_tokens=exact_sum(padded),
        squared_length_sum=exact_sum(padded**2),
        global_valid_tokens=global_valid,
    )
