from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import dcpack
import dcpack.report.strategies
from dcpack.cost import QuadraticCost, RingCost
from dcpack.errors import ArgumentError
from dcpack.padding import PaddingRule
from dcpack.plans import Plan
from dcpack.report import (
    STRATEGIES,
    Cluster,
    Planned,
    StepFigures,
    StrategyResult,
    compare_strategies,
    format_steps,
    format_strategies,
)

NAMES = ["pad to longest", "static CP", "in_order", "packing_aware", "uniform_cp", "dynamic_cp"]


def _cluster(**options: Any) -> Cluster:
    return Cluster(**{"num_ranks": 2, "capacity": 10, "padding": None, "cost": QuadraticCost(), **options})


def _compare(cluster: Cluster, *steps: Any, done: Callable[[], object] = lambda: None) -> dict[str, StrategyResult]:
    results = compare_strategies(cluster, steps, done=done)
    assert [result.name for result in results] == NAMES == list(STRATEGIES)
    return {result.name: result for result in results}


def test_every_row_by_hand() -> None:
    # Two ranks of 10 tokens, sequences of 4, 2, 6 and 3, work L * L.
    found = _compare(_cluster(), [4, 2, 6, 3])
    # (4, 2) padded to 4 and 4, (6, 3) to 6 and 6: 15 tokens in 20, in 4 rows of 10; each rank works 16 + 36.
    # The lower bound is that of the sequences as they are: the longest, 6 * 6, over the mean, 65 / 2.
    assert found["pad to longest"].totals == pytest.approx(
        {
            "num_microbatches": 2,
            "num_cut_sequences": 0,
            "padding_share": 0.25,
            "utilization": 0.375,
            "imbalance": 1.0,
            "mean_cp_size": 1.0,
            "step_time": 52.0,
            "bound": 36.0,
        }
    )
    # 4 + 2 on one rank, 6 + 3 on the other: 20 and 45 of work. All fit on one rank, so static CP is no CP.
    in_order = {
        "num_microbatches": 1,
        "num_cut_sequences": 0,
        "padding_share": 0.0,
        "utilization": 0.75,
        "imbalance": 45 / 32.5,
        "mean_cp_size": 1.0,
        "step_time": 45.0,
        "bound": 36.0,
    }
    assert found["in_order"].totals == pytest.approx(in_order)
    assert found["static CP"].totals == pytest.approx(in_order)
    # 6 alone, 4 + 3 + 2 beside it: 36 and 29. With CP 2 the longest could take 18, so the mean is the bound.
    assert found["packing_aware"].totals == pytest.approx(
        {**in_order, "imbalance": 36 / 32.5, "step_time": 36.0, "bound": 32.5}
    )
    assert all(result.failure is None for result in found.values())


def test_static_cp_by_hand() -> None:
    # The longest, 16, needs both ranks: all sequences are shared, and 16 + 4 fill the one row of each.
    found = _compare(_cluster(), [4, 16, 7])
    assert found["static CP"].totals == pytest.approx(
        {
            "num_microbatches": 2,  # 4 + 16, then 7
            "num_cut_sequences": 0,
            "padding_share": 0.0,
            "utilization": 27 / 40,
            "imbalance": 1.0,
            "mean_cp_size": 2.0,
            "step_time": (16 + 256 + 49) / 2,
            "bound": (16 + 256 + 49) / 2,
        }
    )
    # One a micro-batch, each over both ranks: nothing is padded, and three rows of 20 are used.
    assert found["pad to longest"].totals["num_microbatches"] == 3
    assert found["pad to longest"].totals["padding_share"] == 0
    assert found["pad to longest"].totals["utilization"] == pytest.approx(27 / 60)
    # Without CP the 16 are cut into 10 and 6.
    assert found["in_order"].totals["num_cut_sequences"] == 1
    assert found["in_order"].totals["mean_cp_size"] == 1.0


