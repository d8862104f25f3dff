"""Few shapes for all batches: buckets of row lengths and of max_seqlen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import ArgumentError, PeerError
from dcpack.exchange import BatchShape, PackedBatch, StaticShapes, exchange_samples, gather_samples, shapes_of_bins
from dcpack.padding import PaddingRule

PlanOf = Callable[..., dcpack.Plan]

# Two micro-batches on two ranks, CP size 1, then one bin on both: 50 and 31; 12 and 51; 90 over 2 ranks.
LENGTHS = [30, 20, 31, 12, 51, 60, 30]
BINS = [
    (0, 0, 1, [(0, 0, 30), (1, 0, 20)]),
    (0, 1, 1, [(2, 0, 31)]),
    (1, 0, 1, [(3, 0, 12)]),
    (1, 1, 1, [(4, 0, 51)]),
    (2, 0, 2, [(5, 0, 60), (6, 0, 30)]),
]


def shape_tuples(plan: dcpack.Plan, **options: Any) -> list[tuple[int, int, int]]:
    shapes = shapes_of_bins(plan, StaticShapes(max_sequences=2, **options))
    return [(shape.cp_size, shape.row_tokens, shape.max_seqlen) for shape in shapes]


def test_buckets_by_hand(plan_of: PlanOf) -> None:
    plan = plan_of(LENGTHS, BINS, num_ranks=2, capacity=100)
    # Without buckets: the capacity, and all of it on all ranks.
    assert shape_tuples(plan) == [(1, 100, 100)] * 4 + [(2, 100, 200)]
    # All ranks of a micro-batch get the row that its fullest rank needs: 50, 51 and 90 / 2.
    rows = (50, 60, 100)
    assert shape_tuples(plan, row_lengths=rows) == [(1, 50, 50)] * 2 + [(1, 60, 60)] * 2 + [(2, 50, 100)]
    # The longest sequences are 31, 51 and 60.
    assert shape_tuples(plan, row_lengths=rows, max_seqlens=(31, 60)) == [
        *[(1, 50, 31)] * 2,
        *[(1, 60, 60)] * 2,
        (2, 50, 60),
    ]


def test_padding_and_dummies_count(plan_of: PlanOf) -> None:
    # CP 2: lengths are multiples of 4 x 8 = 32, rows of 16 (block x tp); the dummy is one sequence of 32.
    rule = PaddingRule(tp=8, block=2, sequence_parallel=True)
    bins = [(0, 0, 2, [(0, 0, 33)]), (0, 2, 2, []), (1, 0, 2, []), (1, 2, 2, [(1, 0, 5)])]
    plan = plan_of([33, 5], bins, num_ranks=4, capacity=64, padding=rule)
    assert shape_tuples(plan, row_lengths=(16, 32, 64), max_seqlens=(32, 64)) == [
        (2, 32, 64),
        (2, 32, 64),
        (2, 16, 32),
        (2, 16, 32),
    ]
    with pytest.raises(ArgumentError, match=r"row_lengths must be multiples of 16 by PaddingRule.*got \[40\]"):
        shape_tuples(plan, row_lengths=(32, 40, 64))


def test_rows_are_padded_as_the_rule_says(plan_of: PlanOf) -> None:
    # A sequence of 10 is padded to 16, its row to 32 by sequence parallelism.
    rule = PaddingRule(tp=2, block=16, sequence_parallel=True)
    plan = plan_of([10], [(0, 0, 1, [(0, 0, 10)])], num_ranks=1, capacity=64, padding=rule)
    assert shape_tuples(plan, row_lengths=(32, 64)) == [(1, 32, 32)]
    with pytest.raises(ArgumentError, match=r"got \[16\]"):
        shape_tuples(plan, row_lengths=(16, 64))


def test_the_bound_is_cp_sizes_times_buckets() -> None:
    assert StaticShapes(max_sequences=1).num_shapes((1, 2, 4)) == 3
    assert StaticShapes(max_sequences=1, row_lengths=(8, 16)).num_shapes((1, 2, 4)) == 6
    assert StaticShapes(max_sequences=1, row_lengths=(8, 16), max_seqlens=(8, 9, 10)).num_shapes((1, 2)) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row_lengths": ()}, "row_lengths must hold at least one number"),
        ({"row_lengths": (8, 4, 4)}, r"row_lengths must ascend: row_lengths\[1\] = 4 after 8, row_lengths\[2\] = 4"),
        ({"max_seqlens": (0, 4)}, r"max_seqlens.*at least 1"),
        ({"max_seqlens": 4}, "max_seqlens"),
        ({"row_lengths": (1.5,)}, "row_lengths"),
    ],
)
def test_what_is_no_ladder(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        StaticShapes(max_sequences=1, **options)


def test_all_that_do_not_fit_are_named(plan_of: PlanOf) -> None:
    plan = plan_of(LENGTHS, BINS, num_ranks=2, capacity=100)
    with pytest.raises(ArgumentError, match=r"hold 40 tokens a rank.*bin 0 has 50.*bin 3 has 51.*bin 4 has 45"):
        shape_tuples(plan, row_lengths=(40,))
    with pytest.raises(ArgumentError, match="at most 40 padded tokens: bin 3 has one of 51, bin 4 has one of 60"):
        shape_tuples(plan, max_seqlens=(40,))


def signature(batch: PackedBatch) -> tuple[Any, ...]:
    """All that a compiled program sees of a batch."""
    arrays = tuple(sorted((name, array.shape, array.dtype.name) for name, array in batch.tokens.items()))
    offsets = (batch.cu_seqlens, batch.cu_seqlens_padded, batch.local_cu_seqlens, batch.local_cu_seqlens_padded)
    return arrays, tuple((array.shape, array.dtype.name) for array in offsets), batch.max_seqlen, batch.cp_size


def test_ranks_of_a_micro_batch_run_one_program_and_a_run_few() -> None:
    """100 random steps: the shapes seen are within the bound that was known before the first of them."""
    rng = np.random.default_rng(3)
    static_shapes = StaticShapes(max_sequences=8, row_lengths=(16, 32, 64), max_seqlens=(64, 256))
    seen: set[BatchShape] = set()
    cp_sizes: set[tuple[int, ...]] = set()
    for _ in range(100):
        longest = int(rng.choice([30, 60, 250]))
        lengths = rng.integers(1, longest, int(rng.integers(8, 60)))
        plan = dcpack.plan(
            lengths,
            num_ranks=8,
            capacity=64,
            scheduler="uniform_cp",
            cost=dcpack.RingCost(node_size=4),
            max_sequences=8,
            max_cp_size=4,
            on_empty="dummy",
            padding=PaddingRule(),
        )
        cp_sizes.add(plan.cp_sizes)
        shapes = shapes_of_bins(plan, static_shapes)
        for m in range(plan.num_microbatches):
            assert len({shapes[b] for b in np.flatnonzero(plan.microbatch == m)}) == 1
        seen.update(shapes)
    (sizes,) = cp_sizes
    assert sizes == (1, 2, 4)
    assert static_shapes.num_shapes(sizes) == 18
    assert 6 <= len(seen) <= 18
    assert {shape.cp_size for shape in seen} == {1, 2, 4}


def test_batches_have_the_shapes_that_the_plan_says() -> None:
    rng = np.random.default_rng(4)
    static_shapes = StaticShapes(max_sequences=8, row_lengths=(16, 32, 64), max_seqlens=(64, 256))
    lengths = [*rng.integers(1, 30, 20).tolist(), 150]

    def step(communicator: dcpack.Communicator) -> tuple[dcpack.Plan, list[PackedBatch]]:
        samples = [{"input_ids": np.arange(n)} for n in lengths[communicator.rank :: 4]]
        gathered = gather_samples(communicator, samples)
        plan = dcpack.plan(
            gathered.table.lengths,
            num_ranks=4,
            capacity=64,
            scheduler="uniform_cp",
            cost=dcpack.RingCost(node_size=4),
            max_sequences=8,
            padding=PaddingRule(),
        )
        return plan, exchange_samples(communicator, gathered, plan, static_shapes=static_shapes)[communicator.rank]

    results = dcpack.run_ranks(4, step)
    plan = results[0][0]
    shapes = shapes_of_bins(plan, static_shapes)
    assert plan.num_microbatches > 1
    for m in range(plan.num_microbatches):
        assert len({signature(batches[m]) for _, batches in results}) == 1
    for rank, (_, batches) in enumerate(results):
        for b, batch in zip(plan.bins_of_rank(rank), batches, strict=True):
            assert (batch.cp_size, batch.num_tokens, batch.max_seqlen) == (
                shapes[b].cp_size,
                shapes[b].row_tokens,
                shapes[b].max_seqlen,
            )
            assert batch.true_max_seqlen <= batch.max_seqlen
            assert int(batch.local_cu_seqlens_padded[-1]) <= batch.num_tokens


def test_what_does_not_fit_is_an_error_on_all_ranks(plan_of: PlanOf) -> None:
    plan = plan_of([9, 3], [(0, 0, 1, [(0, 0, 9)]), (0, 1, 1, [(1, 0, 3)])], num_ranks=2, capacity=16)

    def step(communicator: dcpack.Communicator) -> str:
        samples = [{"input_ids": np.arange(9 if communicator.rank == 0 else 3)}]
        gathered = gather_samples(communicator, samples)
        with pytest.raises(PeerError) as caught:
            exchange_samples(
                communicator, gathered, plan, static_shapes=StaticShapes(max_sequences=1, row_lengths=(8,))
            )
        return str(caught.value)

    assert all(
        "hold 8 tokens a rank and max_sequences 1: bin 0 has 9 tokens" in text for text in dcpack.run_ranks(2, step)
    )
