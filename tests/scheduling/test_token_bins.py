from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import problem, seen

from dcpack.scheduling import Group
from dcpack.scheduling.timing import GroupTimes
from dcpack.scheduling.token_bins import pack_tokens, slice_ranks


def best_fit_slowly(lengths: list[int], sizes: tuple[int, ...], most: int) -> list[tuple[int, list[int]]]:
    """Longest first into the bin where the least room stays; beyond one rank always a bin of its own."""
    bins: list[tuple[int, list[int]]] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        size = next(size for size in sizes if lengths[i] <= 100 * size)
        rooms = [
            (100 * cp - sum(lengths[j] for j in ids), at)
            for at, (cp, ids) in enumerate(bins)
            if lengths[i] <= 100 * cp - sum(lengths[j] for j in ids) and len(ids) < most
        ]
        if size == sizes[0] and rooms:
            bins[min(rooms)[1]][1].append(i)
        else:
            bins.append((size, [i]))
    return bins


@settings(deadline=None, max_examples=100)
@given(lengths=st.lists(st.integers(1, 100) | st.integers(1, 800), max_size=30), most=st.sampled_from([None, 1, 2, 3]))
def test_equals_a_plain_best_fit(lengths: list[int], most: int | None) -> None:
    times = GroupTimes(problem(lengths, 8, max_sequences=most))
    assert seen(pack_tokens(times)) == best_fit_slowly(lengths, (1, 2, 4, 8), most or 99)


def test_by_hand_the_fullest_bin_that_fits() -> None:
    # 250 on 4 ranks leaves 150: 70 and 60 go there and leave 20. 40 opens a bin, 30 joins it; 20 fills the wide one.
    times = GroupTimes(problem([250, 70, 60, 40, 30, 20], 8))
    assert seen(pack_tokens(times)) == [(4, [0, 1, 2, 5]), (1, [3, 4])]


def test_nothing_joins_an_oversized_item() -> None:
    times = GroupTimes(problem([900, 10], 8, oversized=np.array([True, False])))
    assert seen(pack_tokens(times)) == [(8, [0]), (1, [1])]


def test_what_does_not_fit_waits() -> None:
    groups = [Group(4, [0]), Group(8, [1]), Group(2, [2]), Group(2, [3])]
    assert [seen(slice_) for slice_ in slice_ranks(groups, 8)] == [[(4, [0]), (2, [2]), (2, [3])], [(8, [1])]]
