from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import dcpack
from dcpack.errors import ArgumentError, DcpackError, PeerError
from dcpack.exchange import PackedBatch, StaticShapes, exchange_samples, gather_samples
from dcpack.loss import NORMALISERS, token_weights
from dcpack.sharding import SHARDINGS

PlanOf = Callable[..., dcpack.Plan]
Samples = Sequence[Mapping[str, Any]]


def exchange(
    samples: Sequence[Samples], plan: dcpack.Plan, per_token: Sequence[str] = (), **options: Any
) -> dict[int, list[PackedBatch]]:
    """The batches of every plan rank; process r brings ``samples[r]``."""

    def fn(communicator: dcpack.Communicator) -> dict[int, list[PackedBatch]]:
        gathered = gather_samples(communicator, samples[communicator.rank], per_token=per_token)
        return exchange_samples(communicator, gathered, plan, **options)

    return {rank: batches for mine in dcpack.run_ranks(len(samples), fn) for rank, batches in mine.items()}


def alone(samples: Samples, plan: dcpack.Plan, **options: Any) -> list[PackedBatch]:
    return exchange([samples], plan, **options)[0]


def one_bin(plan_of: PlanOf, samples: Samples, **options: Any) -> dcpack.Plan:
    lengths = [len(sample["tokens"]) for sample in samples]
    entries = [(i, 0, length) for i, length in enumerate(lengths)]
    return plan_of(lengths, [(0, 0, 1, entries)], num_ranks=1, **options)


# ---- one example, every attribute ------------------------------------------------------------------------------------

TWO = [
    {"tokens": [10, 11, 12, 13, 14], "score": 0.5},
    {"tokens": [20, 21, 22, 23, 24, 25, 26], "image": np.ones((2, 3), np.float16)},
]


def two_ranks(plan_of: PlanOf, **options: Any) -> tuple[PackedBatch, PackedBatch]:
    """5 and 7 tokens, padded to 8 each, over two ranks in chunks of 2; each process brings one sequence."""
    bins = [(0, 0, 2, [(0, 0, 5), (1, 0, 7)])]
    plan = plan_of([5, 7], bins, num_ranks=2, capacity=12, padding=dcpack.PaddingRule())
    batches = exchange([TWO[:1], TWO[1:]], plan, **options)
    return batches[0][0], batches[1][0]


def test_tokens_by_hand(plan_of: PlanOf) -> None:
    first, second = two_ranks(plan_of)
    assert {name: array.tolist() for name, array in first.tokens.items()} == {
        "input_ids": [10, 11, 0, 0, 20, 21, 26, 0],
        "labels": [11, 12, -100, -100, 21, 22, -100, -100],
        "loss_mask": [1, 1, 0, 0, 1, 1, 0, 0],
        "position_ids": [0, 1, 0, 0, 0, 1, 6, 0],
        "segment_ids": [1, 1, 0, 0, 2, 2, 2, 0],
    }
    assert {name: array.tolist() for name, array in second.tokens.items()} == {
        "input_ids": [12, 13, 14, 0, 22, 23, 24, 25],
        "labels": [13, 14, -100, -100, 23, 24, 25, 26],
        "loss_mask": [1, 1, 0, 0, 1, 1, 1, 1],
        "position_ids": [2, 3, 4, 0, 2, 3, 4, 5],
        "segment_ids": [1, 1, 1, 0, 2, 2, 2, 2],
    }
    assert {name: array.dtype.name for name, array in first.tokens.items()} == {
        "input_ids": "int64",
        "labels": "int64",
        "loss_mask": "float32",
        "position_ids": "int64",
        "segment_ids": "int32",
    }


