"""Sequences packed end to end into the micro-batches of one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_array, as_lengths, check_int, check_kinds, list_offenders
from dcpack.errors import ArgumentError, PlanError
from dcpack.exchange import NEUTRAL_VALUES
from dcpack.layout import MAX_OFFSET, packed_offsets, padding_mask, scatter_real
from dcpack.megatron.samples import LENGTH_KEYS, Sample, length_of
from dcpack.padding import MAX_CP_SIZE, padding_multiple
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
    per_token: Mapping[str, npt.NDArray[Any]] | None = None,
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
        per_token: the per-token fields, of `per_token_fields`: the row has all of them, neutral where a sequence has
            none. None takes those that have one row a token in each of `samples`.

    Returns:
        Every per-token field as [num_slots, ...]; ``cu_seqlens``, ``cu_seqlens_padded`` (int32[n + 1]), ``max_seqlen``
        (a Python int), ``local_cp_size``, ``cp_rank``, ``num_slots``, ``padding_mask`` (bool[num_slots], True in
        padding), and ``sample_fields``: for each sequence a mapping of its fields that are not per token.

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
    check_kinds(samples=(samples, list | tuple), per_token=(per_token, Mapping | None))
    check_kinds(**{f"per_token[{name!r}]": (template, np.ndarray) for name, template in (per_token or {}).items()})
    if not samples:
        raise ArgumentError("samples must hold at least one sequence")
    real, own_padded = ([length_of(f"samples[{i}]", s, key) for i, s in enumerate(samples)] for key in LENGTH_KEYS)
    lengths = np.array(real, np.int64)
    offsets = packed_offsets(lengths, _padded_lengths_of(real, own_padded, padded_lengths))
    end = int(offsets.cu_seqlens_padded[-1])
    size = end if num_slots is None else check_int("num_slots", num_slots, minimum=end, maximum=MAX_OFFSET)
    mask = np.ones(size, np.bool_)
    mask[:end] = padding_mask(offsets.cu_seqlens, offsets.cu_seqlens_padded)
    slots = np.flatnonzero(~mask)
    names = sorted({name for sample in samples for name in sample if name not in LENGTH_KEYS})
    if per_token is None:
        per_token = {name: _first(name, samples)[:0] for name in names if _is_per_token(name, samples, own_padded)}
    other = [name for name in names if name not in per_token]
    local_cp_size = check_int("local_cp_size", local_cp_size, minimum=1, maximum=MAX_CP_SIZE)
    return {
        **{name: _pack_field(name, samples, own_padded, lengths, slots, size, per_token[name]) for name in per_token},
        "sample_fields": [
            {name: as_array(f"samples[{i}][{name!r}]", s[name]).copy() for name in other if name in s}
            for i, s in enumerate(samples)
        ],
        "cu_seqlens": offsets.cu_seqlens,
        "cu_seqlens_padded": offsets.cu_seqlens_padded,
        "max_seqlen": offsets.max_seqlen,
        "local_cp_size": local_cp_size,
        "cp_rank": check_int("cp_rank", cp_rank, minimum=0, maximum=local_cp_size - 1),
        "num_slots": size,
        "padding_mask": mask,
    }


def _padded_lengths_of(real: Sequence[int], own: Sequence[int], given: Any) -> Int64Array:
    """Return what each sample is padded to in the row: as `given`, or as it came."""
    pairs = enumerate(zip(real, own, strict=True))
    if wrong := [f"samples[{i}] has {n}, padded_seq_len {padded}" for i, (n, padded) in pairs if n > padded]:
        raise ArgumentError(f"original_seq_len must be at most padded_seq_len: {list_offenders(wrong)}")
    padded_lengths = as_lengths("padded_lengths", own if given is None else given)
    if padded_lengths.size != len(real):
        raise ArgumentError(f"padded_lengths must be one for each of {len(real)} samples, got {padded_lengths.size}")
    pairs = enumerate(zip(real, padded_lengths.tolist(), strict=True))
    if wrong := [f"padded_lengths[{i}] = {padded}, samples[{i}] has {n}" for i, (n, padded) in pairs if n > padded]:
        raise ArgumentError(f"padded_lengths must be at least original_seq_len: {list_offenders(wrong)}")
    return padded_lengths


def _is_per_token(name: str, samples: Sequence[Mapping[str, Any]], padded: Sequence[int]) -> bool:
    pairs = zip(samples, padded, strict=True)
    return all(as_array(name, sample[name]).shape[:1] == (length,) for sample, length in pairs if name in sample)


def _first(name: str, samples: Sequence[Mapping[str, Any]]) -> npt.NDArray[Any]:
    return np.asarray(next(sample[name] for sample in samples if name in sample))


def _pack_field(
    name: str,
    samples: Sequence[Mapping[str, Any]],
    padded: Sequence[int],
    lengths: npt.NDArray[np.int64],
    slots: Any,
    size: int,
    template: npt.NDArray[Any],
) -> npt.NDArray[Any]:
    """Return one field of the row; `template` has its dtype and further dims, also where no sample has the field."""
    neutral = NEUTRAL_VALUES.get(name, 0)
    arrays = [as_array(f"samples[{i}][{name!r}]", s[name]) if name in s else None for i, s in enumerate(samples)]
    if wrong := [
        f"samples[{i}] has {length} tokens with padding, {name!r} {list(array.shape)}"
        for i, (array, length) in enumerate(zip(arrays, padded, strict=True))
        if array is not None and array.shape[:1] != (length,)
    ]:
        raise ArgumentError(f"a per-token field must have one row a token: {list_offenders(wrong)}")
    parts = [
        np.full((length, *template.shape[1:]), neutral, template.dtype) if array is None else array[:length]
        for array, length in zip(arrays, lengths.tolist(), strict=True)
    ]
    try:
        values = np.concatenate([template[:0], *parts])
    except (TypeError, ValueError) as error:
        kinds = sorted({f"{part.dtype} {list(part.shape[1:])}" for part in (template, *parts)})
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
    per_token: Mapping[str, npt.NDArray[Any]] | None = None,
) -> list[MicroBatch]:
    """Return the packed rows of one rank, by micro-batch.

    Args:
        samples: the sequences that its bins hold, by number: what `reroute_samples` returned.
        plan: the plan over their padded lengths, with one row a rank. Sequences are padded further where its padding
            rule asks for it at the CP size that is assigned; the row gets a tail where the rule pads rows.
        plan_rank: the rank.
        ranks: int[num_ranks], the global number of each plan rank, such as ``groups.dp_cp.ranks``; None leaves the
            numbers of the plan.
        per_token: the per-token fields, of `per_token_fields`, so that every row of every rank has the same; None
            takes, row by row, those that have one row a token.

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
    check_kinds(samples=(samples, Mapping), plan=(plan, Plan), per_token=(per_token, Mapping | None))
    plan_rank = check_int("plan_rank", plan_rank, minimum=0, maximum=plan.num_ranks - 1)
    rank_numbers = np.arange(plan.num_ranks) if ranks is None else as_lengths("ranks", ranks)
    if rank_numbers.size != plan.num_ranks:
        raise ArgumentError(
            f"ranks must be one number for each of {plan.num_ranks} plan ranks, got {rank_numbers.size}"
        )
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
        row["cp_group"] = tuple(rank_numbers[first : first + cp_size].tolist())
        rows.append(row)
    return rows