def test_steps_are_summed_and_times_are_means() -> None:
    one, two = _compare(_cluster(), [4, 2, 6, 3]), _compare(_cluster(), [9, 9, 9])
    both = _compare(_cluster(), [4, 2, 6, 3], [9, 9, 9])
    for name in NAMES:
        a, b, c = one[name].totals, two[name].totals, both[name].totals
        assert c["num_microbatches"] == a["num_microbatches"] + b["num_microbatches"]
        assert c["step_time"] == pytest.approx((a["step_time"] + b["step_time"]) / 2)
        assert c["bound"] == pytest.approx((a["bound"] + b["bound"]) / 2)
        assert len(both[name].steps) == 2
    # 15 tokens in 20 and 27 in 27 (the dummy holds none): 42 in 47.
    assert both["pad to longest"].totals["padding_share"] == pytest.approx(1 - 42 / 47)
    # 15 in 20 rows' tokens and 27 in 40.
    assert both["in_order"].totals["utilization"] == pytest.approx(42 / 60)
    # Work of the ranks over both steps: 20 + 162 and 45 + 81.
    assert both["in_order"].totals["imbalance"] == pytest.approx(182 / 154)


def test_padding_to_the_longest_pads_by_the_rule_too() -> None:
    # 5 and 3 at multiples of 4: both 5, padded to 8.
    found = _compare(_cluster(padding=PaddingRule(block=4), capacity=12), [5, 3])
    assert found["pad to longest"].totals["padding_share"] == pytest.approx(1 - 8 / 16)
    assert found["in_order"].totals["padding_share"] == pytest.approx(1 - 8 / 12)


def test_the_mean_cp_size_is_by_tokens() -> None:
    # 18 tokens over 2 of 4 ranks, 9 and 9 on one each.
    found = _compare(_cluster(num_ranks=4), [18, 9, 9])
    assert found["packing_aware"].totals["mean_cp_size"] == pytest.approx(1 + 18 / 36)


def test_the_mean_cp_size_over_steps_is_by_tokens_too() -> None:
    # 27 tokens in a step at CP 2, 6 in one at CP 1.
    found = _compare(_cluster(), [4, 16, 7], [4, 2])
    assert found["static CP"].totals["mean_cp_size"] == pytest.approx((27 * 2 + 6 * 1) / 33)


@pytest.mark.parametrize("policy", ["split", "truncate", "drop"])
def test_sequences_that_were_cut_are_counted_alike(policy: str) -> None:
    # No CP: 25 tokens are over the 10, whatever the strategy, and 4 and 2 are not.
    found = _compare(_cluster(max_cp_size=1, overlong=policy), [25, 4, 2])
    counts = {name: result.totals["num_cut_sequences"] for name, result in found.items()}
    assert counts == dict.fromkeys(NAMES, 0.0 if policy == "drop" else 1.0)


@pytest.mark.parametrize("policy", ["split", "truncate", "drop", "single"])
def test_all_strategies_hold_the_same_tokens(policy: str) -> None:
    found = _compare(_cluster(max_cp_size=1, overlong=policy), [25, 4, 2])
    kept = {"split": 31, "truncate": 16, "drop": 6, "single": 31}[policy]
    assert {name: result.steps[0].num_tokens for name, result in found.items()} == dict.fromkeys(NAMES, kept)


def test_a_strategy_that_cannot_plan_says_why_and_the_others_go_on() -> None:
    calls: list[int] = []
    found = _compare(_cluster(overlong="error"), [4, 16, 7], done=lambda: calls.append(1))
    failure = "step 0: 1 sequence is longer than the limit of 10 tokens (10 x 1 ranks): sequence 1 has 16"
    assert found["in_order"].failure == failure
    assert found["in_order"].totals == {}
    assert [name for name in NAMES if found[name].failure is None] == [n for n in NAMES if n != "in_order"]
    assert len(calls) == len(NAMES)
    lines = format_strategies(list(found.values()), unit="cost").splitlines()
    (row,) = (line for line in lines if line.startswith("in_order"))
    assert row.startswith("in_order       - step 0: 1 sequence is longer than the limit of 10 tokens")


def test_a_strategy_that_fails_in_a_later_step_has_no_totals() -> None:
    found = _compare(_cluster(overlong="error"), [4, 2], [16, 4])
    assert str(found["in_order"].failure).startswith("step 1: 1 sequence is longer")
    assert found["in_order"].totals == {}
    assert found["packing_aware"].failure is None


def test_all_strategies_may_fail() -> None:
    found = _compare(_cluster(overlong="error"), [21, 50])
    assert all("sequence 1 has 50" in str(result.failure) for result in found.values())
    assert format_strategies(list(found.values()), unit="cost").count(" - ") >= len(NAMES)


