from __future__ import annotations

import dataclasses
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.cost import QuadraticCost, RingCost
from dcpack.errors import ArgumentError, DcpackError, PlanError
from dcpack.padding import PaddingRule
from dcpack.plans import Plan

I64 = np.int64
replace = dataclasses.replace


def ints(*values: int) -> Any:
    return np.array(values, I64)


def flags(*values: int) -> Any:
    return np.array(values, np.bool_)


def good_plan() -> Plan:
    """Four ranks, two micro-batches; sequence 2 of 170 tokens is shared by ranks 0 and 1, sequence 5 is empty.

    micro-batch 0: [2 2 | 0 | 4]    micro-batch 1: [1 3 on all four]
    """
    return Plan(
        microbatch=ints(0, 0, 0, 1),
        first_rank=ints(0, 2, 3, 0),
        cp_size=ints(2, 1, 1, 4),
        row=ints(0, 0, 0, 0),
        oversized=flags(0, 0, 0, 0),
        dummy=flags(0, 0, 0, 0),
        offsets=ints(0, 1, 2, 3, 5),
        sequence_ids=ints(2, 0, 4, 1, 3),
        starts=ints(0, 0, 0, 0, 0),
        entry_lengths=ints(170, 60, 90, 40, 30),
        lengths=ints(60, 40, 170, 30, 90, 0),
        dropped=ints(0, 0, 0, 0, 0, 0),
        num_ranks=4,
        num_microbatches=2,
        rows_per_rank=1,
        capacity=100,
        cp_sizes=(1, 2, 4),
        bounds={"step_time": 1.0},
    )


# ---- validate --------------------------------------------------------------------------------------------------------


def test_the_good_plan_is_good() -> None:
    plan = good_plan()
    plan.validate()
    plan.validate([60, 40, 170, 30, 90, 0])
    plan.validate(np.array([60, 40, 170, 30, 90, 0], np.uint8))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        # entries
        ({"sequence_ids": ints(2, 0, 4, 1, 9)}, "unknown sequences: entry 4 names 9"),
        ({"sequence_ids": ints(2, -1, 4, 1, 7)}, "unknown sequences: entry 1 names -1, entry 4 names 7"),
        ({"entry_lengths": ints(170, 60, 90, 41, 30)}, r"parts outside their sequence: 1\[0:41\]"),
        ({"starts": ints(0, 1, 0, 0, 0)}, r"parts outside their sequence: 0\[1:61\]"),
        ({"starts": ints(-1, 0, 0, 0, 0)}, r"parts outside their sequence: 2\[-1:169\]"),
        ({"entry_lengths": ints(170, 0, 90, 40, 30)}, r"parts outside their sequence: 0\[0:0\]"),
        ({"sequence_ids": ints(2, 5, 4, 1, 3)}, r"parts outside their sequence: 5\[0:60\]"),
        ({"sequence_ids": ints(2, 0, 4, 4, 3)}, "tokens in two entries: sequence 4"),
        ({"sequence_ids": ints(2, 0, 4, 4, 3)}, "sequence 1: 0 placed, 0 dropped of 40"),
        ({"entry_lengths": ints(170, 59, 90, 40, 30)}, "sequence 0: 59 placed, 0 dropped of 60"),
        ({"dropped": ints(0, 0, 0, 0, 1, 0)}, "sequence 4: 90 placed, 1 dropped of 90"),
        ({"dropped": ints(0, 0, 0, 0, 0, -1), "lengths": ints(60, 40, 170, 30, 90, -1)}, "sequence 5: 0 placed, -1"),
        ({"lengths": ints(60, 40, 170, 30, 90, 7)}, "sequence 5: 0 placed, 0 dropped of 7"),
        # bins
        ({"capacity": 84}, "over capacity: bin 0: 170 padded tokens of 168, bin 2: 90 padded tokens of 84"),
        ({"padding": PaddingRule(block=64)}, "over capacity: bin 0: 256 padded tokens of 200, bin 2: 128 padded"),
        ({"padding": PaddingRule(tp=96, sequence_parallel=True)}, "bin 0: 384 padded tokens of 192"),
        ({"oversized": flags(0, 0, 0, 1)}, "oversized bins not alone: bin 3"),
        ({"dummy": flags(0, 1, 0, 0)}, "dummy bins hold entries, others none: bin 1"),
        ({"offsets": ints(0, 1, 1, 3, 5)}, "dummy bins hold entries, others none: bin 1"),
        ({"cp_sizes": (1, 4)}, r"CP size not in \(1, 4\): bin 0: 2"),
        ({"cp_size": ints(2, 0, 2, 4)}, "cp_size below 1"),
        # ranks
        ({"first_rank": ints(0, 1, 3, 0)}, "do not partition 4 ranks: micro-batch 0, bin 1, micro-batch 0, bin 2"),
        ({"first_rank": ints(0, 2, 2, 0)}, "do not partition 4 ranks: micro-batch 0, bin 2"),
        ({"first_rank": ints(0, 2, 3, 1)}, "do not partition 4 ranks: micro-batch 1, bin 3"),
        ({"first_rank": ints(-1, 2, 3, 0)}, "do not partition 4 ranks: micro-batch 0, bin 0"),
        ({"num_ranks": 5}, "do not partition 5 ranks: micro-batch 0, bin 2, micro-batch 1, bin 3"),
        ({"num_ranks": 3}, "do not partition 3 ranks: micro-batch 0, bin 2, micro-batch 1, bin 3"),
        ({"cp_size": ints(2, 1, 1, 2)}, "do not partition 4 ranks: micro-batch 1, bin 3"),
        ({"first_rank": ints(1, 0, 3, 0)}, "blocks not aligned to their size: bin 0"),
        ({"microbatch": ints(0, 0, 0, 2)}, "bins outside the micro-batches and rows: bin 3"),
        ({"microbatch": ints(0, 0, 0, -1)}, "bins outside the micro-batches and rows: bin 3"),
        ({"row": ints(0, 0, 1, 0)}, "bins outside the micro-batches and rows: bin 2"),
        ({"num_microbatches": 3}, "micro-batches or rows without a bin: slot 2"),
        ({"rows_per_rank": 2}, "micro-batches or rows without a bin: slot 1, slot 3"),
        ({"num_ranks": 0}, "placed bins in a plan without ranks: bin 0, bin 1, bin 2, bin 3"),
    ],
)
def test_each_broken_invariant_is_found_and_its_offenders_named(changes: dict[str, Any], text: str) -> None:
    broken = replace(good_plan(), **changes)
    with pytest.raises(PlanError, match=f"^invalid plan: .*{text}"):
        broken.validate()


