from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

import dcpack
import dcpack.scheduling.choice as choice
import dcpack.scheduling.dynamic_cp as module
from dcpack.cost import RingCost
from dcpack.errors import InfeasibleError
from dcpack.metrics import mean_cp_size
from dcpack.scheduling.base import MicroBatch

LINEAR = RingCost(linear=1.0, quadratic=0.0, ring_intra=0.0, ring_inter=0.0)  # time is tokens / CP size


def plan(lengths: Any, num_ranks: int, **changes: Any) -> dcpack.Plan:
    options: dict[str, Any] = {"capacity": 100, "cost": LINEAR, "scheduler": module.DynamicCP()}
    return dcpack.plan(lengths, num_ranks=num_ranks, **{**options, **changes})


def placed(of: dcpack.Plan) -> list[tuple[int, int, int, list[int]]]:
    ids = [of.sequence_ids[a:b].tolist() for a, b in zip(of.offsets[:-1], of.offsets[1:], strict=True)]
    return list(zip(of.microbatch.tolist(), of.first_rank.tolist(), of.cp_size.tolist(), ids, strict=True))


def sft(count: int) -> np.ndarray:
    rng = np.random.default_rng(11)
    return np.clip(np.rint(600 * np.exp(1.3 * rng.standard_normal(count))), 16, 32768).astype(np.int64)


def test_by_hand_all_ranks_end_together() -> None:
    # 400 tokens on 8 ranks: 50 a rank is the bound, and these sizes reach it
    made = plan([50, 200, 100, 50], 8)
    assert placed(made) == [(0, 0, 4, [1]), (0, 4, 2, [2]), (0, 6, 1, [0]), (0, 7, 1, [3])]
    assert made.simulate(LINEAR) == made.bounds["step_time"] == 50


def test_by_hand_any_sizes_reach_what_powers_of_two_cannot() -> None:
    # 150 / 3 = 100 / 2 = 50; with powers of two 3 ranks cannot share the 150 (2 can: 75)
    made = plan([150, 100, 50], 6, cp_sizes="any", max_sequences=1)
    assert placed(made) == [(0, 0, 3, [0]), (0, 3, 2, [1]), (0, 5, 1, [2])]
    assert plan([150, 100, 50], 6, max_sequences=1).simulate(LINEAR) == 75


def test_by_hand_micro_batches_of_different_times() -> None:
    # 300 needs 4 ranks at least three of them by memory; [200 100 100] fills a micro-batch of 100, 300 one of 75
    made = plan([300, 200, 100, 100], 4)
    assert sorted(sorted(ids for m, *_, ids in placed(made) if m == k) for k in (0, 1)) == [[[0]], [[1], [2], [3]]]
    assert made.simulate(LINEAR) == made.bounds["work"] == 175


def test_it_is_found_by_name() -> None:
    assert plan([50, 200, 100, 50], 8, scheduler="dynamic_cp").digest() == plan([50, 200, 100, 50], 8).digest()


def test_work_that_costs_nothing_is_planned_too() -> None:
    free = RingCost(linear=0.0, quadratic=0.0, ring_intra=0.0, ring_inter=0.0)
    assert plan([49, 96, 96], 1, cost=free).num_microbatches == 3


def test_nothing_to_plan_has_no_micro_batches() -> None:
    assert plan([], 4).num_microbatches == 0
    assert plan([0, 0], 4).num_microbatches == 0


def test_too_few_sequences_are_refused_or_filled_up() -> None:
    with pytest.raises(InfeasibleError, match=r"no plan exists for 2 sequences on 4 ranks .* on_empty='dummy'"):
        plan([10, 10], 4, cp_sizes=(1,))
    made = plan([10, 10], 4, cp_sizes=(1,), on_empty="dummy")
    assert made.dummy.sum() == 2


