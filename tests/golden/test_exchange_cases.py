"""Inputs that users of comparable systems stumbled over, with the right answers, through the whole exchange."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import dcpack
from dcpack.errors import PeerError
from dcpack.exchange import PackedBatch, StaticShapes, exchange_samples, gather_samples, restore

Samples = Sequence[Mapping[str, Any]]
DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float8_e4m3fn",
    "float32",
    "float64",
]


def plan_of(
    lengths: Sequence[int],
    bins: Sequence[tuple[int, int, list[int]]],
    *,
    num_ranks: int,
    padding: dcpack.PaddingRule | None = None,
    capacity: int = 64,
) -> dcpack.Plan:
    """One micro-batch of bins (first rank, CP size, whole sequences in their order)."""
    held = [sequence for _, _, sequences in bins for sequence in sequences]
    count = len(bins)
    plan = dcpack.Plan(
        microbatch=np.zeros(count, np.int64),
        first_rank=np.array([first for first, _, _ in bins], np.int64),
        cp_size=np.array([cp for _, cp, _ in bins], np.int64),
        row=np.zeros(count, np.int64),
        oversized=np.zeros(count, np.bool_),
        dummy=np.array([not sequences for _, _, sequences in bins]),
        offsets=np.array([0, *np.cumsum([len(sequences) for _, _, sequences in bins])], np.int64),
        sequence_ids=np.array(held, np.int64),
        starts=np.zeros(len(held), np.int64),
        entry_lengths=np.array([lengths[i] for i in held], np.int64),
        lengths=np.array(lengths, np.int64),
        dropped=np.zeros(len(lengths), np.int64),
        num_ranks=num_ranks,
        num_microbatches=1,
        rows_per_rank=1,
        capacity=capacity,
        padding=padding,
        cp_sizes=tuple(sorted({cp for _, cp, _ in bins})),
    )
    plan.validate(lengths)
    return plan


def exchange(
    samples: Sequence[Samples], plan: dcpack.Plan | None = None, per_token: Sequence[str] = (), **options: Any
) -> list[list[PackedBatch]]:
    """The batches of every rank; rank r brings ``samples[r]``."""

    def fn(communicator: dcpack.Communicator) -> list[PackedBatch]:
        gathered = gather_samples(communicator, samples[communicator.rank], per_token=per_token)
        chosen = plan or dcpack.plan(
            gathered.table.lengths, num_ranks=len(samples), capacity=16, padding=dcpack.PaddingRule(), on_empty="dummy"
        )
        return exchange_samples(communicator, gathered, chosen, **options)[communicator.rank]

    return dcpack.run_ranks(len(samples), fn)


def fields_by_sample(batches: Sequence[Sequence[PackedBatch]]) -> dict[int, list[Mapping[str, npt.NDArray[Any]]]]:
    """The fields of each sample, once for each rank that computes on it."""
    found: dict[int, list[Mapping[str, npt.NDArray[Any]]]] = {}
    for mine in batches:
        for batch in mine:
            for which, fields in zip(batch.sequence_ids.tolist(), batch.sample_fields, strict=True):
                found.setdefault(which, []).append(fields)
    return found


# ---- cases of the exchange -------------------------------------------------------------------------------------------


def test_silent_rank() -> None:
    # Rank 1 has nothing to send, rank 3 nothing to receive: its bin is a dummy. Sample 2 has no tokens at all.
    samples = [
        [{"tokens": np.array([1, 2], np.int32), "none": np.zeros((0, 3), np.float16)}],
        [],
        [{"tokens": np.zeros(0, np.int32)}, {"tokens": np.array([3, 4, 5], np.int32)}],
        [{"tokens": np.array([6], np.int32)}],
    ]
    plan = plan_of([2, 0, 3, 1], [(0, 1, [3]), (1, 1, [0]), (2, 1, [2]), (3, 1, [])], num_ranks=4)

    def fn(communicator: dcpack.Communicator) -> tuple[PackedBatch, list[npt.NDArray[Any] | None]]:
        gathered = gather_samples(communicator, samples[communicator.rank])
        batches = exchange_samples(communicator, gathered, plan)
        outputs = {rank: [batch.tokens["input_ids"] for batch in mine] for rank, mine in batches.items()}
        return batches[communicator.rank][0], restore(communicator, gathered, plan, batches, outputs)

    results = dcpack.run_ranks(4, fn)
    assert [batch.tokens["input_ids"].tolist() for batch, _ in results] == [[6], [1, 2], [3, 4, 5], [0]]
    assert {batch.tokens["input_ids"].dtype.name for batch, _ in results} == {"int32"}
    empty = results[1][0].sample_fields[0]["none"]
    assert (empty.shape, empty.dtype) == ((0, 3), np.float16)
    restored = [[None if r is None else (r.tolist(), r.dtype.name) for r in back] for _, back in results]
    assert restored == [
        [([1, 2], "int32")],
        [],
        [([], "int32"), ([3, 4, 5], "int32")],
        [([6], "int32")],
    ]


def every_bit(dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Random bit patterns, NaNs with payloads and infinities among them."""
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    rng = np.random.default_rng(0)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    return rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind).reshape(shape)