def test_all_faults_are_told_at_once() -> None:
    broken = replace(good_plan(), capacity=84, cp_sizes=(1, 4), dropped=ints(0, 0, 0, 0, 0, 3))
    with pytest.raises(PlanError) as caught:
        broken.validate([1])
    told = str(caught.value)
    for text in ("sequence 5: 0 placed, 3 dropped of 0", "bin 0: 170", "bin 2: 90", "bin 0: 2", "other lengths"):
        assert text in told


@pytest.mark.parametrize("lengths", [[60, 40, 170, 30, 91, 0], [60, 40, 170, 30, 90], []])
def test_a_plan_for_other_lengths_is_refused(lengths: list[int]) -> None:
    with pytest.raises(PlanError, match="the plan was made for other lengths"):
        good_plan().validate(lengths)


def test_a_bin_beyond_int32_offsets_is_a_fault() -> None:
    plan = replace(
        good_plan(), capacity=2**31, lengths=ints(60, 40, 170, 30, 2**31, 0), entry_lengths=ints(170, 60, 2**31, 40, 30)
    )
    with pytest.raises(PlanError, match="over the int32 offsets: bin 2: 2147483648 tokens"):
        plan.validate()
    just = replace(plan, lengths=ints(60, 40, 170, 30, 2**31 - 1, 0), entry_lengths=ints(170, 60, 2**31 - 1, 40, 30))
    just.validate()


def test_an_oversized_bin_may_be_over_capacity_alone() -> None:
    plan = replace(good_plan(), capacity=84)
    with pytest.raises(PlanError, match="over capacity"):
        plan.validate()
    replace(plan, oversized=flags(1, 0, 1, 0)).validate()


