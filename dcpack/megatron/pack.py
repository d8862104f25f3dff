"""Sequences packed end to end into the micro-batches of one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import check_int, list_offenders
from dcpack.errors import ArgumentError, PlanError
from dcpack.exchange import NEUTRAL_VALUES
from dcpack.layout import packed_offsets, padding_mask, scatter_real
from dcpack.megatron.samples import LENGTH_KEYS, Sample
from dcpack.padding import padding_multiple
from dcpack.plans import Plan

__all__ = ["METADATA_KEYS", "MicroBatch", "build_packed_microbatches", "metadata_of", "pack_sequences"]

MicroBatch = dict[str, Any]
"""One packed row and what says where its sequences lie; see `pack_sequences`."""

METADATA_KEYS = ("cu_seqlens", "cu_seqlens_padded", "max_seqlen", "local_cp_size", "cp_rank", "num_slots")
"""What a stage needs that computes on no field of the data."""


def pack_sequences(
    samples: Sequence[Mapping[str, Any]],
    *,
    padded_lengths: Any = None,
    num_slots: int | None = None,
    local_cp_size: int = 1,
    cp_rank: int = 0,
    per_token: Sequence[str] | None = None,
) -> MicroBatch:
    """Return one packed row of the whole sequences, before any CP slicing.

    Only the real tokens of each sequence are copied; what a dataset put into its padding is not. Padded slots hold
    neutral values: -100 in labels, 0 elsewhere.

    Args:
        samples: the sequences in order, as of `unpack_samples`.
        padded_lengths: int64[n], padded tokens of each; default their ``padded_seq_len``.
        num_slots: slots of the row where it is longer than its sequences.
        local_cp_size: ranks that share the row.
        cp_rank: which of them this is.
        per_token: the per-token fields, of `per_token_fields`; None takes those that have one row a token in each of
            `samples`.

    Returns:
        Every per-token field of the samples as [num_slots, ...]; ``cu_seqlens``, ``cu_seqlens_padded`` (int32[n + 1]),
        ``max_seqlen`` (a Python int), ``local_cp_size``, ``cp_rank``, ``num_slots``, ``padding_mask``
        (bool[num_slots], True in padding), and ``sample_fields`` where samples have fields that are not per token: a
        mapping for each sequence.

    Raises:
        ArgumentError: no sample, padded lengths that are too short, or fields that cannot share a row.

    Example:
        >>> def sample(tokens, real):
        ...     return {"tokens": np.array(tokens), "original_seq_len": np.array([real]),
        ...             "padded_seq_len": np.array([len(tokens)])}
        >>> row = pack_sequences([sample([5, 6, 99], 2), sample([7], 1)])
        >>> row["tokens"].tolist(), row["cu_seqlens"].tolist(), row["cu_seqlens_padded"].tolist()
        ([5, 6, 0, 7], [0, 2, 3], [0, 3, 4])
    """
    if not samples:
        raise ArgumentError("samples must hold at least one sequence")
    lengths = np.array([sample["original_seq_len"][0] for sample in samples], np.int64)
    own_padded = np.array([sample["padded_seq_len"][0] for sample in samples], np.int64)
    padded = own_padded if padded_lengths is None else padded_lengths
    offsets = packed_offsets(lengths, padded)
    end = int(offsets.cu_seqlens_padded[-1])
    size = end if num_slots is None else check_int("num_slots", num_slots, minimum=end)
    mask = np.ones(size, np.bool_)
    mask[:end] = padding_mask(offsets.cu_seqlens, offsets.cu_seqlens_padded)
    slots = np.flatnonzero(~mask)
    names = sorted({name for sample in samples for name in sample if name not in LENGTH_KEYS})
    if per_token is None:
        per_token = [name for name in names if _is_per_token(name, samples, own_padded)]
    packed = [name for name in names if name in per_token]
    row: MicroBatch = {name: _pack_field(name, samples, lengths, slots, size) for name in packed}
    if other := [name for name in names if name not in per_token]:
        row["sample_fields"] = [{name: np.array(s[name]) for name in other if name in s} for s in samples]
    return {
        **row,
        "cu_seqlens": offsets.cu_seqlens,
        "cu_seqlens_padded": offsets.cu_seqlens_padded,
        "max_seqlen": offsets.max_seqlen,
        "local_cp_size": check_int("local_cp_size", local_cp_size, minimum=1),
        "cp_rank": check_int("cp_rank", cp_rank, minimum=0, maximum=local_cp_size - 1),
        "num_slots": size,
        "padding_mask": mask,
    }


def _is_per_token(name: str, samples: Sequence[Mapping[str, Any]], padded: npt.NDArray[np.int64]) -> bool:
    pairs = zip(samples, padded.tolist(), strict=True)
    return all(np.shape(sample[name])[:1] == (length,) for sample, length in pairs if name in sample)


def _pack_field(
    name: str, samples: Sequence[Mapping[str, Any]], lengths: npt.NDArray[np.int64], slots: Any, size: int
) -> npt.NDArray[Any]:
    neutral = NEUTRAL_VALUES.get(name, 0)
    template = np.asarray(next(sample[name] for sample in samples if name in sample))[:0]
    parts = [
        sample[name][:length] if name in sample else np.full((length, *template.shape[1:]), neutral, template.dtype)
        for sample, length in zip(samples, lengths.tolist(), strict=True)
    ]
    try:
        values = np.concatenate(parts)
    except (TypeError, ValueError) as error:
        kinds = sorted({f"{np.asarray(part).dtype} {list(np.shape(part)[1:])}" for part in parts})
        raise ArgumentError(f"field {name!r} cannot share a row: {list_offenders(kinds)}") from error
    if neutral < 0 and values.dtype.kind == "u":
        values = values.astype(np.int64)
    return scatter_real(values, slots, size, neutral)


def build_packed_microbatches(
    samples: Mapping[int, Mapping[str, Any]],
    plan: Plan,
    plan_rank: int,
    *,
    ranks: Sequence[int] | None = None,
    per_token: Sequence[str] | None = None,
    to_device: Callable[[Any], Any] | None = None,
) -> list[MicroBatch]:
    """Return the packed rows of one rank, by micro-batch.

    Args:
        samples: the sequences that its bins hold, by number: what `reroute_samples` returned.
        plan: the plan over their padded lengths, with one row a rank. Sequences are padded further where its padding
            rule asks for it at the CP size that is assigned; the row gets a tail where the rule pads rows.
        plan_rank: the rank.
        ranks: int[num_ranks], the global number of each plan rank, such as ``groups.dp_cp.ranks``; None leaves the
            numbers of the plan.
        per_token: the per-token fields, of `per_token_fields`; None takes, row by row, those that have one row a token.
        to_device: moves the arrays of each row, such as ``backend.to_device``; None leaves them on the host.

    Returns:
        See `pack_sequences`; also ``cp_group``, a tuple of the ranks that share the row. A dummy bin holds one sequence
        of zeros that counts in no loss.

    Raises:
        ArgumentError: sequences are missing.
        PlanError: the plan has more rows than one a rank.

    Example:
        >>> import dcpack
        >>> lengths = {"original_seq_len": np.array([3]), "padded_seq_len": np.array([3])}
        >>> plan = dcpack.plan([3], num_ranks=2, capacity=4, padding=dcpack.PaddingRule())
        >>> row, = build_packed_microbatches({0: {"tokens": np.array([5, 6, 7]), **lengths}}, plan, 1)
        >>> row["tokens"].tolist(), row["local_cp_size"], row["cp_rank"], row["padding_mask"].tolist()
        ([5, 6, 7, 0], 2, 1, [False, False, False, True])
    """
    if plan.rows_per_rank > 1:
        raise PlanError(f"packed micro-batches need a plan with one row a rank, got {plan.rows_per_rank}")
    bins = plan.bins_of_rank(plan_rank).tolist()
    held = [plan.sequence_ids[plan.offsets[b] : plan.offsets[b + 1]].tolist() for b in bins]
    if missing := sorted({number for numbers in held for number in numbers} - samples.keys()):
        raise ArgumentError(
            f"samples must hold what the plan wants: {list_offenders([str(i) for i in missing])} missing"
        )
    template = next(iter(samples.values()), {})
    rows = []
    for b, numbers in zip(bins, held, strict=True):
        cp_size = int(plan.cp_size[b])
        if plan.dummy[b]:
            padded = np.array([max(int(padding_multiple(plan.padding, cp_size)), cp_size)])
            members: list[Mapping[str, Any]] = [_dummy(int(padded[0]), template, per_token)]
        else:
            padded = plan.entry_padded_lengths[plan.offsets[b] : plan.offsets[b + 1]]
            members = [samples[number] for number in numbers]
        total = int(padded.sum())
        row = pack_sequences(
            members,
            padded_lengths=padded,
            num_slots=total if plan.padding is None else plan.padding.padded_total(total, cp_size),
            local_cp_size=cp_size,
            cp_rank=plan_rank - int(plan.first_rank[b]),
            per_token=per_token,
        )
        first = int(plan.first_rank[b])
        row["cp_group"] = tuple(range(first, first + cp_size) if ranks is None else ranks[first : first + cp_size])
        rows.append(row if to_device is None else move_row(row, to_device))
    return rows


def _dummy(length: int, template: Mapping[str, Any], per_token: Sequence[str] | None) -> Sample:
    """Return a sequence of neutral values with the per-token fields of `template`, or the standard ones."""
    dtypes = {"tokens": np.int64, "labels": np.int64, "loss_mask": np.float32, "position_ids": np.int64}
    fields: dict[str, npt.NDArray[Any]] = {name: np.zeros(length, dtype) for name, dtype in dtypes.items()}
    if template:
        rows = int(template["padded_seq_len"][0])
        fields = {
            name: np.zeros((length, *np.shape(values)[1:]), np.asarray(values).dtype)
            for name, values in template.items()
            if (name in per_token if per_token is not None else np.shape(values)[:1] == (rows,))
            and name not in LENGTH_KEYS
        }
    for name, values in fields.items():
        neutral = NEUTRAL_VALUES.get(name, 0)
        if neutral < 0 and values.dtype.kind == "u":
            fields[name] = values.astype(np.int64)
        fields[name][...] = neutral
    return {**fields, "original_seq_len": np.array([length]), "padded_seq_len": np.array([length])}


def move_row(row: Mapping[str, Any], to_device: Callable[[Any], Any]) -> MicroBatch:
    """Return the row with its arrays moved; plain numbers stay what they are.

    Example:
        >>> move_row({"tokens": np.array([1]), "max_seqlen": 1}, lambda array: array.tolist())
        {'tokens': [1], 'max_seqlen': 1}
    """
    return {name: to_device(value) if isinstance(value, np.ndarray | list) else value for name, value in row.items()}


def metadata_of(row: Mapping[str, Any]) -> MicroBatch:
    """Return the part of a row that says where its sequences lie.

    Example:
        >>> metadata_of({"tokens": [1, 2], "max_seqlen": 2, "local_cp_size": 1})
        {'max_seqlen': 2, 'local_cp_size': 1}
    """
    return {name: row[name] for name in METADATA_KEYS if name in row}