def test_offsets_by_hand(plan_of: PlanOf) -> None:
    first, second = two_ranks(plan_of)
    for batch in (first, second):
        assert batch.cu_seqlens.tolist() == [0, 5, 12]
        assert batch.cu_seqlens_padded.tolist() == [0, 8, 16]
        assert batch.local_cu_seqlens_padded.tolist() == [0, 4, 8]
        assert batch.max_seqlen == batch.true_max_seqlen == 8
        assert type(batch.max_seqlen) is int
        assert batch.num_sequences == 2
        assert batch.num_tokens == 8
    assert first.local_cu_seqlens.tolist() == [0, 2, 5]
    assert second.local_cu_seqlens.tolist() == [0, 3, 7]
    names = ("cu_seqlens", "cu_seqlens_padded", "local_cu_seqlens", "local_cu_seqlens_padded")
    assert {getattr(first, name).dtype.name for name in names} == {"int32"}


def test_the_rest_by_hand(plan_of: PlanOf) -> None:
    first, second = two_ranks(plan_of)
    assert first.slots.tolist() == [0, 1, 6, 7, 8, 9, 14, 15]
    assert second.slots.tolist() == [2, 3, 4, 5, 10, 11, 12, 13]
    for rank, batch in enumerate((first, second)):
        assert batch.sequence_ids.tolist() == [0, 1]
        assert batch.starts.tolist() == [0, 0]
        assert batch.sequence_valid_tokens.tolist() == [4, 6]
        assert (batch.microbatch, batch.num_microbatches, batch.row) == (0, 1, 0)
        assert (batch.cp_size, batch.cp_rank, batch.cp_ranks) == (2, rank, (0, 1))
        assert (batch.is_dummy, batch.is_oversized, batch.dummy_fields) == (False, False, {})
        assert [sorted(own) for own in batch.sample_fields] == [["score"], ["image"]]
        assert batch.sample_fields[0]["score"].shape == ()
        assert batch.sample_fields[1]["image"].shape == (2, 3)
    # 10 tokens have a label in their own sequence, each on one rank only.
    assert (first.num_valid_tokens, second.num_valid_tokens) == (4, 6)
    assert first.global_valid_tokens == second.global_valid_tokens == 10
    assert first.global_valid_sequences == second.global_valid_sequences == 2


def test_static_shapes_by_hand(plan_of: PlanOf) -> None:
    first, second = two_ranks(plan_of, static_shapes=StaticShapes(max_sequences=3))
    for batch in (first, second):
        assert batch.num_tokens == 12
        assert {array.shape for array in batch.tokens.values()} == {(12,)}
        assert batch.cu_seqlens.tolist() == [0, 5, 12, 12]
        assert batch.cu_seqlens_padded.tolist() == [0, 8, 16, 16]
        assert batch.local_cu_seqlens_padded.tolist() == [0, 4, 8, 8]
        assert batch.cu_seqlens.dtype == batch.local_cu_seqlens.dtype == np.int32
        assert (batch.max_seqlen, batch.true_max_seqlen, batch.num_sequences) == (24, 8, 2)
        assert batch.slots[8:].tolist() == [-1] * 4
    assert first.local_cu_seqlens.tolist() == [0, 2, 5, 5]
    assert second.local_cu_seqlens.tolist() == [0, 3, 7, 7]
    tail = {name: array[8:].tolist() for name, array in first.tokens.items()}
    assert tail == {
        "input_ids": [0] * 4,
        "labels": [-100] * 4,
        "loss_mask": [0] * 4,
        "position_ids": [0] * 4,
        "segment_ids": [0] * 4,
    }
    dynamic = two_ranks(plan_of)[0]
    for name, array in dynamic.tokens.items():
        assert first.tokens[name][:8].tolist() == array.tolist()
    assert (first.num_valid_tokens, second.num_valid_tokens) == (4, 6)


# ---- layout ----------------------------------------------------------------------------------------------------------


