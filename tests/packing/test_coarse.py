from __future__ import annotations

import numpy as np
import pytest

from dcpack.errors import ArgumentError
from dcpack.packing import best_fit_decreasing, coarse_lengths


def test_up_to_ten_bits() -> None:
    # 1023 has ten bits; from 1024 on a step is 2, from 2048 on 4
    lengths = [1, 1000, 1023, 1024, 1025, 2047, 2048, 2049, 4093]
    assert coarse_lengths(lengths, 10**6).tolist() == [1, 1000, 1023, 1024, 1026, 2048, 2048, 2052, 4096]


def test_never_over_the_capacity_and_oversized_ones_as_they_are() -> None:
    assert coarse_lengths([4093, 4095, 5001], 4095).tolist() == [4095, 4095, 5001]
    assert coarse_lengths([2**61 + 1], 2**70).tolist() == [2**61 + 2**52]
    assert coarse_lengths([], 5).tolist() == []


def test_many_items_of_few_lengths_stay_as_they_are() -> None:
    assert coarse_lengths([1025] * 64 * 1025, 1026)[0] == 1026
    assert coarse_lengths([1025] * 64 * 1026, 1026)[0] == 1025


def test_hardly_more_bins_from_fewer_different_lengths() -> None:
    rng = np.random.default_rng(3)
    lengths = np.clip(2500 * np.exp(1.1 * rng.standard_normal(20_000)), 32, 32768).astype(np.int64)
    coarse = coarse_lengths(lengths, 32768)
    assert np.all(coarse >= lengths)
    assert np.unique(coarse).size < np.unique(lengths).size / 2
    plain = best_fit_decreasing(lengths, 32768).num_bins
    assert plain <= best_fit_decreasing(coarse, 32768).num_bins <= 1.001 * plain


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ArgumentError, match=r"lengths must be at least 1: lengths\[1\] = 0"):
        coarse_lengths([1, 0], 5)
    with pytest.raises(ArgumentError, match="capacity must be at least 1, got 0"):
        coarse_lengths([1], 0)
