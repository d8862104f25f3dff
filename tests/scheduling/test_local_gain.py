from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.cost import QuadraticCost, RingCost
from dcpack.errors import ArgumentError, InfeasibleError, PlanError
from dcpack.plans import Plan
from dcpack.scheduling import Balanced, Group, InOrder, MicroBatch, Problem, local_gain
from dcpack.scheduling.local_gain import Budget, Decision, LocalGain
from dcpack.scheduling.overlap import largest_overlap, stay_where_possible
from dcpack.scheduling.workload import Slots

REFERENCE = [[[0], [1]], [[2], [3]]]


class Logged:
    """A scheduler that keeps what `LocalGain` decided while `dcpack.plan` plans once."""

    name = "logged"

    def __init__(self, inner: LocalGain) -> None:
        self.inner = inner
        self.decisions: tuple[Decision, ...] = ()

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        return self.inner.usable_cp_sizes(legal)

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        microbatches, self.decisions = self.inner.solve(problem)
        assert self.inner.decide(problem) == self.decisions
        return microbatches


def decide(lengths: list[int], num_ranks: int, capacity: int, **options: Any) -> tuple[Plan, tuple[Decision, ...]]:
    of_plan = {"cost", "sync", "max_sequences", "overlong", "on_empty", "cp_sizes", "microbatch_multiple", "padding"}
    chosen = {name: options.pop(name) for name in of_plan & set(options)}
    logged = Logged(LocalGain(**options))
    plan = dcpack.plan(lengths, num_ranks=num_ranks, capacity=capacity, scheduler=logged, **chosen)
    plan.validate(lengths)
    return plan, logged.decisions


def rows_of(plan: Plan) -> list[list[list[int]]]:
    bins = [plan.sequence_ids[a:b].tolist() for a, b in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)]
    return [[bins[b] for b in plan.bins_of_rank(rank)] for rank in range(plan.num_ranks)]


# ---- the gate --------------------------------------------------------------------------------------------------------


def test_a_decision_says_what_happened() -> None:
    _, (accepted,) = decide([5] * 4, 2, 10, reference=REFERENCE, costs=[9, 9, 1, 1])
    assert (accepted.objective_before, accepted.objective_candidate, accepted.objective_after) == (18, 10, 10)
    assert accepted.gain == pytest.approx(8 / 18)
    assert accepted.accepted
    assert accepted.moved == (1, 1)
    _, (refused,) = decide([5] * 4, 2, 10, reference=REFERENCE, costs=[9, 9, 1, 1], min_balance_gain=0.6)
    assert (refused.objective_before, refused.objective_candidate, refused.objective_after) == (18, 10, 18)
    assert (refused.accepted, refused.moved, refused.first_rank) == (False, (0, 0), 0)


def test_a_gain_that_equals_the_minimum_is_not_enough() -> None:
    options: dict[str, Any] = {"reference": [[[0, 1]], [[2]]], "costs": [4, 4, 0]}  # 8 and 0 become 4 and 4
    plan, (decision,) = decide([3] * 3, 2, 10, min_balance_gain=0.5, **options)
    assert (decision.gain, decision.accepted) == (0.5, False)
    assert rows_of(plan) == options["reference"]
    _, (decision,) = decide([3] * 3, 2, 10, min_balance_gain=0.49, **options)
    assert decision.accepted


def test_variance_is_relative_to_the_mean() -> None:
    _, (decision,) = decide([5] * 4, 2, 10, reference=REFERENCE, costs=[9, 9, 1, 1], objective="variance")
    assert decision.objective_before == pytest.approx(0.64)  # 18 and 2 about 10: 0.8 squared
    assert (decision.objective_after, decision.gain) == (0, 1)