@pytest.mark.parametrize("routing", ["sliced", "whole"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: str, routing: str) -> None:
    # Sequences 0 and 1 change places between ranks 0 and 2, sequence 2 of rank 2 is split over ranks 0 and 1.
    lengths = [7, 5, 11]
    values = [every_bit(dtype, (length, 2)) for length in lengths]
    wholes = [every_bit(dtype, (3, length)) for length in lengths]
    scalars = [every_bit(dtype, (length,))[-1] for length in lengths]
    made = [
        {"tokens": np.arange(n), "emb": v, "whole": w, "scalar": s}
        for n, v, w, s in zip(lengths, values, wholes, scalars, strict=True)
    ]
    samples = [made[:1], [], made[1:]]
    plan = plan_of(lengths, [(0, 2, [1, 2]), (2, 1, [0])], num_ranks=3, padding=dcpack.PaddingRule())

    def fn(communicator: dcpack.Communicator) -> tuple[list[PackedBatch], list[npt.NDArray[Any] | None]]:
        gathered = gather_samples(communicator, samples[communicator.rank], per_token=["emb"])
        batches = exchange_samples(communicator, gathered, plan, routing=routing)
        outputs = {rank: [batch.tokens["emb"] for batch in mine] for rank, mine in batches.items()}
        return batches[communicator.rank], restore(communicator, gathered, plan, batches, outputs)

    results = dcpack.run_ranks(3, fn)
    kind = values[0].dtype
    assert kind.name == dtype
    for batches, _ in results:
        for batch in batches:
            emb, segments = batch.tokens["emb"], batch.tokens["segment_ids"]
            assert emb.dtype == kind
            assert not emb[segments == 0].view(np.uint8).any()
            for number, which in enumerate(batch.sequence_ids, start=1):
                here = segments == number
                assert here.any()
                assert emb[here].tobytes() == values[which][batch.tokens["position_ids"][here]].tobytes()
    found = fields_by_sample([batches for batches, _ in results])
    assert {which: len(copies) for which, copies in found.items()} == {0: 1, 1: 2, 2: 2}
    for which, copies in found.items():
        for fields in copies:
            for name, original in (("whole", wholes[which]), ("scalar", scalars[which])):
                assert fields[name].dtype == kind
                assert fields[name].shape == np.shape(original)
                assert fields[name].tobytes() == original.tobytes()
    restored = [result for _, mine in results for result in mine]
    assert [result.tobytes() for result in restored if result is not None] == [v.tobytes() for v in values]


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]])
def test_missing_fields(order: list[int]) -> None:
    # Rank 0 has text alone, rank 1 text and images; whoever computes on which.
    text = [{"tokens": np.full(n, n)} for n in (3, 2)]
    images = [{"tokens": np.full(n, n), "pixel_values": np.full((k, 3, 4), n, np.float32)} for n, k in ((4, 2), (5, 1))]
    plan = plan_of([3, 2, 4, 5], [(0, 1, order[:2]), (1, 1, order[2:])], num_ranks=2)
    batches = exchange([text, images], plan)
    found = fields_by_sample(batches)
    assert {which: [sorted(fields) for fields in copies] for which, copies in found.items()} == {
        0: [[]],
        1: [[]],
        2: [["pixel_values"]],
        3: [["pixel_values"]],
    }
    assert found[2][0]["pixel_values"].tolist() == np.full((2, 3, 4), 4.0).tolist()
    assert found[3][0]["pixel_values"].tolist() == np.full((1, 3, 4), 5.0).tolist()
    held = [np.unique(batch.tokens["input_ids"]).tolist() for mine in batches for batch in mine]
    lengths = [3, 2, 4, 5]
    assert held == [sorted(lengths[i] for i in order[:2]), sorted(lengths[i] for i in order[2:])]


