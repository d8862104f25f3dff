"""What holds for every packer, whatever the lengths."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.bounds import packing_lower_bound
from dcpack.packing import (
    PACKERS,
    Packer,
    StreamingPacker,
    best_fit_decreasing,
    coarse_lengths,
    first_fit_decreasing,
    merge_groups,
    refill,
)

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
@settings(deadline=None)
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
@settings(deadline=None)
@given(case=cases())
def test_never_fewer_bins_than_the_bound(name: str, case: Case) -> None:
    lengths, capacity, limit, alone = case
    shared = [length for length, lonely in zip(lengths, alone, strict=True) if not lonely]
    bins = PACKERS[name](lengths, capacity, max_sequences=limit, alone=alone)
    assert bins.num_bins >= packing_lower_bound(shared, capacity, max_sequences=limit) + sum(alone)


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(case=cases())
def test_same_bins_for_the_same_lengths(name: str, case: Case) -> None:
    lengths, capacity, limit, alone = case
    once = PACKERS[name](lengths, capacity, max_sequences=limit, alone=alone)
    again = PACKERS[name](np.array(lengths, np.uint64), capacity, max_sequences=limit, alone=np.array(alone, bool))
    assert once.lists() == again.lists()


@pytest.mark.parametrize("packer", [best_fit_decreasing, first_fit_decreasing])
@settings(deadline=None)
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


@settings(deadline=None)
@given(case=cases())
def test_refilled_and_coarse_bins_are_whole_and_legal(case: Case) -> None:
    lengths, capacity, limit, alone = case
    plain = best_fit_decreasing(lengths, capacity, max_sequences=limit, alone=alone)
    coarse = best_fit_decreasing(coarse_lengths(lengths, capacity), capacity, max_sequences=limit, alone=alone)
    again = refill(plain, lengths, capacity, max_sequences=limit, alone=alone)
    assert again.num_bins <= plain.num_bins
    assert again.lists() == refill(plain, lengths, capacity, max_sequences=limit, alone=alone).lists()
    shared = [length for length, lonely in zip(lengths, alone, strict=True) if not lonely]
    assert again.num_bins >= packing_lower_bound(shared, capacity, max_sequences=limit) + sum(alone)
    for bins in (coarse.lists(), again.lists()):
        assert sorted(item for members in bins for item in members) == list(range(len(lengths)))
        for members in bins:
            assert limit is None or len(members) <= limit
            lonely = any(alone[item] for item in members)
            assert len(members) == 1 if lonely else sum(lengths[item] for item in members) <= capacity


@pytest.mark.parametrize("name", NAMES)
@settings(deadline=None)
@given(data=st.data(), capacity=st.integers(1, 60), limit=st.none() | st.integers(1, 8))
def test_groups_stay_whole(name: str, data: st.DataObject, capacity: int, limit: int | None) -> None:
    drawn = data.draw(st.lists(st.tuples(st.integers(1, capacity), st.integers(0, 12)), max_size=40))
    lengths: list[int] = []
    groups: list[int] = []
    for length, group in drawn:  # what a group has no room for is left out
        members = [lengths[i] for i, other in enumerate(groups) if other == group]
        if sum(members) + length <= capacity and (limit is None or len(members) < limit):
            lengths.append(length)
            groups.append(group)
    merged = merge_groups(lengths, groups, capacity, max_sequences=limit)
    packed = PACKERS[name](merged.lengths, capacity, max_sequences=limit, sizes=merged.sizes)
    bins = merged.apart(packed).lists()
    assert sorted(item for members in bins for item in members) == list(range(len(lengths)))
    home: dict[int, int] = {}
    for number, members in enumerate(bins):
        assert sum(lengths[item] for item in members) <= capacity
        assert limit is None or len(members) <= limit
        for item in members:
            assert home.setdefault(groups[item], number) == number


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=80),
    window=st.integers(1, 20),
    limit=st.none() | st.integers(1, 5),
    name=st.sampled_from(NAMES),
    save_at=st.integers(0, 40),
)
def test_a_stream_keeps_its_order_up_to_the_window(
    lengths: list[int], window: int, limit: int | None, name: str, save_at: int
) -> None:
    def fresh() -> StreamingPacker:
        return StreamingPacker(lambda at: lengths[at:], 30, packer=PACKERS[name], window=window, max_sequences=limit)

    packer, bins = fresh(), []
    for number, members in enumerate(packer):
        bins.append(members.tolist())
        if number + 1 == save_at:
            state = packer.state_dict()
            packer = fresh()
            packer.load_state_dict(state)
            break
    bins += [members.tolist() for members in packer]
    assert sorted(i for members in bins for i in members) == [i for i, length in enumerate(lengths) if length]
    for members in bins:
        assert members == sorted(members)
        assert members[-1] // window == members[0] // window  # all of one window
        assert sum(lengths[i] for i in members) <= 30
        assert limit is None or len(members) <= limit
    firsts = [members[0] for members in bins]
    assert firsts == sorted(firsts)


def realistic(name: str) -> np.ndarray:
    rng = np.random.default_rng(11)
    if name == "lognormal":
        return np.clip(600 * np.exp(1.3 * rng.standard_normal(2000)), 16, 4096).astype(np.int64)
    if name == "bimodal":
        short = np.exp(rng.uniform(np.log(200), np.log(4096), 2000))
        long = np.exp(rng.uniform(np.log(32768), np.log(131072), 2000))
        return np.where(rng.random(2000) < 0.05, long, short).astype(np.int64)
    if name == "responses":
        median = 2500 * np.exp(0.9 * rng.standard_normal(250))
        return np.clip(np.repeat(median, 8) * np.exp(0.6 * rng.standard_normal(2000)), 32, 32768).astype(np.int64)
    return rng.integers(1, 8193, 2000)


@pytest.mark.parametrize("name", ["lognormal", "bimodal", "responses", "uniform"])
@pytest.mark.parametrize("packer", [best_fit_decreasing, first_fit_decreasing])
def test_one_token_more_of_capacity_never_costs_a_thousandth_more_bins(packer: Packer, name: str) -> None:
    lengths = realistic(name)
    least = int(lengths.max())
    power = 1 << (least - 1).bit_length()
    capacities = {least, 3 * power // 2, 10 * power // 7} | {
        m * power + d for m in (1, 2, 4, 8) for d in (-2, -1, 0, 1)
    }
    fewest = packer(lengths, 10**12).num_bins
    assert fewest == 1
    for capacity in sorted(capacity for capacity in capacities if capacity >= least):
        assert packer(lengths, capacity + 1).num_bins <= 1.001 * packer(lengths, capacity).num_bins