def test_variance_goes_on_where_the_makespan_cannot() -> None:
    # Rank 0 has one sequence of 30 whatever happens; the makespan is 30, but ranks 1 and 2 can be levelled.
    options: dict[str, Any] = {"reference": [[[0]], [[1, 2]], [[3]]], "costs": [30, 8, 8, 2]}
    plan, (decision,) = decide([3] * 4, 3, 10, **options)
    assert not decision.accepted
    plan, (decision,) = decide([3] * 4, 3, 10, objective="variance", **options)
    assert decision.accepted
    assert sorted(sum(options["costs"][s] for s in row) for (row,) in rows_of(plan)) == [8, 10, 30]
    assert sum(decision.moved) == 1


def test_costs_may_be_floats_in_any_unit() -> None:
    _, (decision,) = decide([5] * 4, 2, 10, reference=REFERENCE, costs=[9e-9, 9e-9, 1e-9, 1e-9])
    assert decision.objective_before == pytest.approx(18e-9)
    assert decision.objective_after == pytest.approx(10e-9)


def test_costs_come_from_the_cost_model_by_default() -> None:
    plan, (decision,) = decide([6, 6, 2, 2], 2, 20, reference=REFERENCE, cost=QuadraticCost())
    assert (decision.objective_before, decision.objective_after) == (72, 40)
    assert plan.simulate(QuadraticCost()) == 40


def test_nothing_to_gain_from_costs_of_zero() -> None:
    plan, (decision,) = decide([5] * 4, 2, 10, reference=REFERENCE, costs=[0, 0, 0, 0])
    assert (decision.gain, decision.accepted, decision.objective_before) == (0, False, 0)
    assert rows_of(plan) == REFERENCE


# ---- few moves -------------------------------------------------------------------------------------------------------


def test_one_exchange_moves_two_samples() -> None:
    # Ranks of 3 + 3 but for two: 4 + 4 and 2 + 2. One exchange is all it takes.
    costs = [3, 3, 4, 4, 3, 3, 2, 2, 3, 3]
    reference = [[[2 * r, 2 * r + 1]] for r in range(5)]
    _, (decision,) = decide([1] * 10, 5, 10, reference=reference, costs=costs)
    assert (decision.objective_before, decision.objective_after) == (8, 6)
    assert decision.moved == (0, 1, 0, 1, 0)


@pytest.mark.parametrize("seed", range(6))
def test_a_slightly_better_placement_from_scratch_is_not_worth_moving_everything(seed: int) -> None:
    # Well balanced but for two sequences on the wrong ranks.
    costs = np.random.default_rng(seed).integers(100, 1000, 64)
    rank_of = dcpack.balance(costs, num_parts=8)
    rank_of[[np.flatnonzero(rank_of == 0)[0], np.flatnonzero(rank_of == 1)[0]]] = 2
    reference = [[np.flatnonzero(rank_of == rank).tolist()] for rank in range(8)]
    _, (decision,) = decide([1] * 64, 8, 64, reference=reference, costs=costs)
    assert decision.accepted
    assert decision.objective_after < 1.01 * costs.sum() / 8
    assert sum(decision.moved) <= 16


def test_micro_batches_of_a_rank_change_places_before_anything_moves() -> None:
    # 9 meets 1 and 1 meets 9: 18. The other way round 9 + 1, and no sample leaves its rank.
    options: dict[str, Any] = {"reference": REFERENCE, "costs": [9, 1, 1, 9], "rows_per_rank": 1}
    plan, (decision,) = decide([5] * 4, 2, 10, **options)
    assert plan.num_microbatches == 2
    assert (decision.objective_before, decision.objective_after) == (18, 10)
    assert decision.moved == (0, 0)
    assert rows_of(plan) == [[[0], [1]], [[3], [2]]]
    _, (once,) = decide([5] * 4, 2, 10, sync="step", **options)
    assert (once.objective_before, once.accepted) == (10, False)


