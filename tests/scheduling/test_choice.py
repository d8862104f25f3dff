from __future__ import annotations

import pytest
from problems import LINEAR, problem

import dcpack
import dcpack.scheduling.choice as module
import dcpack.scheduling.dynamic_cp as dynamic_cp
from dcpack.scheduling import Group, MicroBatch
from dcpack.scheduling.timing import GroupTimes

WIDE: list[MicroBatch] = [[Group(2, [0, 1])]]
NARROW: list[MicroBatch] = [[Group(1, [0]), Group(1, [1])]]


def test_a_lower_mean_cp_never_excuses_what_is_slower_than_packing_aware(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two plans of the rule: 51 on CP 1 is better than 50 on CP 2, of which each doubling must gain 4%, but slower.
    monkeypatch.setattr(dynamic_cp, "deals_of", lambda *given: [NARROW])
    for candidates in ([NARROW, WIDE], [WIDE, NARROW]):
        monkeypatch.setattr(module, "rule_candidates", lambda problem, given=candidates: given)
        assert dcpack.plan([51, 49], num_ranks=2, capacity=100, cost=LINEAR).cp_size.tolist() == [2]


def test_the_better_score_stays_and_nothing_is_no_candidate() -> None:
    choice = module.Choice(GroupTimes(problem([51, 49], 2)))
    choice.offer([])
    assert choice.best == []
    assert choice.is_over(1e9)
    for candidate in (WIDE, NARROW, WIDE):
        choice.offer(candidate)
    assert choice.best == NARROW  # 51 against 50 with the price of one doubling, 52
    assert choice.time / choice.times.even_time == pytest.approx(1.02)
    assert choice.is_over(1.01)
    assert not choice.is_over(1.03)


def test_fewer_micro_batches_win_among_equal_scores() -> None:
    two: list[MicroBatch] = [[Group(1, [0]), Group(1, [1])], [Group(1, [2]), Group(1, [3])]]
    one: list[MicroBatch] = [[Group(1, [0, 2]), Group(1, [1, 3])]]
    choice = module.Choice(GroupTimes(problem([10, 10, 10, 10], 2)))
    choice.offer(two)
    choice.offer(one)
    assert choice.best == one
    choice.offer(two)
    assert choice.best == one


def test_levelling_keeps_sizes_and_groups_together() -> None:
    times = GroupTimes(problem([80, 20, 80, 20], 2, sync="step"))
    given: list[MicroBatch] = [[Group(1, [0]), Group(1, [1])], [Group(1, [2]), Group(1, [3])]]
    levelled = module.level_ranks(times, given)
    assert [[group.items for group in groups] for groups in levelled] == [[[0], [1]], [[3], [2]]]


@pytest.mark.parametrize(("sizes", "found"), [((1, 2, 3, 4), [4, 4]), ((3,), [3])])
def test_the_rule_is_tried_on_powers_of_two_and_on_all_sizes(sizes: tuple[int, ...], found: list[int]) -> None:
    # 250 tokens at capacity 100: with 1 2 4 on 4 ranks; 3 would do, but leaves one rank free
    plans = list(module.rule_candidates(problem([250], max(sizes), cp_sizes=sizes)))
    assert [group.cp_size for plan in plans for groups in plan for group in groups] == found
