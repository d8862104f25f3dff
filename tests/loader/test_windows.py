from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack import SampleMetadata, WorkloadCost
from dcpack.cost import QuadraticCost
from dcpack.errors import ArgumentError, InfeasibleError, PlanError
from dcpack.loader.costs import AdditiveCosts, CostRule, SquaresWithPadding, TimesOfRows
from dcpack.loader.policies import choose_policy
from dcpack.loader.types import SampleKey
from dcpack.loader.windows import Window, plan_of_rows, plan_window, rows_of_plan
from dcpack.scheduling.driver import make_plan
from dcpack.scheduling.local_gain import LocalGain


def placed(rows: Any) -> Any:
    """int64[n]: the row of each sample, from ``[rank][row] -> samples``."""
    flat = [row for rank in rows for row in rank]
    row_of = {sample: number for number, row in enumerate(flat) for sample in row}
    return np.array([row_of[sample] for sample in range(len(row_of))])


def rows_of(plan: dcpack.Plan) -> list[list[int]]:
    """The samples of each row, rank after rank."""
    number = rows_of_plan(plan)
    count = plan.num_ranks * plan.num_microbatches * plan.rows_per_rank
    return [np.flatnonzero(number == row).tolist() for row in range(count)]


def window(costs: Sequence[float] = (9, 9, 1, 1), **changes: Any) -> Window:
    values: dict[str, Any] = {
        "tokens": np.full(len(costs), 5),
        "costs": AdditiveCosts(np.array(costs, np.float64)),
        "amounts": {},
        "limits": {},
        "reference": placed([[[0], [1]], [[2], [3]]]),
        "num_ranks": 2,
        "num_rows": 2,
        "rows_per_rank": 2,
        "seq_len": 10,
        "metadata": tuple(SampleMetadata(pack_tokens=5, cost=WorkloadCost(llm=c, memory=1)) for c in costs),
    }
    return Window(**{**values, **changes})


def loads(plan: dcpack.Plan, costs: Sequence[float]) -> list[float]:
    rank_of = rows_of_plan(plan) // (plan.num_microbatches * plan.rows_per_rank)
    return np.bincount(rank_of, weights=costs, minlength=plan.num_ranks).tolist()


class Swap:
    """A policy of one's own that proposes what it is told and minimises the slowest rank."""

    def __init__(self, rows: Any = ((0,), (2,), (1,), (3,))) -> None:
        self.rows = rows
        self.seen: list[Any] = []

    def assign(self, samples: Any, **facts: Any) -> Any:
        self.seen.append((samples, facts))
        return self.rows

    def objective(self, rank_costs: Sequence[WorkloadCost]) -> float:
        self.seen.append(rank_costs)
        return max(cost.llm for cost in rank_costs)


@pytest.mark.parametrize("policy", ["local_gain", "balanced", Swap()])
def test_18_and_2_become_10_and_10(policy: Any) -> None:
    plan, decision, *_ = plan_window(window(one_a_row=True), choose_policy(None, policy, 2))
    assert loads(plan, (9, 9, 1, 1)) == [10, 10]
    assert (decision.objective_before, decision.objective_after, decision.accepted) == (18, 10, True)
    assert decision.gain == pytest.approx(4 / 9)
    assert sum(decision.moved) == 2


@pytest.mark.parametrize("policy", ["local_gain", "balanced", Swap()])
@pytest.mark.parametrize(("least", "accepted"), [(4 / 9 - 1e-9, True), (4 / 9, False), (0.9, False)])
def test_a_gain_must_be_strictly_more(policy: Any, least: float, accepted: bool) -> None:
    plan, decision, *_ = plan_window(window(), choose_policy(None, policy, 2), min_balance_gain=least)
    assert decision.accepted is accepted
    assert (rows_of_plan(plan).tolist() == window().reference.tolist()) is not accepted
    assert decision.objective_candidate == 10
    assert decision.objective_after == (10 if accepted else 18)
    assert sum(decision.moved) == (2 if accepted else 0)


def test_ranks_that_meet_in_every_micro_batch_are_counted_there() -> None:
    # Two micro-batches of one row: rank 0 has 9 then 1, rank 1 has 1 then 9. Per step even, per micro-batch not.
    crossed = window((9, 1, 1, 9), rows_per_rank=1)
    plan, decision, *_ = plan_window(crossed, choose_policy(None, None, 1))
    assert (decision.objective_before, decision.objective_after) == (18, 10)
    assert plan.num_microbatches == 2
    _, step, *_ = plan_window(window((9, 1, 1, 9), rows_per_rank=1, sync="step"), choose_policy(None, None, 1))
    assert (step.objective_before, step.accepted) == (10, False)