def test_pieces_of_a_cut_sequence(plan_of: PlanOf) -> None:
    # The label of a piece's last token is the first token of the next piece: the shift came before the cut.
    sample = {"tokens": [1, 2, 3, 4, 5], "image": np.ones(1), "score": 7}
    plan = plan_of([5], [(0, 0, 1, [(0, 0, 3)]), (1, 0, 1, [(0, 3, 2)])], num_ranks=1)
    head, tail = alone([sample], plan)
    assert head.tokens["labels"].tolist() == [2, 3, 4]
    assert tail.tokens["labels"].tolist() == [5, -100]
    assert head.tokens["position_ids"].tolist() == [0, 1, 2]
    assert tail.tokens["position_ids"].tolist() == [0, 1]
    assert (head.starts.tolist(), tail.starts.tolist()) == ([0], [3])
    assert head.sequence_valid_tokens.tolist() == tail.sequence_valid_tokens.tolist() == [4]
    assert (head.num_valid_tokens, tail.num_valid_tokens) == (3, 1)
    assert [sorted(batch.sample_fields[0]) for batch in (head, tail)] == [["image", "score"], ["score"]]
    assert [batch.microbatch for batch in (head, tail)] == [0, 1]


def test_position_ids_that_are_given_are_kept(plan_of: PlanOf) -> None:
    samples = [{"tokens": [1, 2, 3], "position_ids": np.array([5, 6, 9], np.int32)}]
    plan = one_bin(plan_of, samples, padding=dcpack.PaddingRule(block=4))
    (batch,) = alone(samples, plan)
    assert batch.tokens["position_ids"].tolist() == [5, 6, 9, 0]
    assert batch.tokens["position_ids"].dtype == np.int32


def test_position_ids_of_several_axes_are_kept(plan_of: PlanOf) -> None:
    # Multimodal rotary embeddings have a position on each of three axes.
    samples = [{"tokens": [1, 2], "position_ids": [[0, 0, 0], [0, 1, 2]]}]
    (batch,) = alone(samples, one_bin(plan_of, samples))
    assert batch.tokens["position_ids"].tolist() == [[0, 0, 0], [0, 1, 2]]


def test_a_sequence_parallel_row_gets_a_tail(plan_of: PlanOf) -> None:
    # 5 tokens padded to 6, the row to a multiple of tp * block = 4.
    samples = [{"tokens": [1, 2, 3, 4, 5]}]
    rule = dcpack.PaddingRule(tp=2, block=2, sequence_parallel=True)
    (batch,) = alone(samples, one_bin(plan_of, samples, capacity=8, padding=rule))
    assert batch.tokens["input_ids"].tolist() == [1, 2, 3, 4, 5, 0, 0, 0]
    assert batch.tokens["labels"].tolist() == [2, 3, 4, 5, -100, -100, -100, -100]
    assert batch.tokens["segment_ids"].tolist() == [1] * 5 + [0] * 3
    assert batch.slots.tolist() == [0, 1, 2, 3, 4, 5, -1, -1]
    assert batch.cu_seqlens_padded.tolist() == batch.local_cu_seqlens_padded.tolist() == [0, 6]
    assert batch.num_tokens == 8


def test_a_sequence_parallel_tail_is_the_rows_own(plan_of: PlanOf) -> None:
    # At CP 2 the sequence is padded to lcm(2 * 2 * 2, 6) = 24, 12 a rank; 12 is a multiple of tp * block = 6 already.
    rule = dcpack.PaddingRule(tp=2, block=3, sequence_parallel=True)
    plan = plan_of([17], [(0, 0, 2, [(0, 0, 17)])], num_ranks=2, padding=rule)
    batches = exchange([[{"tokens": np.arange(17)}], []], plan)
    assert [batches[rank][0].num_tokens for rank in (0, 1)] == [12, 12]
    assert all(batches[rank][0].slots.min() >= 0 for rank in (0, 1))
    # With block 4 it is padded to 24 again, and each rank's 12 to a multiple of 8, whatever the CP size.
    rule = dcpack.PaddingRule(tp=2, block=4, sequence_parallel=True)
    plan = plan_of([17], [(0, 0, 2, [(0, 0, 17)])], num_ranks=2, padding=rule)
    batches = exchange([[{"tokens": np.arange(17)}], []], plan)
    assert [batches[rank][0].num_tokens for rank in (0, 1)] == [16, 16]
    assert [batches[rank][0].slots[-4:].tolist() for rank in (0, 1)] == [[-1] * 4] * 2