def test_cut_sequences_are_whole_when_their_parts_meet() -> None:
    cut = replace(
        good_plan(),
        sequence_ids=ints(2, 0, 2, 1, 3),
        starts=ints(0, 0, 90, 0, 0),
        entry_lengths=ints(90, 60, 80, 40, 30),
        lengths=ints(60, 40, 170, 30, 0, 0),
    )
    cut.validate()
    with pytest.raises(PlanError, match="tokens in two entries: sequence 2"):
        replace(cut, starts=ints(0, 0, 89, 0, 0)).validate()
    # a hole and a double that sum to the right length
    with pytest.raises(PlanError, match="tokens in two entries: sequence 2"):
        replace(cut, starts=ints(0, 0, 80, 0, 0)).validate()


def test_other_sets_of_cp_sizes_need_no_alignment() -> None:
    plan = replace(
        good_plan(),
        first_rank=ints(3, 0, 5, 0),
        cp_size=ints(2, 3, 1, 6),
        num_ranks=6,
        cp_sizes=(1, 2, 3, 6),
    )
    plan.validate()


def test_parts_that_overflow_are_found() -> None:
    with pytest.raises(PlanError, match="parts outside their sequence"):
        replace(good_plan(), starts=ints(0, 2**63 - 1, 0, 0, 0)).validate()


@pytest.mark.parametrize("offsets", [ints(0, 1, 0, 3, 5), ints(1, 1, 2, 3, 5), ints(0, -1, 2, 3, 5)])
def test_offsets_that_do_not_rise_from_0_are_a_plan_error(offsets: Any) -> None:
    with pytest.raises(PlanError, match="offsets"):
        replace(good_plan(), offsets=offsets).validate()


def test_more_micro_batches_than_memory_holds_are_still_only_a_fault() -> None:
    with pytest.raises(PlanError, match="micro-batches"):
        replace(good_plan(), num_microbatches=2**55).validate()


