"""Trials against plans made directly, what is left out and why, and the recommendation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.cost import get_device, get_model
from dcpack.errors import ArgumentError
from dcpack.padding import PaddingRule
from dcpack.report import STRATEGIES
from dcpack.tuning import (
    Job,
    MemoryEstimate,
    MemoryOptions,
    SearchSpace,
    Trial,
    alternatives,
    estimate_memory,
    format_alternatives,
    recommend,
    sample_lengths,
    search,
    trial_to_dict,
)

LENGTHS = np.random.default_rng(5).integers(50, 6000, 50)
JOB = Job(model=get_model("llama3-8b"), device=get_device("h100"), num_ranks=8)


def _space(**options: Any) -> SearchSpace:
    given: dict[str, Any] = {"capacities": (4096,), "max_cp_sizes": (8,), "global_batch_sizes": (16,)}
    return SearchSpace(**{**given, **options})


def _trial(**options: Any) -> Trial:
    given: dict[str, Any] = {
        "capacity": 4096,
        "strategy": "packing_aware",
        "max_cp_size": 8,
        "global_batch_size": 16,
        "recompute": "none",
        "memory": MemoryEstimate(states=1e9, gathered=0.0, activations=1e9, logits=0.0),
        "num_steps": 1,
        "step_time": 1.0,
        "token_time": 1e-6,
    }
    return Trial(**{**given, **options})


def test_a_trial_is_what_plans_made_directly_are() -> None:
    (trial,) = search(JOB, _space(strategies=("packing_aware",)), LENGTHS)
    cost = JOB.cost("none")
    plans = [
        dcpack.plan(
            LENGTHS[k : k + 16],
            num_ranks=8,
            capacity=4096,
            cost=cost,
            padding=PaddingRule(),
            on_empty="dummy",
            scheduler="packing_aware",
        )
        for k in (0, 16, 32)  # two sequences are left over
    ]
    seconds = sum(plan.simulate(cost) for plan in plans)
    tokens = int(LENGTHS[:48].sum())
    assert trial.num_steps == 3
    assert trial.step_time == pytest.approx(seconds / 3)
    assert trial.token_time == pytest.approx(seconds / tokens)
    assert trial.utilization == pytest.approx(tokens / sum(p.num_microbatches * 8 * 4096 for p in plans))
    assert trial.shares.total == pytest.approx(8 * seconds)
    assert trial.memory == estimate_memory(JOB.model, num_ranks=8, capacity=4096)


def test_every_combination_is_there_once() -> None:
    space = _space(capacities=(4096, 2048, 4096), max_cp_sizes=(8, 4), global_batch_sizes=(8, 16))
    trials = search(JOB, space, LENGTHS)
    found = [(t.capacity, t.strategy, t.max_cp_size, t.global_batch_size) for t in trials]
    names = [name for name in STRATEGIES if name != "pad to longest"]
    expected = {(c, s, m, b) for c in (2048, 4096) for s in names for m in (4, 8) for b in (8, 16)}
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert [t.capacity for t in trials] == sorted(t.capacity for t in trials)


def test_recomputing_is_tried_where_nothing_else_fits_and_takes_a_pass_more() -> None:
    small = replace(JOB, memory=MemoryOptions(usable=0.5))  # 40 GB
    space = _space(capacities=(1024, 8192, 2**17), strategies=("packing_aware",))
    trials = search(small, space, np.full(32, 900))
    assert [(t.capacity, t.recompute, t.cause) for t in trials] == [
        (1024, "none", None),
        (8192, "none", "capacity"),
        (8192, "full", None),
        (2**17, "none", "capacity"),
        (2**17, "full", "capacity"),
    ]
    assert small.cost("full").passes == 4.0
    assert trials[1].failure is not None
    assert trials[1].failure.startswith("memory: needs 5")
    assert trials[1].failure.endswith(" GiB, has 37.3 GiB")
    only = search(small, replace(space, recompute=("none",)), np.full(32, 900))
    assert [t.capacity for t in only if t.failure is None] == [1024]


def test_what_cannot_be_planned_says_why() -> None:
    trials = search(JOB, _space(max_cp_sizes=(1, 8)), LENGTHS)
    failed = {(t.strategy, t.max_cp_size): t.failure for t in trials if t.failure is not None}
    assert ("packing_aware", 1) in failed
    assert ("packing_aware", 8) not in failed
    assert "longer than the limit of 4096 tokens" in str(failed["packing_aware", 1])


def test_a_batch_that_the_sequences_do_not_fill_is_reported() -> None:
    trials = search(JOB, _space(global_batch_sizes=(16, 64)), LENGTHS)
    (large,) = (t for t in trials if t.global_batch_size == 64)
    assert (large.failure, large.cause) == ("only 50 sequences to plan", "global_batch_size")
    with pytest.raises(ArgumentError, match=r"at most the 50 sequences, got \[64\]"):
        search(JOB, _space(global_batch_sizes=(64,)), LENGTHS)


def test_progress_is_told_and_kept() -> None:
    told, calls = [], []

    def start(total: int) -> Any:
        told.append(total)
        return lambda: calls.append(1)

    search(JOB, _space(max_cp_sizes=(1, 8), global_batch_sizes=(8, 16)), LENGTHS, start=start)
    names = [name for name in STRATEGIES if name != "pad to longest"]
    assert told == [2 * len(names) * (6 + 3)]
    assert len(calls) == told[0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacities": ()}, "nothing to try: capacities must not be empty"),
        ({"capacities": (0,)}, "capacities must be at least 1, got 0"),
        ({"max_cp_sizes": (True,)}, "max_cp_sizes must be an integer"),
        ({"strategies": ("best",)}, "strategies must be one of"),
        ({"recompute": ("half",)}, "recompute must be one of"),
    ],
)
def test_nothing_to_try(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        _space(**options)


def test_a_job_that_cannot_be() -> None:
    with pytest.raises(ArgumentError, match="num_ranks must be at least 1"):
        replace(JOB, num_ranks=0)
    with pytest.raises(ArgumentError, match="tp_size must divide the 32 heads"):
        replace(JOB, tp_size=3)


def test_the_ranks_of_a_node() -> None:
    assert [replace(JOB, num_ranks=n, tp_size=t).node_ranks for n, t in ((64, 1), (64, 4), (4, 1))] == [8, 2, 4]
    assert Job(model=JOB.model, device=replace(JOB.device, node_size=None), num_ranks=64).node_ranks == 64


@pytest.mark.parametrize(
    ("count", "expected"), [(1, [10]), (2, [10, 13]), (4, [10, 11, 13, 14]), (6, [10, 11, 12, 13, 14, 15]), (9, None)]
)
def test_a_sample_is_spread_over_the_file(count: int, expected: list[int] | None) -> None:
    lengths = np.arange(10, 16)
    assert sample_lengths(lengths, count).tolist() == (expected or lengths.tolist())
    assert sample_lengths(lengths.tolist(), count).tolist() == (expected or lengths.tolist())


def test_the_least_time_wins_and_ties_go_to_less_memory() -> None:
    lean = MemoryEstimate(states=1.0, gathered=0.0, activations=0.0, logits=0.0)
    fast, close, far = _trial(), _trial(token_time=1.009e-6, memory=lean), _trial(token_time=1.02e-6, memory=lean)
    assert recommend([far, fast, close]) is close
    assert recommend([far, fast]) is fast
    assert recommend([_trial(failure="no"), far]) is far
    assert recommend([_trial(failure="no")]) is None
    assert recommend([_trial(global_batch_size=32), fast]) is fast


def test_alternatives_differ_in_one_thing() -> None:
    best = _trial()
    others = {
        "capacity": _trial(capacity=8192, recompute="full"),
        "strategy": _trial(strategy="static CP", failure="too long"),
        "cp": _trial(max_cp_size=4),
        "batch": _trial(global_batch_size=32),
    }
    memory = _trial(capacity=2**20, strategy="static CP", failure="memory: much", cause="capacity")
    few = _trial(global_batch_size=512, capacity=8192, failure="only 50 sequences to plan", cause="global_batch_size")
    two = _trial(capacity=8192, max_cp_size=4)
    found = alternatives(best, [two, memory, few, best, *others.values()])
    assert found == [memory, others["capacity"], others["strategy"], others["cp"], few, others["batch"]]
    table = format_alternatives(best, found).splitlines()
    width = len("capacity 8,192, recompute full")
    assert [line[:width].rstrip() for line in table[3:]] == [
        "recommended",
        "capacity 1,048,576",
        "capacity 8,192, recompute full",
        "strategy static CP",
        "max cp size 4",
        "global batch size 512",
        "global batch size 32",
    ]
    assert table[4].endswith("memory: much")
    assert " 1,000.0 " in table[3]


def test_a_trial_as_json() -> None:
    (trial,) = search(JOB, _space(strategies=("packing_aware",)), LENGTHS)
    values = trial_to_dict(trial)
    assert values["memory"]["total"] == trial.memory.total
    assert sum(values["shares"][part] for part in ("work", "padding", "ring", "waiting")) == pytest.approx(1.0)
    assert values["held_back_by"] == trial.shares.held_back_by()
    failed = trial_to_dict(_trial(failure="no"))
    assert failed["failure"] == "no"
    assert "token_time" not in failed