def test_an_algorithm_of_ones_own_sees_everything() -> None:
    policy = Swap()
    made = window(limits={"images": 3.0}, amounts={"images": np.ones(4)})
    plan_window(made, choose_policy(None, policy, 2))
    samples, facts = policy.seen[0]
    assert [sample.cost.llm for sample in samples] == [9, 9, 1, 1]
    assert facts["reference_bins"] == [[0], [1], [2], [3]]
    assert (facts["data_parallel_size"], facts["local_batch_size"]) == (2, 2)
    assert dict(facts["constraints"].packing_budgets) == {"images": 3.0}
    before, after = policy.seen[1:]
    assert [(cost.llm, cost.memory) for cost in before] == [(18, 2), (2, 2)]
    assert [cost.llm for cost in after] == [10, 10]


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([[0], [1], [2]], "must return 2 x 2 rows, got 3"),
        ([[0], [1], [2], [2]], "sample 2 2 times, sample 3 0 times"),
        ([[0], [1], [2], [4]], "unknown sample 4, sample 3 0 times"),
        ([[0], [1], [2, 3], []], "rank 1, row 1 is empty"),
        ([[0, 1, 2], [3], [], []], "rank 0, row 0 holds 15 tokens, more than 10"),
        ([[0], ["x"], [2], [3]], "must return rows of indices"),
    ],
)
def test_what_a_policy_may_not_do_is_refused(rows: Any, text: str) -> None:
    with pytest.raises(PlanError) as caught:
        plan_window(window(), choose_policy(None, Swap(rows), 2))
    assert text in str(caught.value)


@pytest.mark.parametrize("value", [-1.0, float("nan"), None, True])
def test_objectives_are_finite(value: Any) -> None:
    policy = Swap()
    policy.objective = lambda rank_costs: value
    with pytest.raises(ArgumentError, match="objective must be a finite number of at least 0"):
        plan_window(window(), choose_policy(None, policy, 2))


def test_budgets_are_kept_also_where_they_are_no_whole_numbers() -> None:
    # Packed rows: without a budget all small ones could share a row.
    amounts = np.array([0.5, 0.5, 0.4, 0.4])
    made = window(
        (9, 1, 9, 1),
        tokens=np.array([5, 5, 5, 5]),
        reference=placed([[[0], [2]], [[1], [3]]]),
        limits={"images": 0.9},
        amounts={"images": amounts},
    )
    plan, decision, *_ = plan_window(made, choose_policy(None, "local_gain", 2))
    assert decision.objective_after == 10
    assert all(sum(amounts[i] for i in row) <= 0.9 for row in rows_of(plan))


def test_a_reference_that_breaks_a_limit_is_named() -> None:
    with pytest.raises(InfeasibleError, match="rank 0, row 0 takes 3 of budget 'images', more than 2"):
        plan_window(
            window(limits={"images": 2.0}, amounts={"images": np.array([3.0, 0, 0, 0])}), choose_policy(None, None, 2)
        )
    with pytest.raises(InfeasibleError, match="rank 0, row 1 holds 11 tokens, more than 10"):
        plan_window(window(tokens=np.array([5, 11, 5, 5])), choose_policy(None, None, 2))


def test_oversized_samples_stay_alone() -> None:
    made = window(tokens=np.array([11, 5, 4, 1]), keeps_oversized=True)
    plan, *_ = plan_window(made, choose_policy(None, "local_gain", 2))
    assert [row for row in rows_of(plan) if 0 in row] == [[0]]
    assert plan.oversized.sum() == 1


def test_variance_is_another_objective() -> None:
    scheduler = LocalGain(reference=[[[0]], [[0]]], objective="variance")
    _, decision, *_ = plan_window(window(), choose_policy(scheduler, None, 2))
    # Loads 18 and 2: mean 10, squares of 0.8; then even.
    assert decision.objective_before == pytest.approx(0.64)
    assert decision.objective_after == pytest.approx(0.0)


def test_what_names_a_policy() -> None:
    with pytest.raises(ArgumentError, match="scheduler and balancing_algorithm exclude each other"):
        choose_policy("local_gain", "balanced", 1)
    with pytest.raises(ArgumentError, match="balancing_algorithm must be 'local_gain' or 'balanced' or have assign"):
        choose_policy(None, "lpt", 1)


# ---- costs -----------------------------------------------------------------------------------------------------------


