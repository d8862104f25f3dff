"""What holds for every plan, whatever the lengths and options: checked with slow Python that shares no code with it."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.cost import QuadraticCost, RingCost
from dcpack.errors import InfeasibleError
from dcpack.padding import PaddingRule
from dcpack.plans import Plan

relaxed = settings(
    deadline=None,
    max_examples=160,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],  # explaining a failure takes longest of all
)

SCHEDULERS = ["in_order", "packing_aware", "dynamic_cp", "balanced", "local_gain", "uniform_cp"]
ONE_CP_SIZE = ("in_order", "balanced", "local_gain")
OVERLONG = ["drop", "error", "single", "split", "truncate"]

rules = st.builds(
    PaddingRule, tp=st.integers(1, 3), block=st.sampled_from([1, 3, 8, 16]), sequence_parallel=st.booleans()
)


@st.composite
def batches(draw: st.DrawFn, most_ranks: int = 64) -> tuple[list[int], int, int]:
    """Lengths from nothing to more than all ranks hold, a number of ranks and a capacity."""
    num_ranks = min(draw(st.sampled_from([2, 3, 4, 6, 7, 8, 14]) | st.integers(1, 64)), most_ranks)
    capacity = draw(st.integers(1, 8) | st.integers(48, 300))
    kinds = {
        "short": st.integers(0, max(capacity // 4, 1)),
        "medium": st.integers(0, capacity),
        "long": st.integers(0, num_ranks * capacity),
        "overlong": st.integers(0, num_ranks * capacity * 2),
    }
    longest = draw(st.sampled_from(["short", "medium", "medium", "long", "long", "overlong"]))
    count = draw(st.sampled_from([60, 40, 25, 15, 10, 6, 3]) | st.integers(0, 60))  # drawn evenly, unlike list sizes
    length = st.one_of(kinds["short"], kinds["medium"], kinds[longest]) if longest != "short" else kinds["short"]
    return draw(st.lists(length, min_size=count, max_size=count)), num_ranks, capacity


@st.composite
def options(draw: st.DrawFn, num_ranks: int) -> dict[str, Any]:
    explicit = st.lists(st.integers(1, num_ranks), min_size=1, max_size=4)
    family = draw(st.sampled_from(["powers_of_two", "powers_of_two", "divisors", "any", "explicit"]))
    return {
        "scheduler": draw(st.sampled_from(SCHEDULERS)),
        "cp_sizes": tuple(draw(explicit)) if family == "explicit" else family,
        "min_cp_size": draw(st.sampled_from([1, 1, 1, 2, 3])),
        "max_cp_size": draw(st.sampled_from([None, None, None, 1, 4, 6])),
        "padding": draw(st.none() | rules),
        "microbatch_multiple": draw(st.sampled_from([1, 1, 2, 3, 4])),
        "max_sequences": draw(st.sampled_from([None, None, 1, 3])),
        "on_empty": draw(st.sampled_from(["dummy", "dummy", "error"])),
        "overlong": draw(st.sampled_from(OVERLONG)),
    }


# ---- the slow check --------------------------------------------------------------------------------------------------


def multiple_of(rule: PaddingRule | None, cp: int) -> int:
    if rule is None:
        return 1
    return math.lcm(2 * cp * rule.tp if cp > 1 else rule.tp, rule.block * cp)


def tokens_of_bin(lengths: list[int], rule: PaddingRule | None, cp: int) -> int:
    """Padded tokens of a bin on all its ranks, the padding of its total included."""
    total = sum(math.ceil(length / multiple_of(rule, cp)) * multiple_of(rule, cp) for length in lengths)
    row = rule.block * rule.tp * cp if rule is not None and rule.sequence_parallel else 1
    return math.ceil(total / row) * row


def legal_sizes(num_ranks: int, chosen: dict[str, Any]) -> list[int]:
    family = chosen.get("cp_sizes", "powers_of_two")
    if family == "powers_of_two":
        sizes = {2**k for k in range(8)} | {num_ranks}
    elif family == "divisors":
        sizes = {size for size in range(1, num_ranks + 1) if num_ranks % size == 0}
    else:
        sizes = set(range(1, num_ranks + 1)) if family == "any" else set(family)
    low, high = chosen.get("min_cp_size", 1), chosen.get("max_cp_size") or num_ranks
    legal = sorted(size for size in sizes if low <= size <= min(high, num_ranks))
    if chosen.get("scheduler") == "uniform_cp":
        return [size for size in legal if num_ranks % size == 0]
    return legal[:1] if chosen.get("scheduler") in ONE_CP_SIZE else legal


def longest_that_fits(capacity: int, rule: PaddingRule | None, sizes: list[int]) -> int:
    """By search: padded tokens never fall as a length grows."""
    best = 0
    for cp in sizes:
        low, high = 0, capacity * cp
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if tokens_of_bin([middle], rule, cp) <= capacity * cp else (low, middle - 1)
        best = max(best, low)
    return best


def expected_parts(length: int, longest: int, policy: str) -> list[tuple[int, int]]:
    """(start, stop) of each part that is kept of one sequence."""
    if length == 0:
        return []
    if length <= longest or policy == "single":
        return [(0, length)]
    if policy == "drop":
        return []
    if policy == "truncate":
        return [(0, longest)]
    return [(start, min(start + longest, length)) for start in range(0, length, longest)]


def check_slowly(plan: Plan, lengths: list[int], num_ranks: int, capacity: int, chosen: dict[str, Any]) -> None:
    rule, policy = chosen.get("padding"), chosen.get("overlong", "error")
    sizes = legal_sizes(num_ranks, chosen)
    longest = longest_that_fits(capacity, rule, sizes)
    bins = [
        list(
            zip(*(column[a:b].tolist() for column in (plan.sequence_ids, plan.starts, plan.entry_lengths)), strict=True)
        )
        for a, b in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)
    ]
    cp_sizes = plan.cp_size.tolist()

    # every part exactly once, whatever is missing is reported
    parts = sorted((s, start, start + size) for entries in bins for s, start, size in entries)
    expected = [(s, *part) for s, length in enumerate(lengths) for part in expected_parts(length, longest, policy)]
    assert parts == expected
    kept = Counter[int]()
    for s, start, stop in parts:
        kept[s] += stop - start
    assert plan.dropped.tolist() == [length - kept[s] for s, length in enumerate(lengths)]

    # bins: legal sizes, capacity with padding, caps, oversized ones alone
    most = chosen.get("max_sequences") or len(lengths)
    for entries, cp, oversized, dummy in zip(bins, cp_sizes, plan.oversized, plan.dummy, strict=True):
        assert cp in sizes
        assert len(entries) <= most
        assert dummy == (not entries)
        if oversized:
            ((s, start, size),) = entries
            assert policy == "single"
            assert start == 0
            assert size == lengths[s] > longest
            assert cp == sizes[-1]
        else:
            assert tokens_of_bin([size for *_, size in entries], rule, cp) <= capacity * cp
            assert all(size <= longest for *_, size in entries)
    assert chosen.get("on_empty", "error") == "dummy" or not plan.dummy.any()

    # ranks: in every micro-batch each has exactly one bin
    assert plan.num_microbatches % chosen.get("microbatch_multiple", 1) == 0
    busy = [[0] * num_ranks for _ in range(plan.num_microbatches)]
    blocks: list[list[tuple[int, int]]] = [[] for _ in range(plan.num_microbatches)]
    for m, first, cp in zip(plan.microbatch.tolist(), plan.first_rank.tolist(), cp_sizes, strict=True):
        blocks[m].append((first, cp))
        for rank in range(first, first + cp):
            busy[m][rank] += 1
    assert busy == [[1] * num_ranks] * plan.num_microbatches
    for microbatch in blocks:
        assert chosen.get("scheduler") != "uniform_cp" or len({cp for _, cp in microbatch}) == 1
        widths = [cp for _, cp in sorted(microbatch)]
        if all(cp & (cp - 1) == 0 for cp in widths):
            assert widths == sorted(widths, reverse=True)
            assert all(first % cp == 0 for first, cp in microbatch)
    if chosen.get("microbatch_multiple", 1) == 1:
        real = {int(m) for m, entries in zip(plan.microbatch, bins, strict=True) if entries}
        assert real == set(range(plan.num_microbatches))  # no micro-batch of dummies alone

    plan.validate(lengths)


def never_infeasible(lengths: list[int], num_ranks: int, capacity: int, chosen: dict[str, Any]) -> bool:
    """Whether dummies alone, or the policy, answer everything that could be in the way."""
    sizes = legal_sizes(num_ranks, chosen)
    if chosen["on_empty"] != "dummy" or 1 not in sizes:
        return False
    fits = max(lengths, default=0) <= longest_that_fits(capacity, chosen["padding"], sizes)
    return fits or chosen["overlong"] in ("drop", "single")


def plan_or_refusal(lengths: list[int], **chosen: Any) -> Plan | str:
    """Return the plan, or the text of the error that says that there is none."""
    try:
        return dcpack.plan(lengths, **chosen)
    except InfeasibleError as error:
        return str(error)


# ---- the properties --------------------------------------------------------------------------------------------------


def test_the_slow_check_sees_faults() -> None:
    # A guard: break a plan in ways that validate does not know about, and see the check above fail.
    lengths = [30, 30, 30, 30, 400]
    chosen: dict[str, Any] = {"max_sequences": 2, "overlong": "single", "on_empty": "error"}
    plan = dcpack.plan(lengths, num_ranks=2, capacity=100, **chosen)
    check_slowly(plan, lengths, 2, 100, chosen)
    for changed in ({"max_sequences": 1}, {"overlong": "drop"}, {"cp_sizes": (1,)}, {"microbatch_multiple": 4}):
        with pytest.raises(AssertionError):
            check_slowly(plan, lengths, 2, 100, {**chosen, **changed})
    with pytest.raises(AssertionError):
        check_slowly(plan, lengths, 2, 20, chosen)
    with pytest.raises(AssertionError):
        check_slowly(plan, [30, 30, 30, 29, 400], 2, 100, chosen)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_with_lengths_ranks_and_capacity_alone(scheduler: str) -> None:
    outcomes = Counter[str]()

    def check_one(lengths: list[int], num_ranks: int, capacity: int) -> None:
        plan = plan_or_refusal(lengths, num_ranks=num_ranks, capacity=capacity, scheduler=scheduler)
        if isinstance(plan, str):
            outcomes["refused"] += 1
            if scheduler not in ONE_CP_SIZE:
                too_long = [i for i, length in enumerate(lengths) if length > num_ranks * capacity]
                assert too_long
                assert f"{len(too_long)} sequence" in plan
                assert f"sequence {too_long[0]} has {lengths[too_long[0]]}" in plan
            return
        outcomes["planned"] += 1
        outcomes["of many"] += plan.num_bins > 4
        outcomes["of several micro-batches"] += plan.num_microbatches > 1
        check_slowly(plan, lengths, num_ranks, capacity, {"scheduler": scheduler})

    @relaxed
    @given(batch=batches())
    def check(batch: tuple[list[int], int, int]) -> None:
        check_one(*batch)

    check()
    # How many of which kind are drawn is chance; these always are of many bins in several micro-batches.
    for length in range(26, 34):
        check_one([length] * 20, 4, 100)
    # those with one CP size never split a sequence, so that long ones are refused
    assert outcomes["planned"] >= (12 if scheduler in ONE_CP_SIZE else 90)
    assert outcomes["of many"] >= 8
    assert outcomes["of several micro-batches"] >= 5


@pytest.mark.parametrize("policy", OVERLONG)
def test_with_every_option(policy: str) -> None:
    outcomes = Counter[str]()

    def check_one(lengths: list[int], num_ranks: int, capacity: int, chosen: dict[str, Any]) -> None:
        if chosen["padding"] is not None:
            capacity += 48  # room for the largest row multiple
        if not legal_sizes(num_ranks, chosen):
            with pytest.raises(InfeasibleError, match="no CP size is left"):
                dcpack.plan(lengths, num_ranks=num_ranks, capacity=capacity, **chosen)
            return
        plan = plan_or_refusal(lengths, num_ranks=num_ranks, capacity=capacity, **chosen)
        if isinstance(plan, str):
            outcomes["refused"] += 1
            assert not never_infeasible(lengths, num_ranks, capacity, chosen), plan
            assert "sequence" in plan or "CP size" in plan
            return
        outcomes["planned"] += 1
        outcomes["of several bins"] += plan.num_bins > 2
        outcomes["padded"] += chosen["padding"] is not None and plan.num_bins > 2
        outcomes["overlong"] += bool(plan.dropped.any() or plan.oversized.any() or plan.starts.any())
        check_slowly(plan, lengths, num_ranks, capacity, chosen)

    @relaxed
    @given(data=st.data(), batch=batches())
    def check(data: st.DataObject, batch: tuple[list[int], int, int]) -> None:
        lengths, num_ranks, capacity = batch
        check_one(lengths, num_ranks, capacity, {**data.draw(options(num_ranks)), "overlong": policy})

    check()
    # How many of which kind are drawn is chance; these always are padded, and overlong where the policy has an answer.
    for scheduler in SCHEDULERS:
        chosen: dict[str, Any] = {"scheduler": scheduler, "padding": PaddingRule(tp=2, block=3), "on_empty": "dummy"}
        check_one([40] * 40 + [2000] * (policy != "error"), 4, 100, {**chosen, "overlong": policy})
    assert outcomes["planned"] >= 40
    assert outcomes["of several bins"] >= 25
    assert outcomes["padded"] >= 5
    if policy != "error":
        assert outcomes["overlong"] >= 5


@relaxed
@given(
    scheduler=st.sampled_from(SCHEDULERS),
    num_ranks=st.integers(1, 16),
    multiple=st.integers(1, 4),
    data=st.data(),
)
def test_enough_short_sequences_always_give_a_plan_without_dummies(
    scheduler: str, num_ranks: int, multiple: int, data: st.DataObject
) -> None:
    least = 2 * num_ranks * multiple
    lengths = data.draw(st.lists(st.integers(1, 50), min_size=least, max_size=least + 20))
    chosen: dict[str, Any] = {"scheduler": scheduler, "microbatch_multiple": multiple}
    plan = dcpack.plan(lengths, num_ranks=num_ranks, capacity=100, **chosen)
    check_slowly(plan, lengths, num_ranks, 100, chosen)


@pytest.mark.parametrize("policy", OVERLONG)
@pytest.mark.parametrize("cost", [QuadraticCost(), RingCost(node_size=4)], ids=["quadratic", "ring"])
def test_no_plan_beats_its_bounds(cost: Any, policy: str) -> None:
    outcomes = Counter[str]()

    @settings(relaxed, max_examples=100)
    @given(data=st.data(), batch=batches(16))
    def check(data: st.DataObject, batch: tuple[list[int], int, int]) -> None:
        lengths, num_ranks, capacity = batch
        chosen = {**data.draw(options(num_ranks)), "overlong": policy}
        plan = plan_or_refusal(lengths, num_ranks=num_ranks, capacity=capacity + 48, cost=cost, **chosen)
        if isinstance(plan, str):
            return
        outcomes["planned"] += plan.num_bins > 0
        assert plan.num_microbatches >= plan.bounds["num_microbatches"]
        for sync in ("microbatch", "step"):
            assert plan.simulate(cost, sync=sync) >= plan.bounds["step_time"] * (1 - 1e-9)
        assert plan.bounds["step_time"] == max(plan.bounds["work"], plan.bounds["longest"])
        assert plan.simulate(cost) >= plan.simulate(cost, sync="step") * (1 - 1e-9)

    check()
    assert outcomes["planned"] >= 20


@relaxed
@given(data=st.data(), batch=batches(16))
def test_plans_are_repeatable_and_travel(data: st.DataObject, batch: tuple[list[int], int, int]) -> None:
    lengths, num_ranks, capacity = batch
    chosen = {**data.draw(options(num_ranks)), "overlong": "split", "on_empty": "dummy"}
    try:
        once, again = (dcpack.plan(lengths, num_ranks=num_ranks, capacity=capacity + 48, **chosen) for _ in range(2))
    except InfeasibleError:
        return
    assert once.digest() == again.digest()
    assert once.first_difference(again) is None
    assert Plan.from_json(once.to_json()).first_difference(once) is None


@pytest.mark.parametrize("policy", OVERLONG)
@pytest.mark.parametrize("method", ["best_fit_decreasing", "concat_then_split", "first_fit", "next_fit"])
def test_packings_without_ranks(method: str, policy: str) -> None:
    outcomes = Counter[str]()

    @settings(relaxed, max_examples=60)
    @given(batch=batches(3), rule=st.none() | rules, most=st.none() | st.integers(1, 4))
    def check(batch: tuple[list[int], int, int], rule: PaddingRule | None, most: int | None) -> None:
        lengths, _, capacity = batch
        capacity += 0 if rule is None else 48
        try:
            plan = dcpack.pack(
                lengths, capacity=capacity, method=method, padding=rule, max_sequences=most, overlong=policy
            )
        except InfeasibleError:
            outcomes["refused"] += 1
            return
        outcomes["planned"] += plan.num_bins > 1
        bins = [
            list(zip(*(c[a:b].tolist() for c in (plan.sequence_ids, plan.starts, plan.entry_lengths)), strict=True))
            for a, b in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)
        ]
        for entries, oversized in zip(bins, plan.oversized, strict=True):
            assert 1 <= len(entries) <= (most or len(lengths))
            if oversized:
                assert len(entries) == 1
            else:
                assert tokens_of_bin([size for *_, size in entries], rule, 1) <= capacity
        parts = sorted((s, start, start + size) for entries in bins for s, start, size in entries)
        if method == "concat_then_split":
            assert all(a[2] == b[1] if a[0] == b[0] else b[1] == 0 for a, b in itertools.pairwise(parts))
            kept = Counter[int]()
            for s, start, stop in parts:
                kept[s] += stop - start
            assert [kept[s] for s in range(len(lengths))] == lengths
        else:
            longest = longest_that_fits(capacity, rule, [1])
            assert parts == [
                (s, *p) for s, length in enumerate(lengths) for p in expected_parts(length, longest, policy)
            ]
        assert plan.num_bins >= plan.bounds["num_bins"] or method == "concat_then_split"

    check()
    assert outcomes["planned"] >= (3 if policy == "error" else 20)
