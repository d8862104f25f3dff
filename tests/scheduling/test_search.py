from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import problem

import dcpack.scheduling.search as module
from dcpack.scheduling.base import Problem
from dcpack.scheduling.exhaustive import is_small, plan_exhaustively
from dcpack.scheduling.options import option_faults
from dcpack.scheduling.search import search_any_plan, why_impossible
from dcpack.scheduling.timing import GroupTimes


def random_problem(rng: np.random.Generator) -> Problem:
    ranks, count = int(rng.integers(1, 5)), int(rng.integers(1, 8))
    sizes = tuple(sorted({int(size) for size in rng.integers(1, ranks + 1, 2)}))
    lengths = rng.integers(1, 100 * sizes[-1] + 1, count).tolist()
    changes: dict[str, Any] = {"cp_sizes": sizes, "on_empty": str(rng.choice(["error", "dummy"]))}
    if rng.random() < 0.4:
        changes["max_sequences"] = int(rng.integers(1, 3))
    if rng.random() < 0.4:
        changes["microbatch_multiple"] = 2
    if rng.random() < 0.4:
        changes["groups"] = rng.integers(0, 4, count)
    if rng.random() < 0.4:
        changes |= {"amounts": rng.integers(0, 3, (1, count)), "amount_limits": (3,)}
    return problem(lengths, ranks, **changes)


def test_it_finds_a_plan_exactly_where_one_exists() -> None:
    rng = np.random.default_rng(4)
    found = {True: 0, False: 0}
    for _ in range(150):
        given = random_problem(rng)
        assert is_small(given)
        best, searched = plan_exhaustively(GroupTimes(given)), search_any_plan(given)
        assert searched.is_proof
        assert (best is None) == (searched.plan is None)
        found[best is not None] += 1
        for plan in (best, searched.plan):
            if plan is not None:
                assert option_faults(given, plan) == []
                assert sorted(i for groups in plan for g in groups for i in g.items) == list(range(given.lengths.size))
                assert all(sum(group.cp_size for group in groups) == given.num_ranks for groups in plan)
                assert all(not g.items or given.fits(g, given.cp_sizes.index(g.cp_size)) for m in plan for g in m)
        if why_impossible(given) is not None:
            assert best is None
    assert min(found.values()) >= 20


def test_the_exhaustive_plan_is_the_fastest() -> None:
    # all on all three ranks take 150 / 3; 90 on two ranks beside 60 on one take 60
    made = plan_exhaustively(GroupTimes(problem([90, 60], 3, cp_sizes=(1, 2, 3))))
    assert made is not None
    assert sorted((group.cp_size, group.items) for groups in made for group in groups) == [(3, [0, 1])]


def test_sizes_that_ordinary_ways_cannot_fill() -> None:
    # 8 is 3 + 5 and nothing else, so each micro-batch needs two groups of different sizes
    given = problem([10] * 20, 8, cp_sizes=(3, 5), max_sequences=2)
    searched = search_any_plan(given)
    assert searched.plan is not None
    assert [sorted(group.cp_size for group in groups) for groups in searched.plan] == [[3, 5]] * 5


def test_reasons_by_hand() -> None:
    assert why_impossible(problem([10], 7, cp_sizes=(2, 4))) == "no sum of the sizes is 7"
    few = why_impossible(problem([10] * 3, 8, cp_sizes=(1, 2)))
    assert few == "at least 1 micro-batches of at least 4 groups each cannot all get work from 3 sequences"
    assert why_impossible(problem([10] * 3, 8, cp_sizes=(1, 2), on_empty="dummy")) is None
    crowd = why_impossible(problem([90] * 4, 2, groups=np.array([0, 0, 0, 1])))
    assert crowd is not None
    assert crowd.startswith("groups that are too large for one micro-batch: sequence 0 of 90 tokens")
    assert why_impossible(problem([90] * 4, 2)) is None


def test_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem([10] * 20, 8, cp_sizes=(3, 5), max_sequences=2)
    monkeypatch.setattr(module, "_MOST_STEPS", 5)
    searched = search_any_plan(given)
    assert (searched.plan, searched.is_proof) == (None, False)
