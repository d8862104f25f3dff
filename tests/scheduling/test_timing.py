from __future__ import annotations

import numpy as np
import pytest
from problems import problem

from dcpack.cost import RingCost
from dcpack.padding import PaddingRule
from dcpack.scheduling import Group, MicroBatch
from dcpack.scheduling.timing import GroupTimes, as_groups


def array(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_the_smallest_size_that_holds_each_item() -> None:
    times = GroupTimes(problem([100, 101, 200, 201, 800, 1], 8))
    assert times.smallest.tolist() == [0, 1, 1, 2, 3, 0]
    # at capacity 100 and a multiple of 8 * cp tokens (tp 4), CP 1 holds 100 and CP 2 holds 192
    padded = GroupTimes(problem([100, 101, 192, 193], 8, padding=PaddingRule(tp=4)))
    assert padded.smallest.tolist() == [0, 1, 1, 2]
    assert padded.padded(array(0, 1, 1, 2), array(0, 1, 2, 3)).tolist() == [100, 112, 192, 224]


def test_an_oversized_item_goes_on_the_largest_size() -> None:
    assert GroupTimes(problem([900], 8, oversized=np.array([True]))).smallest.tolist() == [3]


def test_times_are_whole_and_proportional_to_the_model() -> None:
    times = GroupTimes(problem([80, 60, 20], 4))
    alone = times.alone(array(0, 0, 0, 1), array(0, 1, 2, 0))
    assert (alone == np.rint(alone)).all()
    assert alone[0] >= 2**39  # fine enough
    assert alone / alone[2] == pytest.approx([4, 3, 1, 2])
    assert times.work / alone[2] == pytest.approx(8)
    assert times.even_time * 4 == times.work


def test_groups_add_up() -> None:
    times = GroupTimes(problem([80, 60, 20], 4))
    unit = float(times.alone(array(0), array(2))[0])
    taken, tokens = times.of_groups(array(0, 1), array(2, 1), array(0, 2, 1))
    assert taken / unit == pytest.approx([5, 1.5])
    assert tokens.tolist() == [100, 60]
    assert times.slowest([Group(2, [0]), Group(1, [1])]) / unit == pytest.approx(3)


def test_fit_sees_capacity_ranks_and_company_of_oversized_items() -> None:
    times = GroupTimes(problem([80, 60, 500], 4, oversized=np.array([False, False, True])))
    assert times.fit([[Group(2, [0, 1])]])
    assert not times.fit([[Group(1, [0, 1])]])
    assert not times.fit([[Group(4, [0]), Group(1, [1])]])
    assert times.fit([[Group(4, [2])]])
    assert not times.fit([[Group(4, [1, 2])]])


def test_ranks_add_up_over_a_step_where_their_groups_sit() -> None:
    # Larger groups sit first: the middle group of 2 has ranks 0 and 1, then come rank 2 and rank 3.
    microbatches = [[Group(1, [0]), Group(2, [1]), Group(1, [2])], [Group(2, [3]), Group(1, [4]), Group(1, [5])]]
    lengths = [80, 60, 20, 40, 10, 70]
    unit = float(GroupTimes(problem([80], 1)).alone(array(0), array(0))[0]) / 80
    ranks = [[30, 30, 80, 20], [20, 20, 10, 70]]
    assert GroupTimes(problem(lengths, 4)).step_time(microbatches) / unit == pytest.approx(80 + 70)
    step = GroupTimes(problem(lengths, 4, sync="step"))
    assert step.step_time(microbatches) / unit == pytest.approx(max(map(sum, zip(*ranks, strict=True))))


def test_tables_hold_the_times_of_single_items() -> None:
    for padding in (None, PaddingRule(tp=4)):
        times = GroupTimes(problem([80, 60, 500], 8, padding=padding))
        table = times.alone_table(array(2, 0), array(0, 3))
        assert table.shape == (2, 2)
        for row, item in enumerate((2, 0)):
            for column, size in enumerate((0, 3)):
                assert table[row, column] == times.alone(array(size), array(item))[0]


def test_each_doubling_of_the_mean_cp_costs_four_percent() -> None:
    times = GroupTimes(problem([50, 50], 8))
    assert times.score(1000.0, [Group(1, [0, 1])]) == 1000
    assert times.score(1000.0, [Group(2, [0]), Group(2, [1])]) == 1040
    assert times.score(1000.0, [Group(1, [0]), Group(2, [1]), Group(4, [])]) == 1020  # mean 1.5, dummies left out
    assert times.score(1000.0, [Group(8, [0, 1])]) == 1120


def test_placing_prices_groups_that_cross_nodes() -> None:
    cost = RingCost(linear=1.0, quadratic=0.0, ring_intra=0.0, ring_inter=4.0, node_size=4)
    times = GroupTimes(problem([60, 30, 30], 6, cost=cost, cp_sizes=(1, 2, 3)))
    groups = [Group(3, [0]), Group(3, [1]), Group(0, [])]
    taken, first = times.placed(groups[:2])
    unit = float(times.alone(array(0), array(1))[0]) / 30
    # ranks 3..5 cross the node: 10 + 2 * 4 * 10
    assert first.tolist() == [0, 3]
    assert taken / unit == pytest.approx([20, 90])


def test_step_time_in_both_modes() -> None:
    steps: list[MicroBatch] = [[Group(1, [0]), Group(1, [1])], [Group(1, [2]), Group(1, [])]]
    unit = None
    for sync, expected in (("microbatch", 80 + 20), ("step", 80 + 20)):
        times = GroupTimes(problem([80, 60, 20], 2, sync=sync))
        unit = float(times.alone(array(0), array(2))[0]) / 20
        assert times.step_time(steps) / unit == pytest.approx(expected)
    times = GroupTimes(problem([80, 60, 20], 2, sync="step"))
    assert times.step_time([steps[0], steps[1][::-1]]) / unit == pytest.approx(80)  # [2] on the rank of [1]


def test_empty_groups_are_left_out() -> None:
    times = GroupTimes(problem([80, 60, 20], 8))
    groups = as_groups(times, array(1, 0, 2), [[0], [], [1, 2]])
    assert [(group.cp_size, group.items) for group in groups] == [(2, [0]), (4, [1, 2])]


def test_much_cp_must_gain_more() -> None:
    times = GroupTimes(problem([80, 60, 20], 8))
    groups = [Group(4, [0, 1, 2])]
    assert times.score(1e6, groups) == pytest.approx(1.08e6)  # two doublings of 4%
    times.usual_mean_cp = 2.0
    assert times.score(1e6, groups) == pytest.approx(1.28e6)  # one of them beyond the usual: 20% on top
    assert times.score(1e6, [Group(2, [0, 1, 2])]) == pytest.approx(1.04e6)


def test_a_little_beyond_the_usual_cp_costs_half_of_it_up_to_a_tenth() -> None:
    times = GroupTimes(problem([80, 60, 20], 8))
    times.usual_mean_cp = 4.0
    mean = np.array([4.0, 4.4, 4.8, 5.6, 6.0, 8.0, 16.0])  # 0 0.1 0.2 0.4 0.5 1 and 2 doublings beyond
    on_top = [0.0, 0.05, 0.1, 0.1, 0.1, 0.2, 0.4]
    expected = [1e6 * (1.08 + 0.04 * d + x) for d, x in zip([0, 0.1, 0.2, 0.4, 0.5, 1, 2], on_top, strict=True)]
    assert times.priced(np.full(7, 1e6), mean) == pytest.approx(expected)
