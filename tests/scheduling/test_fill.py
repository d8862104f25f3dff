from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st

from dcpack.cost import QuadraticCost
from dcpack.errors import InfeasibleError
from dcpack.scheduling import Group, MicroBatch, Problem
from dcpack.scheduling.fill import fill_ranks, repair, whole_domain


def problem(lengths: list[int], num_ranks: int, cp_sizes: tuple[int, ...], **changes: Any) -> Problem:
    options: dict[str, Any] = {
        "sequence_ids": np.arange(len(lengths)),
        "lengths": np.array(lengths, np.int64),
        "oversized": np.zeros(len(lengths), np.bool_),
        "num_ranks": num_ranks,
        "capacity": 100,
        "cp_sizes": cp_sizes,
        "padding": None,
        "microbatch_multiple": 1,
        "max_sequences": None,
        "on_empty": "error",
    }
    return Problem(**{"cost": QuadraticCost(), "sync": "microbatch", **options, **changes})


def seen(groups: MicroBatch | None) -> list[tuple[int, list[int]]] | None:
    return None if groups is None else [(group.cp_size, group.items) for group in groups]


def test_the_smallest_group_widens_first_the_oldest_of_equals() -> None:
    given = problem([50, 50, 50], 8, (1, 2, 4, 8))
    # 2 1 1 -> 2 2 1 -> 2 2 2 -> 4 2 2
    groups = [Group(2, [0]), Group(1, [1]), Group(1, [2])]
    assert seen(fill_ranks(given, groups)) == [(4, [0]), (2, [1]), (2, [2])]
    assert seen(groups) == [(2, [0]), (1, [1]), (1, [2])]  # what was given is untouched


def test_a_group_that_cannot_widen_does_not_stop_the_others() -> None:
    # 7 ranks: 1 1 -> 2 1 -> 2 2 -> 4 2, then 2 cannot become 4 with one rank left; no two sizes sum to 7
    given = problem([50, 50], 7, (1, 2, 4, 7))
    assert fill_ranks(given, [Group(1, [0]), Group(1, [1])]) is None
    # 5 ranks: 1 1 -> 2 1 -> 2 2, stuck; 4 and 1 add up
    given = problem([50, 50], 5, (1, 2, 4, 5))
    assert seen(fill_ranks(given, [Group(1, [0]), Group(1, [1])])) == [(4, [0]), (1, [1])]


def test_the_fullest_group_gives_its_shortest_item_where_sizes_do_not_add_up() -> None:
    # 7 ranks and two groups: no sum. The second is fuller; its shortest item leaves: 1 1 1 -> 2 2 2 -> 4 2 2 is 8, but
    # 4 2 1 adds up.
    given = problem([60, 50, 40], 7, (1, 2, 4, 7))
    assert seen(fill_ranks(given, [Group(1, [0]), Group(1, [1, 2])])) == [(4, [0]), (2, [1]), (1, [2])]


def test_of_two_groups_that_could_give_the_fuller_one_does() -> None:
    # 60 ** 2 + 10 ** 2 against 50 ** 2 + 40 ** 2
    given = problem([60, 10, 50, 40], 7, (1, 2, 4, 7))
    groups = [Group(1, [0, 1]), Group(1, [2, 3])]
    assert seen(fill_ranks(given, groups)) == [(4, [0, 1]), (2, [2]), (1, [3])]


@settings(deadline=None, max_examples=200)
@hypothesis.given(
    spare=st.integers(0, 15),
    cp_sizes=st.sets(st.integers(1, 9), min_size=1, max_size=5),
    picks=st.lists(st.integers(0, 4), min_size=1, max_size=4),
)
def test_sizes_that_add_up_are_always_found(spare: int, cp_sizes: set[int], picks: list[int]) -> None:
    # One item a group, so that no group can give one: what is left is to find sizes, and all of them are tried here.
    sizes = sorted(cp_sizes)
    start = [sizes[pick % len(sizes)] for pick in picks]
    num_ranks = sum(start) + spare
    given = problem([1] * len(start), num_ranks, tuple(sizes))
    wider = [[size for size in sizes if size >= least] for least in start]
    possible = any(sum(chosen) == num_ranks for chosen in itertools.product(*wider))
    filled = fill_ranks(given, [Group(size, [i]) for i, size in enumerate(start)])
    assert (filled is not None) == possible
    if filled is not None:
        assert [group.items for group in filled] == [[i] for i in range(len(start))]
        assert sum(group.cp_size for group in filled) == num_ranks
        assert all(group.cp_size in choices for group, choices in zip(filled, wider, strict=True))


