"""Rerouting and packing: which sequences arrive, and what a row holds."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import ArgumentError, PeerError, PlanError
from dcpack.exchange import gather_prepared, prepare_samples
from dcpack.megatron import (
    build_packed_microbatches,
    complete_sample,
    metadata_of,
    pack_sequences,
    reroute_samples,
    unpack_samples,
)
from dcpack.padding import PaddingRule


def sample(number: int, length: int, padded: int | None = None, **changes: Any) -> dict[str, Any]:
    padded = length if padded is None else padded
    tokens = 100 * number + np.arange(padded)
    fields = {"tokens": tokens, "original_seq_len": np.array([length]), "padded_seq_len": np.array([padded])}
    return {**fields, **changes}


# ---- complete --------------------------------------------------------------------------------------------------------


def test_missing_fields_are_made_and_given_ones_kept() -> None:
    labels = np.array([7, 8, 9, 0])
    made = complete_sample(sample(1, 3, 4, labels=labels))
    assert made["labels"] is labels
    assert (made["loss_mask"].dtype, made["loss_mask"].tolist()) == (np.float32, [1.0, 1.0, 1.0, 1.0])
    made = complete_sample(sample(1, 3, 4))
    assert made["labels"].tolist() == [101, 102, -100, -100]
    assert made["loss_mask"].tolist() == [1.0, 1.0, 0.0, 0.0]
    assert made["position_ids"].tolist() == [0, 1, 2, 3]


# ---- pack ------------------------------------------------------------------------------------------------------------


def full(number: int, length: int, padded: int) -> dict[str, Any]:
    """A sequence with all fields, whose padding holds poison."""
    made = sample(number, length, padded)
    made["labels"] = made["tokens"] + 1
    made["loss_mask"] = np.ones(padded, np.float32)
    made["position_ids"] = np.arange(padded)
    made["teacher"] = np.stack([made["tokens"], made["tokens"]], axis=1).astype(np.float16)
    for name in ("tokens", "labels", "loss_mask", "position_ids", "teacher"):
        made[name][length:] = 77
    return made


def test_a_row_by_hand() -> None:
    given = [full(1, 3, 4), full(2, 2, 4)]
    before = copy.deepcopy(given)
    row = pack_sequences(given, num_slots=10, local_cp_size=2, cp_rank=1)
    assert row["tokens"].tolist() == [100, 101, 102, 0, 200, 201, 0, 0, 0, 0]
    assert row["labels"].tolist() == [101, 102, 103, -100, 201, 202, -100, -100, -100, -100]
    assert row["loss_mask"].tolist() == [1, 1, 1, 0, 1, 1, 0, 0, 0, 0]
    assert row["position_ids"].tolist() == [0, 1, 2, 0, 0, 1, 0, 0, 0, 0]
    assert row["teacher"][:, 1].tolist() == [100, 101, 102, 0, 200, 201, 0, 0, 0, 0]
    assert row["padding_mask"].astype(int).tolist() == [0, 0, 0, 1, 0, 0, 1, 1, 1, 1]
    for name, expected in (("cu_seqlens", [0, 3, 5]), ("cu_seqlens_padded", [0, 4, 8])):
        assert (row[name].dtype, row[name].tolist()) == (np.int32, expected)
    assert (row["max_seqlen"], row["num_slots"], row["local_cp_size"], row["cp_rank"]) == (4, 10, 2, 1)
    assert type(row["max_seqlen"]) is int
    assert row["teacher"].dtype == np.float16
    for one, old in zip(given, before, strict=True):
        for name in old:
            np.testing.assert_array_equal(one[name], old[name])
    row["tokens"][:] = 0
    assert given[0]["tokens"][0] == 100  # a copy


def test_sequences_can_be_padded_further() -> None:
    row = pack_sequences([full(1, 3, 4), full(2, 2, 4)], padded_lengths=[8, 2])
    assert row["tokens"].tolist() == [100, 101, 102, 0, 0, 0, 0, 0, 200, 201]
    assert row["max_seqlen"] == 8


def test_a_field_that_some_lack_is_neutral_there() -> None:
    row = pack_sequences([sample(1, 2, score=np.array([5, 6], np.int8)), sample(2, 1)])
    assert (row["score"].dtype, row["score"].tolist()) == (np.int8, [5, 6, 0])


def test_fields_that_are_not_per_token_go_with_their_sequence() -> None:
    image = np.zeros((3, 2))
    row = pack_sequences([sample(1, 2, pixels=image, source=np.int64(4)), sample(2, 1, source=np.int64(5))])
    assert "pixels" not in row
    first, second = row["sample_fields"]
    assert (first["pixels"].shape, int(first["source"]), int(second["source"])) == ((3, 2), 4, 5)
    assert "pixels" not in second
    assert not np.shares_memory(first["pixels"], image)


@pytest.mark.parametrize(
    ("samples", "options", "text"),
    [
        ([], {}, "samples must hold at least one sequence"),
        ([sample(1, 4)], {"padded_lengths": [3]}, "padded_lengths.0. = 3, samples.0. has 4"),
        ([sample(1, 4)], {"num_slots": 3}, "num_slots must be from 4 to 2147483647, got 3"),
        ([sample(1, 4)], {"cp_rank": 1}, "cp_rank must be from 0 to 0, got 1"),
        (
            [sample(1, 2, x=np.zeros((2, 3))), sample(2, 1, x=np.zeros((1, 4)))],
            {},
            r"field 'x' cannot share a row: float64 \[3\], float64 \[4\]",
        ),
    ],
)
def test_rows_that_cannot_be(samples: list[Any], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        pack_sequences(samples, **options)


# ---- micro-batches ---------------------------------------------------------------------------------------------------


def test_micro_batches_follow_the_plan() -> None:
    rule = PaddingRule(tp=2)
    plan = dcpack.plan([30, 5, 6, 7], num_ranks=2, capacity=16, padding=rule, scheduler="packing_aware")
    found = {number: sample(number, int(length)) for number, length in enumerate(plan.lengths)}
    for rank in range(2):
        rows = build_packed_microbatches(found, plan, rank)
        assert [row["local_cp_size"] for row in rows] == [int(plan.cp_size[b]) for b in plan.bins_of_rank(rank)]
        for row, b in zip(rows, plan.bins_of_rank(rank).tolist(), strict=True):
            ids = plan.sequence_ids[plan.offsets[b] : plan.offsets[b + 1]]
            assert np.diff(row["cu_seqlens"]).tolist() == plan.lengths[ids].tolist()
            assert np.all(np.diff(row["cu_seqlens_padded"]) % rule.multiple(row["local_cp_size"]) == 0)
            assert row["cp_rank"] == rank - plan.first_rank[b]
            assert row["cp_group"] == tuple(range(plan.first_rank[b], plan.first_rank[b] + plan.cp_size[b]))
            real = row["tokens"][~row["padding_mask"]]
            assert real.tolist() == np.concatenate([found[int(i)]["tokens"] for i in ids]).tolist()


@pytest.mark.parametrize("ranks", [(5, 9), range(5, 10, 4), np.array([5, 9])])
def test_cp_groups_can_have_global_numbers(ranks: Any) -> None:
    plan = dcpack.plan([30], num_ranks=2, capacity=16, padding=PaddingRule())
    (row,) = build_packed_microbatches({0: sample(0, 30)}, plan, 1, ranks=ranks)
    assert (row["cp_group"], row["cp_rank"]) == ((5, 9), 1)
    assert {type(rank) for rank in row["cp_group"]} == {int}


def test_rows_get_the_tail_that_sequence_parallelism_asks_for() -> None:
    rule = PaddingRule(tp=2, block=4, sequence_parallel=True)
    plan = dcpack.plan([4, 4, 4], num_ranks=1, capacity=16, padding=rule)
    (row,) = build_packed_microbatches({i: sample(i, 4) for i in range(3)}, plan, 0)
    assert (row["num_slots"], row["cu_seqlens_padded"].tolist()) == (16, [0, 4, 8, 12])
    assert row["padding_mask"].tolist() == [False] * 12 + [True] * 4


def test_a_dummy_counts_in_no_loss_and_has_the_same_fields() -> None:
    plan = dcpack.plan([4], num_ranks=2, capacity=8, max_cp_size=1, on_empty="dummy", padding=PaddingRule(tp=4))
    found = {0: full(1, 4, 4)}
    (real,) = build_packed_microbatches(found, plan, 0)
    for given in ({}, found):
        (dummy,) = build_packed_microbatches(given, plan, 1)
        assert dummy["labels"].tolist() == [-100] * 4
        assert dummy["loss_mask"].tolist() == [0.0] * 4
        assert dummy["cu_seqlens"].tolist() == [0, 4]
    assert set(dummy) == set(real)
    assert dummy["teacher"].shape == (4, 2)


def test_a_dummy_has_labels_that_do_not_count_where_labels_are_unsigned() -> None:
    plan = dcpack.plan([4], num_ranks=2, capacity=8, max_cp_size=1, on_empty="dummy", padding=PaddingRule())
    found = {0: sample(1, 4, labels=np.arange(4, dtype=np.uint16))}
    (dummy,) = build_packed_microbatches(found, plan, 1)
    assert (dummy["labels"].dtype, set(dummy["labels"].tolist())) == (np.int64, {-100})


def test_ranks_may_agree_on_what_is_per_token() -> None:
    plan = dcpack.plan([4], num_ranks=2, capacity=8, max_cp_size=1, on_empty="dummy", padding=PaddingRule())
    found = {0: sample(1, 4, image=np.arange(4))}
    agreed = {"tokens": np.zeros(0, np.int64), "score": np.zeros((0, 2), np.float16)}
    for rank, fields in enumerate(([{"image": [0, 1, 2, 3]}], [{}])):
        (row,) = build_packed_microbatches(found if rank == 0 else {}, plan, rank, per_token=agreed)
        assert "image" not in row
        assert fields == [{name: values.tolist() for name, values in each.items()} for each in row["sample_fields"]]
        assert (row["score"].dtype, row["score"].tolist()) == (np.float16, [[0.0, 0.0]] * row["num_slots"])


def test_a_per_token_field_has_a_row_a_token() -> None:
    fields = {"score": np.zeros((0, 2))}
    with pytest.raises(
        ArgumentError, match=r"one row a token: samples\[1\] has 4 tokens with padding, 'score' \[3, 2\]"
    ):
        pack_sequences([sample(1, 4), sample(2, 4, score=np.ones((3, 2)))], per_token=fields)
    with pytest.raises(ArgumentError, match=r"field 'score' cannot share a row: float64 \[2\], float64 \[3\]"):
        pack_sequences([sample(1, 4, score=np.ones((4, 3)))], per_token=fields)


def test_missing_sequences_and_many_rows_are_refused() -> None:
    plan = dcpack.plan([3, 4, 5], num_ranks=1, capacity=16)
    with pytest.raises(ArgumentError, match="samples must hold what the plan wants: 0, 2 missing"):
        build_packed_microbatches({1: sample(1, 4)}, plan, 0)
    reference = dcpack.plan([3, 4, 5], num_ranks=1, capacity=16)
    two = dcpack.Plan(**{**{f: getattr(reference, f) for f in reference.__dataclass_fields__}, "rows_per_rank": 2})
    with pytest.raises(PlanError, match="one row a rank, got 2"):
        build_packed_microbatches({}, two, 0)


def test_metadata_holds_no_field_of_the_data() -> None:
    row = pack_sequences([full(1, 3, 4)])
    names = {"cu_seqlens", "cu_seqlens_padded", "max_seqlen", "local_cp_size", "cp_rank", "num_slots"}
    assert set(metadata_of(row)) == names


# ---- reroute ---------------------------------------------------------------------------------------------------------


def test_sequences_reach_every_rank_of_their_bin_with_all_fields() -> None:
    lengths = [20, 3, 4, 5]
    plan = dcpack.plan(lengths, num_ranks=4, capacity=8, padding=PaddingRule(), scheduler="packing_aware")

    def fn(communicator: dcpack.Communicator) -> dict[int, dict[str, Any]]:
        mine = [0, 1] if communicator.rank < 2 else [2, 3]  # ranks 0 and 1 read the same, and so do 2 and 3
        samples = [
            sample(i, lengths[i], extra=np.full((lengths[i], 2), i, np.float16), image=np.full((2, 3), i)) for i in mine
        ]
        before = copy.deepcopy(samples)
        found = reroute_samples(communicator, samples, mine, plan)
        for one, old in zip(samples, before, strict=True):
            for name in old:
                np.testing.assert_array_equal(one[name], old[name])
        return found

    for rank, found in enumerate(dcpack.run_ranks(4, fn)):
        wanted = {
            int(i) for b in plan.bins_of_rank(rank) for i in plan.sequence_ids[plan.offsets[b] : plan.offsets[b + 1]]
        }
        assert set(found) == wanted
        for number, fields in found.items():
            expected = sample(number, lengths[number])
            assert fields["tokens"].tolist() == expected["tokens"].tolist()
            assert fields["original_seq_len"].tolist() == [lengths[number]]
            assert (fields["extra"].dtype, fields["extra"].tolist()) == (np.float16, [[number] * 2] * lengths[number])
            assert fields["image"].tolist() == [[number] * 3] * 2
    assert len(plan.sequence_ids) == 4


def test_a_field_can_look_per_token_on_one_rank_alone() -> None:
    # Two rows, two tokens: on rank 0 that could be one row a token; rank 1 shows that it is not.
    plan = dcpack.plan([2, 3], num_ranks=2, capacity=8, cp_sizes=(2,), padding=PaddingRule())

    def fn(communicator: dcpack.Communicator) -> dict[int, Any]:
        mine = sample(communicator.rank, 2 + communicator.rank, image=np.full((2, 1), communicator.rank))
        found = reroute_samples(communicator, [mine], [communicator.rank], plan)
        return {number: each["image"].tolist() for number, each in found.items()}

    assert dcpack.run_ranks(2, fn) == [{0: [[0]] * 2, 1: [[1]] * 2}] * 2


def test_fields_can_be_fetched_from_elsewhere() -> None:
    plan = dcpack.plan([3], num_ranks=1, capacity=4)
    given = {name: ("far", values) for name, values in sample(0, 3).items()}  # the lengths too, as a tensor may be

    def to_host(value: Any) -> Any:
        return value[1]

    (found,) = dcpack.run_ranks(1, lambda c: reroute_samples(c, [given], [0], plan, to_host=to_host))
    assert found[0]["tokens"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s, i: s.pop("padded_seq_len"), r"samples\[0\] has no padded_seq_len; see unpack_samples"),
        (lambda s, i: s.update(labels=np.zeros(9)), r"samples\[0\] has 3 tokens with padding, but labels \[9\]"),
        (lambda s, i: i.__setitem__(0, 7), "ids must number 2 sequences in the order of the ranks"),
    ],
)
def test_a_fault_of_one_rank_is_an_error_on_all(change: Any, text: str) -> None:
    plan = dcpack.plan([3, 3], num_ranks=2, capacity=4, scheduler="in_order")
    failures = []

    def fn(communicator: dcpack.Communicator) -> None:
        mine, ids = sample(communicator.rank, 3), [communicator.rank]
        if communicator.rank == 1:
            change(mine, ids)
        try:
            reroute_samples(communicator, [mine], ids, plan)
        except dcpack.DcpackError as error:
            failures.append(str(error))

    dcpack.run_ranks(2, fn)
    assert len(failures) == 2
    assert all(text.replace("\\", "") in failure for failure in failures), failures


def test_a_plan_that_cuts_or_does_not_divide_is_refused() -> None:
    cut = dcpack.plan([9], num_ranks=1, capacity=4, overlong="split")
    with pytest.raises(PeerError, match="the plan cuts sequences, which go whole here: sequence 0, sequence 0"):
        dcpack.run_ranks(1, lambda c: reroute_samples(c, [sample(0, 9)], [0], cut))
    odd = dcpack.plan([7], num_ranks=2, capacity=4)
    with pytest.raises(PeerError, match="sharding 'zigzag' cannot divide evenly"):
        dcpack.run_ranks(2, lambda c: reroute_samples(c, [sample(0, 7)] * (c.rank == 0), [0] * (c.rank == 0), odd))


def test_plans_for_other_numbers_of_sequences_are_an_error_on_all() -> None:
    plans = [dcpack.plan([3] * n, num_ranks=2, capacity=6, scheduler="in_order") for n in (2, 3)]
    texts = []

    def fn(communicator: dcpack.Communicator) -> None:
        try:
            reroute_samples(communicator, [sample(communicator.rank, 3)], [communicator.rank], plans[communicator.rank])
        except dcpack.DcpackError as error:
            texts.append(str(error))

    dcpack.run_ranks(2, fn)
    assert len(texts) == 2
    assert all("lengths: 2 sequences against 3" in text for text in texts), texts


def test_differing_plans_are_seen_before_anything_moves() -> None:
    plans = [dcpack.plan([3, 3], num_ranks=2, capacity=c, scheduler="in_order") for c in (4, 5)]
    with pytest.raises(PeerError, match="capacity: 4 against 5"):
        dcpack.run_ranks(2, lambda c: reroute_samples(c, [sample(c.rank, 3)], [c.rank], plans[c.rank]))


def test_gather_prepared_is_gather_samples_without_the_preparation() -> None:
    def fn(communicator: dcpack.Communicator) -> tuple[Any, Any]:
        local = prepare_samples([{"input_ids": np.arange(2 + communicator.rank)}])
        table = gather_prepared(communicator, local, ids=[communicator.rank]).table
        return table.lengths.tolist(), table.ids.tolist()

    assert dcpack.run_ranks(2, fn) == [([2, 3], [0, 1])] * 2
    with pytest.raises(PeerError, match="ids must name each sample: 2 ids, 1 samples"):
        dcpack.run_ranks(1, lambda c: gather_prepared(c, prepare_samples([{"input_ids": [1]}]), ids=[0, 1]))


def test_unpacked_parts_can_be_packed_again() -> None:
    tokens = np.arange(9)
    row = {"tokens": tokens, "cu_seqlens": np.array([0, 2, 5]), "cu_seqlens_padded": np.array([0, 4, 9])}
    again = pack_sequences(unpack_samples([row]).samples)
    assert again["cu_seqlens"].tolist() == [0, 2, 5]
    assert again["cu_seqlens_padded"].tolist() == [0, 4, 9]
    assert again["tokens"].tolist() == [0, 1, 0, 0, 4, 5, 6, 0, 0]


def test_a_sample_of_more_tokens_than_it_is_padded_to_is_named() -> None:
    samples = [sample(0, 2, 4), sample(1, 7, 6), sample(2, 9, 8)]
    for given in (None, [8, 8, 16]):
        with pytest.raises(ArgumentError, match=r"samples\[1\] has 7, padded_seq_len 6, samples\[2\] has 9, .* 8$"):
            pack_sequences(samples, padded_lengths=given)
    with pytest.raises(ArgumentError, match="padded_lengths must be one for each of 1 samples, got 3"):
        pack_sequences(samples[:1], padded_lengths=[4, 4, 4])
    plan = dcpack.plan([4, 6], num_ranks=1, capacity=16)
    with pytest.raises(PeerError, match=r"samples\[1\]: original_seq_len 7 must be at most padded_seq_len 6"):
        dcpack.run_ranks(1, lambda c: reroute_samples(c, samples[:2], [0, 1], plan))
