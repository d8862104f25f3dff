from __future__ import annotations

import importlib

import numpy as np
import pytest

from dcpack.bounds import packing_lower_bound
from dcpack.errors import ArgumentError
from dcpack.packing import Bins, best_fit_decreasing, refill
from dcpack.packing.refill import _fullest


def lognormal(n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.clip(600 * np.exp(1.3 * rng.standard_normal(n)), 16, 4096).astype(np.int64)


def test_fills_what_best_fit_decreasing_leaves_open() -> None:
    # capacity 15: best fit pairs 5 5 4 (room 1) and 4 3 3 3 (room 2); 5 4 3 3 is full, twice
    lengths = [5, 5, 4, 4, 3, 3, 3, 3]
    bins = best_fit_decreasing(lengths, 15)
    assert bins.lists() == [[0, 1, 2], [3, 4, 5, 6], [7]]
    assert refill(bins, lengths, 15, enough=2).lists() == [[0, 2, 4, 5], [1, 3, 6, 7]]


def test_leaves_bins_that_are_as_good_as_the_bound() -> None:
    bins = best_fit_decreasing([5, 5, 4, 4, 3, 3, 3, 3], 15)
    assert refill(bins, [5, 5, 4, 4, 3, 3, 3, 3], 15, enough=3) is bins
    nothing = Bins.from_bin_of([])
    assert refill(nothing, [], 15) is nothing


def test_gives_back_the_bins_where_nothing_is_better() -> None:
    bins = best_fit_decreasing([6, 6, 6], 10)
    assert refill(bins, [6, 6, 6], 10) is bins


def test_reaches_the_bound_where_best_fit_decreasing_does_not() -> None:
    missed = 0
    for seed in range(60):
        lengths = lognormal(300, seed)
        bins, bound = best_fit_decreasing(lengths, 4096), packing_lower_bound(lengths, 4096)
        missed += bins.num_bins > bound
        better = refill(bins, lengths, 4096, enough=bound)
        assert better.num_bins == bound
        assert np.array_equal(np.sort(better.items), np.arange(300))
        assert np.add.reduceat(lengths[better.items], better.offsets[:-1]).max() <= 4096
    assert missed >= 3  # a guard: there was something to do


def test_long_streams_of_bins_are_refilled_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = lognormal(300, 16)
    bins = best_fit_decreasing(lengths, 4096)
    assert bins.num_bins > packing_lower_bound(lengths, 4096)
    monkeypatch.setattr(importlib.import_module("dcpack.packing.refill"), "_MAX_ITEMS", 150)
    better = refill(bins, lengths, 4096, enough=bins.num_bins - 1)
    assert better.num_bins == bins.num_bins - 1
    kept = {tuple(members) for members in bins.lists()} & {tuple(members) for members in better.lists()}
    assert len(kept) >= bins.num_bins // 3


def test_caps_and_lonely_items_hold() -> None:
    lengths = [9, 5, 5, 4, 4, 3, 3, 3, 3, 20]
    alone = [False] * 9 + [True]
    bins = best_fit_decreasing(lengths, 15, alone=alone, max_sequences=3)
    better = refill(bins, lengths, 15, alone=alone, max_sequences=3)
    for members in better.lists():
        assert len(members) <= 3
        assert members == [9] or sum(lengths[item] for item in members) <= 15
    assert [9] in better.lists()
    sizes = [2] * 8
    packed = refill(Bins.from_bin_of(range(8)), [1] * 8, 15, max_sequences=5, sizes=sizes)
    assert sorted(map(len, packed.lists())) == [2, 2, 2, 2]


def test_a_capacity_of_more_sums_than_are_told_apart() -> None:
    scale = 2**30 + 1
    lengths = [length * scale for length in [5, 5, 4, 4, 3, 3, 3, 3]]
    bins = best_fit_decreasing(lengths, 16 * scale - 1)
    better = refill(bins, lengths, 16 * scale - 1)
    assert better.num_bins == 2
    assert all(sum(lengths[item] for item in members) < 16 * scale for members in better.lists())
    whole = best_fit_decreasing([1, 2**17 + 1], 2**17 + 1)  # rounded up, the long one is more than a bin
    assert refill(whole, [1, 2**17 + 1], 2**17 + 1) is whole


@pytest.mark.parametrize(
    ("lengths", "room", "taken"),
    [([], 5, []), ([4, 3, 2], 5, [1, 2]), ([4, 3, 2], 4, [0]), ([4, 3, 2], 9, [0, 1, 2]), ([4, 4], 7, [0])],
)
def test_fullest(lengths: list[int], room: int, taken: list[int]) -> None:
    assert _fullest(lengths, room) == taken


def test_every_item_must_be_in_a_bin() -> None:
    with pytest.raises(ArgumentError, match="bins must hold all 3 items, got 2 of them"):
        refill(Bins.from_bin_of([0, 1]), [1, 1, 1], 10)
    with pytest.raises(ArgumentError, match="enough must be at least 0, got -1"):
        refill(Bins.from_bin_of([0, 1]), [1, 1], 10, enough=-1)
