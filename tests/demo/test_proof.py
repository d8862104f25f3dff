"""The proof itself is proven: whatever is wrong in what a rank computes on, it must say so, and say where."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.data import TextDocuments
from dcpack.demo import DemoOptions
from dcpack.demo.proof import RankEvidence, StepProof, conclude
from dcpack.exchange import PackedBatch

FIELDS = ("input_ids", "labels", "position_ids", "segment_ids")


def _with(batch: PackedBatch, **fields: Any) -> PackedBatch:
    """The batch with other values in some fields, of the same dtype."""
    changed = {name: np.asarray(values, batch.tokens[name].dtype) for name, values in fields.items()}
    return replace(batch, tokens={**batch.tokens, **changed})


def _exchange_one(batches: list[list[PackedBatch]], rank: int, place: int, batch: PackedBatch) -> Sequence[Any]:
    """All batches, with one in the place of another."""
    changed = [list(mine) for mine in batches]
    changed[rank][place] = batch
    return changed


def test_what_is_right_is_proven(exchanged: Any) -> None:
    # Every other test here leans on this one: without a change there is no fault.
    assert [evidence.faults for evidence in exchanged.evidence()] == [(), ()]
    expected = StepProof(num_tokens=24, num_documents=4, num_cut_documents=0, num_dropped_tokens=0, faults=[])
    assert exchanged.conclude() == expected


def test_the_batches_are_those_worked_out_by_hand(exchanged: Any) -> None:
    first, second = exchanged.batches[0]
    assert first.tokens["input_ids"].tolist() == [97, 98, 99, 106, 107, 256, 112, 256]  # abc jk. / p .
    assert first.tokens["labels"].tolist() == [98, 99, 100, 107, 256, -100, 113, -100]
    assert first.tokens["position_ids"].tolist() == [0, 1, 2, 9, 10, 11, 0, 3]
    assert first.tokens["segment_ids"].tolist() == [1, 1, 1, 1, 1, 1, 2, 2]
    assert second.tokens["input_ids"].tolist() == [108, 109, 110, 111, 256]  # lmno.
    assert [batch.num_valid_tokens for mine in exchanged.batches for batch in mine] == [6, 4, 8, 2]


def test_evidence_names_tokens_by_their_place_in_the_step(exchanged: Any) -> None:
    seen = [evidence.seen.tolist() for evidence in exchanged.evidence()]
    assert seen[0] == [0, 1, 2, 9, 10, 11, 12, 15, 16, 17, 18, 19, 20]
    assert seen[1] == [3, 4, 5, 6, 7, 8, 13, 14, 21, 22, 23]


@pytest.mark.parametrize(
    ("place", "fields", "fault"),
    [
        # Two tokens that changed places.
        (
            (1, 0),
            {"input_ids": [100, 104, 102, 103, 101, 105, 113, 114]},
            "micro-batch 0, rank 1: input_ids: slot 1 is 104, expected 101 (2 differ)",
        ),
        # Labels shifted twice, and not at all.
        (
            (0, 1),
            {"labels": [110, 111, 256, -100, 109]},
            "micro-batch 1, rank 0: labels: slot 0 is 110, expected 109 (5 differ)",
        ),
        (
            (0, 1),
            {"labels": [108, 109, 110, 111, 256]},
            "micro-batch 1, rank 0: labels: slot 0 is 108, expected 109 (5 differ)",
        ),
        # Labels shifted over the edge of a sequence, and over the edge of the rank's slice.
        (
            (0, 0),
            {"labels": [98, 99, 100, 107, 256, 112, 113, -100]},
            "micro-batch 0, rank 0: labels: slot 5 is 112, expected -100 (1 differ)",
        ),
        (
            (0, 0),
            {"labels": [98, 99, 106, 107, 256, -100, 113, -100]},
            "micro-batch 0, rank 0: labels: slot 2 is 106, expected 100 (1 differ)",
        ),
        # Positions that run on from one sequence to the next, and positions inside the slice.
        (
            (0, 0),
            {"position_ids": [0, 1, 2, 9, 10, 11, 12, 15]},
            "micro-batch 0, rank 0: position_ids: slot 6 is 12, expected 0 (2 differ)",
        ),
        (
            (0, 0),
            {"position_ids": [0, 1, 2, 3, 4, 5, 0, 1]},
            "micro-batch 0, rank 0: position_ids: slot 3 is 3, expected 9 (4 differ)",
        ),
        # Two sequences taken for one, a sequence taken for padding, segments numbered from 0.
        (
            (0, 0),
            {"segment_ids": [1, 1, 1, 1, 1, 1, 1, 1]},
            "micro-batch 0, rank 0: segment_ids: slot 6 is 1, expected 2 (2 differ)",
        ),
        (
            (1, 1),
            {"segment_ids": [0, 0, 0]},
            "micro-batch 1, rank 1: segment_ids: slot 0 is 0, expected 1 (3 differ)",
        ),
        (
            (0, 0),
            {"segment_ids": [0, 0, 0, 0, 0, 0, 1, 1]},
            "micro-batch 0, rank 0: segment_ids: slot 0 is 0, expected 1 (8 differ)",
        ),
        # A slice that is too short.
        ((1, 1), {"input_ids": [115, 116]}, "micro-batch 1, rank 1: input_ids: 2 slots, expected 3"),
    ],
)
def test_a_wrong_field_is_one_fault_that_says_where(
    exchanged: Any, place: tuple[int, int], fields: dict[str, list[int]], fault: str
) -> None:
    rank, number = place
    changed = _exchange_one(exchanged.batches, rank, number, _with(exchanged.batches[rank][number], **fields))
    evidence = exchanged.evidence(changed)
    assert evidence[rank].faults == (fault,)
    assert evidence[1 - rank].faults == ()
    assert exchanged.conclude(changed).faults == [fault]


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_any_single_wrong_value_is_found(exchanged: Any, data: st.DataObject) -> None:
    rank, number = data.draw(st.tuples(st.integers(0, 1), st.integers(0, 1)))
    batch: PackedBatch = exchanged.batches[rank][number]
    name = data.draw(st.sampled_from(FIELDS))
    slot = data.draw(st.integers(0, batch.num_tokens - 1))
    right = int(batch.tokens[name][slot])
    wrong = data.draw(st.integers(-(2**31), 2**31 - 1).filter(lambda value: value != right))
    values = batch.tokens[name].copy()
    values[slot] = wrong
    evidence = exchanged.evidence(_exchange_one(exchanged.batches, rank, number, _with(batch, **{name: values})))
    fault = f"micro-batch {number}, rank {rank}: {name}: slot {slot} is {wrong}, expected {right} (1 differ)"
    assert evidence[rank].faults == (fault,)
    assert evidence[1 - rank].faults == ()


def test_a_dropped_batch(exchanged: Any) -> None:
    first, second = exchanged.batches
    assert exchanged.conclude([first, second[:1]]).faults == [
        "rank 1 has 1 batches, the plan says 2",
        "token 0 of sequence 3 and 2 more did not arrive",
        "18 valid tokens on all ranks, the batches say 20",
    ]


def test_a_rank_without_any_batch(exchanged: Any) -> None:
    first, _ = exchanged.batches
    assert exchanged.conclude([first, []]).faults == [
        "rank 1 has 0 batches, the plan says 2",
        "token 3 of sequence 0 and 10 more did not arrive",
        "10 valid tokens on all ranks, the batches say 20",
    ]


def test_a_duplicated_batch(exchanged: Any) -> None:
    first, second = exchanged.batches
    assert exchanged.conclude([[*first, first[1]], second]).faults == [
        "rank 0 has 3 batches, the plan says 2",
        "24 valid tokens on all ranks, the batches say 20",
    ]


def test_a_batch_in_the_place_of_another(exchanged: Any) -> None:
    first, second = exchanged.batches
    faults = exchanged.evidence([[first[0], first[0]], second])[0].faults
    assert faults[0] == "micro-batch 1, rank 0: input_ids: slot 0 is 97, expected 108 (8 differ)"  # 5 and a tail


def test_batches_of_another_rank(exchanged: Any) -> None:
    first, second = exchanged.batches
    evidence = exchanged.evidence([second, first])
    assert evidence[0].faults[0] == "micro-batch 0, rank 0: input_ids: slot 0 is 100, expected 97 (8 differ)"
    assert evidence[1].faults[0] == "micro-batch 0, rank 1: input_ids: slot 0 is 97, expected 100 (8 differ)"


def test_a_wrong_count_of_valid_tokens(exchanged: Any) -> None:
    wrong = replace(exchanged.batches[1][0], num_valid_tokens=9)
    assert exchanged.conclude(_exchange_one(exchanged.batches, 1, 0, wrong)).faults == [
        "micro-batch 0, rank 1: 9 valid tokens, expected 8",
        "21 valid tokens on all ranks, the batches say 20",
    ]


def test_wrong_counts_that_cancel_out_are_wrong_still(exchanged: Any) -> None:
    # The loss of each rank is weighed by what it counts, so each count must be right, not their sum.
    changed = _exchange_one(exchanged.batches, 0, 0, replace(exchanged.batches[0][0], num_valid_tokens=7))
    changed = _exchange_one(list(changed), 1, 0, replace(exchanged.batches[1][0], num_valid_tokens=7))
    assert exchanged.conclude(changed).faults == [
        "micro-batch 0, rank 0: 7 valid tokens, expected 6",
        "micro-batch 0, rank 1: 7 valid tokens, expected 8",
    ]


@pytest.mark.parametrize(("rank", "place"), [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_a_wrong_count_of_the_step_on_any_batch(exchanged: Any, rank: int, place: int) -> None:
    wrong = replace(exchanged.batches[rank][place], global_valid_tokens=19)
    changed = _exchange_one(exchanged.batches, rank, place, wrong)
    fault = f"micro-batch {place}, rank {rank}: 19 valid tokens in the step, expected 20"
    assert [evidence.faults for evidence in exchanged.evidence(changed)][rank] == (fault,)
    said = changed[0][0].global_valid_tokens
    assert conclude(exchanged.plan, exchanged.evidence(changed), said).faults[0] == fault


def test_a_wrong_count_of_the_step_on_all_batches(exchanged: Any) -> None:
    # All agree with one another, and with what the ranks counted, so only the plan and the documents can tell.
    changed = [[replace(batch, global_valid_tokens=21) for batch in mine] for mine in exchanged.batches]
    assert conclude(exchanged.plan, exchanged.evidence(changed), 20).faults == [
        f"micro-batch {place}, rank {rank}: 21 valid tokens in the step, expected 20"
        for rank in (0, 1)
        for place in (0, 1)
    ]


PADDING = {"input_ids": 0, "labels": -100, "position_ids": 0, "segment_ids": 0, "loss_mask": 0}


def _with_tail(batch: PackedBatch, tail: dict[str, list[int]]) -> PackedBatch:
    """The batch with slots after its last."""
    return _with(batch, **{name: [*batch.tokens[name], *values] for name, values in tail.items()})


def test_a_padded_tail_is_right(exchanged: Any) -> None:
    # What static shapes add.
    longer = _with_tail(exchanged.batches[1][1], {name: [value] * 2 for name, value in PADDING.items()})
    changed = _exchange_one(exchanged.batches, 1, 1, longer)
    assert exchanged.conclude(changed) == exchanged.conclude()


@pytest.mark.parametrize(("name", "right"), PADDING.items())
@pytest.mark.parametrize("slot", [3, 4])
def test_slots_beyond_the_slice_must_be_padding(exchanged: Any, name: str, right: int, slot: int) -> None:
    # Segment 1 in a slot that no sequence has, or a label that counts.
    tail = {other: [value] * 2 for other, value in PADDING.items()}
    tail[name][slot - 3] = 1
    changed = _exchange_one(exchanged.batches, 1, 1, _with_tail(exchanged.batches[1][1], tail))
    (fault,) = exchanged.evidence(changed)[1].faults
    shown = "1.0" if name == "loss_mask" else "1"
    assert fault == f"micro-batch 1, rank 1: {name}: slot {slot} is {shown}, expected {right} (1 differ)"


# Rank 0 of `exchanged` has 6 and 2 tokens of sequences of 12 and 4; rank 0 of `padded` 2 tokens and 2 padded slots of
# a sequence of 5 tokens and 3 padded slots.
@pytest.mark.parametrize(
    ("name", "right", "right_padded"),
    [
        ("cu_seqlens", [0, 12, 16], [0, 5]),
        ("cu_seqlens_padded", [0, 12, 16], [0, 8]),
        ("local_cu_seqlens", [0, 6, 8], [0, 2]),
        ("local_cu_seqlens_padded", [0, 6, 8], [0, 4]),
    ],
)
def test_wrong_boundaries(exchanged: Any, padded: Any, name: str, right: list[int], right_padded: list[int]) -> None:
    # What kernels go by: with them wrong, attention crosses from one sequence into the next.
    for case, offsets in ((exchanged, right), (padded, right_padded)):
        batch = case.batches[0][0]
        assert getattr(batch, name).tolist() == offsets
        merged = [0, *offsets[2:]]
        moved = [*offsets[:1], offsets[1] - 1, *offsets[2:]]
        for wrong in (merged, moved, [1, *offsets[1:]], [*offsets, offsets[-1]]):
            changed = _exchange_one(case.batches, 0, 0, replace(batch, **{name: np.array(wrong, np.int32)}))
            fault = f"micro-batch 0, rank 0: {name} is {wrong}, expected {offsets}"
            assert [evidence.faults for evidence in case.evidence(changed)] == [(fault,), ()]


@pytest.mark.parametrize(
    ("slots", "value", "fault"),
    [
        ([0], 0.0, "slot 0 is 0.0, expected 1 (1 differ)"),  # a label that no longer counts
        ([5], 1.0, "slot 5 is 1.0, expected 0 (1 differ)"),  # the end of a document, which has no label
        ([3], 0.5, "slot 3 is 0.5, expected 1 (1 differ)"),
        ([5, 7], 1.0, "slot 5 is 1.0, expected 0 (2 differ)"),
        ([2], np.nan, "slot 2 is nan, expected 1 (1 differ)"),
    ],
)
def test_a_wrong_loss_mask(exchanged: Any, slots: list[int], value: float, fault: str) -> None:
    batch = exchanged.batches[0][0]
    assert batch.tokens["loss_mask"].tolist() == [1, 1, 1, 1, 1, 0, 1, 0]
    mask = batch.tokens["loss_mask"].copy()
    mask[slots] = value
    changed = _exchange_one(exchanged.batches, 0, 0, _with(batch, loss_mask=mask))
    assert exchanged.conclude(changed).faults == [f"micro-batch 0, rank 0: loss_mask: {fault}"]


@pytest.fixture(scope="module")
def padded(exchange: Callable[..., Any]) -> Any:
    """One document of 5 tokens over 2 ranks, padded to 8: rank 0 has tokens 0 and 1 and two padded slots."""
    return exchange(TextDocuments.of([b"abcd"]), DemoOptions(num_ranks=2, capacity=4))


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [("input_ids", 5, 0), ("labels", 0, -100), ("position_ids", 2, 0), ("segment_ids", 1, 0), ("loss_mask", 1.0, 0)],
)
def test_what_lies_in_padding_is_checked_too(padded: Any, field: str, wrong: float, right: int) -> None:
    batch = padded.batches[0][0]
    assert batch.tokens["input_ids"].tolist() == [97, 98, 0, 0]
    assert padded.conclude().faults == []
    values = batch.tokens[field].copy()
    values[2] = wrong
    fault = f"micro-batch 0, rank 0: {field}: slot 2 is {wrong}, expected {right} (1 differ)"
    assert padded.evidence([[_with(batch, **{field: values})], padded.batches[1]])[0].faults == (fault,)


@pytest.fixture(scope="module")
def with_dummies(exchange: Callable[..., Any]) -> Any:
    """One document of 3 tokens for 3 ranks without CP: ranks 1 and 2 get dummies."""
    return exchange(TextDocuments.of([b"ab"]), DemoOptions(num_ranks=3, capacity=4, max_cp_size=1))


def test_dummies_bring_no_tokens(with_dummies: Any) -> None:
    assert with_dummies.plan.dummy.tolist() == [False, True, True]
    assert [evidence.seen.tolist() for evidence in with_dummies.evidence()] == [[0, 1, 2], [], []]
    assert with_dummies.conclude() == StepProof(num_tokens=3, num_documents=1)


def test_a_dummy_that_counts(with_dummies: Any) -> None:
    first, second, third = with_dummies.batches
    counting = replace(second[0], num_valid_tokens=1)
    assert with_dummies.conclude([first, [counting], third]).faults == [
        "micro-batch 0, rank 1: a dummy with 1 valid tokens",
        "3 valid tokens on all ranks, the batches say 2",
    ]


@pytest.mark.parametrize(
    ("name", "slots", "value"),
    [("labels", [0], 7), ("labels", [0, 2, 3], 0), ("loss_mask", [0], 1.0), ("loss_mask", [1, 3], 0.5)],
)
def test_a_dummy_with_labels(with_dummies: Any, name: str, slots: list[int], value: float) -> None:
    # Not even where the batch says that it counts nothing.
    first, second, third = with_dummies.batches
    values = np.resize(second[0].tokens[name], 4)
    values[slots] = value
    filled = {field: np.resize(second[0].tokens[field], 4) for field in PADDING} | {name: values}
    assert with_dummies.conclude([first, [_with(second[0], **filled)], third]).faults == [
        f"micro-batch 0, rank 1: a dummy with labels that count in slots {slots}"
    ]


def test_a_dummy_with_many_labels_names_the_first_eight(with_dummies: Any) -> None:
    first, second, third = with_dummies.batches
    filled = {field: np.resize(second[0].tokens[field], 10) for field in PADDING} | {"labels": np.full(10, 7)}
    assert with_dummies.conclude([first, [_with(second[0], **filled)], third]).faults == [
        "micro-batch 0, rank 1: a dummy with labels that count in slots [0, 1, 2, 3, 4, 5, 6, 7]"
    ]


def test_a_dummy_with_a_wrong_count_of_the_step(with_dummies: Any) -> None:
    # The dummy's rank divides by it like all others.
    first, second, third = with_dummies.batches
    wrong = replace(third[0], global_valid_tokens=0)
    assert with_dummies.conclude([first, second, [wrong]]).faults == [
        "micro-batch 0, rank 2: 0 valid tokens in the step, expected 2"
    ]


def test_a_dummy_in_the_place_of_a_sequence(with_dummies: Any) -> None:
    first, second, third = with_dummies.batches
    faults = with_dummies.conclude([second, first, third]).faults
    assert any(fault.startswith("micro-batch 0, rank 0: input_ids: ") for fault in faults)
    assert "micro-batch 0, rank 0: 0 valid tokens, expected 2" in faults
    assert "micro-batch 0, rank 1: a dummy with labels that count in slots [0, 1]" in faults
    assert "micro-batch 0, rank 1: a dummy with 2 valid tokens" in faults


def _evidence(*seen: list[int], valid: Sequence[int]) -> list[RankEvidence]:
    pairs = zip(seen, valid, strict=True)
    return [RankEvidence(faults=(), seen=np.array(s, np.int64), num_valid_tokens=v) for s, v in pairs]


# Sequences of 3 and 2 tokens: tokens 0 to 2 and 3 to 4 of the step.
TWO = dcpack.plan([3, 2], num_ranks=2, capacity=4)


def test_conclude_on_all_tokens_once() -> None:
    assert conclude(TWO, _evidence([0, 1, 2], [3, 4], valid=[2, 1]), 3) == StepProof(num_tokens=5, num_documents=2)


@pytest.mark.parametrize(
    ("seen", "valid", "num_tokens", "faults"),
    [
        (([0, 1, 2], [3]), [2, 1], 4, ["token 1 of sequence 1 did not arrive"]),
        (([1, 2], [4]), [2, 1], 3, ["token 0 of sequence 0 and 1 more did not arrive"]),
        (([0, 1, 2], [2, 3, 4]), [2, 1], 4, ["token 2 of sequence 0 arrived more than once"]),
        (
            ([0, 1, 2, 0, 1, 2], [3, 4]),
            [2, 1],
            2,
            ["token 0 of sequence 0 and 2 more arrived more than once"],
        ),
        (
            ([0, 1, 1], [3, 4]),
            [2, 1],
            3,
            [
                "token 1 of sequence 0 arrived more than once",
                "token 2 of sequence 0 did not arrive",
            ],
        ),
        (([0, 1, 2], [3, 4]), [2, 2], 5, ["4 valid tokens on all ranks, the batches say 3"]),
        (([0, 1, 2], [3, 4]), [0, 0], 5, ["0 valid tokens on all ranks, the batches say 3"]),
    ],
)
def test_conclude_finds(seen: Any, valid: list[int], num_tokens: int, faults: list[str]) -> None:
    verdict = conclude(TWO, _evidence(*seen, valid=valid), 3)
    assert verdict.num_tokens == num_tokens
    assert verdict.faults == faults


def test_conclude_keeps_the_faults_of_all_ranks_in_their_order() -> None:
    one, two = _evidence([0, 1, 2], [3, 4], valid=[2, 1])
    assert conclude(TWO, [replace(one, faults=("a", "b")), replace(two, faults=("c",))], 3).faults == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("policy", "seen", "num_dropped"),
    [
        ("split", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0),  # 4 + 4 + 1 and 2
        ("truncate", [0, 1, 2, 3, 9, 10], 5),
        ("drop", [9, 10], 9),
        ("single", [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 0),  # kept whole, so not cut
    ],
)
def test_conclude_counts_what_the_policy_cut(policy: str, seen: list[int], num_dropped: int) -> None:
    plan = dcpack.plan([9, 2], num_ranks=1, capacity=4, overlong=policy)
    verdict = conclude(plan, _evidence(seen, valid=[0]), 0)
    assert verdict.faults == []
    assert verdict.num_tokens == len(seen)
    assert verdict.num_dropped_tokens == num_dropped
    assert verdict.num_cut_documents == (0 if policy == "single" else 1)


def test_conclude_takes_no_empty_document_for_a_cut_one() -> None:
    plan = dcpack.plan([3, 0], num_ranks=1, capacity=4)
    assert conclude(plan, _evidence([0, 1, 2], valid=[2]), 2) == StepProof(num_tokens=3, num_documents=1)


def test_conclude_is_not_fooled_by_the_right_number_of_wrong_tokens() -> None:
    # The plan dropped tokens 4 to 8 of sequence 0: two of these came, and both tokens of sequence 1 did not.
    plan = dcpack.plan([9, 2], num_ranks=1, capacity=4, overlong="truncate")
    assert conclude(plan, _evidence([0, 1, 2, 3, 4, 5], valid=[0]), 0).faults == [
        "token 0 of sequence 1 and 1 more did not arrive",
        "token 4 of sequence 0 and 1 more arrived though the plan dropped them",
    ]


@pytest.mark.parametrize(
    ("policy", "seen", "faults"),
    [
        ("drop", [9, 10, 8], ["token 8 of sequence 0 arrived though the plan dropped them"]),
        (
            "drop",
            [9, 10, *range(9)],
            ["token 0 of sequence 0 and 8 more arrived though the plan dropped them"],
        ),
        (
            "truncate",
            [0, 1, 2, 3, 9, 10, 6, 6],
            [
                "token 6 of sequence 0 arrived more than once",
                "token 6 of sequence 0 arrived though the plan dropped them",
            ],
        ),
    ],
)
def test_conclude_finds_what_the_plan_dropped(policy: str, seen: list[int], faults: list[str]) -> None:
    plan = dcpack.plan([9, 2], num_ranks=1, capacity=4, overlong=policy)
    assert conclude(plan, _evidence(seen, valid=[0]), 0).faults == faults


def test_conclude_counts_in_thousands() -> None:
    plan = dcpack.plan([3000], num_ranks=1, capacity=4096)
    assert conclude(plan, _evidence([], valid=[0]), 0).faults == ["token 0 of sequence 0 and 2,999 more did not arrive"]