def test_further_dims_are_padded_with_zeros(plan_of: PlanOf) -> None:
    samples = [{"tokens": [1, 2, 3], "emb": np.arange(1, 7).reshape(3, 2)}, {"tokens": [4]}]
    plan = one_bin(plan_of, samples, padding=dcpack.PaddingRule(block=2))
    (batch,) = alone(samples, plan, per_token=["emb"])
    assert batch.tokens["emb"].tolist() == [[1, 2], [3, 4], [5, 6], [0, 0], [0, 0], [0, 0]]


def test_batches_come_by_micro_batch(plan_of: PlanOf) -> None:
    samples = [{"tokens": [i + 1]} for i in range(4)]
    bins = [(m, r, 1, [(2 * m + r, 0, 1)]) for m in (1, 0) for r in (1, 0)]
    batches = exchange([samples[:2], samples[2:]], plan_of([1] * 4, bins, num_ranks=2))
    assert [[b.tokens["input_ids"].tolist() for b in batches[r]] for r in (0, 1)] == [[[1], [3]], [[2], [4]]]
    assert [[b.microbatch for b in batches[r]] for r in (0, 1)] == [[0, 1]] * 2
    assert {b.num_microbatches for r in (0, 1) for b in batches[r]} == {2}


def test_an_oversized_sequence_is_marked() -> None:
    plan = dcpack.plan([9, 2], num_ranks=1, capacity=4, overlong="single")
    batches = alone([{"tokens": np.arange(9)}, {"tokens": [1, 2]}], plan)
    assert {b.num_tokens: b.is_oversized for b in batches} == {9: True, 2: False}


def test_a_batch_owns_its_token_arrays(plan_of: PlanOf) -> None:
    # Training loops change batches in place; the samples of the next epoch must not change with them.
    tokens = np.arange(1, 5)
    samples = [{"tokens": tokens, "emb": np.ones((4, 2))}]
    (batch,) = alone(samples, one_bin(plan_of, samples), per_token=["emb"])
    for array in batch.tokens.values():
        array[...] = 9
    assert tokens.tolist() == [1, 2, 3, 4]
    assert samples[0]["emb"].tolist() == [[1.0, 1.0]] * 4


# ---- dummies ---------------------------------------------------------------------------------------------------------


def dummies(plan_of: PlanOf, **options: Any) -> list[PackedBatch]:
    """Ranks 2 and 3 of four share a dummy beside a real sequence on ranks 0 and 1."""
    bins = [(0, 0, 2, [(0, 0, 8)]), (0, 2, 2, [])]
    plan = plan_of([8], bins, num_ranks=4, capacity=8, padding=dcpack.PaddingRule())
    sample = {"tokens": np.arange(8, dtype=np.int32), "emb": np.ones((8, 3))}
    batches = exchange([[sample], [], [], []], plan, ["emb"], **options)
    return [batches[2][0], batches[3][0]]


def test_dummy_batches_by_hand(plan_of: PlanOf) -> None:
    pair = dummies(plan_of)
    # The shortest sequence that two ranks can share in zigzag has 4 tokens.
    assert sorted(np.concatenate([batch.slots for batch in pair]).tolist()) == [0, 1, 2, 3]
    for rank, batch in enumerate(pair):
        assert batch.is_dummy
        assert batch.num_tokens == 2
        assert batch.tokens["input_ids"].tolist() == [0, 0]
        assert batch.tokens["labels"].tolist() == [-100, -100]
        assert batch.tokens["loss_mask"].tolist() == [0, 0]
        assert batch.tokens["segment_ids"].tolist() == [1, 1]
        assert batch.tokens["position_ids"].tolist() == batch.slots.tolist()
        assert batch.tokens["input_ids"].dtype == np.int32
        assert batch.cu_seqlens.tolist() == batch.cu_seqlens_padded.tolist() == [0, 4]
        assert batch.local_cu_seqlens.tolist() == batch.local_cu_seqlens_padded.tolist() == [0, 2]
        assert (batch.num_sequences, batch.max_seqlen) == (1, 4)
        assert (batch.num_valid_tokens, batch.global_valid_tokens) == (0, 7)
        assert (batch.cp_rank, batch.cp_ranks) == (rank, (2, 3))
        assert batch.sample_fields == ({},)
        assert (batch.sequence_ids.tolist(), batch.starts.tolist()) == ([-1], [0])
        assert batch.sequence_valid_tokens.tolist() == [0]