# ---- the arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"microbatch": np.zeros(4, np.int32)}, r"microbatch must be int64\[...\], got int32 of shape \(4,\)"),
        ({"oversized": ints(0, 0, 0, 0)}, r"oversized must be bool\[...\], got int64"),
        ({"starts": np.zeros((1, 5), I64)}, r"starts must be int64\[...\], got int64 of shape \(1, 5\)"),
        ({"lengths": [60.0]}, r"lengths must be int64\[...\], got float64"),
        ({"row": ints(0)}, "do not fit 4 bins, 5 entries: row$"),
        ({"dummy": flags(), "starts": ints(0, 0)}, "do not fit 4 bins, 5 entries: dummy, starts$"),
        ({"dropped": ints(0)}, "do not fit 4 bins, 5 entries: dropped$"),
        ({"offsets": ints(0, 1, 2, 3, 6)}, "do not fit 4 bins, 6 entries: sequence_ids, starts, entry_lengths$"),
        ({"offsets": ints()}, r"offsets must start at 0 and never decrease, got \[\]"),
    ],
)
def test_arrays_of_the_wrong_shape_or_dtype_make_no_plan(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        replace(good_plan(), **changes)


@pytest.mark.parametrize("name", ["num_ranks", "num_microbatches", "rows_per_rank", "capacity"])
def test_scalars_are_integers_of_at_least_0(name: str) -> None:
    with pytest.raises(DcpackError, match=f"^{name} must be at least 0, got -1$"):
        replace(good_plan(), **{name: -1})
    with pytest.raises(DcpackError, match=f"^{name} must be an integer, got 1.5"):
        replace(good_plan(), **{name: 1.5})
    assert type(getattr(replace(good_plan(), **{name: np.int32(3)}), name)) is int


def test_a_plan_is_immutable_and_apart_from_what_it_was_made_of() -> None:
    mine = ints(60, 40, 170, 30, 90, 0)
    plan = replace(good_plan(), lengths=mine)
    mine[0] = 1
    plan.validate()
    fields = [getattr(plan, field.name) for field in dataclasses.fields(Plan)]
    arrays = [value for value in fields if isinstance(value, np.ndarray)]
    assert len(arrays) == 12
    derived = (plan.entry_bin, plan.entry_padded_lengths, plan.bin_padded_tokens)
    for array in (*arrays, *derived):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.capacity = 7  # pyright: ignore[reportAttributeAccessIssue] - the point of the test
    with pytest.raises(TypeError):
        plan.bounds["step_time"] = 0.0  # pyright: ignore[reportIndexIssue] - the point of the test


def test_derived_sizes_by_hand() -> None:
    plan = replace(good_plan(), padding=PaddingRule(tp=2))  # multiples: 2 at cp 1, 8 at cp 2, 16 at cp 4
    assert (plan.num_bins, plan.num_sequences) == (4, 6)
    assert plan.entry_bin.tolist() == [0, 1, 2, 3, 3]
    assert plan.entry_padded_lengths.tolist() == [176, 60, 90, 48, 32]
    assert plan.bin_padded_tokens.tolist() == [176, 60, 90, 80]


# ---- identity --------------------------------------------------------------------------------------------------------

CHANGES: dict[str, Any] = {
    "microbatch": ints(1, 0, 0, 1),
    "first_rank": ints(0, 3, 2, 0),
    "cp_size": ints(1, 1, 1, 4),
    "row": ints(0, 0, 0, 1),
    "oversized": flags(0, 0, 0, 1),
    "dummy": flags(0, 0, 0, 1),
    "offsets": ints(0, 1, 2, 4, 5),
    "sequence_ids": ints(2, 0, 4, 3, 1),
    "starts": ints(0, 0, 0, 0, 1),
    "entry_lengths": ints(170, 60, 90, 40, 29),
    "lengths": ints(60, 40, 170, 30, 90, 1),
    "dropped": ints(0, 0, 0, 0, 0, 1),
    "num_ranks": 5,
    "num_microbatches": 3,
    "rows_per_rank": 2,
    "capacity": 101,
    "padding": PaddingRule(),
    "cp_sizes": (1, 2, 4, 8),
}


def test_every_field_but_the_bounds_is_tried() -> None:
    assert set(CHANGES) == {field.name for field in dataclasses.fields(Plan)} - {"bounds"}


@pytest.mark.parametrize("name", sorted(CHANGES))
def test_the_digest_and_the_difference_see_every_field_that_decides(name: str) -> None:
    plan, other = good_plan(), replace(good_plan(), **{name: CHANGES[name]})
    assert plan.digest() != other.digest()
    difference = plan.first_difference(other)
    assert difference is not None
    assert other.first_difference(plan) is not None
    if isinstance(CHANGES[name], int):
        assert difference == f"{name}: {getattr(plan, name)} against {getattr(other, name)}"


def test_the_digest_is_one_number_for_one_decision() -> None:
    plan = good_plan()
    assert replace(plan, bounds={}).digest() == plan.digest()
    assert plan.first_difference(replace(plan, bounds={})) is None
    strided = np.stack([plan.starts, plan.starts + 1], axis=1)[:, 0]
    assert replace(plan, starts=strided, cp_sizes=(np.int64(1), np.int8(2), 4)).digest() == plan.digest()
    assert len({plan.digest(), replace(plan, padding=PaddingRule(tp=2)).digest()}) == 2


def test_the_digest_does_not_change_between_versions_unnoticed() -> None:
    # Ranks of two versions that disagree here refuse each other's plans: raise the format number with it.
    assert good_plan().digest() == "22552669b771be8dbae882541f550ac37ee41eccd92f452373a81aa932fc0c2a"


def test_arrays_of_another_byte_order_are_the_same_plan() -> None:
    plan = good_plan()
    swapped = plan.microbatch.astype(plan.microbatch.dtype.newbyteorder())
    assert replace(plan, microbatch=swapped).digest() == plan.digest()


def test_a_plan_under_a_rule_of_numpy_sizes_has_a_digest() -> None:
    rule = PaddingRule(tp=np.int64(2))  # pyright: ignore[reportArgumentType] - sizes often come out of arrays
    plain = dcpack.plan([8], num_ranks=1, capacity=100, padding=PaddingRule(tp=2))
    assert dcpack.plan([8], num_ranks=1, capacity=100, padding=rule).digest() == plain.digest()


def test_differences_name_the_first_bin_that_departs() -> None:
    plan = good_plan()
    swapped = replace(plan, sequence_ids=ints(2, 0, 4, 3, 1), entry_lengths=ints(170, 60, 90, 30, 40))
    assert plan.first_difference(swapped) == (
        "bin 3: micro-batch 1, ranks 0..3, row 0, entries 1[0:40] 3[0:30] "
        "against micro-batch 1, ranks 0..3, row 0, entries 3[0:30] 1[0:40]"
    )
    assert plan.first_difference(replace(plan, lengths=CHANGES["lengths"])) == "lengths: sequence 5 has 0 against 1"
    fewer = dcpack.pack([5, 5], capacity=10)
    assert fewer.first_difference(replace(dcpack.pack([5, 5], capacity=10), offsets=ints(0, 2))) is None
    split = replace(
        fewer,
        **{name: np.repeat(getattr(fewer, name), 2) for name in ("microbatch", "first_rank", "cp_size", "row")},
        oversized=flags(0, 0),
        dummy=flags(0, 1),
        offsets=ints(0, 2, 2),
    )
    assert fewer.first_difference(split) == "1 bins against 2"


def test_a_bin_is_described_with_its_flags() -> None:
    plan = replace(good_plan(), oversized=flags(1, 0, 0, 0))
    assert plan.describe_bin(0) == "micro-batch 0, ranks 0..1, row 0, entries 2[0:170], oversized"
    empty = dcpack.plan([4], num_ranks=2, capacity=4, cp_sizes=(1,), on_empty="dummy")
    assert empty.describe_bin(1) == "micro-batch 0, ranks 1..1, row 0, entries none, dummy"


# ---- views -----------------------------------------------------------------------------------------------------------


def test_sample_id_groups_by_hand() -> None:
    assert good_plan().to_sample_id_groups() == [[[2], [2], [0], [4]], [[1, 3], [1, 3], [1, 3], [1, 3]]]


def test_no_list_is_shared_between_ranks() -> None:
    groups = good_plan().to_sample_id_groups()
    lists = [rank for microbatch in groups for rank in microbatch]
    assert len({id(rank) for rank in lists}) == len(lists) == 8
    groups[1][0].append(99)
    assert groups[1][1:] == [[1, 3], [1, 3], [1, 3]]
    assert all(type(i) is int for rank in lists for i in rank)


def test_only_plans_of_one_row_on_ranks_have_sample_id_groups() -> None:
    with pytest.raises(PlanError, match="0 ranks with 0 rows have no sample-id groups"):
        dcpack.pack([4], capacity=4).to_sample_id_groups()
    with pytest.raises(PlanError, match="1 ranks with 2 rows have no sample-id groups"):
        two_rows().to_sample_id_groups()


def two_rows() -> Plan:
    """One rank, two micro-batches of two rows, one sequence in each; the bins are not in order."""
    return Plan(
        microbatch=ints(1, 0, 1, 0),
        first_rank=ints(0, 0, 0, 0),
        cp_size=ints(1, 1, 1, 1),
        row=ints(1, 1, 0, 0),
        oversized=flags(0, 0, 0, 0),
        dummy=flags(0, 0, 0, 0),
        offsets=ints(0, 1, 2, 3, 4),
        sequence_ids=ints(0, 1, 2, 3),
        starts=ints(0, 0, 0, 0),
        entry_lengths=ints(1, 2, 3, 4),
        lengths=ints(1, 2, 3, 4),
        dropped=ints(0, 0, 0, 0),
        num_ranks=1,
        num_microbatches=2,
        rows_per_rank=2,
        capacity=4,
    )


def test_several_rows_a_rank() -> None:
    plan = two_rows()
    plan.validate()
    assert plan.bins_of_rank(0).tolist() == [3, 1, 2, 0]  # by micro-batch, then row
    # micro-batch 0: rows of 4 and 2 tokens, 16 + 4; micro-batch 1: 9 + 1
    assert plan.rank_times(QuadraticCost()).tolist() == [[20.0], [10.0]]
    with pytest.raises(PlanError, match="do not partition 1 ranks: micro-batch 1, bin 2"):
        replace(plan, row=ints(0, 1, 0, 0)).validate()


def test_bins_of_a_rank_by_hand() -> None:
    assert [good_plan().bins_of_rank(rank).tolist() for rank in range(4)] == [[0, 3], [0, 3], [1, 3], [2, 3]]
    with pytest.raises(PlanError, match="without ranks"):
        dcpack.pack([4], capacity=4).bins_of_rank(0)
    with pytest.raises(ArgumentError, match="rank must be from 0 to 3, got 4"):
        good_plan().bins_of_rank(4)


# ---- time ------------------------------------------------------------------------------------------------------------


def test_times_by_hand() -> None:
    plan = good_plan()
    # 170 ** 2 / 2; 60 ** 2; 90 ** 2; (40 ** 2 + 30 ** 2) / 4
    assert plan.bin_times(QuadraticCost()).tolist() == [14450.0, 3600.0, 8100.0, 625.0]
    assert plan.rank_times(QuadraticCost()).tolist() == [[14450, 14450, 3600, 8100], [625] * 4]
    assert plan.simulate(QuadraticCost()) == 14450 + 625
    # nodes of 2 ranks: bin 3 crosses. t = 70 / 4, a round is 2500 / 16, a transfer 20 * t
    cost = RingCost(linear=2.0, quadratic=1.0, ring_intra=10.0, ring_inter=20.0, node_size=2)
    shared = 2.0 * 85 + 170**2 / 4 + max(170**2 / 4, 10.0 * 85)
    crossing = 2.0 * 17.5 + 2500 / 16 + 3 * max(2500 / 16, 20.0 * 17.5)
    assert plan.bin_times(cost).tolist() == [shared, 2 * 60 + 3600, 2 * 90 + 8100, crossing]
    one_node = replace(cost, node_size=None)
    assert plan.bin_times(one_node)[3] == 2.0 * 17.5 + 2500 / 16 + 3 * max(2500 / 16, 10.0 * 17.5)


def test_padding_is_priced() -> None:
    padded = replace(good_plan(), padding=PaddingRule(tp=2))
    assert padded.bin_times(QuadraticCost()).tolist() == [176**2 / 2, 3600, 8100, (48**2 + 32**2) / 4]


def test_ranks_that_meet_once_a_step_wait_less() -> None:
    # in arrival order: micro-batch 0 holds 10 and 2, micro-batch 1 holds 3 and 9
    plan = dcpack.plan([10, 2, 3, 9], num_ranks=2, capacity=10, scheduler="in_order", max_sequences=1)
    assert plan.rank_times(QuadraticCost()).tolist() == [[100, 4], [9, 81]]
    assert plan.simulate(QuadraticCost()) == 100 + 81
    assert plan.simulate(QuadraticCost(), sync="step") == 100 + 9
    # three stages add twice the slowest micro-batch
    assert plan.simulate(QuadraticCost(), pipeline_stages=3) == 181 + 2 * 100
    assert plan.simulate(QuadraticCost(), sync="step", pipeline_stages=3) == 109 + 2 * 100


def test_dummies_take_no_time() -> None:
    plan = dcpack.plan([4], num_ranks=3, capacity=4, cp_sizes=(1,), on_empty="dummy")
    assert plan.rank_times(RingCost(linear=1.0)).tolist() == [[20.0, 0.0, 0.0]]


def test_nothing_takes_no_time() -> None:
    plan = dcpack.plan([], num_ranks=3, capacity=4)
    assert plan.rank_times(QuadraticCost()).shape == (0, 3)
    assert plan.simulate(QuadraticCost(), pipeline_stages=4) == 0.0


def test_questions_about_time_that_have_no_answer() -> None:
    with pytest.raises(PlanError, match="a plan without ranks has no rank times"):
        dcpack.pack([4], capacity=4).simulate(QuadraticCost())
    with pytest.raises(ArgumentError, match="sync must be one of 'microbatch', 'step', got 'never'"):
        good_plan().simulate(QuadraticCost(), sync="never")
    with pytest.raises(ArgumentError, match="pipeline_stages must be at least 1, got 0"):
        good_plan().simulate(QuadraticCost(), pipeline_stages=0)


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "step.plan"  # no .npz is put behind the name
    replace(good_plan(), padding=PaddingRule(tp=2)).save(path)
    return path


def test_a_plan_comes_back_as_it_was(saved: Path) -> None:
    plan = replace(good_plan(), padding=PaddingRule(tp=2))
    for back in (Plan.load(saved), Plan.load(str(saved), capacity=100, padding=PaddingRule(tp=2), cp_sizes=(1, 2, 4))):
        assert plan.first_difference(back) is None
        assert back.digest() == plan.digest()
        assert back.padding == plan.padding
        assert dict(back.bounds) == dict(plan.bounds)
        back.validate()
    assert saved.exists()


@pytest.mark.parametrize(
    "plan",
    [
        dcpack.pack([5, 0, 9], capacity=4, overlong="split"),
        dcpack.plan([], num_ranks=3, capacity=4),
        dcpack.plan([4], num_ranks=2, capacity=4, cp_sizes=(1,), on_empty="dummy"),
    ],
    ids=["without ranks", "empty", "with a dummy"],
)
def test_every_kind_of_plan_travels(plan: Plan, tmp_path: Path) -> None:
    plan.save(tmp_path / "p.npz")
    assert plan.first_difference(Plan.load(tmp_path / "p.npz")) is None


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ({"capacity": 99}, "capacity 100, wanted 99"),
        ({"padding": PaddingRule(tp=4)}, r"padding PaddingRule\(tp=2.*\), wanted PaddingRule\(tp=4"),
        ({"cp_sizes": (1, 2)}, r"cp_sizes \(1, 2, 4\), wanted \(1, 2\)"),
        ({"capacity": 99, "cp_sizes": (1,)}, r"capacity 100, wanted 99; cp_sizes \(1, 2, 4\), wanted \(1,\)"),
    ],
)
def test_another_fingerprint_is_refused(saved: Path, wanted: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=f"step.plan: the plan was made for {text}"):
        Plan.load(saved, **wanted)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"gone\.npz: not a readable plan: FileNotFoundError"):
        Plan.load(tmp_path / "gone.npz")
    with pytest.raises(PlanError, match="not a readable plan: IsADirectoryError"):
        Plan.load(tmp_path)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.1, 0.5, 0.9, 0.999])
