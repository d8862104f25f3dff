from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import problem

import dcpack
from dcpack.cost import RingCost
from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.scheduling import Budget, InOrder
from dcpack.scheduling.base import Group, MicroBatch
from dcpack.scheduling.options import option_faults

LINEAR = RingCost(linear=1.0, quadratic=0.0, ring_intra=0.0, ring_inter=0.0)  # time is tokens / CP size
IMAGES = Budget(name="images", amounts=[3, 1, 1, 1], limit=3)


def plan(lengths: Any, num_ranks: int, **changes: Any) -> dcpack.Plan:
    return dcpack.plan(lengths, num_ranks=num_ranks, **{"capacity": 100, "cost": LINEAR, **changes})


def held(of: dcpack.Plan) -> list[list[list[int]]]:
    """[micro-batch][bin] -> sequences, sorted."""
    bins: list[list[list[int]]] = [[] for _ in range(of.num_microbatches)]
    for m, a, b in zip(of.microbatch.tolist(), of.offsets[:-1], of.offsets[1:], strict=True):
        bins[m].append(sorted(of.sequence_ids[a:b].tolist()))
    return [sorted(groups) for groups in bins]


@pytest.mark.parametrize(
    "option", [{"budgets": (IMAGES,)}, {"groups": [0] * 4}, {"max_displacement": 1}, {"effort": "best"}]
)
@pytest.mark.parametrize("scheduler", ["packing_aware", "in_order", "balanced", "local_gain", InOrder()])
def test_other_schedulers_refuse_them_by_name(option: dict[str, Any], scheduler: Any) -> None:
    (name,) = option
    with pytest.raises(ArgumentError, match=rf"^{name} cannot be combined with scheduler '\w+'; 'dynamic_cp' takes it"):
        plan([5] * 4, 2, scheduler=scheduler, **option)


def test_all_that_a_scheduler_refuses_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"^groups and effort cannot be combined with .* takes them"):
        plan([5] * 4, 2, scheduler="in_order", groups=[0] * 4, effort="fast")