def test_dummy_batches_have_the_static_shape_too(plan_of: PlanOf) -> None:
    for batch in dummies(plan_of, static_shapes=StaticShapes(max_sequences=2)):
        assert batch.num_tokens == 8
        assert batch.tokens["segment_ids"].tolist() == [1, 1, 0, 0, 0, 0, 0, 0]
        assert batch.cu_seqlens.tolist() == [0, 4, 4]
        assert batch.max_seqlen == 16


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_every_normaliser_gives_a_dummy_zero_weight(normaliser: str, plan_of: PlanOf) -> None:
    for batch in dummies(plan_of):
        weights = token_weights(
            batch.tokens["labels"],
            batch.tokens["loss_mask"],
            normaliser=normaliser,
            global_valid_tokens=batch.global_valid_tokens,
            segment_ids=batch.tokens["segment_ids"],
            sequence_valid_tokens=batch.sequence_valid_tokens,
            num_units=1,
        )
        assert weights.tolist() == [0, 0]


# ---- what counts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sharding", sorted(SHARDINGS))
@pytest.mark.parametrize("cp", [1, 2, 4])
def test_valid_tokens_add_up_whatever_the_cp_size(cp: int, sharding: str, plan_of: PlanOf) -> None:
    rng = np.random.default_rng(cp)
    lengths = [8, 5, 13, 1]
    samples = [{"tokens": np.arange(n), "loss_mask": rng.integers(0, 2, n)} for n in lengths]
    samples[0]["labels"] = np.array([1, -100, 3, 4, -100, 6, 7, 8])
    expected = sum(np.count_nonzero(s["loss_mask"][:-1]) for s in samples[1:])
    expected += np.count_nonzero(samples[0]["loss_mask"] * (samples[0]["labels"] != -100))
    # As many bins as make four ranks busy.
    homes = {1: [[0], [1], [2], [3]], 2: [[0, 1], [2, 3]], 4: [[0, 1, 2, 3]]}[cp]
    bins = [(0, cp * b, cp, [(i, 0, lengths[i]) for i in held]) for b, held in enumerate(homes)]
    plan = plan_of(lengths, bins, num_ranks=4, padding=dcpack.PaddingRule())
    batches = exchange([samples[:3], [], samples[3:], []], plan, sharding=sharding)
    assert {b.global_valid_tokens for mine in batches.values() for b in mine} == {expected}
    assert sum(b.num_valid_tokens for mine in batches.values() for b in mine) == expected > 0


@pytest.mark.parametrize("overlong", ["truncate", "drop", "split", "single"])
def test_valid_tokens_add_up_whatever_the_overlong_policy(overlong: str) -> None:
    # The loss is divided by global_valid_tokens, so tokens that nobody computes must not be among them.
    samples = [{"tokens": np.arange(4)}, {"tokens": np.arange(20)}]
    batches = alone(samples, dcpack.plan([4, 20], num_ranks=1, capacity=8, overlong=overlong))
    assert sum(batch.num_valid_tokens for batch in batches) == batches[0].global_valid_tokens