@pytest.mark.parametrize("steps", [[], [[]], [[], []], [[0, 0]], [[], [4, 2, 6, 3]]])
@pytest.mark.parametrize("cost", [QuadraticCost(), RingCost()])
def test_nothing_to_plan(steps: list[list[int]], cost: Any) -> None:
    found = _compare(_cluster(cost=cost), *steps)
    for result in found.values():
        assert result.failure is None
        assert np.isfinite(list(result.totals.values())).all()
        if not any(map(any, steps)):
            assert result.totals["num_microbatches"] == 0
            assert result.totals["utilization"] == 0
            assert result.totals["step_time"] == 0
    table = format_strategies(list(found.values()), unit=cost.unit)
    assert "nan" not in table
    assert "inf" not in table


def test_one_rank() -> None:
    found = _compare(_cluster(num_ranks=1), [4, 2, 6, 3])
    for name, microbatches in {
        "pad to longest": 4,
        "static CP": 2,
        "in_order": 2,
        "packing_aware": 2,
        "uniform_cp": 2,
        "dynamic_cp": 2,
    }.items():
        totals = found[name].totals
        assert totals["num_microbatches"] == microbatches
        assert totals["imbalance"] == 1.0
        assert totals["mean_cp_size"] == 1.0
        assert totals["step_time"] == totals["bound"] == 16 + 4 + 36 + 9


@pytest.mark.parametrize(("sync", "step_time"), [("microbatch", 81 + 81), ("step", 81 + 36)])
def test_when_ranks_meet(sync: str, step_time: int) -> None:
    # Rank 0 works 9 * 9 and 6 * 6, rank 1 5 * 5 and 9 * 9; they wait in both micro-batches, or at the end only.
    found = _compare(_cluster(sync=sync), [9, 5, 6, 9])
    assert found["in_order"].totals["step_time"] == step_time


@pytest.mark.parametrize(
    ("num_ranks", "max_cp_size", "longest", "expected"),
    [
        (8, None, 10, 1),
        (8, None, 11, 2),
        (8, None, 40, 4),
        (8, None, 80, 8),
        (8, None, 81, 8),  # too long for all: the largest
        (8, 2, 80, 2),
        (6, None, 25, 6),  # 4 does not divide 6
        (3, 2, 25, 1),  # 2 does not divide 3
        (8, None, 0, 1),
    ],
)
def test_static_cp_size(num_ranks: int, max_cp_size: int | None, longest: int, expected: int) -> None:
    cluster = _cluster(num_ranks=num_ranks, max_cp_size=max_cp_size)
    assert cluster.static_cp_size(np.array([1, longest])) == expected


def test_static_cp_size_looks_at_padded_lengths() -> None:
    # 20 tokens at CP 2 are padded to 24, and 2 ranks hold 2 * 8.
    cluster = _cluster(num_ranks=4, padding=PaddingRule(block=8))
    assert cluster.static_cp_size(np.array([20])) == 4


def test_wrong_lengths_name_the_step() -> None:
    with pytest.raises(ArgumentError, match=r"steps\[1\] must be at least 0: steps\[1\]\[0\] = -1"):
        compare_strategies(_cluster(), [[1], [-1]], done=lambda: None)


def test_the_table_by_hand() -> None:
    totals = {
        "num_microbatches": 3.0,
        "num_cut_sequences": 2.0,
        "padding_share": 0.125,
        "utilization": 0.5,
        "imbalance": 1.25,
        "mean_cp_size": 1.75,
        "step_time": 1500000.0,
        "bound": 1000000.0,
    }
    results = [
        StrategyResult(name="one", steps=[], totals=totals, bytes_moved=2048, bytes_whole=5 * 2**20),
        StrategyResult(name="two", steps=[], totals={**totals, "bound": 0.0}),
        StrategyResult(name="three", steps=[], totals={}, failure="too long"),
    ]
    lines = format_strategies(results, unit="s").splitlines()
    assert "(ms)" in lines[1]
    *_, one, two, three = (line.split() for line in lines)
    assert one == "one 3 2 12.5% 50.0% 1.25 1.75 2.00 KiB 5.00 MiB 1.5e+09 50.0%".split()
    assert two == "two 3 2 12.5% 50.0% 1.25 1.75 - - 1.5e+09 -".split()
    assert three == "three - too long".split()