def test_repacked_rows_cost_the_padding_too() -> None:
    costs = SquaresWithPadding(np.array([3, 2, 4]), 6)
    assert costs.rows(np.array([0, 0, 1]), 3).tolist() == [9 + 4 + 1, 16 + 4, 36]
    assert costs.items.tolist() == [9, 4, 16]


def test_a_cost_model_prices_rows() -> None:
    model = dcpack.QuadraticCost()
    costs = TimesOfRows(model, np.array([3, 4]))
    assert costs.items.tolist() == [9, 16]
    assert costs.rows(np.array([1, 1]), 2).tolist() == [0, 25]


def test_which_cost_rules() -> None:
    tokens = np.array([3, 4])
    assert isinstance(CostRule.choose(None, None).of_window(tokens, np.array([1.0, 2.0]), 8), AdditiveCosts)
    assert isinstance(CostRule.choose(None, None).of_window(tokens, None, 8), TimesOfRows)
    assert isinstance(CostRule.choose(None, None, repacks=True).of_window(tokens, None, 8), SquaresWithPadding)
    assert isinstance(CostRule.choose(None, "llama3-8b", repacks=True).of_window(tokens, None, 8), TimesOfRows)
    priced = SampleMetadata(pack_tokens=3, cost=7)
    assert CostRule.choose(None, None).of_sample(priced, SampleKey(position=5)) == WorkloadCost(llm=7)
    assert CostRule.choose(dcpack.QuadraticCost(), None).of_sample(priced, SampleKey(position=5)) is None
    keyed = CostRule.choose(lambda metadata: WorkloadCost(llm=metadata.key.position), None)
    assert keyed.of_sample(priced, SampleKey(position=5)) == WorkloadCost(llm=5)
    with pytest.raises(ArgumentError, match="exclude each other"):
        CostRule.choose(dcpack.QuadraticCost(), "llama3-8b")
    with pytest.raises(ArgumentError, match="cost_model must return a WorkloadCost, got 3"):
        CostRule.choose(lambda metadata: 3, None).of_sample(priced, SampleKey(position=5))
    with pytest.raises(ArgumentError, match="cost_model must be a function"):
        CostRule.choose(3, None)


@pytest.mark.parametrize("one_a_row", [True, False])
def test_the_plan_of_rows_is_the_one_that_the_driver_makes(one_a_row: bool) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        ranks, rows_per_rank, microbatches = (int(n) for n in rng.integers(1, 4, 3))
        num_rows = ranks * rows_per_rank * microbatches
        sizes = np.ones(num_rows, np.int64) if one_a_row else rng.integers(0, 4, num_rows)
        tokens = rng.integers(1, 13, int(sizes.sum()))
        items = iter(rng.permutation(tokens.size).tolist())
        flat = [tuple(next(items) for _ in range(size)) for size in sizes.tolist()]
        per_rank = rows_per_rank * microbatches
        rows = tuple(tuple(flat[start : start + per_rank]) for start in range(0, num_rows, per_rank))
        made = Window(
            tokens=tokens,
            costs=AdditiveCosts(np.ones(tokens.size)),
            amounts={},
            limits={},
            reference=placed(rows),
            num_ranks=ranks,
            num_rows=per_rank,
            rows_per_rank=rows_per_rank,
            seq_len=36,
            one_a_row=one_a_row,
            may_be_empty=True,
        )
        plan = plan_of_rows(made, made.reference)
        expected = make_plan(
            tokens,
            num_ranks=ranks,
            capacity=36,
            scheduler=LocalGain(reference=rows, rows_per_rank=rows_per_rank, costs=np.zeros(tokens.size)),
            cost=QuadraticCost(),
            cp_sizes=(1,),
            min_cp_size=1,
            max_cp_size=None,
            padding=None,
            sync="microbatch",
            microbatch_multiple=1,
            max_sequences=1 if one_a_row else None,
            on_empty="dummy",
            overlong="error",
        )
        assert expected.first_difference(plan) is None
        assert plan.digest() == expected.digest()
        assert plan.bounds == expected.bounds


def test_the_plan_of_rows_says_which_row_is_oversized() -> None:
    made = window(tokens=np.array([5, 50, 5, 5]), keeps_oversized=True)
    plan = plan_of_rows(made, made.reference)
    assert plan.oversized.tolist() == [False, False, True, False]  # bins: row after row, in each the ranks
    with pytest.raises(PlanError, match="over capacity"):
        plan_of_rows(window(seq_len=4), made.reference)
