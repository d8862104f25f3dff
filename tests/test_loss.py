"""Whatever is done to the sequences of a step, the weighted sum over all ranks is the mean that was asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.errors import ArgumentError
from dcpack.exchange import PackedBatch, exchange_samples, gather_samples
from dcpack.loss import NORMALISERS, averaging_factor, count_valid_tokens, token_weights, valid_token_mask
from dcpack.padding import PaddingRule

IGNORED = -100
EXACT = 1e-12

# ---- what counts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "mask", "valid"),
    [
        ([5, IGNORED, 0, -1], None, [True, False, True, True]),
        ([5, IGNORED, 7, 8], [1, 1, 0, 1], [True, False, False, True]),
        ([5, 6, 7], [0.5, 0.0, -0.0], [True, False, False]),
        ([5, 6], [True, False], [True, False]),
        ([], None, []),
        ([], [], []),
        ([IGNORED, IGNORED], [1, 1], [False, False]),
    ],
)
def test_what_counts(labels: list[int], mask: Any, valid: list[bool]) -> None:
    assert valid_token_mask(labels, mask).tolist() == valid
    assert count_valid_tokens(labels, mask) == sum(valid)
    assert type(count_valid_tokens(labels, mask)) is int


def test_a_mask_of_another_shape_is_refused() -> None:
    # It would be broadcast otherwise: one flag for all tokens.
    with pytest.raises(ArgumentError, match=r"^loss_mask must have the shape of labels \(3,\), got \(1,\)$"):
        valid_token_mask([1, 2, 3], [1])
    with pytest.raises(ArgumentError, match=r"loss_mask must have the shape of labels \(2,\), got \(3,\)"):
        token_weights([1, 2], [1, 1, 1], global_valid_tokens=2)


# ---- the three means by hand --------------------------------------------------------------------------------------

# One batch, two sequences and a slot of padding: 2 of 3 tokens count, 1 of 2 tokens counts.
LABELS = [10, IGNORED, 12, 20, 21, IGNORED]
MASK = [1.0, 1.0, 1.0, 0.0, 1.0, 0.0]
SEGMENTS = [1, 1, 1, 2, 2, 0]


def test_token_mean_by_hand() -> None:
    weights = token_weights(LABELS, MASK, global_valid_tokens=8)
    assert weights.tolist() == [0.125, 0, 0.125, 0, 0.125, 0]
    assert weights.dtype == np.float64


def test_sequence_mean_by_hand() -> None:
    # Sequence 1 has 4 valid tokens in the step (2 are in another batch), sequence 2 has 1; 5 sequences have some.
    weights = token_weights(
        LABELS, MASK, normaliser="sequence", segment_ids=SEGMENTS, sequence_valid_tokens=[4, 1], num_units=5
    )
    assert weights == pytest.approx([1 / 20, 0, 1 / 20, 0, 1 / 5, 0], abs=1e-16)


def test_group_mean_by_hand() -> None:
    # Both are of one prompt, whose samples have 10 valid tokens together; there are 2 prompts.
    weights = token_weights(
        LABELS, MASK, normaliser="group", segment_ids=SEGMENTS, sequence_valid_tokens=[10, 10], num_units=2
    )
    assert weights == pytest.approx([1 / 20, 0, 1 / 20, 0, 1 / 20, 0], abs=1e-16)


def test_the_means_differ() -> None:
    # Two tokens of loss 1, one token of loss 4: 2 a token, 2.5 a sequence.
    labels, losses, segments = [1, 1, 1], np.array([1.0, 1.0, 4.0]), [1, 1, 2]
    by_token = token_weights(labels, global_valid_tokens=3)
    by_sequence = token_weights(
        labels, normaliser="sequence", segment_ids=segments, sequence_valid_tokens=[2, 1], num_units=2
    )
    assert (by_token * losses).sum() == pytest.approx(2.0, abs=EXACT)
    assert (by_sequence * losses).sum() == pytest.approx(2.5, abs=EXACT)


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_a_batch_without_valid_tokens_is_exactly_0(normaliser: str) -> None:
    weights = token_weights(
        [IGNORED] * 3,
        normaliser=normaliser,
        global_valid_tokens=7,
        segment_ids=[1, 1, 0],
        sequence_valid_tokens=[0],
        num_units=3,
    )
    assert weights.tolist() == [0.0, 0.0, 0.0]


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_a_step_without_valid_tokens_is_exactly_0(normaliser: str) -> None:
    weights = token_weights(
        [IGNORED] * 2,
        normaliser=normaliser,
        global_valid_tokens=0,
        segment_ids=[1, 2],
        sequence_valid_tokens=[0, 0],
        num_units=0,
    )
    assert weights.tolist() == [0.0, 0.0]


@pytest.mark.parametrize("normaliser", NORMALISERS)
def test_a_batch_without_tokens(normaliser: str) -> None:
    weights = token_weights(
        [], normaliser=normaliser, global_valid_tokens=4, segment_ids=[], sequence_valid_tokens=[], num_units=3
    )
    assert weights.shape == (0,)
    assert weights.dtype == np.float64


# ---- errors -------------------------------------------------------------------------------------------------------


def _of_units(**changed: Any) -> dict[str, Any]:
    given = {"normaliser": "sequence", "segment_ids": [1, 1, 2], "sequence_valid_tokens": [2, 1], "num_units": 2}
    return {**given, **changed}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "normaliser 'token' needs global_valid_tokens"),
        ({"normaliser": "batch"}, "normaliser must be one of 'token', 'sequence', 'group', got 'batch'"),
        ({"normaliser": None}, "normaliser must be one of 'token', 'sequence', 'group', got None"),
        ({"global_valid_tokens": 2}, "global_valid_tokens is 2, but this batch alone has 3"),
        ({"global_valid_tokens": -1}, "global_valid_tokens must be at least 0, got -1"),
        ({"global_valid_tokens": 3.0}, r"global_valid_tokens must be an integer, got 3.0 \(float\)"),
        (
            {"normaliser": "sequence", "global_valid_tokens": 3},
            "normaliser 'sequence' needs segment_ids, sequence_valid_tokens and num_units",
        ),
        (_of_units(num_units=None), "normaliser 'sequence' needs segment_ids, sequence_valid_tokens and num_units"),
        (
            _of_units(normaliser="group", segment_ids=None),
            "normaliser 'group' needs segment_ids, sequence_valid_tokens and num_units",
        ),
        (
            _of_units(sequence_valid_tokens=None),
            "normaliser 'sequence' needs segment_ids, sequence_valid_tokens and num_units",
        ),
        (
            _of_units(segment_ids=[1, 2]),
            r"segment_ids must have shape \(3,\) and at most 2 sequences, got \(2,\) and 2",
        ),
        (
            _of_units(segment_ids=[1, 2, 3]),
            r"segment_ids must have shape \(3,\) and at most 2 sequences, got \(3,\) and 3",
        ),
        (_of_units(segment_ids=[1, -1, 2]), r"segment_ids must be at least 0: segment_ids\[1\] = -1"),
        (_of_units(segment_ids=[1.0, 1.0, 2.0]), r"segment_ids must hold integers, got dtype float64: .*"),
        (_of_units(segment_ids=[0, 1, 0]), r"valid tokens in padding: slots \[0, 2\]"),
        (
            _of_units(sequence_valid_tokens=[2, 0]),
            "sequence_valid_tokens must cover the valid tokens of this batch: sequence 2 has 1 here, 0 are given",
        ),
        (_of_units(sequence_valid_tokens=[2, -1]), r"sequence_valid_tokens must be at least 0: .*\[1\] = -1"),
        (_of_units(num_units=-1), "num_units must be at least 0, got -1"),
        (_of_units(num_units=2.0), r"num_units must be an integer, got 2.0 \(float\)"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{text}$"):
        token_weights([4, 5, 6], **options)


@pytest.mark.parametrize(
    "changed",
    [
        {"num_units": 0},  # there is a unit with valid tokens: this batch has it
        {"sequence_valid_tokens": [1, 1]},  # sequence 1 alone has 2 valid tokens here
    ],
)
def test_numbers_of_the_step_that_this_batch_contradicts(changed: dict[str, Any]) -> None:
    # As for global_valid_tokens: the loss would silently be too large.
    with pytest.raises(ArgumentError):
        token_weights([4, 5, 6], **_of_units(**changed))


@pytest.mark.parametrize(("ranks", "factor"), [(1, 1.0), (8, 8.0), (np.int32(512), 512.0)])
def test_averaging_factor(ranks: int, factor: float) -> None:
    assert averaging_factor(ranks) == factor
    assert type(averaging_factor(ranks)) is float


@pytest.mark.parametrize("ranks", [0, -1, 2.0, True, None])
def test_wrong_averaging_factor(ranks: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^num_averaged_ranks must be "):
        averaging_factor(ranks)


def test_the_averaging_factor_undoes_the_average() -> None:
    # Three ranks of one token each: what DDP makes of the sum, the mean over ranks, is the token mean again.
    losses = np.array([1.0, 2.0, 6.0])
    on_ranks = [averaging_factor(3) * (token_weights([1], global_valid_tokens=3) * loss).sum() for loss in losses]
    assert np.mean(on_ranks) == pytest.approx(3.0, abs=EXACT)


# ---- any packing, any splitting -----------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Piece:
    """A run of tokens of one sequence, in one batch."""

    sequence: int
    start: int
    stop: int


def _means(losses: Sequence[np.ndarray], valid: Sequence[np.ndarray], groups: Sequence[int]) -> dict[str, float]:
    """The three means, from the definition, sequence by sequence."""
    kept = [loss[v].tolist() for loss, v in zip(losses, valid, strict=True)]
    by_group: dict[int, list[float]] = {}
    for values, group in zip(kept, groups, strict=True):
        by_group.setdefault(group, []).extend(values)

    def mean_of_means(units: Any) -> float:
        means = [math.fsum(values) / len(values) for values in units if values]
        return math.fsum(means) / len(means) if means else 0.0

    return {
        "token": mean_of_means([[value for values in kept for value in values]]),
        "sequence": mean_of_means(kept),
        "group": mean_of_means(by_group.values()),
    }


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_packing_and_splitting_gives_the_mean(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 12), min_size=1, max_size=7), label="lengths")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    share = data.draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]), label="share of valid tokens")
    labels = [np.where(rng.random(n) < share, rng.integers(0, 99, n), IGNORED) for n in lengths]
    masks = [(rng.random(n) < 0.8).astype(np.float32) for n in lengths]
    losses = [rng.normal(size=n) * 10.0 ** rng.integers(-2, 3) for n in lengths]
    groups = rng.integers(0, 3, len(lengths)).tolist()
    valid = [valid_token_mask(label, mask) for label, mask in zip(labels, masks, strict=True)]
    sizes = [int(v.sum()) for v in valid]
    group_sizes = np.bincount(groups, weights=sizes, minlength=3).astype(int).tolist()
    unit_tokens = {"sequence": sizes, "group": [group_sizes[g] for g in groups]}
    num_units = {"sequence": sum(map(bool, sizes)), "group": sum(map(bool, group_sizes))}

    # Every sequence cut anywhere, the pieces mixed and dealt to batches, some batches without any.
    batches: list[list[Piece]] = [[] for _ in range(data.draw(st.integers(1, 5), label="batches"))]
    for sequence, n in enumerate(lengths):
        cuts = np.unique([0, n, *rng.integers(0, n + 1, rng.integers(0, 4))]).tolist()
        for start, stop in pairwise(cuts):
            mine = batches[rng.integers(len(batches))]
            mine.insert(rng.integers(len(mine) + 1), Piece(sequence=sequence, start=start, stop=stop))

    expected = _means(losses, valid, groups)
    for normaliser in NORMALISERS:
        total = []
        for pieces in batches:
            # One slot of padding behind every piece.
            row = {"labels": [IGNORED], "mask": [0.0], "losses": [1e9], "segments": [0]}
            for number, piece in enumerate(pieces, start=1):
                span = slice(piece.start, piece.stop)
                row["labels"] += [*labels[piece.sequence][span].tolist(), IGNORED]
                row["mask"] += [*masks[piece.sequence][span].tolist(), 1.0]
                row["losses"] += [*losses[piece.sequence][span].tolist(), 1e9]
                row["segments"] += [number] * (piece.stop - piece.start) + [0]
            weights = token_weights(
                row["labels"],
                row["mask"],
                normaliser=normaliser,
                global_valid_tokens=sum(sizes),
                segment_ids=row["segments"],
                sequence_valid_tokens=[unit_tokens.get(normaliser, sizes)[piece.sequence] for piece in pieces],
                num_units=num_units.get(normaliser, 0),
            )
            total += (weights * row["losses"]).tolist()
        scale = max((float(np.abs(loss).max(initial=0)) for loss in losses), default=0.0)
        assert math.fsum(total) == pytest.approx(expected[normaliser], rel=EXACT, abs=EXACT * max(scale, 1.0))


# ---- through the real exchange ------------------------------------------------------------------------------------


def _sample(rng: np.random.Generator, length: int, *, masked: bool = True, share: float = 0.7) -> dict[str, Any]:
    """A sample with labels of its own, a loss mask perhaps, and the loss that each token would have."""
    labels = np.where(rng.random(length) < share, rng.integers(0, 99, length), IGNORED)
    sample = {"input_ids": rng.integers(0, 99, length), "labels": labels, "token_loss": rng.normal(size=length)}
    return {**sample, "loss_mask": (rng.random(length) < 0.8).astype(np.float32)} if masked else sample


@dataclass(frozen=True, kw_only=True)
class Step:
    """What one step came to: per rank, and in sum."""

    losses: dict[str, float]
    per_rank: dict[str, list[float]]
    batches: list[list[PackedBatch]]
    plan: dcpack.Plan


def _train_step(
    by_rank: Sequence[Sequence[dict[str, Any]]], groups: Sequence[int], num_group_units: int, **options: Any
) -> Step:
    """Gather, plan, exchange and weigh on real ranks, as a training loop would.

    `groups` names the prompt group of every sample in the order of the table: rank after rank.
    """
    sharding = options.pop("sharding", "zigzag")
    valid = [valid_token_mask(s["labels"], s.get("loss_mask")) for mine in by_rank for s in mine]
    group_sizes = np.bincount(groups, weights=[v.sum() for v in valid], minlength=max(groups) + 1).astype(np.int64)

    def fn(communicator: dcpack.Communicator) -> tuple[dict[str, float], list[PackedBatch], dcpack.Plan]:
        gathered = gather_samples(communicator, by_rank[communicator.rank], per_token=("token_loss",))
        plan = dcpack.plan(
            gathered.table.lengths, num_ranks=communicator.size, padding=PaddingRule(), on_empty="dummy", **options
        )
        batches = exchange_samples(communicator, gathered, plan, sharding=sharding)[communicator.rank]
        sums: dict[str, float] = dict.fromkeys(NORMALISERS, 0.0)
        for batch, normaliser in ((b, n) for b in batches for n in NORMALISERS):
            unit_tokens = batch.sequence_valid_tokens
            if normaliser == "group":
                unit_tokens = group_sizes[np.asarray(groups)[batch.sequence_ids]]
            weights = token_weights(
                batch.tokens["labels"],
                batch.tokens["loss_mask"],
                normaliser=normaliser,
                global_valid_tokens=batch.global_valid_tokens,
                segment_ids=batch.tokens["segment_ids"],
                sequence_valid_tokens=unit_tokens,
                num_units=num_group_units if normaliser == "group" else batch.global_valid_sequences,
            )
            sums[normaliser] += float((weights * batch.tokens["token_loss"]).sum())
        return sums, batches, plan

    results = dcpack.run_ranks(len(by_rank), fn)
    per_rank = {name: [sums[name] for sums, _, _ in results] for name in NORMALISERS}
    return Step(
        losses={name: math.fsum(values) for name, values in per_rank.items()},
        per_rank=per_rank,
        batches=[batches for _, batches, _ in results],
        plan=results[0][2],
    )


def _expected(by_rank: Sequence[Sequence[dict[str, Any]]], groups: Sequence[int], keep: Any = None) -> dict[str, float]:
    samples = [s for mine in by_rank for s in mine]
    valid = [valid_token_mask(s["labels"], s.get("loss_mask")) for s in samples]
    kept = [slice(None) if keep is None else slice(k) for k in (keep or valid)]
    return _means(
        [s["token_loss"][k] for s, k in zip(samples, kept, strict=True)],
        [v[k] for v, k in zip(valid, kept, strict=True)],
        groups,
    )


def _units(by_rank: Sequence[Sequence[dict[str, Any]]], groups: Sequence[int]) -> int:
    counts = [count_valid_tokens(s["labels"], s.get("loss_mask")) for mine in by_rank for s in mine]
    return len({group for group, count in zip(groups, counts, strict=True) if count})


@pytest.mark.parametrize("num_ranks", [2, 3, 4])
@pytest.mark.parametrize("sharding", ["zigzag", "zigzag_per_row", "contiguous", "striped"])
def test_the_exchange_changes_no_loss(num_ranks: int, sharding: str) -> None:
    rng = np.random.default_rng(num_ranks)
    lengths = [[50, 1, 7], [3, 18, 2, 9], [], [31, 30]][:num_ranks]
    by_rank = [[_sample(rng, n, masked=i % 2 == 0) for i, n in enumerate(mine)] for mine in lengths]
    groups = rng.integers(0, 4, sum(map(len, lengths))).tolist()
    step = _train_step(by_rank, groups, _units(by_rank, groups), capacity=28, sharding=sharding)
    assert step.plan.cp_size.max() > 1
    assert step.losses == pytest.approx(_expected(by_rank, groups), abs=EXACT)
    # Every token counts on one rank, and all batches know of all.
    num_valid = sum(count_valid_tokens(s["labels"], s.get("loss_mask")) for mine in by_rank for s in mine)
    assert {batch.global_valid_tokens for mine in step.batches for batch in mine} == {num_valid}
    assert sum(batch.num_valid_tokens for mine in step.batches for batch in mine) == num_valid


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_no_step_changes_its_loss(data: st.DataObject) -> None:
    num_ranks = data.draw(st.integers(2, 4), label="ranks")
    capacity = data.draw(st.integers(8, 40), label="capacity")
    rows = st.lists(st.integers(1, 2 * (capacity // 2) * 2), max_size=4)
    lengths = data.draw(st.lists(rows, min_size=num_ranks, max_size=num_ranks).filter(any), label="lengths")
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1), label="seed"))
    share = data.draw(st.sampled_from([0.0, 0.05, 0.7]), label="share of valid tokens")
    by_rank = [[_sample(rng, n, masked=bool(rng.integers(2)), share=share) for n in mine] for mine in lengths]
    groups = rng.integers(0, 3, sum(map(len, lengths))).tolist()
    scheduler, max_cp_size = data.draw(
        st.sampled_from([("packing_aware", None), ("packing_aware", 1), ("in_order", 1)])
    )
    step = _train_step(
        by_rank,
        groups,
        _units(by_rank, groups),
        capacity=capacity,
        scheduler=scheduler,
        max_cp_size=max_cp_size,
        overlong="split",
        sharding=data.draw(st.sampled_from(["zigzag", "zigzag_per_row", "contiguous", "striped"])),
    )
    assert step.losses == pytest.approx(_expected(by_rank, groups), abs=EXACT)


def test_a_rank_without_valid_tokens_adds_exactly_0() -> None:
    # Two samples that fill one rank each; no token of the second counts.
    rng = np.random.default_rng(1)
    with_loss, without = _sample(rng, 8, share=1.0, masked=False), _sample(rng, 7, share=0.0)
    step = _train_step([[with_loss], [without]], [0, 1], 1, capacity=8)
    assert step.plan.to_sample_id_groups() == [[[0], [1]]]
    expected = math.fsum(with_loss["token_loss"]) / 8
    for normaliser in NORMALISERS:
        assert step.per_rank[normaliser] == [pytest.approx(expected, abs=EXACT), 0.0]
    ((second,),) = step.batches[1:]
    assert (second.num_valid_tokens, second.global_valid_tokens, second.global_valid_sequences) == (0, 8, 1)


def test_a_rank_with_a_dummy_adds_exactly_0() -> None:
    sample = _sample(np.random.default_rng(2), 6, share=1.0, masked=False)
    step = _train_step([[sample], []], [0], 1, capacity=8, max_cp_size=1)
    assert step.plan.dummy.tolist() == [False, True]
    for normaliser in NORMALISERS:
        assert step.per_rank[normaliser] == [pytest.approx(sample["token_loss"].mean(), abs=EXACT), 0.0]


def test_a_step_without_valid_tokens_is_exactly_0_on_all_ranks() -> None:
    rng = np.random.default_rng(3)
    by_rank = [[_sample(rng, 20, share=0.0)], [_sample(rng, 5, share=0.0)], []]
    step = _train_step(by_rank, [0, 1], 0, capacity=8)
    assert step.plan.cp_size.max() > 1
    assert step.per_rank == {name: [0.0, 0.0, 0.0] for name in NORMALISERS}
    assert {batch.global_valid_tokens for mine in step.batches for batch in mine} == {0}


def test_tokens_of_one_sequence_over_all_ranks_count_once() -> None:
    # 8 tokens over 4 ranks, all valid but the last: 2 here, 2 there, never 4 times 7.
    sample = _sample(np.random.default_rng(4), 8, share=1.0, masked=False)
    sample["labels"][-1] = IGNORED
    step = _train_step([[sample], [], [], []], [0], 1, capacity=2)
    assert step.plan.cp_size.tolist() == [4]
    assert [batch.num_valid_tokens for (batch,) in step.batches] == [1, 2, 2, 2]
    assert [batch.sequence_valid_tokens.tolist() for (batch,) in step.batches] == [[7]] * 4
    for normaliser in NORMALISERS:
        assert step.losses[normaliser] == pytest.approx(sample["token_loss"][:7].mean(), abs=EXACT)


@pytest.mark.parametrize("policy", ["truncate", "drop"])
def test_tokens_that_were_dropped_count_nowhere(policy: str) -> None:
    # 2 ranks of 8: of 20 tokens 16 are kept, or none; the step's own numbers must be those of what was kept.
    rng = np.random.default_rng(5)
    by_rank = [[_sample(rng, 6, masked=False)], [_sample(rng, 20, share=1.0), _sample(rng, 5)]]
    samples = [s for mine in by_rank for s in mine]
    keep = [6, 16 if policy == "truncate" else 0, 5]
    counts = [
        count_valid_tokens(s["labels"][:k], s["loss_mask"][:k] if "loss_mask" in s else None)
        for s, k in zip(samples, keep, strict=True)
    ]
    assert counts[1] < count_valid_tokens(samples[1]["labels"], samples[1]["loss_mask"])
    groups = [0, 1, 2]  # every sample a group of its own, so that the group mean is the sequence mean
    step = _train_step(by_rank, groups, 3, capacity=8, overlong=policy)
    assert step.plan.dropped.tolist() == [0, 20 - keep[1], 0]
    batches = [batch for mine in step.batches for batch in mine]
    assert {batch.global_valid_tokens for batch in batches} == {sum(counts)}
    assert {batch.global_valid_sequences for batch in batches} == {sum(map(bool, counts))}
    for batch in batches:
        assert batch.sequence_valid_tokens.tolist() == [counts[i] for i in batch.sequence_ids]
    expected = _expected(by_rank, groups, keep)
    for normaliser in ("token", "sequence"):
        assert step.losses[normaliser] == pytest.approx(expected[normaliser], abs=EXACT)


def test_a_sequence_that_was_split_is_one_sequence_still() -> None:
    # 20 tokens in pieces of 8, 8 and 4, in bins of their own: the mean over sequences counts them as one.
    rng = np.random.default_rng(6)
    by_rank = [[_sample(rng, 20, share=1.0, masked=False)], [_sample(rng, 3, share=1.0, masked=False)]]
    step = _train_step(by_rank, [0, 0], 1, capacity=8, max_cp_size=1, overlong="split")
    assert sorted(step.plan.sequence_ids.tolist()) == [0, 0, 0, 1]
    long, short = by_rank[0][0]["token_loss"], by_rank[1][0]["token_loss"]
    together = np.concatenate([long, short]).mean()
    expected = {"token": together, "sequence": (long.mean() + short.mean()) / 2, "group": together}
    assert step.losses == pytest.approx(expected, abs=EXACT)
