from __future__ import annotations

import pytest

from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.packing import PACKERS, Bins, merge_groups


def test_groups_stand_in_the_order_of_their_first_members() -> None:
    merged = merge_groups([4, 3, 2, 1], [7, 5, 7, 0], 10)
    assert (merged.lengths.tolist(), merged.sizes.tolist()) == ([6, 3, 1], [2, 1, 1])
    assert merged.group_of.tolist() == [0, 1, 0, 2]
    assert merged.apart(Bins.from_bin_of([0, 1, 0])).lists() == [[0, 2, 3], [1]]


def test_nothing_to_merge() -> None:
    merged = merge_groups([], [], 10)
    assert merged.apart(Bins.from_bin_of([])).lists() == []


def test_an_item_alone_is_a_group_alone() -> None:
    merged = merge_groups([4, 30], [0, 1], 10, alone=[False, True])
    assert merged.alone.tolist() == [False, True]


def test_groups_that_fit_nowhere_are_all_named() -> None:
    with pytest.raises(
        InfeasibleError,
        match=r"^2 groups do not fit in a bin of 10 tokens: "
        r"group 7 has 11 tokens in 2 entries, group 3 has 12 tokens in 3 entries$",
    ):
        merge_groups([6, 4, 4, 4, 5, 10], [7, 3, 3, 3, 7, 1], 10)
    with pytest.raises(
        InfeasibleError,
        match=r"^1 group does not fit in a bin of 10 tokens and 2 sequences: group 3 has 3 tokens in 3 entries$",
    ):
        merge_groups([1, 1, 1, 5], [3, 3, 3, 4], 10, max_sequences=2)
    with pytest.raises(InfeasibleError, match="group 0 has 2 tokens in 2 entries"):
        merge_groups([1, 1], [0, 0], 10, alone=[True, False])


def test_bad_groups_are_named() -> None:
    with pytest.raises(ArgumentError, match="groups must name a group for each of 2 items, got 1"):
        merge_groups([1, 1], [0], 10)
    with pytest.raises(ArgumentError, match=r"groups must be at least 0: groups\[1\] = -1"):
        merge_groups([1, 1], [0, -1], 10)


@pytest.mark.parametrize("name", sorted(PACKERS))
def test_groups_stay_whole_under_every_packer(name: str) -> None:
    # groups of 6, 6 and 4 tokens at capacity 10: two bins where the 4 joins a 6
    merged = merge_groups([3, 2, 3, 2, 3, 2, 1], [0, 1, 0, 2, 1, 2, 1], 10)
    assert merged.lengths.tolist() == [6, 6, 4]
    bins = merged.apart(PACKERS[name](merged.lengths, 10, sizes=merged.sizes)).lists()
    assert sorted(bins) in ([[0, 2], [1, 3, 4, 5, 6]], [[0, 2, 3, 5], [1, 4, 6]])