def test_a_placement_from_scratch_takes_names_that_keep_samples_home() -> None:
    rng = np.random.default_rng(3)
    slots = Slots(num_microbatches=1, num_ranks=4, num_rows=2, sync="microbatch")
    for _ in range(30):
        slot_of, home = rng.integers(0, 8, 12), rng.integers(0, 4, 12)
        renamed = stay_where_possible(slots, slot_of, home)
        stays = int((renamed % 4 == home).sum())
        best = max(
            sum(names[slot % 4] == rank for slot, rank in zip(slot_of.tolist(), home.tolist(), strict=True))
            for names in itertools.permutations(range(4))
        )
        assert stays == best
        # the same samples are together, in the same row
        assert len(set(zip(slot_of.tolist(), renamed.tolist(), strict=True))) == len(set(slot_of.tolist()))
        assert (renamed // 4 == slot_of // 4).all()


def test_micro_batches_are_renamed_each_by_itself_where_ranks_meet_in_each() -> None:
    slot_of, home = np.array([0, 1, 2, 3]), np.array([0, 1, 1, 0])
    each = Slots(num_microbatches=2, num_ranks=2, num_rows=1, sync="microbatch")
    assert stay_where_possible(each, slot_of, home).tolist() == [0, 1, 3, 2]
    once = Slots(num_microbatches=2, num_ranks=2, num_rows=1, sync="step")
    assert sorted(stay_where_possible(once, slot_of, home).tolist()) == [0, 1, 2, 3]
    assert (stay_where_possible(once, slot_of, home) % 2 == home).sum() == 2


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5])
def test_the_largest_overlap_is_found(size: int) -> None:
    rng = np.random.default_rng(size)
    for _ in range(40):
        table = rng.integers(0, 6, (size, size))
        columns = largest_overlap(table)
        assert sorted(columns.tolist()) == list(range(size))
        best = max(sum(table[r, c] for r, c in enumerate(p)) for p in itertools.permutations(range(size)))
        assert table[np.arange(size), columns].sum() == best


def test_large_tables_are_at_least_half_as_good() -> None:
    rng = np.random.default_rng(8)
    table = rng.integers(0, 3, (200, 200))
    hidden = rng.permutation(200)
    table[np.arange(200), hidden] += 5  # nothing beats this assignment
    columns = largest_overlap(table)
    assert sorted(columns.tolist()) == list(range(200))
    assert 2 * table[np.arange(200), columns].sum() >= table[np.arange(200), hidden].sum()


def test_a_far_better_placement_from_scratch_is_taken() -> None:
    rng = np.random.default_rng(4)
    lengths = np.clip(600 * np.exp(1.3 * rng.standard_normal(400)), 16, 8192).astype(np.int64).tolist()
    cost = RingCost(node_size=None)
    options: dict[str, Any] = {"num_ranks": 16, "capacity": 8192, "cost": cost}
    before = dcpack.plan(lengths, scheduler="in_order", cp_sizes=(1,), **options)
    after = dcpack.plan(lengths, scheduler="local_gain", **options)
    assert after.num_microbatches == before.num_microbatches
    assert after.simulate(cost) < 0.8 * before.simulate(cost)
    assert after.simulate(cost) < 1.03 * after.bounds["work"]


# ---- groups of ranks -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, "node"])
def test_groups_are_planned_apart(size: int | str) -> None:
    # Ranks 0, 1 are dear and unequal, 2, 3 cheap and equal: all together 12 would become 6, in pairs it becomes 10.
    reference = [[[0, 1]], [[2, 3]], [[4]], [[5]]]
    costs = [6, 6, 4, 4, 2, 2]
    cost = RingCost(node_size=2)
    plan, decisions = decide([1] * 6, 4, 9, reference=reference, costs=costs, balance_group_size=size, cost=cost)
    assert [decision.first_rank for decision in decisions] == [0, 2]
    assert [decision.accepted for decision in decisions] == [True, False]
    assert (decisions[0].objective_before, decisions[0].objective_after) == (12, 10)
    rows = rows_of(plan)
    assert sorted(itertools.chain(*rows[0], *rows[1])) == [0, 1, 2, 3]
    assert rows[2:] == reference[2:]
    _, (together,) = decide([1] * 6, 4, 9, reference=reference, costs=costs)
    assert together.objective_after == 6