def test_a_truncated_sequence_counts_its_kept_part_on_all_ranks() -> None:
    # Sequence 1 keeps 8 of 20 tokens, of which the mask leaves 4; processes 0 and 2 hold it. Sequence 2 has none.
    long = {"tokens": np.arange(20), "loss_mask": np.arange(20) % 2}
    samples = [[{"tokens": np.arange(4)}, long], [{"tokens": [1]}], [long]]

    def fn(communicator: dcpack.Communicator) -> list[PackedBatch]:
        ids = [[0, 1], [2], [1]][communicator.rank]
        gathered = gather_samples(communicator, samples[communicator.rank], ids=ids)
        plan = dcpack.plan(
            gathered.table.lengths, num_ranks=3, capacity=8, max_cp_size=1, overlong="truncate", on_empty="dummy"
        )
        return exchange_samples(communicator, gathered, plan)[communicator.rank]

    batches = [batch for mine in dcpack.run_ranks(3, fn) for batch in mine]
    assert {batch.global_valid_tokens for batch in batches} == {3 + 4}
    assert {batch.global_valid_sequences for batch in batches} == {2}
    assert sum(batch.num_valid_tokens for batch in batches) == 7
    of_sequence = {
        int(i): int(n) for b in batches for i, n in zip(b.sequence_ids, b.sequence_valid_tokens, strict=True)
    }
    assert of_sequence == {0: 3, 1: 4, 2: 0}


def test_a_sample_without_a_loss_mask_counts_beside_one_with(plan_of: PlanOf) -> None:
    samples = [{"tokens": [1, 2, 3], "loss_mask": [1, 0, 1]}, {"tokens": [4, 5, 6]}]
    (batch,) = alone(samples, one_bin(plan_of, samples))
    assert batch.tokens["loss_mask"].tolist() == [1, 0, 1, 1, 1, 0]
    assert batch.num_valid_tokens == batch.global_valid_tokens == 3


def test_a_sample_without_position_ids_has_its_own_beside_one_with(plan_of: PlanOf) -> None:
    samples = [{"tokens": [1, 2, 3], "position_ids": [0, 1, 2]}, {"tokens": [4, 5, 6]}]
    (batch,) = alone(samples, one_bin(plan_of, samples))
    assert batch.tokens["position_ids"].tolist() == [0, 1, 2, 0, 1, 2]


# ---- dtypes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtypes", "expected"),
    [
        (("int32", "int32"), "int32"),
        (("int32", "int64"), "int64"),
        (("uint16", "int32"), "int32"),
        (("uint8", "uint16"), "uint16"),
    ],
)
def test_token_dtypes_that_differ_meet_in_one_that_holds_both(
    dtypes: tuple[str, str], expected: str, plan_of: PlanOf
) -> None:
    samples = [{"tokens": np.array([1, 2], dtype)} for dtype in dtypes]
    bins = [(0, 0, 1, [(0, 0, 2)]), (1, 0, 1, [(1, 0, 2)])]
    batches = alone(samples, plan_of([2, 2], bins, num_ranks=1))
    # Every batch of the step has it, so that all ranks run one program.
    assert [batch.tokens["input_ids"].dtype for batch in batches] == [expected, expected]
    assert [batch.tokens["input_ids"].tolist() for batch in batches] == [[1, 2], [1, 2]]


def test_tokens_never_become_floats(plan_of: PlanOf) -> None:
    # NumPy's common dtype of these two is float64, which cannot hold them.
    samples = [{"tokens": np.array([2**62 + 1], np.uint64)}, {"tokens": np.array([2**62 + 3], np.int64)}]
    with pytest.raises(PeerError, match="'input_ids'"):
        alone(samples, one_bin(plan_of, samples))


def test_unsigned_labels_are_padded_with_the_ignored_value(plan_of: PlanOf) -> None:
    samples = [{"inputs": np.array([1, 2, 3], np.uint16), "targets": np.array([2, 3, 4], np.uint16)}]
    plan = plan_of([3], [(0, 0, 1, [(0, 0, 3)])], num_ranks=1, padding=dcpack.PaddingRule(block=4))
    (batch,) = alone(samples, plan)
    assert batch.tokens["labels"].tolist() == [2, 3, 4, -100]


