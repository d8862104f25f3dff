from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

import dcpack
from dcpack.errors import ArgumentError, DcpackError, PeerError
from dcpack.exchange import PackedBatch, StaticShapes, exchange_samples, gather_samples, restore
from dcpack.sharding import SHARDINGS

PlanOf = Callable[..., dcpack.Plan]
Fail = Callable[..., list[tuple[type[DcpackError], str]]]
Compute = Callable[[PackedBatch], Any]
Results = list[npt.NDArray[Any] | None]


def there_and_back(
    communicator: dcpack.Communicator,
    samples: Sequence[Mapping[str, Any]],
    plan: dcpack.Plan,
    compute: Compute,
    *,
    ids: Any = None,
    fill_value: float = 0,
    **options: Any,
) -> Results:
    gathered = gather_samples(communicator, samples, ids=ids)
    batches = exchange_samples(communicator, gathered, plan, **options)
    outputs = {rank: [compute(batch) for batch in mine] for rank, mine in batches.items()}
    same = {name: value for name, value in options.items() if name in ("topology", "sharding")}
    return restore(communicator, gathered, plan, batches, outputs, fill_value=fill_value, **same)


def tokens_of(batch: PackedBatch) -> npt.NDArray[Any]:
    return batch.tokens["input_ids"]


def values(results: Results) -> list[Any]:
    return [None if result is None else result.tolist() for result in results]


# Sequence 0 (5 tokens) and 1 (7) share ranks 0 and 1, of sequence 2 (6) rank 0 has the tail and rank 1 the head.
BINS = [(0, 0, 2, [(1, 0, 7), (0, 0, 5)]), (1, 0, 1, [(2, 4, 2)]), (1, 1, 1, [(2, 0, 4)])]
SAMPLES = [
    [{"tokens": [1, 2, 3, 4, 5]}, {"tokens": np.arange(10, 17)}],
    [{"tokens": [30, 31, 32, 33, 34, 35]}],
]


def mixed_plan(plan_of: PlanOf) -> dcpack.Plan:
    return plan_of([5, 7, 6], BINS, num_ranks=2, padding=dcpack.PaddingRule())


@pytest.mark.parametrize("sharding", sorted(SHARDINGS))
@pytest.mark.parametrize("routing", ["sliced", "whole"])
@pytest.mark.parametrize("static_shapes", [None, StaticShapes(max_sequences=4)])
def test_the_round_trip_is_the_identity(
    sharding: str, routing: str, static_shapes: StaticShapes | None, plan_of: PlanOf
) -> None:
    plan = mixed_plan(plan_of)

    def fn(communicator: dcpack.Communicator) -> list[Any]:
        mine = SAMPLES[communicator.rank]
        options = {"sharding": sharding, "routing": routing, "static_shapes": static_shapes}
        return values(there_and_back(communicator, mine, plan, tokens_of, fill_value=-1, **options))

    assert dcpack.run_ranks(2, fn) == [[[1, 2, 3, 4, 5], list(range(10, 17))], [[30, 31, 32, 33, 34, 35]]]


