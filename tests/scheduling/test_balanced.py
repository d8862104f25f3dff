from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.cost import QuadraticCost, RingCost
from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.padding import PaddingRule
from dcpack.plans import Plan
from dcpack.scheduling.balanced import Balanced
from dcpack.scheduling.exchanges import exchange_items
from dcpack.scheduling.least_loaded import cell_targets, make_room, place_least_loaded
from dcpack.scheduling.workload import Slots, Workload

TOKENS = RingCost(linear=1.0, quadratic=0.0, node_size=None)
QUADRATIC = QuadraticCost()


def plan_balanced(lengths: list[int], scheduler: str | Balanced = "balanced", **options: Any) -> Plan:
    plan = dcpack.plan(lengths, scheduler=scheduler, **options)
    plan.validate(lengths)
    return plan


def workload(costs: list[int], tokens: list[int], limit: int, *further: tuple[list[int], int]) -> Workload:
    columns = [tokens, *(amounts for amounts, _ in further)]
    return Workload(
        costs=np.array(costs, np.int64),
        amounts=np.array(columns, np.int64).T.reshape(len(costs), -1),
        limits=np.array([limit, *(bound for _, bound in further)], np.int64),
    )


def one_meeting(num_ranks: int, rows: int = 1) -> Slots:
    return Slots(num_microbatches=1, num_ranks=num_ranks, num_rows=rows, sync="microbatch")


# ---- by hand ---------------------------------------------------------------------------------------------------------


def test_two_bins_by_hand() -> None:
    # 7 + 2 and 6 + 3 are the only two bins; 49 + 4 against 36 + 9
    plan = plan_balanced([7, 6, 3, 2], num_ranks=2, capacity=9, cost=QUADRATIC)
    assert plan.to_sample_id_groups() == [[[0, 3], [1, 2]]]
    assert plan.simulate(QUADRATIC) == 53


def test_dear_sequences_meet_in_one_micro_batch() -> None:
    # Apart, each micro-batch would wait 64 for one of them: 128. Together it is 64, and 8 for the four short ones.
    plan = plan_balanced([8, 2, 2, 8, 2, 2], num_ranks=2, capacity=8, cost=QUADRATIC)
    assert plan.simulate(QUADRATIC) == plan.bounds["step_time"] == 72
    assert sorted(plan.to_sample_id_groups()[0]) == [[0], [3]]


def test_what_is_minimised_follows_sync() -> None:
    # Bins of at most 6: 5, 4, 3 + 3, 3. Once a step 5 + 4 against 6 + 3; else 6 beside 5, 4 beside 3.
    lengths = [5, 4, 3, 3, 3]
    step = plan_balanced(lengths, num_ranks=2, capacity=6, cost=TOKENS, sync="step")
    assert step.simulate(TOKENS, sync="step") == 9
    each = plan_balanced(lengths, num_ranks=2, capacity=6, cost=TOKENS, sync="microbatch")
    assert each.simulate(TOKENS) == 10
    assert step.num_microbatches == each.num_microbatches == 2


def test_rows_of_a_rank_are_balanced_together() -> None:
    plan = plan_balanced([9, 8, 2, 1], Balanced(rows_per_rank=2), num_ranks=2, capacity=9, cost=TOKENS)
    assert (plan.num_microbatches, plan.rows_per_rank) == (1, 2)
    assert plan.rank_times(TOKENS).tolist() == [[10, 10]]
    assert sorted(zip(plan.first_rank.tolist(), plan.row.tolist(), strict=True)) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert plan.bounds["num_microbatches"] == 1  # 20 tokens over 2 ranks of two rows of 9


def test_pipeline_order_puts_small_micro_batches_at_both_ends() -> None:
    lengths = [8, 8, 6, 6, 4, 4, 2, 2]
    options: dict[str, Any] = {"num_ranks": 2, "capacity": 8, "cost": TOKENS, "max_sequences": 1}
    assert plan_balanced(lengths, **options).rank_times(TOKENS)[:, 0].tolist() == [8, 6, 4, 2]
    ordered = plan_balanced(lengths, Balanced(pipeline_order=True), **options)
    assert ordered.rank_times(TOKENS)[:, 0].tolist() == [2, 6, 8, 4]
    assert ordered.simulate(TOKENS) == 20


