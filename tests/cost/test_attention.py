from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.cost.attention import (
    Chunked,
    SlidingWindow,
    attention_name,
    causal_pairs,
    count_pairs,
    full_pairs,
    get_attention,
    named_if_known,
)
from dcpack.errors import ArgumentError


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # lengths      0    1    2    5    8
        ("causal", [0, 1, 3, 15, 36]),
        ("full", [0, 1, 4, 25, 64]),
        ("sliding_window:3", [0, 1, 3, 12, 21]),  # 1 + 2 + 3, then 3 for each further token
        ("sliding_window:1", [0, 1, 2, 5, 8]),
        ("sliding_window:100", [0, 1, 3, 15, 36]),  # wider than all: causal
        ("chunked:3", [0, 1, 3, 9, 15]),  # 6 for a whole chunk, 3 for a rest of 2
        ("chunked:1", [0, 1, 2, 5, 8]),
        ("chunked:100", [0, 1, 3, 15, 36]),
    ],
)
def test_pairs_by_hand(name: str, expected: list[int]) -> None:
    pairs = get_attention(name)(np.array([0, 1, 2, 5, 8]))
    assert pairs.dtype == np.float64
    assert pairs.tolist() == expected
    assert attention_name(get_attention(name)) == name


@settings(max_examples=60, deadline=None)
@given(length=st.integers(0, 60), size=st.integers(1, 70))
def test_pairs_are_those_of_the_mask(length: int, size: int) -> None:
    query, key = np.indices((length, length))
    masks = {
        "causal": key <= query,
        "full": np.ones_like(query, bool),
        f"sliding_window:{size}": (key <= query) & (query - key < size),
        f"chunked:{size}": (key <= query) & (query // size == key // size),
    }
    for name, mask in masks.items():
        assert get_attention(name)(np.array([length])).tolist() == [mask.sum()], name


def test_long_sequences_do_not_overflow() -> None:
    longest = 2**31 - 1
    lengths = np.array([longest], np.int64)
    assert causal_pairs(lengths)[0] == float(longest * (longest + 1) // 2)
    assert full_pairs(lengths)[0] == float(longest**2)
    assert np.isclose(Chunked(8192)(lengths)[0], longest / 8192 * 8192 * 8193 / 2, rtol=1e-5)
    assert np.isclose(SlidingWindow(4096)(lengths)[0], longest * 4096, rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["diagonal", "sliding_window", "chunked:", "chunked:x", "chunked:-3", "causal:3", 7, None]
)
def test_an_unknown_pattern_lists_the_known_ones(name: Any) -> None:
    message = "attention must be 'causal', 'full', 'sliding_window:N', 'chunked:N' or a function, got "
    with pytest.raises(ArgumentError, match=re.escape(message + repr(name))):
        get_attention(name)


def test_sizes_are_at_least_one() -> None:
    with pytest.raises(ArgumentError, match="window must be at least 1, got 0"):
        get_attention("sliding_window:0")
    with pytest.raises(ArgumentError, match="chunk must be at least 1, got 0"):
        Chunked(0)


def test_a_function_of_the_user_is_checked() -> None:
    def local(s: Any) -> Any:
        return s / 2

    assert get_attention(local) is local
    assert named_if_known(local) is local
    assert count_pairs(local, np.array([3, 4])).tolist() == [1.5, 2.0]
    with pytest.raises(ArgumentError, match="function of your own and cannot be written"):
        attention_name(local)
    with pytest.raises(ArgumentError, match=r"one count a sequence, shape \(2,\), got \(\)"):
        count_pairs(lambda s: s.sum(), np.array([3, 4]))
    with pytest.raises(ArgumentError, match=r"at least 0: length 3 gave nan, length 5 gave inf$"):
        count_pairs(lambda s: np.array([np.nan, 1.0, np.inf]), np.array([3, 4, 5]))
