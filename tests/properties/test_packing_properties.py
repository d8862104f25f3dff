"""What holds for every packer, whatever the lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpack.bounds import packing_lower_bound
from dcpack.packing import PACKERS, Packer, best_fit_decreasing, first_fit_decreasing

Case = tuple[list[int], int, int | None, list[bool]]

NAMES = sorted(PACKERS)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Lengths, a capacity, perhaps a cap, and now and then an item that must be alone."""
    capacity = draw(st.integers(1, 60) | st.integers(1, 2**40))
    items = draw(st.lists(st.tuples(st.integers(1, capacity), st.integers(0, 9)), max_size=60))
    alone = [chance == 0 for _, chance in items]
    lengths = [length * 3 if lonely else length for (length, _), lonely in zip(items, alone, strict=True)]
    return lengths, capacity, draw(st.none() | st.integers(1, 5)), alone


@pytest.mark.parametrize("name", NAMES)
@given(case=cases())
def test_every_packing_is_whole_and_legal(name: str, case: Case) -> None:
    lengths, capacity, limit, alone = case
    bins = PACKERS[name](lengths, capacity, max_sequences=limit, alone=alone).lists()
    assert sorted(item for members in bins for item in members) == list(range(len(lengths)))
    for members in bins:
        assert members == sorted(members)
        if any(alone[item] for item in members):
            assert len(members) == 1
        else:
            assert sum(lengths[item] for item in members) <= capacity
        assert limit is None or len(members) <= limit


@pytest.mark.parametrize("name", NAMES)
@given(case=cases())
def test_never_fewer_bins_than_the_bound(name: str, case: Case) -> None:
    lengths, capacity, limit, alone = case
    shared = [length for length, lonely in zip(lengths, alone, strict=True) if not lonely]
    bins = PACKERS[name](lengths, capacity, max_sequences=limit, alone=alone)
    assert bins.num_bins >= packing_lower_bound(shared, capacity, max_sequences=limit) + sum(alone)


@pytest.mark.parametrize("name", NAMES)
@given(case=cases())
def test_same_bins_for_the_same_lengths(name: str, case: Case) -> None:
    lengths, capacity, limit, alone = case
    once = PACKERS[name](lengths, capacity, max_sequences=limit, alone=alone)
    again = PACKERS[name](np.array(lengths, np.uint64), capacity, max_sequences=limit, alone=np.array(alone, bool))
    assert once.lists() == again.lists()


@pytest.mark.parametrize("packer", [best_fit_decreasing, first_fit_decreasing])
@given(
    capacity=st.integers(1, 200),
    cuts=st.lists(st.lists(st.integers(1, 199), max_size=6), min_size=1, max_size=12),
    seed=st.integers(0, 2**32 - 1),
)
def test_near_the_optimum_where_it_is_known(packer: Packer, capacity: int, cuts: list[list[int]], seed: int) -> None:
    # Full bins are cut to pieces and shuffled, so the optimum is the number of bins.
    lengths: list[int] = []
    for places in cuts:
        edges = sorted({0, capacity, *(place % capacity for place in places)})
        lengths += np.diff(edges).tolist()
    shuffled = np.random.default_rng(seed).permutation(lengths)
    optimum = len(cuts)
    assert packing_lower_bound(shuffled, capacity) == optimum
    # 11/9 of it and 6/9 on top, in whole numbers
    assert optimum <= packer(shuffled, capacity).num_bins <= (11 * optimum + 6) // 9