def test_no_rank_always_has_the_most() -> None:
    # Slots of each micro-batch by cost; every other one the other way round: 8 + 1, 7 + 2 and not 8 + 2, 7 + 1.
    plan = plan_balanced([8, 7, 2, 1], num_ranks=2, capacity=8, cost=TOKENS, max_sequences=1)
    assert plan.rank_times(TOKENS).tolist() == [[8, 7], [1, 2]]


def test_sequences_stay_in_their_window() -> None:
    lengths = [9, 1, 9, 1, 5, 5, 5, 5]
    plan = plan_balanced(lengths, Balanced(window=1), num_ranks=2, capacity=10)
    groups = [sorted(itertools.chain(*ranks)) for ranks in plan.to_sample_id_groups()]
    assert groups == [[0, 1, 2, 3], [4, 5, 6, 7]]
    wide = plan_balanced(lengths, Balanced(window=2), num_ranks=2, capacity=10)
    assert wide.digest() == plan_balanced(lengths, num_ranks=2, capacity=10).digest()


def test_a_window_ends_where_its_bins_end() -> None:
    # By tokens a third sequence would fit in two rows of 10; none of them shares a bin.
    plan = plan_balanced([6, 7, 6, 7], Balanced(window=2), num_ranks=1, capacity=10)
    assert plan.sequence_ids.tolist() == [1, 0, 3, 2]


def test_a_last_window_that_is_too_small_joins_the_one_before() -> None:
    lengths = [9, 1, 9, 1, 5]
    plan = plan_balanced(lengths, Balanced(window=1), num_ranks=2, capacity=10)
    assert plan.num_microbatches == 2
    assert not plan.dummy.any()
    apart = plan_balanced(lengths, Balanced(window=1), num_ranks=2, capacity=10, on_empty="dummy")
    assert [sorted(itertools.chain(*ranks)) for ranks in apart.to_sample_id_groups()] == [[0, 1, 2, 3], [4]]
    assert apart.dummy.sum() == 1


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_too_few_sequences_are_named() -> None:
    message = (
        "3 sequences cannot give each of 4 ranks work: 1 micro-batches of 4 bins need 4 sequences; there are "
        "sequence 0 of 40 tokens, sequence 1 of 30 tokens, sequence 2 of 20 tokens; on_empty='dummy' fills up"
    )
    with pytest.raises(InfeasibleError, match=message):
        dcpack.plan([40, 30, 20], num_ranks=4, capacity=100, scheduler="balanced")
    scheduler = Balanced(rows_per_rank=3)
    with pytest.raises(InfeasibleError, match="2 micro-batches of 2 bins and 3 rows a rank need 12 sequences"):
        dcpack.plan([1] * 11, num_ranks=2, capacity=9, scheduler=scheduler, microbatch_multiple=2)


def test_dummies_fill_up() -> None:
    plan = plan_balanced([40, 30, 20], Balanced(rows_per_rank=2), num_ranks=2, capacity=100, on_empty="dummy")
    assert plan.num_microbatches == 1
    assert plan.dummy.sum() == 1
    assert plan_balanced([], num_ranks=2, capacity=100).num_microbatches == 0