def test_packing_wastes_less_from_row_to_row() -> None:
    # What the table is there to show, on lengths as they come: many short ones, a few long ones.
    rng = np.random.default_rng(3)
    lengths = np.minimum(rng.lognormal(5, 1.2, 400).astype(np.int64) + 1, 8000)
    cluster = Cluster(num_ranks=8, capacity=2048, padding=PaddingRule(), cost=RingCost())
    found = _compare(cluster, lengths)
    used = [found[name].totals["utilization"] for name in ("pad to longest", "static CP", "packing_aware")]
    assert all(a < b for a, b in pairwise(used))


# ---- parts that callers choose ---------------------------------------------------------------------------------------


def test_only_the_strategies_that_were_named() -> None:
    calls: list[int] = []
    names = ["packing_aware", "static CP"]
    results = compare_strategies(_cluster(), [[4, 2], [6, 3]], done=lambda: calls.append(1), names=names)
    assert [result.name for result in results] == names
    assert len(calls) == 4
    whole = _compare(_cluster(), [4, 2], [6, 3])
    assert [result.totals for result in results] == [whole[name].totals for name in names]
    with pytest.raises(ArgumentError, match=r"strategy must be one of 'pad to longest', .*, got 'best'"):
        compare_strategies(_cluster(), [], done=lambda: None, names=["best"])
    assert compare_strategies(_cluster(), [[1]], done=lambda: None, names=[]) == []


def test_plans_can_be_looked_at_as_they_are_made() -> None:
    seen: list[tuple[str, int, Planned]] = []

    def inspect(name: str, number: int, planned: Planned) -> None:
        seen.append((name, number, planned))

    cluster = _cluster(overlong="error")
    results = compare_strategies(cluster, [[4, 2], [16, 4], [3]], done=lambda: None, inspect=inspect)
    # 16 do not fit on one rank: in_order is not asked again.
    assert [(name, number) for name, number, _ in seen] == [
        *((name, 0) for name in NAMES),
        *((name, 1) for name in NAMES if name != "in_order"),
        *((name, 2) for name in NAMES if name != "in_order"),
    ]
    steps = {result.name: result.steps for result in results}
    for name, number, planned in seen:
        figures = steps[name][number]
        assert figures.step_time == planned.plan.simulate(cluster.cost)
        assert (figures.num_tokens, figures.bound) == (planned.num_tokens, planned.bound)
        assert figures.num_cut_sequences == planned.num_cut_sequences == 0
    by_name = {(name, number): planned.plan for name, number, planned in seen}
    for number, lengths in enumerate([[4, 2], [16, 4], [3]]):
        expected = dcpack.plan(lengths, num_ranks=2, capacity=10, cost=QuadraticCost(), on_empty="dummy")
        assert by_name["dynamic_cp", number].digest() == expected.digest()


def test_steps_are_made_as_they_are_needed_and_plans_are_not_kept() -> None:
    alive: list[weakref.ref[Plan]] = []
    asked = done = 0

    def steps() -> Iterator[list[int]]:
        nonlocal asked
        for number in range(50):
            assert done == number * len(NAMES)  # all strategies are through with the step before
            # At most the last plan of the step before is still in somebody's hands.
            assert sum(plan() is not None for plan in alive) <= 1
            asked += 1
            yield [1 + number % 9, 4, 2]

    def count() -> None:
        nonlocal done
        done += 1

    def inspect(name: str, number: int, planned: Planned) -> None:
        alive.append(weakref.ref(planned.plan))

    results = compare_strategies(_cluster(), steps(), done=count, inspect=inspect)
    assert asked == 50
    assert len(alive) == done == 50 * len(NAMES)
    assert all(len(result.steps) == 50 for result in results)
    assert not any(plan() is not None for plan in alive)