@pytest.mark.parametrize(
    ("option", "text"),
    [
        ({"budgets": IMAGES}, "budgets must be a sequence of Budget objects"),
        ({"budgets": (Budget(name="images", amounts=[1], limit=1),)}, "amounts of budget 'images' must have one value"),
        ({"groups": [0, 1]}, "groups must name one for each of 4 sequences, got 2"),
        ({"groups": [0, 1, 2, -1]}, r"groups must be at least 0: groups\[3\] = -1"),
        ({"max_displacement": -1}, "max_displacement must be at least 0, got -1"),
        ({"max_displacement": 1.0}, "max_displacement must be an integer"),
        ({"effort": "all"}, "effort must be one of 'fast', 'balanced', 'best', got 'all'"),
        ({"max_groups": -1}, "max_groups must be at least 0"),
        ({"num_heads": 0}, r"num_heads must be at least 1: num_heads\[0\] = 0"),
        ({"num_heads": "eight"}, "num_heads must be one-dimensional"),
    ],
)
def test_bad_options_are_refused(option: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        plan([5] * 4, 2, **option)


def test_budgets_of_sequences_that_are_cut_are_refused() -> None:
    with pytest.raises(ArgumentError, match="of whole sequences, some were cut: sequence 0 into 2"):
        plan([150, 10], 1, overlong="split", budgets=(Budget(name="images", amounts=[1, 1], limit=2),))


def test_a_budget_by_hand() -> None:
    # all four fit in one bin; 3 images fill one, so the other three share one
    assert held(plan([10] * 4, 1)) == [[[0, 1, 2, 3]]]
    assert sorted(held(plan([10] * 4, 1, budgets=(IMAGES,)))) == [[[0]], [[1, 2, 3]]]
    with pytest.raises(InfeasibleError, match="budget 'images' of 2 a bin: sequence 0 takes 3"):
        plan([10] * 4, 1, budgets=(Budget(name="images", amounts=[3, 1, 1, 1], limit=2),))


def test_groups_by_hand() -> None:
    # alone, 90 + 10 and 50 + 50 make bins; 0 and 2 must share a micro-batch of one rank
    lengths = [90, 10, 10, 50, 40]
    assert sorted(held(plan(lengths, 1, groups=[0, 1, 0, 2, 3]))) == [[[0, 2]], [[1, 3, 4]]]
    with pytest.raises(InfeasibleError, match=r"no plan exists for 5 sequences on 1 ranks .* groups that share"):
        plan(lengths, 1, groups=[0, 1, 1, 0, 2])
    # pieces of a sequence that is cut share its group
    assert held(plan([150, 30], 2, overlong="split", max_cp_size=1, groups=[5, 5])) == [[[0], [0, 1]]]


def test_large_groups_are_named() -> None:
    lengths = [60] * 12
    with pytest.raises(InfeasibleError, match="groups that are too large for one micro-batch: sequence 0 of 60 tokens"):
        plan(lengths, 2, groups=[0] * 4 + [*range(1, 9)])


def test_displacement_by_hand() -> None:
    # in_order puts 0 | 1 | 2 | 3 into four micro-batches; without a limit the two long ones are packed with short ones
    lengths = [90, 80, 70, 10]
    assert len(held(plan(lengths, 1))) == 3
    assert held(plan(lengths, 1, max_displacement=0)) == [[[0]], [[1]], [[2, 3]]]
    lengths = [60, 60, 40, 40]
    assert held(plan(lengths, 1, max_displacement=0)) == [[[0]], [[1, 2]], [[3]]]
    assert held(plan(lengths, 1, max_displacement=1)) in ([[[0, 2]], [[1, 3]]], [[[0]], [[1, 2]], [[3]]])
    assert held(plan(lengths, 1, max_displacement=2)) in ([[[0, 2]], [[1, 3]]], [[[0, 3]], [[1, 2]]])


def test_displacement_needs_a_reference() -> None:
    with pytest.raises(InfeasibleError, match=r"no CP size of \(3,\) divides 4 ranks and holds sequence 0 of 250"):
        plan([250, 50], 4, cp_sizes=(3,), max_displacement=1)


def test_groups_that_displacement_tears_apart() -> None:
    with pytest.raises(InfeasibleError, match=r"max_displacement 0 and groups keep apart and together .* in 0"):
        plan([90] * 12, 1, groups=[0, *range(1, 11), 0], max_displacement=0)


def test_heads_that_cp_must_divide() -> None:
    assert plan([5] * 12, 12, cp_sizes="divisors", num_heads=8).cp_sizes == (1, 2, 4)
    assert plan([5] * 12, 12, cp_sizes="any", num_heads=(12, 6)).cp_sizes == (1, 2, 3, 6)
    with pytest.raises(InfeasibleError, match=r"no CP size is left .* num_heads 5"):
        plan([5] * 4, 4, min_cp_size=2, num_heads=5)


def test_all_steps_of_a_job_share_few_groups() -> None:
    rng = np.random.default_rng(2)
    for cp_sizes, most in (("powers_of_two", 7), ("powers_of_two", 31), ("any", 12), ((1, 2, 6), 30)):
        created: set[tuple[int, int]] = set()
        for _ in range(6):
            lengths = np.rint(np.exp(rng.uniform(1, np.log(1500), 40))).astype(np.int64)
            made = dcpack.plan(
                lengths, num_ranks=16, capacity=100, cost=RingCost(), cp_sizes=cp_sizes, max_groups=most,
                overlong="drop", on_empty="dummy",
            )  # fmt: skip
            shared = made.cp_size > 1
            created |= set(zip(made.first_rank[shared].tolist(), made.cp_size[shared].tolist(), strict=True))
        assert 0 < len(created) <= most
    with pytest.raises(InfeasibleError, match="max_groups 0 is below 1, the CP groups of size 4 alone on 4 ranks"):
        plan([5] * 4, 4, cp_sizes=(4,), max_groups=0)


def test_groups_stay_inside_nodes_where_they_can() -> None:
    lengths = [300, 300, 200, 200, 200, 100, 100, 100, 100]
    made = plan(lengths, 16, cp_sizes="any", cost=RingCost(linear=10.0, ring_inter=9000.0, node_size=8))
    ends = made.first_rank + made.cp_size - 1
    assert np.array_equal(made.first_rank // 8, ends // 8)
    assert np.any(made.cp_size > 1)


def test_more_effort_is_never_slower() -> None:
    rng = np.random.default_rng(9)
    gained = 0
    for _ in range(6):
        lengths = np.rint(np.exp(rng.uniform(2, np.log(700), 40))).astype(np.int64)
        cost = RingCost(linear=200.0, ring_intra=60.0, node_size=8)
        fast, balanced, best = (
            plan(lengths, 16, cost=cost, effort=effort).simulate(cost) for effort in ("fast", "balanced", "best")
        )
        assert best <= 1.05 * balanced <= 1.1 * fast  # a wider plan may be a little slower and still be better
        gained += best < fast * 0.999
    assert gained >= 2


def test_faults_are_seen() -> None:
    given: list[MicroBatch] = [[Group(1, [0, 1])], [Group(1, [2])]]
    amounts = {"amounts": np.array([[1, 1, 0]]), "amount_limits": (1,)}
    assert option_faults(problem([5, 5, 5], 1), given) == []
    for changes, text in (
        ({"microbatch_multiple": 3}, "2 micro-batches are no multiple of 3"),
        ({"max_sequences": 1}, "a bin of 2 sequences"),
        (amounts, "a bin takes 2 of budget 0, its limit is 1"),
        ({"groups": np.array([0, 1, 0])}, "group in several micro-batches: sequence 2 of 5 tokens"),
        ({"reference": [[Group(1, [2])], [Group(1, [0, 1])]]}, "moved by more than 0 micro-batches: sequence 0"),
    ):
        (fault,) = option_faults(problem([5, 5, 5], 1, **changes), given)
        assert text in fault