def test_no_group_ever_becomes_smaller() -> None:
    given = problem([350, 50], 5, (1, 2, 4, 5))
    assert seen(fill_ranks(given, [Group(4, [0]), Group(1, [1])])) == [(4, [0]), (1, [1])]
    assert fill_ranks(problem([350], 6, (1, 2, 4)), [Group(4, [0])]) is None


def test_the_whole_domain_takes_what_fits_in_order() -> None:
    given = problem([150, 100, 80, 60, 10], 3, (1, 2, 3))
    filled = whole_domain(given, [0, 1, 2, 3, 4])
    assert filled is not None
    assert (seen(filled[0]), filled[1]) == ([(3, [0, 1, 4])], [2, 3])  # 150 + 100 + 10 of 300 after 80, 60 did not fit
    few = problem([10, 10, 10], 3, (1, 2, 3), max_sequences=2)
    filled = whole_domain(few, [0, 1, 2])
    assert filled is not None
    assert (seen(filled[0]), filled[1]) == ([(3, [0, 1])], [2])


def test_the_whole_domain_must_be_legal_and_hold_the_first() -> None:
    assert whole_domain(problem([10], 3, (1, 2)), [0]) is None
    assert whole_domain(problem([301], 3, (1, 2, 3)), [0]) is None
    big = problem([400, 10], 3, (1, 2, 3), oversized=np.array([True, False]))
    filled = whole_domain(big, [0, 1])
    assert filled is not None
    assert (seen(filled[0]), filled[1]) == ([(3, [0])], [1])


def test_free_ranks_borrow_from_other_micro_batches() -> None:
    # rank 1 of micro-batch 1 is free and 4 alone cannot widen: the fullest group of micro-batch 0 gives its shortest
    given = problem([50, 40, 30, 20, 90], 2, (1,))
    microbatches = [[Group(1, [0, 3]), Group(1, [1, 2])], [Group(1, [4])]]
    repair(given, microbatches)
    assert [seen(groups) for groups in microbatches] == [[(1, [0]), (1, [1, 2])], [(1, [4]), (1, [3])]]


def test_nothing_is_borrowed_where_it_does_not_help() -> None:
    given = problem([50, 40, 30], 3, (1,), on_empty="dummy")
    microbatches = [[Group(1, [0, 1]), Group(1, []), Group(1, [])], [Group(1, [2])]]
    repair(given, microbatches)
    assert [seen(groups) for groups in microbatches] == [
        [(1, [0, 1]), (1, []), (1, [])],
        [(1, [2]), (1, []), (1, [])],
    ]


def test_dummies_fill_up_after_widening() -> None:
    given = problem([50], 7, (1, 2), on_empty="dummy")
    microbatches = [[Group(1, [0])]]
    repair(given, microbatches)
    assert sum(group.cp_size for group in microbatches[0]) == 7
    assert seen(microbatches[0][:1]) == [(2, [0])]
    assert sorted(group.cp_size for group in microbatches[0][1:]) == [1, 2, 2]  # large ones are preferred
    assert all(not group.items for group in microbatches[0][1:])


def test_dummies_that_do_not_add_up_are_infeasible() -> None:
    given = problem([50], 3, (2,), on_empty="dummy")
    with pytest.raises(InfeasibleError, match=r"3 ranks work .* CP sizes \(2,\) and capacity 100: sequence 0 of 50"):
        repair(given, [[Group(2, [0])]])


def test_without_dummies_free_ranks_are_infeasible_and_the_way_out_is_told() -> None:
    with pytest.raises(InfeasibleError, match=r"sequence 0 of 50 tokens; on_empty='dummy' fills up"):
        repair(problem([50], 2, (1,)), [[Group(1, [0])]])
