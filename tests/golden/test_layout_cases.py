"""The layout cases that other projects agree on, value by value. Each test says which fault it stands for."""

from __future__ import annotations

import numpy as np
import pytest

import dcpack
from dcpack.errors import ArgumentError
from dcpack.layout import (
    fixed_shape_cu_seqlens,
    packed_offsets,
    padding_mask,
    position_ids,
    scatter_real,
    segment_ids,
    shift_labels,
    slots_of_real_tokens,
)
from dcpack.padding import PaddingRule
from dcpack.sharding import local_cu_seqlens, local_token_indices


def test_thd_offsets() -> None:
    """Fault: max_seqlen from real instead of padded lengths, or one array given for both offsets."""
    offsets = packed_offsets([3, 2, 4], [4, 4, 5])
    assert offsets.cu_seqlens.tolist() == [0, 3, 5, 9]
    assert offsets.cu_seqlens_padded.tolist() == [0, 4, 8, 13]
    assert offsets.max_seqlen == 5
    assert (offsets.cu_seqlens.dtype, offsets.cu_seqlens_padded.dtype) == (np.int32, np.int32)
    assert type(offsets.max_seqlen) is int


def test_padding_mask() -> None:
    """Fault: padded slots that keep what lay in memory."""
    mask = padding_mask([0, 3, 5], [0, 4, 8])
    assert mask.astype(int).tolist() == [0, 0, 0, 1, 0, 0, 1, 1]
    slots = slots_of_real_tokens([3, 2], [4, 4])
    neutral = {"tokens": 0, "labels": -100, "loss_mask": 0}
    for fill in neutral.values():
        row = scatter_real(np.array([9, 9, 9, 9, 9]), slots, 8, fill)
        assert row[mask].tolist() == [fill] * 3
        assert row[~mask].tolist() == [9] * 5
    assert position_ids([3, 2], [4, 4])[mask].tolist() == [0] * 3


def test_one_token_sequences() -> None:
    """Fault: boundaries guessed from positions, which merge a sequence of one token with the next."""
    assert position_ids([3, 1, 2]).tolist() == [0, 1, 2, 0, 0, 1]
    assert segment_ids([3, 1, 2]).tolist() == [1, 1, 1, 2, 3, 3]
    assert packed_offsets([3, 1, 2]).cu_seqlens.tolist() == [0, 3, 4, 6]


def test_labels_shift_per_sequence() -> None:
    """Fault: the last token of one sequence predicts the first of the next."""
    assert shift_labels([10, 11, 12, 20, 21, 22], [0, 3, 6]).tolist() == [11, 12, -100, 21, 22, -100]


def test_fixed_shape_tail() -> None:
    """Fault: the repeated tail counted as sequences, falling offsets accepted, or sequences lost beyond the cap."""
    offsets, num_sequences = fixed_shape_cu_seqlens([0, 16, 40], 4)
    assert offsets.tolist() == [0, 16, 40, 40, 40]
    assert num_sequences == 2
    with pytest.raises(ArgumentError, match="must not decrease"):
        fixed_shape_cu_seqlens([0, 40, 16], 4)
    with pytest.raises(ArgumentError, match="2 sequences do not fit in max_sequences 1"):
        fixed_shape_cu_seqlens([0, 16, 40], 1)
    for scheduler in ("in_order", "packing_aware"):
        plan = dcpack.plan([1] * 40, num_ranks=2, capacity=100, scheduler=scheduler, max_sequences=4)
        assert max(np.diff(plan.offsets)) <= 4


def test_zigzag() -> None:
    """Fault: chunks of the whole row instead of each sequence, or a mirror chunk in the wrong order."""
    assert local_token_indices([0, 8, 16], 2, 0).tolist() == [0, 1, 6, 7, 8, 9, 14, 15]
    assert local_token_indices([0, 8, 16], 2, 1).tolist() == [2, 3, 4, 5, 10, 11, 12, 13]
    assert local_cu_seqlens([0, 8, 16], 2, 0).tolist() == local_cu_seqlens([0, 8, 16], 2, 1).tolist() == [0, 4, 8]


