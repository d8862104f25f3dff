"""One CP size for all ranks of a micro-batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import problem

import dcpack
from dcpack.cost import QuadraticCost, RingCost
from dcpack.errors import InfeasibleError
from dcpack.padding import PaddingRule
from dcpack.scheduling.one_size import SizedPart
from dcpack.scheduling.size_times import SizeTimes
from dcpack.scheduling.uniform_cp import _level_ranks

LINEAR = RingCost(linear=1.0, quadratic=0.0, ring_intra=0.0, ring_inter=0.0, node_size=None)  # tokens / CP size


def uniform(lengths: list[int], num_ranks: int, **changes: Any) -> dcpack.Plan:
    options: dict[str, Any] = {"capacity": 100, "scheduler": "uniform_cp", "cost": LINEAR, **changes}
    plan = dcpack.plan(lengths, num_ranks=num_ranks, **options)
    sizes = [set(plan.cp_size[plan.microbatch == m].tolist()) for m in range(plan.num_microbatches)]
    assert all(len(of_one) == 1 for of_one in sizes)
    return plan


def test_long_sequences_get_a_micro_batch_of_their_own_size() -> None:
    # By hand: 300 needs 3 ranks, so 4 of 4; the four of 90 need a rank each. 75 + 90. On CP size 4 alone all five take
    # two micro-batches as well, 300 and 4 x 90: 75 + 90, with four times the CP.
    plan = uniform([300, 90, 90, 90, 90], 4)
    assert plan.to_sample_id_groups() == [[[0]] * 4, [[1], [2], [3], [4]]]
    assert plan.cp_size.tolist() == [4, 1, 1, 1, 1]
    assert plan.simulate(LINEAR) == 165.0


def test_groups_that_would_wait_take_shorter_sequences() -> None:
    # 200 on CP size 2 takes 100, and the other two ranks have time for 200 tokens of what else is there.
    plan = uniform([200, 50, 50, 50, 50], 4)
    assert plan.num_microbatches == 1
    assert plan.to_sample_id_groups() == [[[0], [0], [1, 2, 3, 4], [1, 2, 3, 4]]]
    assert plan.simulate(LINEAR) == 100.0


def test_work_and_not_tokens_is_balanced() -> None:
    # Squares: 64 alone, 4 x 25 beside it would be tokens in balance; 64 against 25 + 25 + 16 is work in balance.
    plan = uniform([8, 5, 5, 4], 2, cost=QuadraticCost(), max_cp_size=1)
    assert plan.to_sample_id_groups() == [[[0], [1, 2, 3]]] or plan.to_sample_id_groups() == [[[1, 2, 3], [0]]]


def test_only_sizes_that_divide_the_ranks() -> None:
    lengths = [70] * 24
    assert uniform(lengths, 12).cp_sizes == (1, 2, 4, 12)
    assert uniform(lengths, 12, cp_sizes="any").cp_sizes == (1, 2, 3, 4, 6, 12)
    with pytest.raises(InfeasibleError, match=r"no CP size is left of \(8,\) that divides the 12 ranks"):
        uniform(lengths, 12, cp_sizes=(8,))
    # What is overlong follows from them: 500 fits on 8 ranks, but not on 4.
    with pytest.raises(InfeasibleError, match=r"limit of 400 tokens \(100 x 4 ranks\): sequence 24 has 500"):
        uniform([*lengths, 500], 12, max_cp_size=8)
    cut = uniform([*lengths, 500], 12, max_cp_size=8, overlong="split")
    assert sorted(cut.entry_lengths[cut.sequence_ids == 24].tolist()) == [100, 400]


def test_too_few_sequences_go_to_fewer_wider_groups() -> None:
    plan = uniform([40, 30, 20], 8)
    assert plan.cp_size.tolist() == [4, 4]
    assert not plan.dummy.any()


def test_dummies_only_where_nothing_else_works() -> None:
    assert not uniform([40, 30, 20], 8, on_empty="dummy").dummy.any()
    plan = uniform([40, 30, 20], 8, on_empty="dummy", max_cp_size=2)
    assert plan.dummy.tolist() == [False, False, False, True]
    assert plan.cp_size.tolist() == [2] * 4
    with pytest.raises(InfeasibleError, match="3 sequences cannot give each of 8 ranks work") as caught:
        uniform([40, 30, 20], 8, max_cp_size=2)
    for text in ("sequence 0 of 40 tokens", "sequence 1 of 30 tokens", "sequence 2 of 20 tokens", "(1, 2)", "dummy"):
        assert text in str(caught.value)


@pytest.mark.parametrize("multiple", [2, 3, 4])
def test_the_number_of_micro_batches_is_a_multiple(multiple: int) -> None:
    plan = uniform([300, *[60] * 30], 4, microbatch_multiple=multiple)
    assert plan.num_microbatches % multiple == 0
    assert not plan.dummy.any()
    assert uniform([], 4, microbatch_multiple=multiple).num_microbatches == 0


def test_no_more_sequences_in_a_bin_than_allowed() -> None:
    plan = uniform([5] * 60, 4, max_sequences=3)
    assert np.diff(plan.offsets).max() == 3
    assert plan.num_microbatches == 5


def test_waiting_groups_take_no_more_sequences_than_allowed() -> None:
    # The second group of CP size 2 has time and tokens for all ten of 20, and places for three: the longest.
    times = SizeTimes(problem([200, *range(20, 10, -1)], 4, cp_sizes=(1, 2), max_sequences=3))
    part = SizedPart(times, 1, np.array([0]))
    assert part.absorb(np.arange(1, 11)).tolist() == [True] * 3 + [False] * 7


def test_the_ranks_with_least_so_far_get_the_most_work() -> None:
    # Two micro-batches of one group a rank: 100 and 20, then 50 and 90. Dealt the wrong way round a rank has 190.
    times = SizeTimes(problem([100, 90, 50, 20], 2, cp_sizes=(1, 2), sync="step"))
    parts = [SizedPart(times, 0, np.array(items)) for items in ([0, 3], [1, 2])]
    for slots in ([0, 1], [1, 0]):
        parts[0].slot_of = np.array(slots)
        _level_ranks(parts, 2)
        by_rank = np.sum([part.bin_times()[0] for part in parts], axis=0)
        assert float(by_rank.max() / by_rank.min()) == pytest.approx(150 / 110, rel=1e-6)


def test_oversized_sequences_are_alone_on_the_largest_size() -> None:
    plan = uniform([500, 40, 30, 20], 4, overlong="single")
    (oversized,) = np.flatnonzero(plan.oversized).tolist()
    assert plan.cp_size[oversized] == 4
    assert np.diff(plan.offsets)[oversized] == 1


def test_a_size_whose_padding_is_too_coarse_is_not_used() -> None:
    # At CP 3 lengths are multiples of 48 (96 in 120), at CP 2 of 32 (64 in 80), at CP 1 of 16 (32 in 40).
    rule = PaddingRule(block=16)
    plan = uniform([96, 64, 64, 64, *[32] * 6], 6, capacity=40, cp_sizes=(1, 2, 3), padding=rule)
    size_of = dict(zip(plan.sequence_ids.tolist(), np.repeat(plan.cp_size, np.diff(plan.offsets)), strict=True))
    assert size_of[0] == 3


@pytest.mark.parametrize("sync", ["microbatch", "step"])
def test_near_the_bound_on_a_real_mixture(sync: str) -> None:
    rng = np.random.default_rng(1)
    lengths = np.clip(np.rint(600 * np.exp(1.3 * rng.standard_normal(2048))), 16, 32768).astype(np.int64)
    cost = RingCost()
    plan = uniform(lengths.tolist(), 64, capacity=8192, cost=cost, sync=sync)
    assert plan.simulate(cost, sync=sync) <= 1.1 * plan.bounds["step_time"]
    assert len(set(plan.cp_size.tolist())) > 1
    static = dcpack.plan(lengths, num_ranks=64, capacity=8192, scheduler="in_order", cp_sizes=(4,), cost=cost)
    assert plan.simulate(cost, sync=sync) < 0.85 * static.simulate(cost, sync=sync)


def test_ranks_that_meet_once_a_step_are_levelled_over_micro_batches() -> None:
    # 100 in one micro-batch and 20 in the other on one rank, twice 60 on the other; meeting in both would take 160.
    lengths = [100, 60, 60, 20]
    plan = uniform(lengths, 2, sync="step", max_cp_size=1)
    assert plan.simulate(LINEAR, sync="step") == 120.0


def test_items_taken_by_waiting_groups_are_theirs_alone() -> None:
    rng = np.random.default_rng(5)
    for _ in range(20):
        lengths = np.rint(np.exp(rng.uniform(0, np.log(1600), 80))).astype(np.int64)
        plan = uniform(lengths.tolist(), 16, cost=RingCost(node_size=4))
        assert np.sort(plan.sequence_ids).tolist() == list(range(80))