@pytest.mark.parametrize("multiple", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("rows", [1, 2])
def test_the_number_of_micro_batches_is_the_fewest_multiple(multiple: int, rows: int) -> None:
    lengths = [(37 * i) % 50 + 1 for i in range(120)]
    plan = plan_balanced(lengths, Balanced(rows_per_rank=rows), num_ranks=4, capacity=100, microbatch_multiple=multiple)
    fewest = -(-dcpack.pack(lengths, capacity=100).num_bins // (4 * rows))
    assert plan.num_microbatches == -(-fewest // multiple) * multiple
    assert not plan.dummy.any()


def test_most_sequences_padding_and_oversized_ones_count() -> None:
    plan = plan_balanced([10] * 9, num_ranks=1, capacity=100, max_sequences=2)
    assert plan.num_microbatches == 5
    # 30 becomes 32: three of them no longer fit in 90
    rule = PaddingRule(block=16)
    assert plan_balanced([30] * 6, num_ranks=1, capacity=90).num_microbatches == 2
    assert plan_balanced([30] * 6, num_ranks=1, capacity=90, padding=rule).num_microbatches == 3
    alone = plan_balanced([500, 10, 10, 10], num_ranks=2, capacity=100, overlong="single", max_sequences=3)
    assert alone.oversized.sum() == 1
    assert alone.num_microbatches == 1


def test_a_static_cp_size_shares_every_bin() -> None:
    plan = plan_balanced([150, 120, 60, 50, 20], num_ranks=4, capacity=100, cp_sizes=(2,))
    assert plan.cp_size.tolist() == [2, 2]
    assert plan_balanced([50] * 4, num_ranks=4, capacity=100).cp_sizes == (1,)
    with pytest.raises(InfeasibleError, match="balanced needs a CP size that divides the ranks: 4 ranks, CP size 3"):
        dcpack.plan([150], num_ranks=4, capacity=100, scheduler="balanced", cp_sizes=(3,))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows_per_rank": 0}, "rows_per_rank must be at least 1, got 0"),
        ({"rows_per_rank": True}, "rows_per_rank must be an integer"),
        ({"window": 0}, "window must be at least 1, got 0"),
        ({"pipeline_order": 1}, "pipeline_order must be True or False, got 1"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Balanced(**options)


def test_a_window_must_hold_whole_multiples() -> None:
    with pytest.raises(ArgumentError, match="window must be a multiple of microbatch_multiple, 2, got 3"):
        dcpack.plan([1, 1], num_ranks=1, capacity=1, scheduler=Balanced(window=3), microbatch_multiple=2)


# ---- quality ---------------------------------------------------------------------------------------------------------


def best_step_time(costs: list[int], lengths: list[int], capacity: int, num_ranks: int, count: int, sync: str) -> int:
    """The optimum by trying every placement without empty bins."""
    best = sum(costs)
    for slot_of in itertools.product(range(num_ranks * count), repeat=len(costs)):
        tokens, load = [0] * (num_ranks * count), [0] * (num_ranks * count)
        for cost, length, slot in zip(costs, lengths, slot_of, strict=True):
            tokens[slot] += length
            load[slot] += cost
        if max(tokens) > capacity or min(tokens) == 0:
            continue
        rows = [load[m * num_ranks : (m + 1) * num_ranks] for m in range(count)]
        time = sum(map(max, rows)) if sync == "microbatch" else max(map(sum, zip(*rows, strict=True)))
        best = min(best, time)
    return best


@pytest.mark.parametrize("sync", ["microbatch", "step"])
def test_close_to_the_optimum_of_small_cases(sync: str) -> None:
    rng = np.random.default_rng(5)
    ratios = []
    for _ in range(25):
        lengths = rng.integers(1, 30, 7).tolist()
        plan = plan_balanced(lengths, num_ranks=2, capacity=40, cost=QUADRATIC, sync=sync)
        if plan.num_microbatches > 2:
            continue
        costs = [length**2 for length in lengths]
        best = best_step_time(costs, lengths, 40, 2, plan.num_microbatches, sync)
        ratios.append(plan.simulate(QUADRATIC, sync=sync) / best)
    assert len(ratios) > 15
    assert min(ratios) >= 1
    assert np.mean(ratios) < 1.012
    assert max(ratios) < 1.1


@pytest.mark.parametrize("num_ranks", [4, 16])
def test_better_than_packing_alone_and_than_in_order(num_ranks: int) -> None:
    rng = np.random.default_rng(6)
    lengths = np.clip(600 * np.exp(1.3 * rng.standard_normal(600)), 16, 8192).astype(np.int64)
    cost = RingCost(node_size=None)
    options: dict[str, Any] = {"num_ranks": num_ranks, "capacity": 8192, "cost": cost}
    ours = dcpack.plan(lengths, scheduler="balanced", **options)
    in_order = dcpack.plan(lengths, scheduler="in_order", cp_sizes=(1,), **options)
    assert ours.num_microbatches <= in_order.num_microbatches
    assert ours.simulate(cost) < 0.8 * in_order.simulate(cost)
    assert ours.simulate(cost) < 1.03 * ours.bounds["work"]


def test_many_items_take_the_short_way() -> None:
    """Beyond 4096 items tokens are packed once and fewer exchanges are tried; the plan is as valid."""
    rng = np.random.default_rng(7)
    lengths = np.clip(600 * np.exp(1.3 * rng.standard_normal(5000)), 16, 4096).astype(np.int64)
    tight = dcpack.plan(lengths, num_ranks=8, capacity=4096, scheduler="balanced", cost=QUADRATIC)
    assert tight.num_microbatches == -(-dcpack.pack(lengths, capacity=4096).num_bins // 8)
    assert tight.simulate(QUADRATIC) < 1.01 * tight.bounds["work"]


def test_a_cost_of_nothing_is_no_trouble() -> None:
    free = RingCost(linear=0.0, quadratic=0.0, node_size=None)
    plan = plan_balanced([5, 4, 3, 2], num_ranks=2, capacity=7, cost=free)
    assert plan.simulate(free) == 0
    assert not plan.dummy.any()


# ---- its parts -------------------------------------------------------------------------------------------------------


def test_targets_by_hand() -> None:
    slots = Slots(num_microbatches=2, num_ranks=2, num_rows=1, sync="microbatch")
    # even shares where nothing sticks out
    assert cell_targets(workload([5] * 8, [5] * 8, 20), slots).tolist() == [10] * 4
    # 20 is above the even share 7: it gets 6 + 1 + 1 beside it, which leaves nothing; each bin opened by an item
    assert cell_targets(workload([20, 6, 1, 1], [1] * 4, 20), slots).tolist() == [14, 14, 0, 0]
    # tokens bound what the first micro-batch can hold: 98% of two bins of 20 are 39 tokens
    assert cell_targets(workload([20, 6, 2, 2], [20, 18, 9, 9], 20), slots).tolist() == [13, 13, 2, 2]


def test_least_loaded_waits_for_cells_with_room() -> None:
    # 6 and 5 open the bins; the other 5 only fits beside the first; the last one has room beside 6
    work = workload([6, 5, 5, 4], [6, 5, 5, 4], 10)
    bins = place_least_loaded(work, one_meeting(2), np.array([10, 10]), most_homeless=0)
    assert bins is not None
    assert bins.tolist() == [0, 1, 1, 0]


def test_cells_set_aside_come_back_for_shorter_items() -> None:
    # 5 fits beside neither 7 nor 6; then 3 goes to the cell that lacks most, 2 to the other
    work = workload([7, 6, 5, 3, 2], [7, 6, 5, 3, 2], 10)
    bins = place_least_loaded(work, one_meeting(2), np.array([12, 12]), most_homeless=1)
    assert bins is not None
    assert bins.tolist() == [0, 1, -1, 1, 0]


def test_the_last_items_open_the_empty_bins() -> None:
    # the target of bin 0 would draw every item to it; two items are left for two empty bins
    work = workload([5, 1, 1], [1, 1, 1], 9)
    bins = place_least_loaded(work, one_meeting(3), np.array([90, 0, 0]), most_homeless=0)
    assert bins is not None
    assert sorted(bins.tolist()) == [0, 1, 2]


def test_further_limits_are_kept_when_bins_fill() -> None:
    work = workload([4, 3, 2, 1], [1] * 4, 9, ([1, 0, 1, 0], 1))
    bins = place_least_loaded(work, one_meeting(2), np.array([5, 5]), most_homeless=0)
    assert bins is not None
    assert bins.tolist() == [0, 1, 1, 0]
    too_many = workload([1] * 3, [1] * 3, 9, ([1] * 3, 1))
    assert place_least_loaded(too_many, one_meeting(2), np.array([2, 2]), most_homeless=0) is None
    homeless = place_least_loaded(too_many, one_meeting(2), np.array([2, 2]), most_homeless=1)
    assert homeless is not None
    assert homeless.tolist() == [0, 1, -1]


def test_room_is_made_by_moving_one_item() -> None:
    # bins {6, 2} and {3}, limit 8; 5 needs {3}, which holds 3 + 5
    bins = np.array([0, 1, -1, 0])
    assert make_room(workload([1] * 4, [6, 3, 5, 2], 8), bins, 2)
    assert bins.tolist() == [0, 1, 1, 0]
    # bins {4, 2} and {3, 2}, limit 8; 5 fits nowhere until 2 of the second moves to the first
    bins = np.array([0, 0, 1, 1, -1])
    assert make_room(workload([1] * 5, [4, 2, 3, 2, 5], 8), bins, 2)
    assert bins.tolist() == [0, 0, 1, 0, 1]
    bins = np.array([0, 1, -1])
    assert not make_room(workload([1] * 3, [6, 6, 5], 8), bins, 2)


def test_full_bins_exchange_two_items_for_one() -> None:
    # Both bins are full, and no two items of them are equally long. 13 for 5 + 5, or 8 for 1 + 1, take 3 off 21.
    work = workload([13, 8, 5, 5, 1, 1], [6, 4, 3, 3, 2, 2], 10)
    start, cells = np.array([0, 0, 1, 1, 1, 1]), np.array([0, 1])
    bins = exchange_items(work, one_meeting(2), start, cells, rounds=20, close_enough=0.0)
    assert sorted(np.bincount(bins, work.costs).tolist()) == [15, 18]
    assert np.bincount(bins, work.amounts[:, 0]).tolist() == [10, 10]
    assert exchange_items(work, one_meeting(2), start, cells, rounds=0, close_enough=0.0).tolist() == start.tolist()


def test_every_cell_is_levelled_where_that_is_asked_for() -> None:
    # Nothing helps the cell of 30, so that the makespan stays; the other two can still be brought together.
    work = workload([30, 8, 8, 2], [1] * 4, 9)
    start, cells = np.array([0, 1, 1, 2]), np.arange(3)
    kept = exchange_items(work, one_meeting(3), start, cells, rounds=20, close_enough=0.0)
    assert kept.tolist() == start.tolist()
    levelled = exchange_items(work, one_meeting(3), start, cells, rounds=20, close_enough=0.0, every_cell=True)
    assert sorted(np.bincount(levelled, work.costs).tolist()) == [8, 10, 30]


def test_an_exchange_uses_time_that_another_meeting_has_to_spare() -> None:
    # Meeting 0 takes 20 whatever happens: its second cell takes over the 9 of meeting 1 for nothing.
    slots = Slots(num_microbatches=2, num_ranks=2, num_rows=1, sync="microbatch")
    work = workload([20, 5, 9, 1, 1], [1] * 5, 2)
    start = np.array([0, 1, 2, 3, 2])
    bins = exchange_items(work, slots, start, np.arange(4), rounds=20, close_enough=0.0)
    loads = np.bincount(bins, work.costs, minlength=4).reshape(2, 2)
    assert loads.max(axis=1).tolist() == [20, 1]
    assert np.bincount(bins, minlength=4).max() <= 2


def test_more_bins_than_can_be_planned_are_refused() -> None:
    for options, bins in (
        ({"scheduler": Balanced(rows_per_rank=2**62), "num_ranks": 2}, 2**63),
        ({"microbatch_multiple": 2**16, "num_ranks": 1024}, 2**26),
    ):
        chosen: dict[str, Any] = {"scheduler": Balanced(), **options}
        with pytest.raises(InfeasibleError, match=f"{bins} bins; at most 16777216 can be planned"):
            dcpack.plan([3, 4, 5], capacity=10, on_empty="dummy", **chosen)


def test_a_huge_cap_is_none() -> None:
    plan = dcpack.plan([3, 4, 5], num_ranks=2, capacity=10, scheduler=Balanced(), max_sequences=2**63)
    assert plan.num_bins == 2