def test_a_group_size_must_divide_the_ranks() -> None:
    with pytest.raises(ArgumentError, match="balance_group_size must divide 2 data-parallel ranks, got 3"):
        decide([5] * 4, 2, 10, reference=REFERENCE, balance_group_size=3)


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_no_exchange_breaks_the_capacity_or_a_budget() -> None:
    # 1 + 3 and 2 + 2 of 4: every other split of the four breaks the limit
    reference, costs = [[[0, 1]], [[2, 3]]], [9, 9, 1, 1]
    _, (decision,) = decide([1, 3, 2, 2], 2, 4, reference=reference, costs=costs)
    assert not decision.accepted
    images = Budget(name="images", amounts=[1, 3, 2, 2], limit=4)
    _, (decision,) = decide([1] * 4, 2, 4, reference=reference, costs=costs, budgets=(images,))
    assert not decision.accepted
    roomy = Budget(name="images", amounts=[1, 3, 2, 2], limit=5)
    _, (decision,) = decide([1] * 4, 2, 4, reference=reference, costs=costs, budgets=(roomy,))
    assert decision.objective_after == 10


def test_most_sequences_of_a_bin_bind() -> None:
    options: dict[str, Any] = {"reference": [[[0, 1]], [[2, 3]]], "costs": [1, 1, 9, 9]}
    plan, (decision,) = decide([1] * 4, 2, 10, max_sequences=2, **options)
    assert decision.objective_after == 10
    assert all(len(row) == 2 for (row,) in rows_of(plan))


def test_a_dead_end_is_repaired() -> None:
    # Dearest first: 7 | 3 | 7, then a 5 beside the 3, and no room for the other 5 until that 3 moves to the first 7.
    lengths, costs = [7, 3, 5, 5, 7, 3], [9, 8, 1, 1, 2, 1]
    _, (decision,) = decide(lengths, 3, 10, reference=[[[0, 1]], [[2, 3]], [[4, 5]]], costs=costs)
    assert (decision.objective_before, decision.objective_after) == (17, 10)
    assert decision.moved == (1, 0, 1)


def test_a_dead_end_without_repair_leaves_the_reference() -> None:
    # Dearest first: 5 | 5, and 6 fits beside neither. 6 + 4 and 5 + 5 is the only way.
    plan, (decision,) = decide([6, 5, 5, 4], 2, 10, reference=[[[0, 3]], [[1, 2]]], costs=[1, 9, 9, 1])
    assert (decision.gain, decision.accepted) == (0, False)
    assert rows_of(plan) == [[[0, 3]], [[1, 2]]]


def test_an_oversized_sequence_is_alone() -> None:
    options: dict[str, Any] = {"overlong": "single", "costs": [9, 4, 4, 1]}
    plan, (decision,) = decide([50, 2, 2, 2], 2, 10, reference=[[[0], [1]], [[2], [3]]], **options)
    assert decision.accepted
    assert plan.oversized.sum() == 1
    with pytest.raises(InfeasibleError, match="rank 0 row 0 of micro-batch 0 holds 12 padded tokens, limit 10"):
        decide([50, 2, 2, 2], 2, 10, reference=[[[0, 1]], [[2, 3]]], **options)
    with pytest.raises(InfeasibleError, match="sequence 0 has 50"):
        decide([50, 2, 2, 2], 2, 10, reference=[[[0], [1]], [[2], [3]]])


def test_a_budget_no_bin_can_hold_is_named() -> None:
    images = Budget(name="images", amounts=[1, 7, 1, 8], limit=6)
    with pytest.raises(InfeasibleError, match="budget 'images' of 6 a bin: sequence 1 takes 7, sequence 3 takes 8"):
        decide([5] * 4, 2, 10, reference=REFERENCE, budgets=(images,))