def test_a_file_cut_short_is_refused(saved: Path, share: float) -> None:
    whole = saved.read_bytes()
    saved.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(PlanError, match=r"step\.plan: not a readable plan: "):
        Plan.load(saved)


@pytest.mark.parametrize("content", [b"hello", b"PK\x03\x04 not really", b"\x93NUMPY", bytes(1000)])
def test_what_is_no_archive_is_refused(saved: Path, content: bytes) -> None:
    saved.write_bytes(content)
    with pytest.raises(PlanError, match=r"step\.plan: not a readable plan: "):
        Plan.load(saved)


def test_no_changed_byte_is_ever_taken_for_another_plan(saved: Path) -> None:
    digest, whole = Plan.load(saved).digest(), saved.read_bytes()
    refused, other = 0, []
    # step 7 meets payloads, array headers and the directory of the archive (file names, flags, methods, checksums)
    for at in range(0, len(whole), 7):
        for flip in (0x01, 0x20, 0xFF):
            changed = bytearray(whole)
            changed[at] ^= flip
            saved.write_bytes(changed)
            try:
                loaded = Plan.load(saved)
            except PlanError as error:
                refused += "step.plan" in str(error)
            except Exception as error:  # what a user would see instead of our error
                other.append(f"byte {at} ^ {flip}: {type(error).__name__}: {error}")
            else:
                assert loaded.digest() == digest  # bytes that mean nothing: times, alignment
    assert refused > 500
    assert not other