def test_own_first_dim() -> None:
    shapes = [(7, 1), (3, 0), (9, 5)]
    rng = np.random.default_rng(0)
    made = [{"tokens": np.arange(n), "pixel_values": rng.random((rows, 3, 4))} for n, rows in shapes]
    # Away from home and cut over two ranks.
    plan = plan_of([7, 3, 9], [(0, 2, [2, 0, 1])], num_ranks=2, padding=dcpack.PaddingRule())
    found = fields_by_sample(exchange([made[:2], made[2:]], plan))
    for which, (_, rows) in enumerate(shapes):
        for fields in found[which]:
            assert fields["pixel_values"].shape == (rows, 3, 4)
            assert np.array_equal(fields["pixel_values"], made[which]["pixel_values"])
        assert len(found[which]) == 2


def test_scalar_fields() -> None:
    samples = [
        [{"tokens": [1, 2], "reward": 0.25, "one": np.array([0.5])}],
        [{"tokens": [3], "reward": np.float64(0.75), "one": np.array([1.5])}],
    ]
    plan = plan_of([2, 1], [(0, 1, [1]), (1, 1, [0])], num_ranks=2)
    (away,), (other,) = (mine[0].sample_fields for mine in exchange(samples, plan))
    assert (away["reward"].shape, away["one"].shape) == ((), (1,))
    assert (float(away["reward"]), float(away["one"][0])) == (0.75, 1.5)
    assert (float(other["reward"]), float(other["one"][0])) == (0.25, 0.5)


def test_input_not_mutated() -> None:
    samples = [[{"tokens": np.arange(9) + 10 * r, "pixel_values": np.ones((2, 2)), "score": 1.0}] for r in range(2)]
    before = [[{name: np.array(value) for name, value in s.items()} for s in mine] for mine in samples]
    results = [exchange(samples) for _ in range(2)]
    assert [[list(s) for s in mine] for mine in samples] == [[list(s) for s in mine] for mine in before]
    for mine, theirs in zip(samples, before, strict=True):
        for sample, copy in zip(mine, theirs, strict=True):
            assert all(np.array_equal(sample[name], copy[name]) for name in copy)
    for one, two in zip(*results, strict=True):
        for a, b in zip(one, two, strict=True):
            assert {name: x.tolist() for name, x in a.tokens.items()} == {n: x.tolist() for n, x in b.tokens.items()}
            assert [sorted(own) for own in a.sample_fields] == [sorted(own) for own in b.sample_fields]


class Failing(Sequence[Mapping[str, Any]]):
    """A dataset whose third item cannot be read."""

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: Any) -> Any:
        if index == 2:
            raise KeyError("x")
        return {"tokens": [index]}

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self[i] for i in range(len(self)))


def test_raise_on_one_rank() -> None:
    errors: dict[int, PeerError] = {}

    def fn(communicator: dcpack.Communicator) -> None:
        dataset = Failing() if communicator.rank == 2 else [{"tokens": [1]}] * 5
        try:
            with communicator.guard():
                samples = list(dataset)
            gather_samples(communicator, samples)
        except PeerError as error:
            errors[communicator.rank] = error
            raise

    start = time.monotonic()
    with pytest.raises(PeerError, match=r"rank 2 failed .*: KeyError: 'x'"):
        dcpack.run_ranks(4, fn)
    assert time.monotonic() - start < 10
    assert sorted(errors) == [0, 1, 2, 3]
    assert {(error.rank, error.cause) for error in errors.values()} == {(2, "KeyError")}
    assert isinstance(errors[2].__cause__, KeyError)


# ---- cases of the layout, through the exchange -----------------------------------------------------------------------


def alone(samples: Samples, padding: dcpack.PaddingRule | None = None, **options: Any) -> PackedBatch:
    lengths = [len(sample["tokens"]) for sample in samples]
    plan = plan_of(lengths, [(0, 1, [i for i, n in enumerate(lengths) if n])], num_ranks=1, padding=padding)
    return exchange([samples], plan, **options)[0][0]


def test_labels_shift_per_sequence() -> None:
    batch = alone([{"tokens": [10, 11, 12]}, {"tokens": [20, 21, 22]}])
    assert batch.tokens["input_ids"].tolist() == [10, 11, 12, 20, 21, 22]
    assert batch.tokens["labels"].tolist() == [11, 12, -100, 21, 22, -100]