# ---- references ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ([[[0, 1, 2, 3]]], "reference must give rows for 2 data-parallel ranks, got 1"),
        ([[[0], [1]], [[2, 3]]], "as many rows as rank 0, 2: rank 1 has 1"),
        ([[[0], [1]], [[2], [2]]], "more than once: 2"),
        ([[[0], [1]], [[2], [4]]], "not among 4: 4"),
        ([[[0], [-1]], [[2], [3]]], "not among 4: -1"),
        ([[[0], []], [[3], []]], "misses sequences: 1, 2"),
    ],
)
def test_references_that_do_not_fit_are_refused(reference: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        decide([5] * 4, 2, 10, reference=reference)


def test_a_reference_that_breaks_a_limit_is_refused() -> None:
    with pytest.raises(InfeasibleError, match="rank 1 row 0 of micro-batch 0 holds 15 padded tokens, limit 10"):
        decide([5] * 4, 2, 10, reference=[[[0]], [[1, 2, 3]]])
    with pytest.raises(InfeasibleError, match="holds 3 sequences, limit 2"):
        decide([1] * 4, 2, 10, reference=[[[0]], [[1, 2, 3]]], max_sequences=2)
    with pytest.raises(InfeasibleError, match="holds 3 of budget 'images', limit 2"):
        decide(
            [1] * 4, 2, 10, reference=[[[0]], [[1, 2, 3]]], budgets=[Budget(name="images", amounts=[1] * 4, limit=2)]
        )
    rows = [[[0], [1], [2]], [[3], [4], [5]]]
    with pytest.raises(InfeasibleError, match="3 micro-batches, not a multiple of microbatch_multiple, 2"):
        decide([1] * 6, 2, 10, reference=rows, rows_per_rank=1, microbatch_multiple=2)
    with pytest.raises(ArgumentError, match="multiple of rows_per_rank, 2, rows a rank, got 3"):
        decide([1] * 6, 2, 10, reference=rows, rows_per_rank=2)


def test_empty_rows_need_dummies() -> None:
    reference = [[[0], [1, 2, 3]], [[], []]]
    with pytest.raises(InfeasibleError, match=r"empty: rank 1 row 0 of micro-batch 0, rank 1 row 1 .*on_empty='dummy'"):
        decide([2] * 4, 2, 10, reference=reference)
    plan, (decision,) = decide([2] * 4, 2, 10, reference=reference, costs=[4, 4, 4, 4], on_empty="dummy")
    assert (decision.objective_before, decision.objective_after) == (16, 8)
    assert plan.dummy.sum() <= 2
    kept, _ = decide([2] * 4, 2, 10, reference=reference, on_empty="dummy", min_balance_gain=0.9)
    assert kept.dummy.sum() == 2


def test_sequences_without_tokens_may_be_left_out_or_not() -> None:
    for reference in ([[[0], [1]], [[2], [3]]], [[[0], [1]], [[2, 4], [3]]]):
        plan, (decision,) = decide([5, 5, 5, 5, 0], 2, 10, reference=reference, costs=[9, 9, 1, 1, 7])
        assert decision.objective_after == 10
        assert sorted(plan.sequence_ids.tolist()) == [0, 1, 2, 3]


def test_sequences_that_were_cut_have_no_place_in_rows() -> None:
    with pytest.raises(ArgumentError, match="whole sequences, some were cut: sequence 1 into 2"):
        decide([5, 15], 2, 10, reference=[[[0]], [[1]]], overlong="split")
    with pytest.raises(ArgumentError, match="costs are of whole sequences, some were cut: sequence 1 into 2"):
        decide([5, 15], 1, 10, reference=InOrder(), costs=[1, 2], overlong="split")
    plan, _ = decide([5, 15, 3], 1, 10, reference=InOrder(), overlong="split")
    assert plan.starts.max() == 10


def test_the_caller_may_change_its_lists_afterwards() -> None:
    reference, costs = [[[0], [1]], [[2], [3]]], np.array([9, 9, 1, 1])
    scheduler = LocalGain(reference=reference, costs=costs)
    reference[0][0][0], costs[0] = 3, 0
    plan = dcpack.plan([5] * 4, num_ranks=2, capacity=10, scheduler=scheduler)
    assert plan.digest() == decide([5] * 4, 2, 10, reference=REFERENCE, costs=[9, 9, 1, 1])[0].digest()


def test_by_name_the_reference_is_in_order() -> None:
    lengths = [5, 5, 5, 5, 9, 1]
    kept, _ = decide(lengths, 2, 10, reference=InOrder(), min_balance_gain=0.99)
    assert kept.digest() == dcpack.plan(lengths, num_ranks=2, capacity=10, scheduler="in_order", cp_sizes=(1,)).digest()
    by_name = dcpack.plan(lengths, num_ranks=2, capacity=10, scheduler="local_gain")
    assert by_name.digest() == decide(lengths, 2, 10, reference=InOrder())[0].digest()


def test_a_static_cp_size_shares_every_bin() -> None:
    plan, (decision,) = decide([15] * 4, 4, 10, reference=REFERENCE, costs=[9, 9, 1, 1], cp_sizes=(2,))
    assert plan.cp_size.tolist() == [2] * 4
    assert decision.moved == (1, 1)  # of the two data-parallel ranks


# ---- options ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_balance_gain": 1.0}, "min_balance_gain must be a finite number of at least 0 and below 1, got 1.0"),
        ({"min_balance_gain": float("nan")}, "min_balance_gain must be"),
        ({"min_balance_gain": True}, "min_balance_gain must be"),
        ({"objective": "balance"}, "objective must be one of 'makespan', 'variance', got 'balance'"),
        ({"balance_group_size": 0}, "balance_group_size must be at least 1, got 0"),
        ({"balance_group_size": "rack"}, "balance_group_size must be one of 'node', got 'rack'"),
        ({"rows_per_rank": 0}, "rows_per_rank must be at least 1, got 0"),
        ({"reference": InOrder(), "rows_per_rank": 1}, "rows_per_rank goes with rows as reference"),
        (
            {"reference": "in_order"},
            "reference must be a scheduler or rows of sequence ids of each rank, got 'in_order'",
        ),
        ({"reference": []}, "reference must be a scheduler or rows"),
        ({"reference": [0, 1]}, r"reference must hold the rows of each rank: reference\[0\] = 0, reference\[1\] = 1"),
        ({"reference": [[0], [1]]}, r"reference\[0\]\[0\] must be a list of sequence ids, got 0"),
        ({"reference": [[[0.5]]]}, r"reference\[0\]\[0\] must be a list of sequence ids"),
        ({"costs": [1, -1]}, r"costs must be finite and at least 0: costs\[1\] = -1"),
        ({"budgets": [("images", [1], 1)]}, "budgets must hold Budget objects"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LocalGain(**{"reference": REFERENCE, **options})


def test_bad_budgets_are_refused() -> None:
    with pytest.raises(ArgumentError, match="limit of budget 'images' must be at least 0, got -1"):
        Budget(name="images", amounts=[1], limit=-1)
    with pytest.raises(ArgumentError, match=r"amounts of budget 'images' must be at least 0: .*\[1\] = -2"):
        Budget(name="images", amounts=[1, -2], limit=1)
    with pytest.raises(ArgumentError, match="name must be a text that is not empty, got ''"):
        Budget(name="", amounts=[1], limit=1)
    with pytest.raises(ArgumentError, match="amounts of budget 'images' must have one value a sequence, 4, got 1"):
        decide([5] * 4, 2, 10, reference=REFERENCE, budgets=[Budget(name="images", amounts=[1], limit=1)])
    with pytest.raises(ArgumentError, match="costs must have one value a sequence, 4, got 3"):
        decide([5] * 4, 2, 10, reference=REFERENCE, costs=[1, 1, 1])


def test_budgets_that_would_overflow_are_refused() -> None:
    """Fault: sums that wrap around, so that a bin holds twice its hard limit."""
    with pytest.raises(
        ArgumentError, match=r"amounts of budget 'b' must add up to at most 2?\d+, got 36893488147419103232"
    ):
        Budget(name="b", amounts=[2**62] * 8, limit=2**62)


def test_a_limit_beyond_all_is_none() -> None:
    budget = Budget(name="b", amounts=[1, 2, 3], limit=2**63)
    scheduler = LocalGain(reference=[[[0, 1]], [[2]]], budgets=(budget,))
    assert dcpack.plan([3, 4, 5], num_ranks=2, capacity=10, scheduler=scheduler).num_bins == 2


@pytest.mark.parametrize("budgets", [None, 5, {}, Budget(name="b", amounts=[1], limit=1)])
def test_budgets_that_are_no_sequence_are_refused(budgets: Any) -> None:
    with pytest.raises(ArgumentError, match="budgets must be a sequence of Budget objects, got"):
        LocalGain(reference=InOrder(), budgets=budgets)


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        (Balanced, "reference must be a scheduler or rows"),
        ([[[0, 1]], [[2, [1]]]], r"reference\[1\]\[0\] must be a list of sequence ids"),
        ([[[0, 1]], [[2**63]]], r"reference\[1\]\[0\] must be a list of sequence ids"),
    ],
)
def test_references_of_other_types_are_refused(reference: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        LocalGain(reference=reference)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([], r"must give each item once: item 0 0 times, item 1 0 times"),
        ([[Group(1, [0, 0]), Group(1, [1])]], "must give each item once: item 0 2 times, item 2 0 times"),
        ([[Group(1, [0]), Group(1, [1]), Group(1, [2])]], "3 groups in micro-batch 0, row 0"),
        (
            [[Group(1, [0, 1]), Group(1, [3])]],
            "items from 0 to 2, got item 3 in micro-batch 0, group 1",
        ),
        ([[Group(2, [0, 1]), Group(1, [2])]], "CP size 2 in micro-batch 0"),
    ],
)
def test_a_reference_scheduler_that_is_wrong_is_found_out(groups: list[MicroBatch], message: str) -> None:
    class Wrong:
        name = "wrong"

        def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
            return legal[:1]

        def schedule(self, problem: Problem) -> list[MicroBatch]:
            return groups

    with pytest.raises(PlanError, match=message):
        dcpack.plan([3, 4, 5], num_ranks=2, capacity=10, scheduler=LocalGain(reference=Wrong()))