def test_a_changed_array_is_a_corrupt_plan(saved: Path, tmp_path: Path) -> None:
    with np.load(saved, allow_pickle=False) as archive:
        arrays = dict(archive)
    arrays["sequence_ids"] = arrays["sequence_ids"][::-1]
    with (tmp_path / "forged.npz").open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(PlanError, match=r"forged\.npz: corrupt plan: its digest is [0-9a-f]{64}, the header says"):
        Plan.load(tmp_path / "forged.npz")


@pytest.mark.parametrize("name", ["header", "microbatch", "dropped"])
def test_an_array_that_is_missing_is_named(saved: Path, tmp_path: Path, name: str) -> None:
    with np.load(saved, allow_pickle=False) as archive:
        arrays = dict(archive)
    del arrays[name]
    with (tmp_path / "less.npz").open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(PlanError, match=rf"less\.npz: not a readable plan: KeyError: .*{name}"):
        Plan.load(tmp_path / "less.npz")


def rewrite_header(path: Path, to: Path, **changes: Any) -> None:
    with np.load(path, allow_pickle=False) as archive:
        arrays = dict(archive)
    header = {**json.loads(arrays["header"].tobytes()), **changes}
    arrays["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with to.open("wb") as file:
        np.savez(file, **arrays)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"format": 99}, "format 99, this dcpack reads"),
        ({"padding": {"tp": 0}}, "tp must be at least 1, got 0"),
        ({"padding": {"nonsense": 1}}, "nonsense"),
        ({"padding": 5}, "TypeError"),
        ({"num_ranks": "four"}, "num_ranks must be an integer, got 'four'"),
        ({"cp_sizes": 3}, "TypeError"),
        ({"bounds": [1]}, "AttributeError"),
    ],
)
def test_a_header_that_makes_no_sense_is_refused(saved: Path, changes: dict[str, Any], text: str) -> None:
    rewrite_header(saved, saved.with_name("odd.npz"), **changes)
    with pytest.raises(PlanError, match=rf"odd\.npz: not a readable plan: .*{text}"):
        Plan.load(saved.with_name("odd.npz"))


