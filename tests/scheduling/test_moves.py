from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from problems import problem, seen

from dcpack.scheduling.base import Group, MicroBatch
from dcpack.scheduling.moves import improve_by_moves
from dcpack.scheduling.timing import GroupTimes


def moved(lengths: list[int], given: list[list[list[int]]], most: int = 9, **changes: Any) -> list[Any]:
    """Groups of one rank each, by micro-batch, after moves: the items of each, sorted."""
    times = GroupTimes(problem(lengths, len(given[0]), **changes))
    before: list[MicroBatch] = [[Group(1, list(items)) for items in groups] for groups in given]
    after = improve_by_moves(times, before, most)
    assert [[group.items for group in groups] for groups in before] == given
    assert times.step_time(after) <= times.step_time(before)
    return [[sorted(group.items) for group in groups] for groups in after]


def test_a_move_by_hand() -> None:
    # 50 + 30 against 20: the 30 moves
    assert moved([50, 30, 20], [[[0, 1], [2]]]) == [[[0], [1, 2]]]


def test_a_swap_by_hand() -> None:
    # 60 + 40 against 50 + 30 (full bins of 100): 60 for 50 gives 90 and 90
    assert moved([60, 40, 50, 30], [[[0, 1], [2, 3]]]) == [[[1, 2], [0, 3]]]


def test_nothing_is_done_without_moves_or_gain() -> None:
    assert moved([60, 40, 50, 30], [[[0, 1], [2, 3]]], most=0) == [[[0, 1], [2, 3]]]
    assert moved([50, 50], [[[0], [1]]]) == [[[0], [1]]]


def test_capacity_counts_and_budgets_hold() -> None:
    assert moved([60, 40, 50, 30], [[[0, 1], [2, 3]]], capacity=85) == [[[0, 1], [2, 3]]]
    assert moved([50, 30, 10, 5], [[[0, 1], [2, 3]]]) == [[[0], [1, 2, 3]]]
    assert moved([50, 30, 10, 5], [[[0, 1], [2, 3]]], max_sequences=2) == [[[1, 2], [0, 3]]]
    images = {"amounts": np.array([[1, 1, 2]]), "amount_limits": (2,)}
    assert moved([50, 30, 20], [[[0, 1], [2]]], **images) == [[[0, 1], [2]]]


def test_items_change_the_micro_batch_unless_they_are_tied() -> None:
    # 90 + 10 and 50; then 80 and 40 + 30: the 10 can hide behind the 80
    given = [[[0, 1], [2]], [[3], [4, 5]]]
    lengths = [90, 10, 85, 80, 40, 30]
    assert moved(lengths, given) == [[[0], [2]], [[3], [1, 4, 5]]]
    tied = moved(lengths, given, groups=np.array([0, 0, 0, 1, 1, 1]))
    assert [sorted(item for group in groups for item in group) for groups in tied] == [[0, 1, 2], [3, 4, 5]]


def test_ranks_that_meet_once_are_levelled_over_micro_batches() -> None:
    # rank 0: 60 + 20 then 60, rank 1: 40 then 40: 140 against 80; the 20 moves
    assert moved([60, 20, 40, 60, 40], [[[0, 1], [2]], [[3], [4]]], sync="step") != [[[0, 1], [2]], [[3], [4]]]


def test_dummies_and_oversized_items_stay() -> None:
    oversized = {"oversized": np.array([True, False, False])}
    times = GroupTimes(problem([500, 60, 30], 3, cp_sizes=(1,), **oversized))
    given: list[MicroBatch] = [[Group(1, [0]), Group(1, [1, 2]), Group(1, [])]]
    assert seen(improve_by_moves(times, given, 5)[0]) == [(1, [0]), (1, [1, 2]), (1, [])]


@pytest.mark.parametrize("sync", ["microbatch", "step"])
def test_random_plans_never_become_slower(sync: str) -> None:
    rng = np.random.default_rng(5)
    gained = 0
    for _ in range(30):
        lengths = rng.integers(1, 60, 24).tolist()
        parts = np.array_split(rng.permutation(24), 8)
        given: list[MicroBatch] = [[Group(2, p.tolist()) for p in parts[:4]], [Group(2, p.tolist()) for p in parts[4:]]]
        times = GroupTimes(problem(lengths, 8, sync=sync))
        after = improve_by_moves(times, given, 50)
        gained += times.step_time(after) < times.step_time(given)
        assert times.fit(after)
        assert sorted(i for groups in after for group in groups for i in group.items) == list(range(24))
    assert gained >= 20