@pytest.mark.parametrize("cp_sizes", ["powers_of_two", "any"])
@pytest.mark.parametrize(("count", "num_ranks"), [(256, 128), (512, 64), (300, 24)])
def test_sparse_batches_stay_near_the_bound(count: int, num_ranks: int, cp_sizes: str) -> None:
    cost, lengths = RingCost(), sft(count)
    options: dict[str, Any] = {"capacity": 8192, "cost": cost}
    made = plan(lengths, num_ranks, cp_sizes=cp_sizes, **options)
    rule = plan(lengths, num_ranks, scheduler="packing_aware", **options)
    assert made.simulate(cost) <= (1.07 if cp_sizes == "any" else 1.18) * made.bounds["work"]
    assert made.num_microbatches <= np.ceil(1.25 * rule.num_microbatches)
    assert mean_cp_size(made) <= 1.5 * mean_cp_size(rule)


def code_files(count: int) -> np.ndarray:
    rng = np.random.default_rng(2026)
    return np.clip(np.rint(1500 * np.exp(1.7 * rng.standard_normal(count))), 8, 131072).astype(np.int64)


@pytest.mark.parametrize(("num_ranks", "cp_sizes"), [(64, "any"), (64, "powers_of_two"), (256, "any")])
def test_one_more_micro_batch_where_memory_leaves_no_room_to_balance(num_ranks: int, cp_sizes: str) -> None:
    # The fewest micro-batches hold 85% or more of what fits; six giants want wide groups that hold little.
    cost, lengths = RingCost(), code_files(512)
    options: dict[str, Any] = {"capacity": 8192, "cost": cost}
    made = plan(lengths, num_ranks, cp_sizes=cp_sizes, **options)
    rule = plan(lengths, num_ranks, scheduler="packing_aware", **options)
    assert made.simulate(cost) <= 1.07 * made.bounds["work"]
    assert rule.num_microbatches < made.num_microbatches <= np.ceil(1.25 * rule.num_microbatches)
    assert mean_cp_size(made) <= 1.5 * mean_cp_size(rule)


def test_multiples_of_micro_batches_are_kept_where_memory_is_tight() -> None:
    made = plan(code_files(512), 256, cp_sizes="any", capacity=8192, cost=RingCost(), microbatch_multiple=2)
    assert made.num_microbatches == 2


def test_a_target_a_little_above_the_best_may_need_far_less_cp() -> None:
    cost = RingCost()
    made = plan([4000, 900, 700, 500, 400, 300, 200, 100], 8, capacity=4096, cost=cost)
    assert made.cp_size.tolist() == [4, 1, 1, 1, 1]


def test_step_sync_levels_ranks_over_micro_batches() -> None:
    # two micro-batches, each with a slow and a fast rank: crosswise they add up to the same
    lengths = [100, 60, 100, 60]
    made = plan(lengths, 2, sync="step", max_sequences=1)
    assert made.num_microbatches == 2
    assert made.simulate(LINEAR, sync="step") == 160
    assert plan(lengths, 2, max_sequences=1).simulate(LINEAR) == 160  # [100 100] and [60 60]


def test_groups_of_a_candidate_are_neither_changed_nor_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[tuple[list[MicroBatch], list[MicroBatch]]] = []
    offer = choice.Choice.offer

    def recording(self: Any, candidate: list[MicroBatch]) -> None:
        offered.append((candidate, copy.deepcopy(candidate)))
        offer(self, candidate)

    monkeypatch.setattr(choice.Choice, "offer", recording)
    for sync in ("microbatch", "step"):
        plan(sft(200), 32, capacity=8192, cost=RingCost(), sync=sync, microbatch_multiple=3)
    assert len(offered) >= 2
    for candidate, before in offered:
        assert candidate == before
        groups = [group for groups in candidate for group in groups]
        assert len({id(group.items) for group in groups}) == len(groups)


def test_the_rule_is_left_out_where_it_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(problem: Any) -> Any:
        raise AssertionError("the rule was called")

    monkeypatch.setattr(choice, "place_longest_first", refuse)
    with pytest.raises(AssertionError, match="the rule was called"):
        plan([50, 200, 100, 50], 8)
    monkeypatch.setattr(module, "_LARGE", 31)  # 4 sequences x 8 ranks
    assert plan([50, 200, 100, 50], 8).simulate(LINEAR) == 50


def test_the_lower_mean_cp_wins_among_nearly_equal_times() -> None:
    # One node, communication for free: full CP is as fast as packing, and twice as wide with nothing gained.
    made = plan([40] * 16, 8)
    assert mean_cp_size(made) == 1
    assert made.simulate(LINEAR) == 80