_STANDARD = {"tokens": np.int64, "labels": np.int64, "loss_mask": np.float32, "position_ids": np.int64}


def _dummy(length: int, like: Mapping[str, Any], per_token: Mapping[str, npt.NDArray[Any]] | None) -> Sample:
    """Return a sequence of neutral values: the fields `per_token`, or those of the sequence `like`, or the standard."""
    templates = per_token or {name: np.zeros(0, dtype) for name, dtype in _STANDARD.items()}
    if per_token is None and like:
        rows = length_of("samples", like, "padded_seq_len")
        arrays = {name: np.asarray(values) for name, values in like.items() if name not in LENGTH_KEYS}
        templates = {name: array[:0] for name, array in arrays.items() if array.shape[:1] == (rows,)}
    fields = {}
    for name, template in templates.items():
        neutral = NEUTRAL_VALUES.get(name, 0)
        dtype = np.int64 if neutral < 0 and template.dtype.kind == "u" else template.dtype
        fields[name] = np.full((length, *template.shape[1:]), neutral, dtype)
    return {**fields, "original_seq_len": np.array([length]), "padded_seq_len": np.array([length])}


def move_row(row: Mapping[str, Any], to_device: Callable[[Any], Any]) -> MicroBatch:
    """Return the row with its arrays moved, those of single sequences too; plain numbers stay what they are.

    Example:
        >>> move_row({"tokens": np.array([1]), "max_seqlen": 1}, lambda array: array.tolist())
        {'tokens': [1], 'max_seqlen': 1}
    """
    moved = {name: to_device(value) if isinstance(value, np.ndarray) else value for name, value in row.items()}
    if "sample_fields" in row:
        moved["sample_fields"] = [{name: to_device(v) for name, v in each.items()} for each in row["sample_fields"]]
    return moved


def metadata_of(row: Mapping[str, Any]) -> MicroBatch:
    """Return the part of a row that says where its sequences lie.

    Args:
        row: a packed micro-batch.

    Example:
        >>> metadata_of({"tokens": [1, 2], "max_seqlen": 2, "local_cp_size": 1})
        {'max_seqlen': 2, 'local_cp_size': 1}
    """
    check_kinds(row=(row, Mapping))
    return {name: row[name] for name in METADATA_KEYS if name in row}