@pytest.mark.parametrize(
    ("one", "other", "what"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), "dimensions"),
        (np.ones(2, np.float16), np.ones(2, ml_dtypes.bfloat16), "dtype"),
    ],
)
def test_per_token_fields_that_fit_no_common_row(one: Any, other: Any, what: str, plan_of: PlanOf) -> None:
    samples = [{"tokens": [1, 2], "emb": one}, {"tokens": [1, 2], "emb": other}]
    with pytest.raises(PeerError) as caught:
        alone(samples, one_bin(plan_of, samples), per_token=["emb"])
    first_line = str(caught.value).splitlines()[0]
    assert caught.value.cause == "ArgumentError"
    assert "'emb'" in first_line
    assert what in first_line


# ---- static shapes ---------------------------------------------------------------------------------------------------


def test_static_shapes_give_every_batch_one_signature(plan_of: PlanOf) -> None:
    # A compiled program sees names, shapes and dtypes: they are those of the step and not those of the bin.
    samples = [
        {"tokens": [1, 2, 3], "emb": np.ones((3, 2), np.float16), "loss_mask": [True, True, True]},
        {"tokens": [4, 5]},
    ]
    bins = [(0, 0, 1, [(0, 0, 3)]), (0, 1, 1, [(1, 0, 2)]), (1, 0, 1, []), (1, 1, 1, [])]
    plan = plan_of([3, 2], bins, num_ranks=2, capacity=4)
    batches = exchange([samples, []], plan, ["emb"], static_shapes=StaticShapes(max_sequences=2))
    signatures = {
        (
            tuple(sorted((name, array.shape, array.dtype.name) for name, array in batch.tokens.items())),
            batch.cu_seqlens.shape,
            batch.local_cu_seqlens.shape,
            batch.max_seqlen,
        )
        for mine in batches.values()
        for batch in mine
    }
    assert len(signatures) == 1


def test_static_shapes_hold_one_sequence_at_least() -> None:
    with pytest.raises(ArgumentError, match="max_sequences must be from 1 to 2147483647, got 0"):
        StaticShapes(max_sequences=0)


def test_more_sequences_than_the_static_shape_holds(plan_of: PlanOf) -> None:
    samples = [{"tokens": [1]}] * 3
    with pytest.raises(PeerError, match="max_sequences 2: bin 0 has 3 tokens and 3 sequences"):
        alone(samples, one_bin(plan_of, samples), static_shapes=StaticShapes(max_sequences=2))


def test_the_planner_keeps_to_the_static_shape() -> None:
    samples = [{"tokens": [1]}] * 5
    plan = dcpack.plan([1] * 5, num_ranks=1, capacity=8, max_sequences=2)
    batches = alone(samples, plan, static_shapes=StaticShapes(max_sequences=2))
    assert sorted(batch.num_sequences for batch in batches) == [1, 2, 2]
    assert {batch.cu_seqlens.size for batch in batches} == {3}


def test_an_oversized_sequence_fits_no_static_shape() -> None:
    plan = dcpack.plan([9], num_ranks=1, capacity=4, overlong="single")
    with pytest.raises(PeerError, match=r"static shapes hold 4 tokens a rank.*bin 0 has 9 tokens and 1 sequences"):
        alone([{"tokens": np.arange(9)}], plan, static_shapes=StaticShapes(max_sequences=2))


@pytest.mark.parametrize("dummy_fields", [{"unheard of": np.array([True])}, {"score": np.array([], np.bool_)}])
def test_stand_ins_that_fit_neither_samples_nor_plan(dummy_fields: Any, plan_of: PlanOf) -> None:
    samples = [{"tokens": [1], "score": 1.0}]
    with pytest.raises(DcpackError) as caught:
        alone(samples, one_bin(plan_of, samples), dummy_fields=dummy_fields)
    assert isinstance(caught.value, PeerError)
    assert caught.value.cause == "ArgumentError"
    assert "dummy_fields" in str(caught.value).splitlines()[0]
