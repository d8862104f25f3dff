"""The proof of the demo: what arrived is compared, token by token, with the documents it came from.

Each rank checks its own batches against the source: the token, its label, its position and its segment in every slot.
What it saw is summed over all ranks, and every token of every document must have been seen exactly once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dcpack._checks import Int64Array
from dcpack.data import TextDocuments
from dcpack.demo.reference import reference_slice
from dcpack.exchange import PackedBatch
from dcpack.layout import IGNORED_LABEL
from dcpack.padding import padded_lengths
from dcpack.plans import Plan

__all__ = ["RankEvidence", "StepProof", "check_batches", "conclude"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RankEvidence:
    """What one rank found in its batches of one step.

    Attributes:
        faults: what is wrong, in words; empty where all is right.
        seen: int64[k], the step-wide numbers of the tokens that arrived here: the documents of the step end to end.
        num_valid_tokens: tokens here that count in the loss.
    """

    faults: tuple[str, ...]
    seen: Int64Array
    num_valid_tokens: int


@dataclass(slots=True)
class StepProof:
    """The verdict on one step.

    Attributes:
        num_tokens: tokens that arrived exactly once.
        num_documents: documents of the step.
        num_cut_documents: documents that the overlong policy cut or dropped.
        num_dropped_tokens: tokens that the policy dropped, as the plan says.
        faults: what is wrong, in words.
    """

    num_tokens: int = 0
    num_documents: int = 0
    num_cut_documents: int = 0
    num_dropped_tokens: int = 0
    faults: list[str] = field(default_factory=list)


def check_batches(
    batches: Sequence[PackedBatch],
    plan: Plan,
    rank: int,
    documents: TextDocuments,
    document_of_sequence: Int64Array,
    sharding: str,
) -> RankEvidence:
    """Compare the batches of one rank with the plan and the source documents.

    Args:
        batches: the batches of plan rank `rank`, by micro-batch and row.
        plan: the plan of the step.
        rank: the plan rank.
        documents: the source.
        document_of_sequence: int64[n], the document that each sequence of the plan is.
        sharding: the CP slicing.
    """
    expected_bins = plan.bins_of_rank(rank).tolist()
    faults: list[str] = []
    if len(batches) != len(expected_bins):
        faults.append(f"rank {rank} has {len(batches)} batches, the plan says {len(expected_bins)}")
    step_starts = np.cumsum(plan.lengths) - plan.lengths
    valid_in_step = _valid_tokens_of_step(plan)
    seen: list[Int64Array] = []
    for b, batch in zip(expected_bins, batches, strict=False):
        where = f"micro-batch {plan.microbatch[b]}, rank {rank}"
        if plan.dummy[b]:
            faults += _faults_of_dummy(where, batch)
        else:
            wanted = _expected(plan, b, rank, documents, document_of_sequence, sharding)
            faults += _faults_of_batch(where, batch, wanted)
            real = wanted.fields["segment_ids"] > 0
            seen.append(step_starts[wanted.sequence[real]] + wanted.position[real])
        if batch.global_valid_tokens != valid_in_step:
            faults.append(f"{where}: {batch.global_valid_tokens} valid tokens in the step, expected {valid_in_step}")
    return RankEvidence(
        faults=tuple(faults),
        seen=np.concatenate([np.zeros(0, np.int64), *seen]),
        num_valid_tokens=sum(batch.num_valid_tokens for batch in batches),
    )


def _valid_tokens_of_step(plan: Plan) -> int:
    """Return how many tokens have a label: all but the last of each document, as far as they were kept."""
    ends_document = plan.starts + plan.entry_lengths == plan.lengths[plan.sequence_ids]
    return int(plan.entry_lengths.sum()) - int(np.count_nonzero(ends_document))


def _faults_of_dummy(where: str, batch: PackedBatch) -> list[str]:
    counted = np.flatnonzero((batch.tokens["labels"] != IGNORED_LABEL) | (batch.tokens["loss_mask"] != 0)).tolist()
    faults = [f"{where}: a dummy with labels that count in slots {counted[:8]}"] if counted else []
    if batch.num_valid_tokens:
        faults.append(f"{where}: a dummy with {batch.num_valid_tokens} valid tokens")
    return faults


def _faults_of_batch(where: str, batch: PackedBatch, wanted: _Expected) -> list[str]:
    faults: list[str] = []
    for name, values in wanted.fields.items():
        faults += _differences(f"{where}: {name}", batch.tokens[name], values, _PADDING.get(name, 0))
    for name, values in wanted.offsets.items():
        if not np.array_equal(getattr(batch, name), values):
            faults.append(f"{where}: {name} is {getattr(batch, name).tolist()}, expected {values.tolist()}")
    num_valid = int(np.count_nonzero(wanted.fields["labels"] != IGNORED_LABEL))
    if batch.num_valid_tokens != num_valid:
        faults.append(f"{where}: {batch.num_valid_tokens} valid tokens, expected {num_valid}")
    return faults


_PADDING = {"labels": IGNORED_LABEL}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Expected:
    fields: dict[str, np.ndarray]
    offsets: dict[str, np.ndarray]
    sequence: Int64Array  # per slot
    position: Int64Array  # per slot, in the whole document


def _expected(
    plan: Plan, b: int, rank: int, documents: TextDocuments, document_of_sequence: Int64Array, sharding: str
) -> _Expected:
    """Build what the slice of one bin must hold, from the plan and the documents alone, sequence by sequence."""
    cp_size = int(plan.cp_size[b])
    entries = range(int(plan.offsets[b]), int(plan.offsets[b + 1]))
    padded = [int(padded_lengths(plan.entry_lengths[e], cp_size, plan.padding)) for e in entries]
    columns: dict[str, list[np.ndarray]] = {
        name: [] for name in ("input_ids", "labels", "position_ids", "segment_ids", "sequence", "position")
    }
    for number, (e, size) in enumerate(zip(entries, padded, strict=True), start=1):
        sequence, start, length = int(plan.sequence_ids[e]), int(plan.starts[e]), int(plan.entry_lengths[e])
        tokens = documents[int(document_of_sequence[sequence])]
        following = np.append(tokens[1:], IGNORED_LABEL)
        pad = size - length
        columns["input_ids"].append(np.pad(tokens[start : start + length], (0, pad)))
        labels = following[start : start + length]
        columns["labels"].append(np.pad(labels, (0, pad), constant_values=IGNORED_LABEL))
        columns["position_ids"].append(np.pad(np.arange(length), (0, pad)))
        columns["segment_ids"].append(np.pad(np.full(length, number), (0, pad)))
        columns["sequence"].append(np.full(size, sequence))
        columns["position"].append(np.arange(start, start + size))
    slots = reference_slice(padded, cp_size, rank - int(plan.first_rank[b]), sharding)
    row = {name: np.concatenate(parts)[slots] for name, parts in columns.items()}
    sequence, position = row.pop("sequence"), row.pop("position")
    row["loss_mask"] = row["labels"] != IGNORED_LABEL
    ends = np.cumsum(padded)
    in_sequence = np.searchsorted(ends, slots, side="right")  # of each slot of the slice
    real_in_sequence = in_sequence[row["segment_ids"] > 0]
    offsets = {
        "cu_seqlens": _offsets([int(plan.entry_lengths[e]) for e in entries]),
        "cu_seqlens_padded": _offsets(padded),
        "local_cu_seqlens": _offsets(np.bincount(real_in_sequence, minlength=len(padded))),
        "local_cu_seqlens_padded": _offsets(np.bincount(in_sequence, minlength=len(padded))),
    }
    return _Expected(fields=row, offsets=offsets, sequence=sequence, position=position)


def _offsets(lengths: Any) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)])


def _differences(where: str, found: np.ndarray, wanted: np.ndarray, padding: int) -> list[str]:
    """Name the first slot that differs; slots beyond `wanted` (a padded tail) must hold `padding`."""
    if found.shape[0] < wanted.shape[0]:
        return [f"{where}: {found.shape[0]} slots, expected {wanted.shape[0]}"]
    tail = np.full(found.shape[0] - wanted.shape[0], padding)
    whole = np.concatenate([wanted, tail])
    wrong = np.flatnonzero(found != whole).tolist()
    if not wrong:
        return []
    return [f"{where}: slot {wrong[0]} is {found[wrong[0]]}, expected {whole[wrong[0]]} ({len(wrong)} differ)"]


def conclude(plan: Plan, evidence: Sequence[RankEvidence], global_valid_tokens: int) -> StepProof:
    """Put the evidence of all ranks together: each token exactly once, and no rank with a fault.

    Args:
        plan: the plan of the step.
        evidence: of every plan rank.
        global_valid_tokens: valid tokens of the step, as every batch says.
    """
    total = int(plan.lengths.sum())
    starts = np.cumsum(plan.lengths) - plan.lengths
    times_seen = np.bincount(np.concatenate([np.zeros(0, np.int64), *(e.seen for e in evidence)]), minlength=total)
    pieces = np.bincount(plan.sequence_ids, minlength=plan.num_sequences)
    proof = StepProof(
        num_tokens=int(np.count_nonzero(times_seen == 1)),
        num_documents=int(np.count_nonzero(plan.lengths)),
        num_cut_documents=int(np.count_nonzero((pieces > 1) | (plan.dropped > 0))),
        num_dropped_tokens=int(plan.dropped.sum()),
        faults=[fault for e in evidence for fault in e.faults],
    )
    if twice := np.flatnonzero(times_seen > 1).tolist():
        proof.faults.append(f"{_name_tokens(starts, twice)} arrived more than once")
    should_arrive = np.zeros(total, np.bool_)
    first = starts[plan.sequence_ids] + plan.starts
    should_arrive[_spans(first, plan.entry_lengths)] = True
    if missing := np.flatnonzero(should_arrive & (times_seen == 0)).tolist():
        proof.faults.append(f"{_name_tokens(starts, missing)} did not arrive")
    if stray := np.flatnonzero(~should_arrive & (times_seen > 0)).tolist():
        proof.faults.append(f"{_name_tokens(starts, stray)} arrived though the plan dropped them")
    valid = sum(e.num_valid_tokens for e in evidence)
    if valid != global_valid_tokens:
        proof.faults.append(f"{valid} valid tokens on all ranks, the batches say {global_valid_tokens}")
    return proof


def _spans(first: Int64Array, lengths: Int64Array) -> Int64Array:
    """Return every number of the spans that start at `first`."""
    before = np.cumsum(lengths) - lengths
    return np.repeat(first - before, lengths) + np.arange(int(lengths.sum()))


def _name_tokens(starts: Int64Array, numbers: list[int]) -> str:
    """Say how many tokens of the step there are, and which is the first."""
    sequence = int(np.searchsorted(starts, numbers[0], side="right")) - 1
    first = f"token {numbers[0] - starts[sequence]} of sequence {sequence}"
    return first if len(numbers) == 1 else f"{first} and {len(numbers) - 1:,} more"
