from __future__ import annotations

from problems import problem, seen

from dcpack.cost import RingCost
from dcpack.scheduling import Group
from dcpack.scheduling.free_ranks import use_free_ranks
from dcpack.scheduling.timing import GroupTimes


def test_bins_are_split_before_anything_is_widened() -> None:
    times = GroupTimes(problem([50, 30, 20, 90], 4))
    groups = [Group(1, [0, 1, 2]), Group(1, [3])]
    # the slowest bin, 100 tokens, gives every second item; then [50 20], 70 tokens, is split again
    assert seen(use_free_ranks(times, groups, 3)) == [(1, [0, 2]), (1, [3]), (1, [1])]
    assert seen(use_free_ranks(times, groups, 4)) == [(1, [0]), (1, [3]), (1, [1]), (1, [2])]
    assert seen(groups) == [(1, [0, 1, 2]), (1, [3])]  # what was given is untouched


def test_then_the_lightest_groups_double() -> None:
    times = GroupTimes(problem([90, 20, 50], 8))
    groups = [Group(1, [0]), Group(1, [1]), Group(1, [2])]
    assert seen(use_free_ranks(times, groups, 4)) == [(1, [0]), (2, [1]), (1, [2])]
    assert seen(use_free_ranks(times, groups, 5)) == [(1, [0]), (2, [1]), (2, [2])]
    # 2 2 2 after one round, then the lightest goes to 4
    assert seen(use_free_ranks(times, groups, 8)) == [(2, [0]), (4, [1]), (2, [2])]


def test_any_sizes_use_the_last_rank() -> None:
    times = GroupTimes(problem([90, 20], 7, cp_sizes=(1, 2, 3, 4, 5, 6, 7)))
    # 2 for [1], 2 for [0], 4 for [1]; the last rank goes to the lightest again
    assert seen(use_free_ranks(times, [Group(1, [0]), Group(1, [1])], 7)) == [(2, [0]), (5, [1])]


def test_no_group_becomes_slower_than_the_slowest() -> None:
    # passing on keys and values costs more than a rank's own work: on two ranks an item takes longer
    slow_ring = RingCost(linear=1.0, quadratic=0.0, ring_intra=9.0, ring_inter=9.0)
    times = GroupTimes(problem([90, 10], 8, cost=slow_ring))
    # 10 on two: 5 + 45; on four: 2.5 + 67.5; on eight 1.25 + 78.75. 90 would be over 90 on any.
    assert seen(use_free_ranks(times, [Group(1, [0]), Group(1, [1])], 8)) == [(1, [0]), (4, [1])]


def test_without_free_ranks_nothing_changes() -> None:
    times = GroupTimes(problem([50, 50], 1))
    groups = [Group(1, [0, 1])]
    assert use_free_ranks(times, groups, 1) is groups
