from __future__ import annotations

import json
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.errors import ArgumentError
from dcpack.report import format_lengths, summarise_lengths

PERCENTILES = (0, 1, 5, 25, 50, 75, 90, 95, 99, 99.9, 100)


def test_a_summary_by_hand() -> None:
    summary = summarise_lengths(np.array([4, 0, 10, 2, 4, 1, 3]), capacities=[3, 4, 10, 99])
    assert (summary.num_sequences, summary.num_empty, summary.num_tokens) == (7, 1, 24)
    assert summary.mean == pytest.approx(24 / 7)
    # In order 0 1 2 3 4 4 10. 25% of 7 are 1.75 sequences: two, so 1. 50%: 3.5, so the fourth.
    assert summary.percentiles == {0: 0, 1: 0, 5: 0, 25: 1, 50: 3, 75: 4, 90: 10, 95: 10, 99: 10, 99.9: 10, 100: 10}
    # A sequence as long as the capacity fits: it is not above it.
    assert summary.above == {
        3: (pytest.approx(3 / 7), pytest.approx(18 / 24)),
        4: (pytest.approx(1 / 7), pytest.approx(10 / 24)),
        10: (0, 0),
        99: (0, 0),
    }
    assert summary.histogram == {0: (1, 0), 1: (1, 1), 2: (2, 5), 4: (2, 8), 8: (1, 10)}


def test_the_text_by_hand() -> None:
    summary = summarise_lengths(np.array([4, 0, 1000, 2, 4, 3]), capacities=[3, 2048])
    assert format_lengths(summary).splitlines() == [
        "6 sequences, 1 of them empty, 1,013 tokens, mean 168.8",
        "",
        "percentile 0% 1% 5% 25% 50% 75%   90%   95%   99% 99.9%  100%",
        "---------- -- -- -- --- --- --- ----- ----- ----- ----- -----",
        "length      0  0  0   2   3   4 1,000 1,000 1,000 1,000 1,000",
        "",
        "         sequences  tokens",
        "capacity  above it in them",
        "-------- --------- -------",
        "3           50.00%  99.51%",
        "2,048        0.00%   0.00%",
        "",
        "length from sequences                                tokens",
        "----------- --------- ------------------------------ ------ ------------------------------",
        "0               16.7% ###############                  0.0%",
        "2               33.3% ##############################   0.5%",
        "4               33.3% ##############################   0.8%",
        "512             16.7% ###############                 98.7% ##############################",
    ]


def test_no_lengths() -> None:
    summary = summarise_lengths(np.zeros(0, np.int32), capacities=[8])
    assert (summary.num_sequences, summary.num_empty, summary.num_tokens, summary.mean) == (0, 0, 0, 0.0)
    assert summary.percentiles == {}
    assert summary.above == {8: (0, 0)}
    text = format_lengths(summary)
    assert text.startswith("0 sequences, 0 tokens, mean 0.0\n")
    assert "nan" not in text


def test_only_empty_ones() -> None:
    summary = summarise_lengths(np.zeros(3, np.int64), capacities=[8])
    assert (summary.num_sequences, summary.num_empty, summary.num_tokens) == (3, 3, 0)
    assert set(summary.percentiles.values()) == {0}
    assert summary.histogram == {0: (3, 0)}
    assert format_lengths(summary).startswith("3 sequences, 3 of them empty, 0 tokens, mean 0.0\n")


@pytest.mark.parametrize("length", [1, 2, 3, 4096, 2**31, 2**40])
def test_one_length(length: int) -> None:
    summary = summarise_lengths(np.array([length]), capacities=[length, max(length - 1, 1)])
    assert (summary.num_sequences, summary.num_tokens, summary.mean) == (1, length, length)
    assert summary.percentiles == dict.fromkeys(PERCENTILES, length)
    assert summary.above[length] == (0, 0)
    assert length == 1 or summary.above[length - 1] == (1, 1)
    held = {edge: counts for edge, counts in summary.histogram.items() if counts[0]}
    assert held == {2 ** (length.bit_length() - 1): (1, length)}
    assert f"{length:,} tokens" in format_lengths(summary)