# ---- nothing from scratch where it cannot pay ------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["makespan", "variance"])
def test_nothing_is_placed_from_scratch_where_it_could_not_pay(monkeypatch: pytest.MonkeyPatch, objective: str) -> None:
    calls: list[Any] = []
    fill_slots = local_gain.fill_slots
    monkeypatch.setattr(local_gain, "fill_slots", lambda *given: calls.append(given) or fill_slots(*given))
    rows = [[[0], [1]], [[2], [3]]]
    for costs, num_calls in (([9, 1, 2, 8], 0), ([9, 9, 1, 1], 0), ([9, 9, 9, 1], 1)):
        local = LocalGain(reference=rows, rows_per_rank=2, costs=costs, objective=objective)
        dcpack.plan([5, 5, 5, 5], num_ranks=2, capacity=5, scheduler=local)
        assert len(calls) == num_calls, costs


@pytest.mark.parametrize("objective", ["makespan", "variance"])
@pytest.mark.parametrize("sync", ["microbatch", "step"])
def test_leaving_out_what_cannot_pay_changes_no_plan(
    monkeypatch: pytest.MonkeyPatch, objective: str, sync: str
) -> None:
    rng = np.random.default_rng(7)
    problems = []
    for _ in range(25):
        size, rows = int(rng.integers(2, 5)), int(rng.integers(1, 7))
        ids = rng.permutation(size * rows).reshape(size, rows, 1).tolist()
        costs = rng.integers(1, int(rng.choice([3, 100, 10_000])), size * rows)
        local = LocalGain(reference=ids, costs=costs, objective=objective, rows_per_rank=int(rng.choice([1, rows])))
        problems.append((costs.size, size, local))

    def digests() -> list[str]:
        plans = [
            dcpack.plan([5] * count, num_ranks=size, capacity=5, scheduler=local, sync=sync)
            for count, size, local in problems
        ]
        return [plan.digest() for plan in plans]

    left_out = digests()
    monkeypatch.setattr(LocalGain, "_least", lambda *_: -(10**18))
    assert digests() == left_out
