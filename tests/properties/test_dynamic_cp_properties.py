"""What holds for every plan of `dynamic_cp`, checked with slow Python that shares no code with it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.cost import CostModel, QuadraticCost, RingCost
from dcpack.errors import InfeasibleError
from dcpack.padding import PaddingRule
from dcpack.plans import Plan

relaxed = settings(
    deadline=None,
    max_examples=90,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
)

rules = st.builds(
    PaddingRule, tp=st.integers(1, 3), block=st.sampled_from([1, 3, 8, 16]), sequence_parallel=st.booleans()
)
costs = st.sampled_from(
    [
        RingCost(),
        RingCost(linear=50.0, ring_intra=20.0, ring_inter=90.0, node_size=4),
        QuadraticCost(),
        RingCost(linear=0.0, quadratic=0.0, ring_intra=0.0, ring_inter=0.0),
    ]
)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[int], dict[str, Any]]:
    num_ranks = draw(st.sampled_from([1, 2, 3, 4, 6, 7, 8, 14, 16]) | st.integers(1, 64))
    capacity = draw(st.integers(48, 300))
    family = draw(st.sampled_from(["powers_of_two", "divisors", "any", "explicit"]))
    explicit = st.lists(st.integers(1, num_ranks), min_size=1, max_size=4)
    longest = draw(st.sampled_from([capacity // 4, capacity, num_ranks * capacity, 2 * num_ranks * capacity]))
    length = st.one_of(st.integers(0, capacity // 2), st.integers(0, capacity), st.integers(0, longest))
    count = draw(st.sampled_from([0, 1, 3, 8, 20, 40, 60]))
    return draw(st.lists(length, min_size=count, max_size=count)), {
        "num_ranks": num_ranks,
        "capacity": capacity + 48,  # room for the largest row multiple
        "cp_sizes": tuple(draw(explicit)) if family == "explicit" else family,
        "min_cp_size": draw(st.sampled_from([1, 1, 1, 2])),
        "max_cp_size": draw(st.sampled_from([None, None, 2, 5])),
        "padding": draw(st.none() | rules),
        "microbatch_multiple": draw(st.sampled_from([1, 1, 2, 3])),
        "max_sequences": draw(st.sampled_from([None, None, 1, 3])),
        "on_empty": draw(st.sampled_from(["dummy", "dummy", "error"])),
        "overlong": draw(st.sampled_from(["drop", "error", "single", "split", "truncate"])),
        "sync": draw(st.sampled_from(["microbatch", "step"])),
        "cost": draw(costs),
    }


def legal_sizes(chosen: dict[str, Any]) -> list[int]:
    ranks, family = chosen["num_ranks"], chosen["cp_sizes"]
    named = {
        "powers_of_two": {2**k for k in range(8)} | {ranks},
        "divisors": {size for size in range(1, ranks + 1) if ranks % size == 0},
        "any": set(range(1, ranks + 1)),
    }
    sizes = named[family] if isinstance(family, str) else set(family)
    highest = min(chosen["max_cp_size"] or ranks, ranks)
    return sorted(size for size in sizes if chosen["min_cp_size"] <= size <= highest)


def padded_bin(lengths: list[int], rule: PaddingRule | None, cp: int) -> int:
    if rule is None:
        return sum(lengths)
    multiple = math.lcm(2 * cp * rule.tp if cp > 1 else rule.tp, rule.block * cp)
    total = sum(-(-length // multiple) * multiple for length in lengths)
    row = rule.block * rule.tp * cp if rule.sequence_parallel else 1
    return -(-total // row) * row


def check_slowly(plan: Plan, lengths: list[int], chosen: dict[str, Any]) -> None:
    sizes, ranks = legal_sizes(chosen), chosen["num_ranks"]
    covered = Counter[tuple[int, int]]()
    busy = Counter[tuple[int, int]]()
    for b in range(plan.num_bins):
        entries = range(int(plan.offsets[b]), int(plan.offsets[b + 1]))
        cp, first = int(plan.cp_size[b]), int(plan.first_rank[b])
        assert cp in sizes
        assert len(entries) <= (chosen["max_sequences"] or len(lengths))
        assert bool(plan.dummy[b]) == (len(entries) == 0)
        assert not plan.dummy[b] or chosen["on_empty"] == "dummy"
        if plan.oversized[b]:
            assert (len(entries), cp, chosen["overlong"]) == (1, sizes[-1], "single")
        else:
            held = padded_bin(plan.entry_lengths[list(entries)].tolist(), chosen["padding"], cp)
            assert held <= chosen["capacity"] * cp
        for e in entries:
            start = int(plan.starts[e])
            for token in range(start, start + int(plan.entry_lengths[e])):
                covered[int(plan.sequence_ids[e]), token] += 1
        for rank in range(first, first + cp):
            busy[int(plan.microbatch[b]), rank] += 1
    assert busy == Counter(itertools.product(range(plan.num_microbatches), range(ranks)))
    assert plan.num_microbatches % chosen["microbatch_multiple"] == 0
    assert set(covered.values()) <= {1}
    kept = Counter(s for s, _ in covered)
    assert [kept[s] + int(plan.dropped[s]) for s in range(len(lengths))] == lengths
    if chosen["overlong"] in ("error", "single", "split"):
        assert not plan.dropped.any()


def plan_or_none(lengths: list[int], scheduler: str, chosen: dict[str, Any]) -> Plan | None:
    try:
        return dcpack.plan(lengths, scheduler=scheduler, **chosen)
    except InfeasibleError:
        return None


def test_plans_are_valid_and_the_same_each_time() -> None:
    outcomes = Counter[str]()

    @relaxed
    @given(case=cases())
    def check(case: tuple[list[int], dict[str, Any]]) -> None:
        lengths, chosen = case
        plan = plan_or_none(lengths, "dynamic_cp", chosen)
        if plan is None:
            outcomes["refused"] += 1
            return
        check_slowly(plan, lengths, chosen)
        assert dcpack.plan(lengths, scheduler="dynamic_cp", **chosen).digest() == plan.digest()
        outcomes["planned"] += 1
        outcomes["several micro-batches"] += plan.num_microbatches > 1
        outcomes["mixed sizes"] += len(set(plan.cp_size.tolist())) > 1

    check()
    assert outcomes["planned"] >= 25
    assert min(outcomes["several micro-batches"], outcomes["mixed sizes"]) >= 3


def test_the_slow_check_sees_faults() -> None:
    # A guard: the same plan, judged by other rules, fails.
    chosen: dict[str, Any] = {"num_ranks": 2, "capacity": 100, "cp_sizes": "any", "padding": None, "overlong": "error"}
    chosen |= {"min_cp_size": 1, "max_cp_size": None, "microbatch_multiple": 1, "max_sequences": 3, "on_empty": "error"}
    lengths = [30, 30, 30, 30]
    plan = dcpack.plan(lengths, scheduler="dynamic_cp", **chosen)
    check_slowly(plan, lengths, chosen)
    changes: list[dict[str, Any]] = [
        {"max_sequences": 1},
        {"capacity": 20},
        {"cp_sizes": (2,)},
        {"microbatch_multiple": 4},
        {"num_ranks": 3},
    ]
    for changed in changes:
        with pytest.raises(AssertionError):
            check_slowly(plan, lengths, {**chosen, **changed})
    with pytest.raises(AssertionError):
        check_slowly(plan, [30, 30, 30, 29], chosen)


def test_never_slower_than_packing_aware_on_the_powers_of_two() -> None:
    outcomes = Counter[str]()

    @relaxed
    @given(case=cases())
    def check(case: tuple[list[int], dict[str, Any]]) -> None:
        lengths, chosen = case
        ranks = chosen["num_ranks"]
        # so that both plan the same pieces, and find a plan nearly always
        chosen |= {"overlong": "error", "on_empty": "dummy", "max_cp_size": None}
        lengths = [length % (ranks * (chosen["capacity"] - 48) + 1) for length in lengths]
        powers = tuple(s for s in legal_sizes(chosen) if s & (s - 1) == 0 or s == ranks)
        if not powers:
            return
        theirs = plan_or_none(lengths, "packing_aware", {**chosen, "cp_sizes": powers})
        if theirs is None:
            return
        ours = dcpack.plan(lengths, scheduler="dynamic_cp", **chosen)
        cost: CostModel = chosen["cost"]
        times = [plan.simulate(cost, sync=chosen["sync"]) for plan in (ours, theirs)]
        assert times[0] <= times[1] * (1 + 1e-9)
        outcomes["compared"] += 1
        outcomes["faster"] += times[0] < times[1] * 0.99
        outcomes[chosen["sync"]] += 1

    check()
    assert outcomes["compared"] >= 20
    assert outcomes["faster"] >= 1
    assert min(outcomes["step"], outcomes["microbatch"]) >= 2


def fastest_by_trying_all(lengths: list[int], ranks: int, capacity: int, cost: CostModel) -> float:
    """Every partition into bins, every CP size of each, every way to share out micro-batches; ranks on one node."""
    times: dict[tuple[int, ...], dict[int, float]] = {}
    best_of_microbatch: dict[frozenset[int], float] = {}
    everything = frozenset(range(len(lengths)))
    subsets = [frozenset(c) for n in range(1, len(lengths) + 1) for c in itertools.combinations(everything, n)]
    for subset in subsets:
        held = np.array([[lengths[i] for i in sorted(subset)]], np.int64)
        sums = cost.columns(held[0]).sum(axis=0, keepdims=True)
        times[tuple(sorted(subset))] = {
            cp: float(cost.bin_time(sums, np.array([cp]), np.array([False]))[0])
            for cp in range(1, ranks + 1)
            if held.sum() <= capacity * cp
        }

    def slowest(left: frozenset[int], free: int) -> float:
        """The items of a micro-batch on exactly `free` ranks."""
        if not left:
            return 0.0 if free == 0 else math.inf
        first = min(left)
        found = math.inf
        for n in range(len(left)):
            for rest in itertools.combinations(sorted(left - {first}), n):
                group = tuple(sorted((first, *rest)))
                for cp, time in times[group].items():
                    if cp <= free:
                        found = min(found, max(time, slowest(left - set(group), free - cp)))
        return found

    for subset in subsets:
        best_of_microbatch[subset] = slowest(subset, ranks)

    def step(left: frozenset[int]) -> float:
        if not left:
            return 0.0
        with_first = (subset for subset in subsets if subset <= left and min(left) in subset)
        return min(best_of_microbatch[subset] + step(left - subset) for subset in with_first)

    return step(everything)


def test_near_the_optimum_of_small_batches() -> None:
    cost = RingCost(linear=200.0, ring_intra=60.0, node_size=None)
    rng = np.random.default_rng(7)
    gaps = []
    for _ in range(40):
        ranks = int(rng.integers(1, 4))
        lengths = rng.integers(1, 100 * ranks, int(rng.integers(ranks, 6))).tolist()
        best = fastest_by_trying_all(lengths, ranks, 100, cost)
        plan = dcpack.plan(
            lengths, num_ranks=ranks, capacity=100, cp_sizes="any", cost=cost, scheduler="dynamic_cp", on_empty="error"
        )
        gaps.append(plan.simulate(cost) / best - 1)
    assert min(gaps) >= -1e-9
    assert np.mean(gaps) <= 0.05
    assert max(gaps) > 0.0  # a guard: the reference is not the scheduler itself
