from __future__ import annotations

import numpy as np
import pytest
from problems import problem

from dcpack.cost import RingCost
from dcpack.padding import PaddingRule
from dcpack.scheduling.size_table import SizeTable
from dcpack.scheduling.timing import GroupTimes


def table_of(times: GroupTimes, start: list[int], groups: list[list[int]]) -> tuple[SizeTable, float]:
    index = np.array(start)
    counts = np.array([len(group) for group in groups])
    items = np.array([item for group in groups for item in group])
    now, _ = times.of_groups(index, counts, items)
    longest = times.problem.lengths.argmax()
    unit = float(times.alone(np.array([0]), np.array([longest]))[0]) / float(times.problem.lengths[longest])
    return SizeTable(times, index, now, counts, items, 0.0), unit


def test_by_hand() -> None:
    # time is tokens / CP size: 80, 60 and 20 on 1, 2, 4 or 8 ranks
    table, unit = table_of(GroupTimes(problem([80, 60, 20], 8)), [0, 0, 0], [[0], [1], [2]])
    assert table.within(80 * unit).tolist() == [0, 0, 0]
    assert table.within(60 * unit).tolist() == [1, 0, 0]
    assert table.within(15 * unit).tolist() == [3, 2, 1]
    assert table.within(9.9 * unit).tolist() == [-1, 3, 2]


def test_groups_of_several_items_never_become_narrower() -> None:
    table, unit = table_of(GroupTimes(problem([80, 60, 20], 8)), [1, 2], [[0, 1], [2]])
    assert table.within(70 * unit).tolist() == [1, 2]
    assert table.within(35 * unit).tolist() == [2, 2]
    assert table.within(4 * unit).tolist() == [-1, 3]


def test_a_size_that_pads_too_much_is_left_out() -> None:
    # Two items of 90 are padded to 96 each, and 8 rows of 24 hold 192.
    for capacity, expected in ((24, 1), (23, -1)):
        of = problem([90, 90], 8, capacity=capacity, padding=PaddingRule(block=12), cp_sizes=(4, 8))
        table, _ = table_of(GroupTimes(of), [0], [[0, 1]])
        assert table.within(float(table.now[0])).tolist() == [0]
        assert table.within(0.6 * float(table.now[0])).tolist() == [expected]


@pytest.mark.parametrize("node_size", [None, 8])
def test_as_looking_at_every_size(node_size: int | None) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 3000, 30).tolist()
    cost = RingCost(linear=50.0, ring_intra=20.0, ring_inter=90.0, node_size=node_size)
    times = GroupTimes(problem(lengths, 32, capacity=200, cost=cost, cp_sizes=tuple(range(1, 33))))
    items = np.arange(30)
    now = times.alone(times.smallest, items)
    table = SizeTable(times, times.smallest, now, np.ones(30, np.int64), items, 0.0)
    for target in np.quantile(now, [0.1, 0.3, 0.6, 0.9]).tolist():
        expected = []
        for item, start in enumerate(times.smallest.tolist()):
            sizes = np.arange(start, 32)
            fast = np.flatnonzero(times.alone(sizes, np.full(sizes.size, item)) <= target)
            expected.append(int(sizes[fast[0]]) if fast.size else -1)
        assert table.within(target).tolist() == expected


def test_large_sizes_are_looked_at_in_steps() -> None:
    times = GroupTimes(problem([100_000], 1000, capacity=1000, cp_sizes=tuple(range(1, 1001))))
    table, unit = table_of(times, [99], [[0]])
    for wanted in (101, 150, 500, 990):
        found = int(times.sizes[table.within(100_000 / wanted * unit)[0]])
        assert wanted <= found <= 1.04 * wanted
    assert table.table.size < 200