@pytest.mark.parametrize(
    "lengths",
    [
        [2**62] * 3,  # their sum is beyond int64
        [2**63 - 1],  # the longest there may be
        [2**63 - 1, 1, 2**63 - 1],
        [2**40] * 1000,
    ],
)
def test_huge_lengths(lengths: list[int]) -> None:
    for dtype in (np.int64, np.uint64):
        summary = summarise_lengths(np.array(lengths, dtype), capacities=[2**40])
        assert summary.num_tokens == sum(lengths)
        assert summary.mean == pytest.approx(sum(lengths) / len(lengths))
        assert summary.percentiles[100] == max(lengths)
        assert sum(count for count, _ in summary.histogram.values()) == len(lengths)
        assert sum(tokens for _, tokens in summary.histogram.values()) == sum(lengths)
        assert summary.above[2**40][1] == pytest.approx(sum(n for n in lengths if n > 2**40) / sum(lengths))
        assert f"{sum(lengths):,} tokens" in format_lengths(summary)


@given(
    lengths=st.lists(st.integers(0, 120) | st.sampled_from([0, 1, 2, 4, 8, 16, 32, 64]), max_size=60),
    dtype=st.sampled_from(["i1", "u1", ">i2", "<u4", "i8", "u8"]),
    capacities=st.lists(st.integers(1, 200), min_size=1, max_size=4),
)
@settings(max_examples=100, deadline=None)
def test_summaries_are_what_they_say(lengths: list[int], dtype: str, capacities: list[int]) -> None:
    array = np.array(lengths, dtype)
    array.setflags(write=False)
    summary = summarise_lengths(array, capacities=capacities)
    count, total = len(lengths), sum(lengths)
    assert (summary.num_sequences, summary.num_tokens, summary.num_empty) == (count, total, lengths.count(0))
    assert array.tolist() == lengths
    for percentile, length in summary.percentiles.items():
        enough = Fraction(str(percentile)) * count / 100
        assert length == min(n for n in lengths if sum(other <= n for other in lengths) >= enough)
    assert list(summary.percentiles) == (list(PERCENTILES) if count else [])
    for capacity in capacities:
        longer = [n for n in lengths if n > capacity]
        assert summary.above[capacity] == pytest.approx((len(longer) / max(count, 1), sum(longer) / max(total, 1)))
    edges = list(summary.histogram)
    for edge, following in zip(edges, [*edges[1:], math.inf], strict=True):
        inside = [n for n in lengths if edge <= n < following]
        assert summary.histogram[edge] == (len(inside), sum(inside))
    assert edges == [0, *(2**k for k in range(max(lengths, default=0).bit_length()))]
    text = format_lengths(summary)
    assert text.startswith(f"{count:,} sequences")


def test_a_summary_is_plain_values() -> None:
    lengths = np.array([5, 7], np.int32)
    found = summarise_lengths(lengths, capacities=[np.int64(6)]).to_dict()  # type: ignore[list-item]  # as from an array
    assert json.loads(json.dumps(found)) == {
        "num_sequences": 2,
        "num_empty": 0,
        "num_tokens": 12,
        "mean": 6.0,
        "percentiles": {str(p): 5 if p <= 50 else 7 for p in PERCENTILES},
        "above": {"6": [0.5, 7 / 12]},
        "histogram": {"0": [0, 0], "1": [0, 0], "2": [0, 0], "4": [2, 12]},
    }


def test_lengths_may_be_the_file_itself(tmp_path: Path) -> None:
    file = tmp_path / "a.npy"
    np.save(file, np.array([3, 1, 2], np.int32))
    mapped: Any = np.load(file, mmap_mode="r")
    assert summarise_lengths(mapped, capacities=[1]).num_tokens == 6
    assert np.load(file).tolist() == [3, 1, 2]


def test_what_is_no_length_is_named() -> None:
    with pytest.raises(ArgumentError, match=r"^lengths must be at least 0: -2 at 1, -7 at 3$"):
        summarise_lengths(np.array([1, -2, 3, -7]), capacities=[1])
    with pytest.raises(ArgumentError, match=r"-1 at 7 and 2 more$"):
        summarise_lengths(np.full(10, -1), capacities=[1])


@pytest.mark.parametrize("capacity", [0, -1, 1.5])
def test_a_capacity_that_is_none(capacity: Any) -> None:
    with pytest.raises(ArgumentError, match="capacity must be"):
        summarise_lengths(np.array([1]), capacities=[8, capacity])
