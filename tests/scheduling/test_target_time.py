from __future__ import annotations

import numpy as np
import pytest
from problems import problem, seen

from dcpack.cost import RingCost
from dcpack.scheduling import Group, Problem
from dcpack.scheduling.target_time import at_target, best_target, level
from dcpack.scheduling.timing import GroupTimes


def items(problem: Problem) -> np.ndarray:
    return problem.longest_first


def test_a_target_decides_the_size_of_each_item() -> None:
    # 360 tokens on 8 ranks: the bound is 45. 160 needs 4 ranks, 80 and 80 two each at 1.0; at 1.8 (81) one each.
    given = problem([160, 80, 80, 40], 9, cp_sizes=(1, 2, 4, 8))
    times = GroupTimes(given)
    assert seen(at_target(times, items(given), 9, 1.0)) == [(4, [0]), (2, [1]), (2, [2]), (1, [3])]
    # at 80: 160 needs 2, the others share four narrow ranks
    assert seen(at_target(times, items(given), 6, 80 / 60)) == [(2, [0]), (1, [1]), (1, [2]), (1, [3])]


def test_short_items_fill_what_a_wide_group_leaves() -> None:
    # 180 needs two ranks: 90 a rank. The bound is 65; at 90, 60 and 10 go to the two narrow ranks, longest first, to
    # whoever is done first.
    given = problem([180, 60, 10, 10], 4)
    assert seen(at_target(GroupTimes(given), items(given), 4, 90 / 65)) == [(2, [0]), (1, [1]), (1, [2, 3])]


def test_no_room_and_no_ranks_are_none() -> None:
    given = problem([90, 90, 90], 2)
    assert at_target(GroupTimes(given), items(given), 2, 1.0) is None  # 3 x 90 into 2 x 100
    given = problem([300, 300], 4)
    assert at_target(GroupTimes(given), items(given), 4, 1.0) is None  # 4 ranks each


def test_max_sequences_hold() -> None:
    given = problem([10, 10, 10, 10], 2, max_sequences=2)
    assert seen(at_target(GroupTimes(given), items(given), 2, 1.0)) == [(1, [0, 2]), (1, [1, 3])]
    given = problem([10, 10, 10, 10, 10], 2, max_sequences=2)
    assert at_target(GroupTimes(given), items(given), 2, 1.0) is None


def test_a_full_group_gets_items_again_once_they_are_short_enough() -> None:
    # 60 and 55; 50 fits beside neither, so 2 ranks are too few; 45 and 40 do fit.
    given = problem([60, 55, 45, 40], 2)
    assert seen(at_target(GroupTimes(given), items(given), 2, 1.0)) == [(1, [0, 3]), (1, [1, 2])]
    assert at_target(GroupTimes(problem([60, 55, 50], 2)), np.arange(3), 2, 1.0) is None


def test_an_oversized_item_stays_alone() -> None:
    given = problem([900, 10], 8, oversized=np.array([True, False]))
    assert best_target(GroupTimes(given), items(given), 8) is None  # it takes all ranks
    only = problem([900], 8, oversized=np.array([True]))
    assert seen(best_target(GroupTimes(only), items(only), 8)) == [(8, [0])]


def test_the_best_target_reaches_the_bound_where_that_can_be() -> None:
    # 400 tokens on 8 ranks are 50 a rank: 200 on 4, 100 on 2, 50 and 50 on one each.
    given = problem([200, 100, 50, 50], 8)
    times = GroupTimes(given)
    groups = best_target(times, items(given), 8)
    assert seen(groups) == [(4, [0]), (2, [1]), (1, [2]), (1, [3])]
    assert groups is not None
    assert times.slowest(groups) == pytest.approx(times.even_time)


def test_what_is_given_to_start_with_stays_where_nothing_is_better() -> None:
    # Within memory only this pairing fits, and longest first does not find it: 52 meets 48, then 40 + 30 + 30.
    given = problem([52, 48, 40, 30, 30], 2)
    start = [Group(1, [0, 1]), Group(1, [2, 3, 4])]
    times = GroupTimes(given)
    assert at_target(times, items(given), 2, 1.0) is None
    assert seen(best_target(times, items(given), 2, start)) == seen(start)
    assert best_target(times, items(given), 2) is None


def test_free_ranks_go_to_the_slowest_groups() -> None:
    # 90 / 80 / 20 with 8 ranks: at 22.5 the first two need 4 each, one too many; at 40 the sizes 4, 2, 1 hold.
    times = GroupTimes(problem([90, 80, 20], 8))
    groups = [Group(1, [0]), Group(1, [1]), Group(1, [2])]
    assert seen(level(times, groups, 7)) == [(4, [0]), (2, [1]), (1, [2])]
    assert seen(level(times, groups, 5)) == [(2, [0]), (2, [1]), (1, [2])]
    assert seen(level(times, groups, 3)) == seen(groups)
    assert [group.cp_size for group in groups] == [1, 1, 1]  # what was given is untouched


def test_no_target_at_all_where_work_costs_nothing() -> None:
    free = RingCost(linear=0.0, quadratic=0.0, ring_intra=0.0, ring_inter=0.0)
    given = problem([90, 80], 2, cost=free)
    assert seen(best_target(GroupTimes(given), items(given), 2)) == [(1, [0]), (1, [1])]