def test_what_the_cluster_says_reaches_the_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for: list[dict[str, Any]] = []

    def plan(lengths: Any, **options: Any) -> Plan:
        asked_for.append(options)
        return dcpack.plan(lengths, **options)

    monkeypatch.setattr(dcpack.report.strategies, "plan", plan)
    cluster = _cluster(
        num_ranks=4,
        padding=PaddingRule(),
        overlong="drop",
        max_cp_size=2,
        sync="step",
        cp_sizes=(1, 2),
        min_cp_size=2,
        microbatch_multiple=2,
        max_sequences=3,
        on_empty="error",
    )
    compare_strategies(cluster, [[4, 2, 6, 3, 15, 7, 20, 8]], done=lambda: None, names=NAMES[1:])
    static_cp, in_order, packing_aware, uniform_cp, dynamic_cp = asked_for
    assert packing_aware == {
        "num_ranks": 4,
        "capacity": 10,
        "padding": PaddingRule(),
        "cost": cluster.cost,
        "overlong": "drop",
        "max_cp_size": 2,
        "sync": "step",
        "cp_sizes": (1, 2),
        "min_cp_size": 2,
        "microbatch_multiple": 2,
        "max_sequences": 3,
        "on_empty": "error",
        "scheduler": "packing_aware",
    }
    assert uniform_cp == {**packing_aware, "scheduler": "uniform_cp"}
    assert dynamic_cp == {**packing_aware, "scheduler": "dynamic_cp"}
    # Static strategies have a CP size of their own, and all else alike.
    assert static_cp == {**packing_aware, "scheduler": "in_order", "cp_sizes": (2,), "min_cp_size": 1}
    assert in_order == {**packing_aware, "scheduler": "in_order", "cp_sizes": (1,), "min_cp_size": 1}


def test_planning_takes_time() -> None:
    for result in _compare(_cluster(), [4, 2], [6, 3]).values():
        assert all(step.planning_seconds > 0 for step in result.steps)
        assert result.planning_seconds == pytest.approx(sum(step.planning_seconds for step in result.steps))


# ---- tables ----------------------------------------------------------------------------------------------------------


def _figures(step_time: float, bound: float, planning_seconds: float = 0.0) -> StepFigures:
    return StepFigures(
        num_microbatches=1,
        num_tokens=1,
        num_padded_tokens=1,
        num_slots=1,
        num_cut_sequences=0,
        mean_cp_size=1.0,
        step_time=step_time,
        bound=bound,
        planning_seconds=planning_seconds,
    )


def test_steps_side_by_side_by_hand() -> None:
    results = [
        StrategyResult(name="one", steps=[_figures(0.0025, 0.002), _figures(1.2345, 1.0)]),
        StrategyResult(name="none", steps=[_figures(1.0, 1.0)], failure="too long"),
        StrategyResult(name="other", steps=[_figures(0.5, 0.0), _figures(99999.0, 99999.0)]),
    ]
    held = [(3, 1200, 700), (1, 5, 5)]
    assert format_steps(results, held, unit="s").splitlines() == [
        "                                one above other above",
        "step sequences tokens longest  (ms) bound  (ms) bound",
        "---- --------- ------ ------- ----- ----- ----- -----",
        "0            3  1,200     700   2.5 25.0%   500     -",
        "1            1      5       5 1,234 23.4% 1e+08  0.0%",
    ]
    # Only as many steps as were asked for, in the unit that was.
    assert format_steps(results, held[:1], unit="cost").splitlines() == [
        "                                 one above  other above",
        "step sequences tokens longest (cost) bound (cost) bound",
        "---- --------- ------ ------- ------ ----- ------ -----",
        "0            3  1,200     700 0.0025 25.0%    0.5     -",
    ]


def test_the_table_with_planning_by_hand() -> None:
    totals = {
        "num_microbatches": 3.0,
        "num_cut_sequences": 2.0,
        "padding_share": 0.125,
        "utilization": 0.5,
        "imbalance": 1.25,
        "mean_cp_size": 1.75,
        "step_time": 0.0015,
        "bound": 0.001,
    }
    steps = [_figures(1.0, 1.0, 0.002), _figures(1.0, 1.0, 0.003)]
    results = [
        StrategyResult(name="one", steps=steps, totals=totals),
        StrategyResult(name="two", steps=[], failure="too long " * 20),
    ]
    lines = format_strategies(results, unit="s", with_planning=True).splitlines()
    assert lines[:4] == [
        "          micro-       cut         utili- max/mean mean step time bound above  planning",
        "strategy batches sequences padding zation     work   CP      (ms)  (ms) bound (ms/step)",
        "-------- ------- --------- ------- ------ -------- ---- --------- ----- ----- ---------",
        "one            3         2   12.5%  50.0%     1.25 1.75       1.5     1 50.0%       2.5",
    ]
    # A reason is cut where the table ends.
    assert lines[4].startswith("two      - too long too long")
    assert lines[4].endswith(" ...")
    assert len(lines[4]) <= len(lines[2])
    assert "planning" not in format_strategies(results, unit="s")
    assert len(format_strategies(results, unit="s").splitlines()[2]) < len(lines[2])