def test_outputs_of_equal_shape_may_be_stacked() -> None:
    def fn(communicator: dcpack.Communicator) -> list[Any]:
        gathered = gather_samples(communicator, [{"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6]}])
        plan = dcpack.plan(gathered.table.lengths, num_ranks=1, capacity=3)
        batches = exchange_samples(communicator, gathered, plan)
        stacked = np.stack([tokens_of(batch) for batch in batches[0]])
        return values(restore(communicator, gathered, plan, batches, {0: stacked}))

    assert dcpack.run_ranks(1, fn) == [[[1, 2, 3], [4, 5, 6]]]


def test_further_dims_come_back(plan_of: PlanOf) -> None:
    plan = mixed_plan(plan_of)

    def compute(batch: PackedBatch) -> npt.NDArray[Any]:
        return np.stack([tokens_of(batch), batch.tokens["labels"]], axis=1).astype(np.float32)[:, :, None]

    def fn(communicator: dcpack.Communicator) -> Results:
        return there_and_back(communicator, SAMPLES[communicator.rank], plan, compute)

    (first, second), (third,) = dcpack.run_ranks(2, fn)
    assert first is not None
    assert second is not None
    assert third is not None
    assert (first.shape, first.dtype) == ((5, 2, 1), np.float32)
    assert first[:, :, 0].tolist() == [[1, 2], [2, 3], [3, 4], [4, 5], [5, -100]]
    assert second.shape == (7, 2, 1)
    # The sequence that was cut has the label across the cut.
    assert third[:, :, 0].tolist() == [[30, 31], [31, 32], [32, 33], [33, 34], [34, 35], [35, -100]]


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.bool_, np.uint8])
def test_every_dtype_comes_back_bit_for_bit(dtype: Any, plan_of: PlanOf) -> None:
    plan = mixed_plan(plan_of)

    def compute(batch: PackedBatch) -> npt.NDArray[Any]:
        return tokens_of(batch).astype(np.uint8).astype(dtype)

    def fn(communicator: dcpack.Communicator) -> Results:
        return there_and_back(communicator, SAMPLES[communicator.rank], plan, compute)

    for rank, results in enumerate(dcpack.run_ranks(2, fn)):
        for sample, result in zip(SAMPLES[rank], results, strict=True):
            assert result is not None
            assert result.dtype == dtype
            assert result.tobytes() == np.asarray(sample["tokens"]).astype(np.uint8).astype(dtype).tobytes()


def test_nan_payloads_survive(plan_of: PlanOf) -> None:
    plan = plan_of([3], [(0, 0, 1, [(0, 0, 3)])], num_ranks=1)
    bits = np.array([0x7E01, 0xFE55, 0x0001], np.uint16)

    def fn(communicator: dcpack.Communicator) -> Results:
        mine = [{"tokens": [1, 2, 3]}] if communicator.rank else []
        return there_and_back(communicator, mine, plan, lambda batch: bits.view(np.float16))

    (result,) = dcpack.run_ranks(2, fn)[1]
    assert result is not None
    assert result.view(np.uint16).tolist() == bits.tolist()


def test_the_first_holder_gets_the_result(plan_of: PlanOf) -> None:
    # Sample 7 is on processes 0 and 1, sample 8 on 1 and 2, sample 9 on 2 alone.
    held = [[7], [8, 7], [9, 8]]
    plan = plan_of([7, 8, 9], [(0, 0, 1, [(1, 0, 8)]), (0, 1, 1, [(2, 0, 9)]), (0, 2, 1, [(0, 0, 7)])], num_ranks=3)

    def fn(communicator: dcpack.Communicator) -> list[Any]:
        ids = held[communicator.rank]
        samples = [{"tokens": np.full(n, n)} for n in ids]
        return values(there_and_back(communicator, samples, plan, tokens_of, ids=ids))

    assert dcpack.run_ranks(3, fn) == [[[7] * 7], [[8] * 8, None], [[9] * 9, None]]


@pytest.mark.parametrize(
    ("overlong", "expected"),
    [
        ("truncate", [[1, 2, 3, 4, -7, -7], [9, 9]]),
        ("drop", [[-7] * 6, [9, 9]]),
        ("split", [[1, 2, 3, 4, 5, 6], [9, 9]]),
    ],
)
def test_dropped_tokens_keep_the_fill_value(overlong: str, expected: list[list[int]]) -> None:
    plan = dcpack.plan([6, 2], num_ranks=1, capacity=4, overlong=overlong)

    def fn(communicator: dcpack.Communicator) -> list[Any]:
        samples = [{"tokens": [1, 2, 3, 4, 5, 6]}, {"tokens": [9, 9]}]
        return values(there_and_back(communicator, samples, plan, tokens_of, fill_value=-7))

    assert dcpack.run_ranks(1, fn) == [expected]


def test_fill_values_of_floats(plan_of: PlanOf) -> None:
    plan = plan_of([3], [(0, 0, 1, [(0, 0, 1)])], num_ranks=1)

    def fn(communicator: dcpack.Communicator) -> Results:
        samples = [{"tokens": [1, 2, 3]}]
        return there_and_back(
            communicator, samples, plan, lambda batch: tokens_of(batch).astype(np.float16), fill_value=float("nan")
        )

    (result,) = dcpack.run_ranks(1, fn)[0]
    assert result is not None
    assert np.array_equal(result, [1, np.nan, np.nan], equal_nan=True)


@pytest.mark.parametrize(("dtype", "fill_value"), [(np.uint8, -1), (np.int64, float("nan")), (np.int64, 0.5)])
def test_a_fill_value_that_the_results_cannot_hold(
    dtype: Any, fill_value: float, plan_of: PlanOf, fail_everywhere: Fail
) -> None:
    # Also on the ranks that have no result to fill.
    plan = plan_of([1], [(0, 0, 1, [(0, 0, 1)]), (0, 1, 1, [])], num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> None:
        mine = [{"tokens": [1]}] if communicator.rank == 0 else []
        there_and_back(communicator, mine, plan, lambda b: tokens_of(b).astype(dtype), fill_value=fill_value)

    for _, message in fail_everywhere(2, fn):
        assert "fill_value" in message.splitlines()[0]


def test_empty_samples_come_back_empty(plan_of: PlanOf) -> None:
    plan = plan_of([0, 2, 0], [(0, 0, 1, [(1, 0, 2)])], num_ranks=1)

    def fn(communicator: dcpack.Communicator) -> Results:
        samples = [
            {"tokens": np.zeros(0, np.int32)},
            {"tokens": np.array([4, 5], np.int32)},
            {"tokens": np.zeros(0, np.int32)},
        ]
        return there_and_back(communicator, samples, plan, lambda batch: np.stack([tokens_of(batch)] * 3, axis=1))

    first, second, third = dcpack.run_ranks(1, fn)[0]
    for empty in (first, third):
        assert empty is not None
        assert (empty.shape, empty.dtype) == ((0, 3), np.int32)
    assert second is not None
    assert second.tolist() == [[4] * 3, [5] * 3]


def test_processes_without_batches_or_samples(plan_of: PlanOf) -> None:
    # Process 0 has samples and no plan rank, process 1 has both, process 2 has a plan rank and no samples.
    plan = plan_of([2, 3], [(0, 0, 1, [(0, 0, 2)]), (0, 1, 1, [(1, 0, 3)])], num_ranks=2)
    topology = dcpack.Topology.of_domain(2, process_of_rank=[1, 2])

    def fn(communicator: dcpack.Communicator) -> list[Any]:
        samples = [[{"tokens": [1, 2]}], [{"tokens": [3, 4, 5]}], []][communicator.rank]
        return values(there_and_back(communicator, samples, plan, tokens_of, topology=topology))

    assert dcpack.run_ranks(3, fn) == [[[1, 2]], [[3, 4, 5]], []]


def test_a_step_without_samples(plan_of: PlanOf) -> None:
    plan = plan_of([], [(0, 0, 1, []), (0, 1, 1, [])], num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> Results:
        return there_and_back(communicator, [], plan, tokens_of)

    assert dcpack.run_ranks(2, fn) == [[], []]


def test_results_of_dummies_go_nowhere(plan_of: PlanOf) -> None:
    plan = plan_of([2], [(0, 0, 1, [(0, 0, 2)]), (0, 1, 1, [])], num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> list[Any]:
        samples = [{"tokens": [1, 2]}] if communicator.rank else []
        return values(there_and_back(communicator, samples, plan, lambda batch: tokens_of(batch) + 5, fill_value=9))

    assert dcpack.run_ranks(2, fn) == [[], [[6, 7]]]


def test_results_are_arrays_of_their_own(plan_of: PlanOf) -> None:
    plan = plan_of([2], [(0, 0, 1, [(0, 0, 2)])], num_ranks=1)
    output = np.array([1.0, 2.0])

    def fn(communicator: dcpack.Communicator) -> Results:
        return there_and_back(communicator, [{"tokens": [1, 2]}], plan, lambda batch: output)

    (result,) = dcpack.run_ranks(1, fn)[0]
    assert result is not None
    result[...] = 0
    assert output.tolist() == [1.0, 2.0]


def test_one_all_to_all_brings_everything_back(plan_of: PlanOf) -> None:
    plan = mixed_plan(plan_of)

    def fn(communicator: dcpack.Communicator) -> tuple[int, int]:
        gathered = gather_samples(communicator, SAMPLES[communicator.rank])
        batches = exchange_samples(communicator, gathered, plan)
        outputs = {rank: [tokens_of(batch) for batch in mine] for rank, mine in batches.items()}
        before = communicator.counters
        restore(communicator, gathered, plan, batches, outputs)
        after = communicator.counters
        return after.calls["all_to_all"] - before.calls["all_to_all"], after.bytes_received - before.bytes_received

    (calls, first), (_, second) = dcpack.run_ranks(2, fn)
    assert calls == 1
    kind = len(b'["int64", []]')
    # Rank 1 sends the 3 and 4 tokens that it computed of sequences 0 and 1, rank 0 the 2 of sequence 2; 8 bytes each.
    assert (first - kind, second - kind) == (8 * 7, 8 * 2)


def wrong(
    plan_of: PlanOf, fail_everywhere: Fail, spoil: Callable[[int, dict[int, list[Any]]], Any]
) -> list[tuple[type[DcpackError], str]]:
    plan = mixed_plan(plan_of)

    def fn(communicator: dcpack.Communicator) -> None:
        gathered = gather_samples(communicator, SAMPLES[communicator.rank])
        batches = exchange_samples(communicator, gathered, plan)
        outputs = {rank: [tokens_of(batch) for batch in mine] for rank, mine in batches.items()}
        restore(communicator, gathered, plan, batches, spoil(communicator.rank, outputs))

    return fail_everywhere(2, fn)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda mine: {}, "outputs must be of ranks [1], got []"),
        (lambda mine: {**mine, 5: []}, "outputs must be of ranks [1], got [1, 5]"),
        (lambda mine: {1: 0.5}, "outputs[1] must be a sequence of items, got 0.5 (float)"),
        (lambda mine: {1: mine[1][:1]}, "rank 1 has 2 batches, got 1 outputs"),
        (lambda mine: {1: [mine[1][0], np.zeros(3)]}, "outputs[1][1] must have 4 tokens first, got shape (3,)"),
        (lambda mine: {1: [mine[1][0], 0.5]}, "outputs[1][1] must have 4 tokens first, got shape ()"),
        (
            lambda mine: {1: [mine[1][0], mine[1][1].astype(np.float32)]},
            "outputs must be of one dtype and shape: outputs[1][0] is int64 [t, ]; outputs[1][1] is float32 [t, ]",
        ),
        (
            lambda mine: {1: [mine[1][0], np.zeros((4, 2), np.int64)]},
            "outputs must be of one dtype and shape: outputs[1][0] is int64 [t, ]; outputs[1][1] is int64 [t, 2]",
        ),
        (lambda mine: {1: [mine[1][0], np.full(4, "x")]}, "dtype <U1 cannot be sent"),
    ],
)
def test_wrong_outputs_of_one_rank(spoil: Any, message: str, plan_of: PlanOf, fail_everywhere: Fail) -> None:
    errors = wrong(plan_of, fail_everywhere, lambda rank, mine: spoil(mine) if rank == 1 else mine)
    for kind, found in errors:
        assert kind is PeerError
        assert found.splitlines()[0].startswith("rank 1 failed")
        assert message in found.splitlines()[0]


def test_outputs_that_differ_between_ranks(plan_of: PlanOf, fail_everywhere: Fail) -> None:
    def spoil(rank: int, mine: dict[int, list[Any]]) -> dict[int, list[Any]]:
        return {1: [output.astype(np.float32) for output in mine[1]]} if rank == 1 else mine

    errors = wrong(plan_of, fail_everywhere, spoil)
    assert errors[0] == errors[1]
    kind, message = errors[0]
    assert kind is ArgumentError
    assert message.startswith("outputs must be of one dtype and shape on all ranks: ")
    assert "rank 0 has int64 ()" in message
    assert "rank 1 has float32 ()" in message


def test_a_wrong_sharding(plan_of: PlanOf, fail_everywhere: Fail) -> None:
    plan = plan_of([2], [(0, 0, 1, [(0, 0, 2)])], num_ranks=1)

    def fn(communicator: dcpack.Communicator) -> None:
        gathered = gather_samples(communicator, [{"tokens": [1, 2]}])
        batches = exchange_samples(communicator, gathered, plan)
        outputs = {rank: [tokens_of(batch) for batch in mine] for rank, mine in batches.items()}
        restore(communicator, gathered, plan, batches, outputs, sharding="diagonal")

    assert "sharding must be one of 'zigzag'" in fail_everywhere(1, fn)[0][1]
