"""What `dcpack.pack` adds to the packers: groups, effort, and what fits together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import ArgumentError, InfeasibleError


def bins_of(plan: dcpack.Plan) -> list[list[int]]:
    return [ids.tolist() for ids in np.split(plan.sequence_ids, plan.offsets[1:-1])]


LENGTHS = [5, 5, 4, 4, 3, 3, 3, 3]


def test_effort_best_reaches_the_bound() -> None:
    assert dcpack.pack(LENGTHS, capacity=15).num_bins == 3
    plan = dcpack.pack(LENGTHS, capacity=15, effort="best")
    plan.validate(LENGTHS)
    assert (plan.num_bins, plan.bounds["num_bins"]) == (2, 2)


def test_effort_fast_packs_coarser_lengths() -> None:
    # at capacity 4100 a 2050 counts 2052 tokens, so that two of them no longer share a bin
    assert dcpack.pack([2050, 2050], capacity=4100).num_bins == 1
    assert dcpack.pack([2050, 2050], capacity=4100, effort="fast").num_bins == 2
    assert bins_of(dcpack.pack([14, 11, 7, 2, 1], capacity=20, effort="fast")) == [[0, 4], [1, 2, 3]]


@pytest.mark.parametrize("effort", ["best", "exact", "fast"])
def test_every_effort_keeps_groups_caps_padding_and_oversized_ones(effort: str) -> None:
    rng = np.random.default_rng(8)
    lengths, groups = rng.integers(0, 40, 200), rng.integers(0, 90, 200)
    lengths[0], groups[0] = 500, 1000
    rule = dcpack.PaddingRule(block=8)
    plan = dcpack.pack(
        lengths, capacity=400, groups=groups, effort=effort, max_sequences=12, padding=rule, overlong="single"
    )
    plan.validate(lengths)
    assert max(np.diff(plan.offsets)) <= 12
    assert sorted(plan.sequence_ids.tolist()) == np.flatnonzero(lengths).tolist()
    home: dict[int, int] = {}
    for number, members in enumerate(bins_of(plan)):
        for sequence in members:
            assert home.setdefault(int(groups[sequence]), number) == number


@pytest.mark.parametrize("method", ["best_fit_decreasing", "first_fit_decreasing", "first_fit", "next_fit"])
def test_a_group_over_the_capacity_is_named(method: str) -> None:
    with pytest.raises(InfeasibleError, match=r"not fit in a bin of 10 tokens: group 4 has 12 tokens in 2 entries$"):
        dcpack.pack([6, 3, 6], capacity=10, groups=[4, 9, 4], method=method)
    assert dcpack.pack([5, 3, 5], capacity=10, groups=[4, 9, 4], method=method).num_bins == 2


def test_an_oversized_sequence_cannot_share_its_bin_with_its_group() -> None:
    with pytest.raises(InfeasibleError, match=r"group 4 has 15 tokens in 2 entries$"):
        dcpack.pack([12, 3, 3], capacity=10, groups=[4, 4, 9], overlong="single")
    with pytest.raises(InfeasibleError, match=r"group 4 has 15 tokens in 3 entries$"):
        dcpack.pack([12, 3, 3], capacity=10, groups=[4, 4, 9], overlong="split")
    plan = dcpack.pack([12, 3, 3], capacity=10, groups=[4, 4, 9], overlong="drop")
    assert plan.dropped.tolist() == [12, 0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"effort": "most"}, "effort must be one of 'best', 'exact', 'fast', got 'most'"),
        (
            {"effort": "best", "method": "next_fit"},
            "effort='best' needs method='best_fit_decreasing', got .*'next_fit'",
        ),
        ({"effort": "fast", "method": "concat_then_split"}, "effort='fast' needs method='best_fit_decreasing'"),
        ({"groups": [0, 0], "method": "concat_then_split"}, "groups cannot be kept whole by .*'concat_then_split'"),
        ({"groups": [0]}, "groups must name one for each of 2 sequences, got 1"),
        ({"groups": [0, -1]}, r"groups must be at least 0: groups\[1\] = -1"),
        ({"groups": [0.5, 1.0]}, "groups must hold integers, got dtype float64"),
    ],
)
def test_what_does_not_fit_together_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        dcpack.pack([3, 4], capacity=10, **options)
