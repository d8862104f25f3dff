"""What holds for every plan of `balanced` and `local_gain`: checked with slow Python that shares no code with them."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.cost import QuadraticCost, RingCost
from dcpack.errors import InfeasibleError
from dcpack.padding import PaddingRule
from dcpack.plans import Plan
from dcpack.scheduling import MicroBatch, Problem
from dcpack.scheduling.balanced import Balanced
from dcpack.scheduling.budgets import Budget
from dcpack.scheduling.local_gain import Decision, LocalGain

relaxed = settings(
    deadline=None,
    max_examples=90,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)

COSTS = [QuadraticCost(), RingCost(node_size=2), RingCost(linear=1.0, quadratic=0.0, node_size=None)]


def padded(length: int, rule: PaddingRule | None, cp: int) -> int:
    if rule is None:
        return length
    multiple = math.lcm(2 * cp * rule.tp if cp > 1 else rule.tp, rule.block * cp)
    return math.ceil(length / multiple) * multiple


def bins_of(plan: Plan) -> list[list[tuple[int, int]]]:
    """(sequence, tokens) of the entries of each bin."""
    columns = (plan.sequence_ids.tolist(), plan.entry_lengths.tolist())
    bounds = plan.offsets.tolist()
    return [list(zip(*(c[a:b] for c in columns), strict=True)) for a, b in pairwise(bounds)]


def check_slowly(plan: Plan, lengths: list[int], rows: int, chosen: dict[str, Any]) -> None:
    """Limits, rows, no empty bin, every token once."""
    (cp,) = plan.cp_sizes
    dp = plan.num_ranks // cp
    rule, most = chosen.get("padding"), chosen.get("max_sequences") or len(lengths)
    seen = Counter[int]()
    places = Counter[tuple[int, int, int]]()
    for b, entries in enumerate(bins_of(plan)):
        assert bool(plan.dummy[b]) == (not entries)
        assert entries or chosen.get("on_empty") == "dummy"
        assert len(entries) <= most
        if plan.oversized[b]:
            assert len(entries) == 1
        else:
            assert sum(padded(tokens, rule, cp) for _, tokens in entries) <= plan.capacity * cp
        for sequence, tokens in entries:
            seen[sequence] += tokens
        places[int(plan.microbatch[b]), int(plan.first_rank[b]), int(plan.row[b])] += 1
    dropped = plan.dropped.tolist()
    assert all(seen[s] + dropped[s] == length for s, length in enumerate(lengths))
    every_place = {
        (m, rank * cp, row) for m in range(plan.num_microbatches) for rank in range(dp) for row in range(rows)
    }
    assert places == Counter(every_place)
    assert plan.num_microbatches % chosen.get("microbatch_multiple", 1) == 0
    plan.validate(lengths)


@st.composite
def problems(draw: st.DrawFn) -> tuple[list[int], int, dict[str, Any]]:
    """Lengths, data-parallel ranks, and options of `dcpack.plan`."""
    dp = draw(st.integers(1, 6))
    cp = draw(st.sampled_from([1, 1, 1, 2, 3]))
    rule = draw(st.none() | st.builds(PaddingRule, tp=st.integers(1, 3), block=st.sampled_from([1, 4, 8])))
    capacity = draw(st.integers(60, 200))
    longest = draw(st.sampled_from([capacity // 4, capacity // 2, capacity, capacity * cp * 2]))
    size = draw(st.integers(0, 12) | st.integers(13, 70))
    lengths = draw(st.lists(st.integers(0, longest), min_size=size, max_size=size))
    return (
        lengths,
        dp,
        {
            "num_ranks": dp * cp,
            "capacity": capacity,
            "cp_sizes": (cp,),
            "padding": rule,
            "cost": draw(st.sampled_from(COSTS)),
            "sync": draw(st.sampled_from(["microbatch", "step"])),
            "max_sequences": draw(st.sampled_from([None, None, 1, 3])),
            "on_empty": draw(st.sampled_from(["dummy", "error"])),
            "overlong": draw(st.sampled_from(["drop", "single", "split", "truncate"])),
        },
    )


def fewest_bins(plan: Plan, chosen: dict[str, Any]) -> int:
    """Bins of best fit decreasing, by hand: the fullest bin with room, of equal ones the oldest."""
    (cp,) = plan.cp_sizes
    most = chosen["max_sequences"] or math.inf
    items = sorted((padded(t, chosen["padding"], cp) for entries in bins_of(plan) for _, t in entries), reverse=True)
    bins: list[list[int]] = []
    for tokens in items:
        fitting = [b for b in bins if sum(b) + tokens <= plan.capacity * cp and len(b) < most]
        target = max(fitting, key=sum, default=None)
        if target is None:
            bins.append([tokens])
        else:
            target.append(tokens)
    return len(bins)


def plan_or_refusal(lengths: list[int], scheduler: Balanced, chosen: dict[str, Any]) -> Plan | str:
    """Return the plan, or the text of the error that says that there is none."""
    try:
        return dcpack.plan(lengths, scheduler=scheduler, **chosen)
    except InfeasibleError as error:
        return str(error)


def test_balanced_holds_every_limit() -> None:
    outcomes = Counter[str]()

    @relaxed
    @given(
        problem=problems(),
        rows=st.sampled_from([1, 1, 2, 3]),
        window=st.sampled_from([None, None, 1, 2, 4]),
        pipeline_order=st.booleans(),
        multiple=st.sampled_from([1, 1, 2, 3]),
    )
    def check(
        problem: tuple[list[int], int, dict[str, Any]],
        rows: int,
        window: int | None,
        pipeline_order: bool,
        multiple: int,
    ) -> None:
        lengths, dp, chosen = problem
        window = None if window is None else window * multiple
        scheduler = Balanced(rows_per_rank=rows, window=window, pipeline_order=pipeline_order)
        chosen = {**chosen, "microbatch_multiple": multiple}
        plan = plan_or_refusal(lengths, scheduler, chosen)
        if isinstance(plan, str):
            outcomes["refused"] += 1
            assert chosen["on_empty"] == "error", plan
            assert "cannot give each of" in plan
            real = sum(length > 0 for length in lengths)
            if window is None and chosen["overlong"] in ("single", "truncate"):
                assert f"{real} sequences" in plan
            return
        outcomes["planned"] += 1
        outcomes["of several bins"] += plan.num_bins > 2
        outcomes["of several micro-batches"] += plan.num_microbatches > 1
        assert plan.digest() == dcpack.plan(lengths, scheduler=scheduler, **chosen).digest()
        if plan.num_microbatches:
            assert plan.rows_per_rank == rows
        check_slowly(plan, lengths, rows, chosen)
        assert plan.num_microbatches >= plan.bounds["num_microbatches"]
        for sync in ("microbatch", "step"):
            assert plan.simulate(chosen["cost"], sync=sync) >= plan.bounds["step_time"] * (1 - 1e-9)
        if window is None:
            bins = fewest_bins(plan, chosen)
            fewest = -(-bins // (dp * rows))
            assert plan.num_microbatches == -(-fewest // multiple) * multiple
            if pipeline_order and plan.num_microbatches > 2 and chosen["cost"].node_size is None and rows == 1:
                times = plan.rank_times(chosen["cost"]).max(axis=1)
                assert times[0] <= times[1] * (1 + 1e-9)
                assert times[-1] <= times[-2] * (1 + 1e-9)

    check()
    assert outcomes["planned"] >= 40
    assert outcomes["of several bins"] >= 30
    assert outcomes["of several micro-batches"] >= 20


class Logged:
    """Keeps what was decided, and which sequences the items were."""

    name = "logged"

    def __init__(self, inner: LocalGain) -> None:
        self.inner = inner
        self.decisions: tuple[Decision, ...] = ()

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        return self.inner.usable_cp_sizes(legal)

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        microbatches, self.decisions = self.inner.solve(problem)
        return microbatches


@st.composite
def placements(draw: st.DrawFn) -> tuple[list[int], list[list[list[int]]], dict[str, Any]]:
    """Lengths, a reference that fits, and options of `LocalGain`."""
    num_ranks, rows = draw(st.integers(1, 6)), draw(st.sampled_from([1, 2, 4]))
    reference: list[list[list[int]]] = [[[] for _ in range(rows)] for _ in range(num_ranks)]
    lengths: list[int] = []
    for rank in range(num_ranks):
        for row in range(rows):
            room = 40
            while room > 0 and (not reference[rank][row] or draw(st.booleans())):
                length = draw(st.integers(1, room))
                reference[rank][row].append(len(lengths))
                lengths.append(length)
                room -= length
    costs = draw(
        st.none()
        | st.lists(st.integers(0, 50), min_size=len(lengths), max_size=len(lengths))
        | st.lists(st.sampled_from([0.0, 0.1, 0.25, 3.5, 1e3]), min_size=len(lengths), max_size=len(lengths))
    )
    amounts = draw(st.lists(st.integers(0, 3), min_size=len(lengths), max_size=len(lengths)))
    fullest = max(sum(amounts[s] for s in row) for given in reference for row in given)
    budget = Budget(name="images", amounts=amounts, limit=fullest + draw(st.integers(0, 2)))
    return (
        lengths,
        reference,
        {
            "costs": costs,
            "min_balance_gain": draw(st.sampled_from([0.0, 0.0, 0.05, 0.3])),
            "objective": draw(st.sampled_from(["makespan", "variance"])),
            "balance_group_size": draw(st.sampled_from([None, 1, 2, 3] if num_ranks % 6 == 0 else [None, 1])),
            "rows_per_rank": draw(st.sampled_from([None, 1, rows])),
            "budgets": draw(st.sampled_from([(), (budget,)])),
        },
    )


def objective_slowly(loads: list[list[float]], objective: str) -> float:
    """Of [meeting][rank] loads."""
    if objective == "makespan":
        return math.fsum(max(meeting) for meeting in loads)
    cells = [x for meeting in loads for x in meeting]
    mean = math.fsum(cells) / len(cells)
    if mean == 0:
        return 0.0
    return math.fsum(((x - math.fsum(m) / len(m)) / mean) ** 2 for m in loads for x in m) / len(cells)


def loads_slowly(
    bins: dict[tuple[int, int, int], list[int]], costs: list[float], ranks: range, count: int, sync: str
) -> list[list[float]]:
    """Cost of each rank at each meeting, from the sequences of each (micro-batch, rank, row)."""
    meetings = range(count) if sync == "microbatch" else range(1)
    return [
        [
            math.fsum(
                costs[s] for (m, r, _), ids in bins.items() for s in ids if r == rank and (m == at or sync == "step")
            )
            for rank in ranks
        ]
        for at in meetings
    ]


@pytest.mark.parametrize("sync", ["microbatch", "step"])
def test_local_gain_keeps_or_improves_the_reference(sync: str) -> None:
    outcomes = Counter[str]()

    @relaxed
    @given(placement=placements(), cost=st.sampled_from(COSTS[::2]), most=st.sampled_from([None, None, 9]))
    def check(placement: tuple[list[int], list[list[list[int]]], dict[str, Any]], cost: Any, most: int | None) -> None:
        lengths, reference, options = placement
        if most is not None and max(len(row) for given in reference for row in given) > most:
            most = None
        num_ranks, rows = len(reference), len(reference[0])
        per_microbatch = options["rows_per_rank"] or rows
        logged = Logged(LocalGain(reference=reference, **options))
        chosen: dict[str, Any] = {"num_ranks": num_ranks, "capacity": 40, "sync": sync, "cost": cost}
        plan = dcpack.plan(lengths, scheduler=logged, max_sequences=most, **chosen)
        check_slowly(plan, lengths, per_microbatch, {"max_sequences": most})
        for budget in options["budgets"]:
            for entries in bins_of(plan):
                assert sum(int(budget.amounts[s]) for s, _ in entries) <= budget.limit

        costs = options["costs"]
        if costs is None:
            costs = [float(length**2 if isinstance(cost, QuadraticCost) else length) for length in lengths]
        before = {
            (k // per_microbatch, r, k % per_microbatch): row
            for r, given in enumerate(reference)
            for k, row in enumerate(given)
        }
        after = {
            (int(plan.microbatch[b]), int(plan.first_rank[b]), int(plan.row[b])): [s for s, _ in entries]
            for b, entries in enumerate(bins_of(plan))
        }
        home = {s: r for (_, r, _), ids in before.items() for s in ids}
        now = {s: r for (_, r, _), ids in after.items() for s in ids}
        size = options["balance_group_size"] or num_ranks
        assert [decision.first_rank for decision in logged.decisions] == list(range(0, num_ranks, size))
        for decision in logged.decisions:
            ranks = range(decision.first_rank, decision.first_rank + size)
            values = [
                objective_slowly(loads_slowly(bins, costs, ranks, plan.num_microbatches, sync), options["objective"])
                for bins in (before, after)
            ]
            assert decision.objective_before == pytest.approx(values[0], rel=1e-6, abs=1e-6)
            assert decision.objective_after == pytest.approx(values[1], rel=1e-6, abs=1e-6)
            assert decision.objective_candidate <= decision.objective_before
            assert decision.accepted == (decision.gain > options["min_balance_gain"])
            if decision.objective_before > 0:
                saved = decision.objective_before - decision.objective_candidate
                assert decision.gain == pytest.approx(saved / decision.objective_before, rel=1e-6, abs=1e-6)
            assert {home[s] for s in home if now[s] in ranks} <= set(ranks)
            assert decision.moved == tuple(sum(now[s] == r != home[s] for s in home) for r in ranks)
            outcomes["accepted"] += decision.accepted
            outcomes["kept"] += not decision.accepted
            if not decision.accepted:
                kept = [key for key in before if key[1] in ranks]
                assert all(sorted(before[key]) == sorted(after[key]) for key in kept)

    check()
    assert outcomes["accepted"] >= 20
    assert outcomes["kept"] >= 10
