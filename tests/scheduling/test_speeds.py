from __future__ import annotations

import numpy as np
from problems import problem

from dcpack.scheduling.speeds import _Search, deal_speeds
from dcpack.scheduling.timing import GroupTimes


def test_long_items_choose_the_target_that_wastes_least() -> None:
    # Powers of two on 4 ranks: 300 and 200 tokens need 4 and 2 ranks at least. One micro-batch of 75 and one of 100
    # (200 on two, 100 and 100 on one each) leave no rank idle; two equal ones of 87.5 cannot.
    given = problem([300, 200, 100, 100], 4)
    times = GroupTimes(given)
    deals = list(deal_speeds(times, 2, 3))
    assert sorted(items.tolist() for items, _ in deals[0]) == [[0], [1, 2, 3]]


def test_deals_differ_and_hold_each_item_once() -> None:
    rng = np.random.default_rng(3)
    lengths = np.append(rng.integers(1, 30, 40), rng.integers(200, 700, 4)).tolist()
    times = GroupTimes(problem(lengths, 16))
    for count in (2, 3):
        deals = list(deal_speeds(times, count, 4))
        assert 1 < len(deals) <= 4
        seen = set()
        for deal in deals:
            assert len(deal) == count
            dealt = [items.tolist() for items, _ in deal]
            assert sorted(item for items in dealt for item in items) == list(range(44))
            assert all(items == sorted(items, key=lambda i: (-lengths[i], i)) for items in dealt)
            assert all(sum(lengths[i] for i in items) <= 1600 for items in dealt)
            assert sum(target for _, target in deal) >= times.even_time * 0.999
            seen.add(str(dealt))
        assert len(seen) == len(deals)


def test_nothing_where_memory_is_too_tight_or_nothing_is_long() -> None:
    short = problem([10] * 8, 4, cp_sizes=(1,))
    assert list(deal_speeds(GroupTimes(short), 2, 3)) == []
    tight = problem([400, 400, 400], 4)
    assert list(deal_speeds(GroupTimes(tight), 2, 3)) == []


def test_sums_of_the_dealt_long_items_equal_the_plain_form() -> None:
    rng = np.random.default_rng(5)
    given = problem(np.append(rng.integers(1, 100, 30), rng.integers(150, 700, 6)).tolist(), 16)
    times = GroupTimes(given)
    search = _Search(times, 2)
    some_wide = some_infeasible = False
    for c, targets in enumerate(search.targets.tolist()):
        free, slack, feasible = [16, 16], 0.0, True
        narrow, ranks_times_tokens = search.narrow_work, search.narrow_tokens
        for w, item in enumerate(given.longest_first[: search.num_wide]):
            alone = times.alone(np.arange(5), np.full(5, item))
            sizes = []
            for target in targets:
                works = [k for k in range(5) if k >= times.smallest[item] and alone[k] <= target]
                sizes.append(int(times.sizes[works[0]]) if works else 17)
            areas = [n * t if n <= f else np.inf for n, t, f in zip(sizes, targets, free, strict=True)]
            chosen = int(np.argmin(areas))
            work = float(alone[times.smallest[item]] * times.sizes[times.smallest[item]])
            feasible &= areas[chosen] < np.inf
            ranks_times_tokens += sizes[chosen] * int(given.lengths[item])
            if sizes[chosen] > 1:
                assert search.chosen[w, c] == chosen
                free[chosen] -= sizes[chosen]
                slack += areas[chosen] - work if areas[chosen] < np.inf else 0.0
            else:
                assert search.chosen[w, c] == -1
                narrow += work
        some_infeasible |= not feasible
        some_wide |= slack > 0
        assert search.feasible[c] == feasible
        assert search.free[c].tolist() == free
        assert search.ranks_times_tokens[c] == ranks_times_tokens
        assert np.isclose(search.slack[c], slack)
        assert np.isclose(search.narrow[c], narrow)
    assert some_wide
    assert some_infeasible