@pytest.mark.parametrize("routing", ["sliced", "whole"])
@pytest.mark.parametrize("holder", [0, 1])
def test_labels_then_zigzag(routing: str, holder: int) -> None:
    samples: list[Samples] = [[], []]
    samples[holder] = [{"tokens": [0, 1, 2, 3, 4, 5, 6, 7]}]
    (first,), (second,) = exchange(samples, plan_of([8], [(0, 2, [0])], num_ranks=2), routing=routing)
    assert first.tokens["input_ids"].tolist() == [0, 1, 6, 7]
    assert first.tokens["labels"].tolist() == [1, 2, 7, -100]
    assert second.tokens["input_ids"].tolist() == [2, 3, 4, 5]
    assert second.tokens["labels"].tolist() == [3, 4, 5, 6]


def test_zigzag_uneven() -> None:
    # Slices follow the padded offsets: by real offsets // cp tokens would be lost and neighbours mixed.
    samples = [[{"tokens": np.arange(10, 15)}], [{"tokens": np.arange(20, 27)}]]
    plan = plan_of([5, 7], [(0, 2, [0, 1])], num_ranks=2, padding=dcpack.PaddingRule())
    (first,), (second,) = exchange(samples, plan)
    assert first.local_cu_seqlens_padded.tolist() == second.local_cu_seqlens_padded.tolist() == [0, 4, 8]
    assert np.diff(first.local_cu_seqlens).tolist() == [2, 3]
    assert np.diff(second.local_cu_seqlens).tolist() == [3, 4]
    assert first.tokens["input_ids"].tolist() == [10, 11, 0, 0, 20, 21, 26, 0]
    assert second.tokens["input_ids"].tolist() == [12, 13, 14, 0, 22, 23, 24, 25]
    real = np.concatenate([batch.tokens["input_ids"][batch.tokens["segment_ids"] > 0] for batch in (first, second)])
    assert sorted(real.tolist()) == [*range(10, 15), *range(20, 27)]


def test_fixed_shape_tail() -> None:
    samples = [{"tokens": np.arange(16)}, {"tokens": np.arange(24)}]
    batch = alone(samples, static_shapes=StaticShapes(max_sequences=4))
    assert batch.cu_seqlens.tolist() == batch.local_cu_seqlens.tolist() == [0, 16, 40, 40, 40]
    assert batch.cu_seqlens_padded.tolist() == [0, 16, 40, 40, 40]
    assert batch.num_sequences == 2
    assert batch.num_tokens == 64
    assert batch.tokens["segment_ids"].tolist() == [1] * 16 + [2] * 24 + [0] * 24


def test_padding_mask() -> None:
    # Lengths 3 and 2 padded to 4 each: padded slots hold neutral values and never what lay in memory.
    samples: Samples = [
        {"tokens": [7, 8, 9], "loss_mask": [1, 1, 1], "position_ids": [3, 4, 5], "emb": [1.0, 2.0, 3.0]},
        {"tokens": [6, 5], "loss_mask": [1, 1], "position_ids": [8, 9], "emb": [4.0, 5.0]},
    ]
    batch = alone(samples, dcpack.PaddingRule(block=4), per_token=["emb"])
    assert batch.cu_seqlens.tolist() == [0, 3, 5]
    assert batch.cu_seqlens_padded.tolist() == [0, 4, 8]
    padding = np.array([0, 0, 0, 1, 0, 0, 1, 1], np.bool_)
    assert (batch.tokens["segment_ids"] == 0).tolist() == padding.tolist()
    neutral = {"input_ids": 0, "labels": -100, "loss_mask": 0, "position_ids": 0, "segment_ids": 0, "emb": 0}
    assert {name: array[padding].tolist() for name, array in batch.tokens.items()} == {
        name: [value] * 3 for name, value in neutral.items()
    }
    assert batch.tokens["emb"][~padding].tolist() == [1, 2, 3, 4, 5]


def test_one_token_sequences() -> None:
    batch = alone([{"tokens": np.arange(n)} for n in (3, 1, 2)])
    assert batch.tokens["position_ids"].tolist() == [0, 1, 2, 0, 0, 1]
    assert batch.tokens["segment_ids"].tolist() == [1, 1, 1, 2, 3, 3]
    assert batch.cu_seqlens.tolist() == [0, 3, 4, 6]


def test_zero_length() -> None:
    # Samples keep their number; those without tokens never reach cu_seqlens.
    batch = alone([{"tokens": np.arange(n)} for n in (0, 1, 0, 1)])
    assert batch.sequence_ids.tolist() == [1, 3]
    assert batch.cu_seqlens.tolist() == [0, 1, 2]
    assert batch.num_valid_tokens == batch.global_valid_tokens == 0