class Exploding:
    """Unpickling it would leave a trace."""

    ran = False

    @staticmethod
    def explode() -> int:
        Exploding.ran = True
        return 0

    def __reduce__(self) -> Any:
        return Exploding.explode, ()


@pytest.mark.parametrize("name", ["header", "sequence_ids", "lengths"])
def test_nothing_is_ever_unpickled(saved: Path, tmp_path: Path, name: str) -> None:
    with np.load(saved, allow_pickle=False) as archive:
        arrays: dict[str, Any] = dict(archive)
    arrays[name] = np.array([Exploding()], object)
    path = tmp_path / "pickled.npz"
    with path.open("wb") as file:
        np.savez(file, **arrays)
    with pytest.raises(PlanError, match=r"pickled\.npz: not a readable plan: ValueError: .*allow_pickle=False"):
        Plan.load(path)
    assert not Exploding.ran
    with zipfile.ZipFile(path) as archive:  # the trap was real
        assert b"explode" in archive.read(f"{name}.npy")


def test_a_bare_array_file_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.arange(3))
    with pytest.raises(PlanError, match=r"one\.npy: not a readable plan"):
        Plan.load(tmp_path / "one.npy")


def test_json_holds_the_whole_plan() -> None:
    plan = replace(good_plan(), padding=PaddingRule(tp=2, block=16))
    told = json.loads(plan.to_json(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    for field in dataclasses.fields(Plan):
        value = getattr(plan, field.name)
        assert field.name in told
        if isinstance(value, np.ndarray):
            assert told[field.name] == value.tolist()
    assert told["digest"] == plan.digest()
    assert told["padding"] == {"tp": 2, "block": 16, "sequence_parallel": False}
    assert told["cp_sizes"] == [1, 2, 4]
    assert told["bounds"] == {"step_time": 1.0}
    assert (told["num_ranks"], told["capacity"]) == (4, 100)


def test_json_leads_back_to_the_plan() -> None:
    for plan in (replace(good_plan(), padding=PaddingRule(tp=2)), dcpack.pack([5, 0, 9], capacity=4, overlong="split")):
        for text in (plan.to_json(), plan.to_json().encode()):
            back = Plan.from_json(text)
            assert plan.first_difference(back) is None
            assert (back.digest(), dict(back.bounds)) == (plan.digest(), dict(plan.bounds))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"sequence_ids": [2, 0, 4, 3, 1]}, "JSON: corrupt plan: its digest is"),
        ({"lengths": [60, 40, 170, 30, 90, 1]}, "JSON: corrupt plan: its digest is"),
        ({"capacity": 101}, "JSON: corrupt plan: its digest is"),
        ({"microbatch": [[0, 0, 0, 1]]}, r"microbatch must be int64\[...\], got int64 of shape \(1, 4\)"),
        ({"microbatch": ["a"]}, "JSON: not a readable plan: PlanError: microbatch must be int64"),
        ({"microbatch": [2**70]}, "JSON: not a readable plan: PlanError: microbatch must be int64"),
        ({"format": 0}, "format 0, this dcpack reads"),
    ],
)
def test_json_that_was_changed_is_refused(changes: dict[str, Any], text: str) -> None:
    told = {**json.loads(good_plan().to_json()), **changes}
    with pytest.raises(PlanError, match=text):
        Plan.from_json(json.dumps(told))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", "{}", "5", b"\xff"])
def test_text_that_is_no_plan_is_refused(text: str | bytes) -> None:
    with pytest.raises(PlanError, match="not a plan in JSON"):
        Plan.from_json(text)