def test_zigzag_uneven() -> None:
    """Fault: slicing by unpadded offsets // cp, which loses tokens and mixes neighbours."""
    lengths, padded = [5, 7], [8, 8]
    offsets = packed_offsets(lengths, padded)
    segments = segment_ids(lengths, padded)
    seen = []
    real_per_rank = []
    for rank in range(2):
        slots = local_token_indices(offsets.cu_seqlens_padded, 2, rank)
        assert np.diff(local_cu_seqlens(offsets.cu_seqlens_padded, 2, rank)).tolist() == [4, 4]
        real_per_rank.append([int((segments[slots] == s).sum()) for s in (1, 2)])
        seen += [slot for slot in slots.tolist() if segments[slot]]
    # chunks of 2: rank 0 holds tokens 0 1 6 7, rank 1 holds 2 3 4 5; of 5 real tokens 2 and 3, of 7 real ones 3 and 4
    assert real_per_rank == [[2, 3], [3, 4]]
    assert sorted(seen) == slots_of_real_tokens(lengths, padded).tolist()


@pytest.mark.parametrize(
    ("method", "pairs"),
    [
        ("contiguous", [136, 392, 648, 904]),
        ("zigzag", [520, 520, 520, 520]),
        ("striped", [496, 512, 528, 544]),
    ],
)
def test_zigzag_work(method: str, pairs: list[int]) -> None:
    """Fault: a sharding that only looks balanced; counted by looking at every pair of tokens."""
    counted = [
        sum(1 for query in local_token_indices([0, 64], 4, rank, method).tolist() for key in range(64) if key <= query)
        for rank in range(4)
    ]
    assert counted == pairs


@pytest.mark.parametrize(
    ("tp", "cp", "block", "multiple"), [(2, 1, 1, 2), (2, 2, 1, 8), (2, 2, 16, 32), (3, 1, 16, 48)]
)
def test_padding_rule(tp: int, cp: int, block: int, multiple: int) -> None:
    """Fault: the larger of both multiples where their least common multiple is needed."""
    assert PaddingRule(tp=tp, block=block).multiple(cp) == multiple


@pytest.mark.parametrize("how", ["pack", "in_order", "packing_aware"])
def test_zero_length(how: str) -> None:
    """Fault: empty sequences that shift the ids of others, or reach cu_seqlens, or break validation."""
    lengths = [0, 1, 0, 1]
    if how == "pack":
        plan = dcpack.pack(lengths, capacity=4)
    else:
        plan = dcpack.plan(lengths, num_ranks=2, capacity=4, scheduler=how)
    plan.validate(lengths)
    assert sorted(plan.sequence_ids.tolist()) == [1, 3]
    assert plan.num_sequences == 4
    assert plan.dropped.tolist() == [0, 0, 0, 0]
    assert (plan.entry_lengths > 0).all()
    with pytest.raises(ArgumentError, match=r"lengths must be at least 1: lengths\[0\] = 0, lengths\[2\] = 0"):
        packed_offsets(lengths)


def test_labels_then_zigzag() -> None:
    """Fault: slicing before the shift, so that the last token of each chunk has no label."""
    tokens = np.arange(8)
    labels = shift_labels(tokens, [0, 8])
    rank0, rank1 = (local_token_indices([0, 8], 2, rank) for rank in range(2))
    assert tokens[rank0].tolist() == [0, 1, 6, 7]
    assert labels[rank0].tolist() == [1, 2, 7, -100]
    assert labels[rank1].tolist() == [3, 4, 5, 6]


def test_pack_total() -> None:
    """Fault: a packed total that sequence parallelism cannot cut into whole blocks."""
    rule = PaddingRule(tp=4, block=32, sequence_parallel=True)
    total = rule.padded_total(31936)
    assert total == 32000
    assert total // 4 == 8000
    assert total // 4 % 32 == 0
    # a row of 31936 tokens does not fit in a capacity that its padded total exceeds
    with pytest.raises(dcpack.InfeasibleError, match="limit of 31872 tokens"):
        dcpack.pack([31936], capacity=31999, padding=rule)
    assert dcpack.pack([31936], capacity=32000, padding=rule).num_bins == 1
