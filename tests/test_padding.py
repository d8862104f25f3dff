from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.errors import ArgumentError
from dcpack.padding import (
    PaddingRule,
    check_capacity,
    longest_fitting_length,
    padded_lengths,
    padding_multiple,
    row_capacity,
)

rules = st.builds(
    PaddingRule, tp=st.integers(1, 6), block=st.sampled_from([1, 2, 3, 16, 32]), sequence_parallel=st.booleans()
)


def by_the_formula(rule: PaddingRule, cp: int) -> int:
    return math.lcm(2 * cp * rule.tp if cp > 1 else rule.tp, rule.block * cp)


@pytest.mark.parametrize(
    ("rule", "cp", "multiple"),
    [
        (PaddingRule(), 1, 1),
        (PaddingRule(), 2, 4),  # zigzag: two chunks a rank
        (PaddingRule(tp=2), 1, 2),
        (PaddingRule(tp=2), 2, 8),
        (PaddingRule(tp=2, block=16), 2, 32),
        (PaddingRule(tp=3, block=16), 1, 48),  # lcm; the larger of both, 16, does not divide by 3
        (PaddingRule(tp=2, block=3), 2, 24),  # lcm(8, 6)
        (PaddingRule(block=32), 8, 256),
    ],
)
def test_multiple_by_hand(rule: PaddingRule, cp: int, multiple: int) -> None:
    assert rule.multiple(cp) == multiple
    assert type(rule.multiple(cp)) is int


@settings(deadline=None)
@given(rule=rules, sizes=st.lists(st.integers(1, 64), min_size=1, max_size=8))
def test_multiples_of_many_sizes_are_those_of_each(rule: PaddingRule, sizes: list[int]) -> None:
    assert rule.multiple(np.array(sizes)).tolist() == [by_the_formula(rule, cp) for cp in sizes]


def test_no_rule_pads_nothing() -> None:
    assert padding_multiple(None, 8) == 1
    assert padding_multiple(None, np.array([1, 8])).tolist() == [1, 1]
    assert padded_lengths([0, 7, 2**40], 8).tolist() == [0, 7, 2**40]
    assert row_capacity(100, None) == 100


def test_padded_lengths_follow_the_size_that_is_assigned() -> None:
    rule = PaddingRule(tp=2, block=16)
    # multiples: 16 at cp 1, 32 at cp 2, 64 at cp 4
    assert padded_lengths([17, 17, 17, 0, 64], np.array([1, 2, 4, 4, 4]), rule).tolist() == [32, 32, 64, 0, 64]
    assert padded_lengths(np.array([17], np.uint8), 1, rule).dtype == np.int64


@settings(deadline=None)
@given(rule=rules, cp=st.integers(1, 16), length=st.integers(0, 5000))
def test_a_padded_length_is_the_next_multiple(rule: PaddingRule, cp: int, length: int) -> None:
    padded = int(padded_lengths([length], cp, rule)[0])
    assert padded % by_the_formula(rule, cp) == 0
    assert 0 <= padded - length < by_the_formula(rule, cp)


@pytest.mark.parametrize(
    ("rule", "total", "cp", "padded"),
    [
        (PaddingRule(tp=4, block=32, sequence_parallel=True), 31936, 1, 32000),
        (PaddingRule(tp=4, block=32, sequence_parallel=True), 32000, 1, 32000),
        (PaddingRule(tp=4, block=32, sequence_parallel=True), 1, 2, 256),
        (PaddingRule(tp=4, block=32), 31936, 1, 31936),  # without sequence parallelism totals stay as they are
    ],
)
def test_totals_by_hand(rule: PaddingRule, total: int, cp: int, padded: int) -> None:
    assert rule.padded_total(total, cp) == padded
    assert rule.padded_total(np.array([total, 0]), cp).tolist() == [padded, 0]


def test_rows_fill_only_whole_multiples_of_the_capacity() -> None:
    rule = PaddingRule(tp=8, block=2, sequence_parallel=True)
    assert rule.row_multiple() == 16
    assert [row_capacity(capacity, rule) for capacity in (15, 16, 31, 32)] == [0, 16, 16, 32]


@settings(deadline=None)
@given(rule=st.none() | rules, cp=st.integers(1, 8), capacity=st.integers(1, 200))
def test_longest_fitting_length_by_trying_all(rule: PaddingRule | None, cp: int, capacity: int) -> None:
    def fits(length: int) -> bool:
        multiple = 1 if rule is None else by_the_formula(rule, cp)
        row = cp * rule.block * rule.tp if rule is not None and rule.sequence_parallel else 1
        padded = math.ceil(length / multiple) * multiple
        return math.ceil(padded / row) * row <= capacity * cp

    assert longest_fitting_length(capacity, cp, rule) == max(
        length for length in range(capacity * cp + 1) if fits(length)
    )


def test_longest_fitting_length_of_many_sizes() -> None:
    assert longest_fitting_length(100, np.array([1, 2, 4]), PaddingRule(block=8)).tolist() == [96, 192, 384]
    assert type(longest_fitting_length(100, 2)) is int


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tp": 0}, "tp must be at least 1, got 0"),
        ({"tp": 2.0}, "tp must be an integer, got 2.0"),
        ({"block": -16}, "block must be at least 1, got -16"),
        ({"block": True}, "block must be an integer, got True"),
        ({"sequence_parallel": 1}, "sequence_parallel must be True or False, got 1"),
    ],
)
def test_a_rule_that_cannot_be_is_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{text}"):
        PaddingRule(**options)


def test_a_rule_with_numpy_sizes_is_the_same_rule() -> None:
    rule = PaddingRule(tp=np.int64(2), block=np.int32(16))  # pyright: ignore[reportArgumentType] - the point of the test
    assert rule == PaddingRule(tp=2, block=16)
    assert (type(rule.tp), type(rule.block)) == (int, int)  # it becomes JSON in digests and files


def test_capacity_and_rule_are_checked_together() -> None:
    assert check_capacity(np.int64(64), None) == 64
    assert check_capacity(128, PaddingRule(tp=8, block=16, sequence_parallel=True)) == 128
    with pytest.raises(ArgumentError, match=r"^capacity must be at least 128, to which .* pads each row, got 127$"):
        check_capacity(127, PaddingRule(tp=8, block=16, sequence_parallel=True))
    with pytest.raises(ArgumentError, match=r"^padding must be a PaddingRule or None, got 8$"):
        check_capacity(64, 8)
    with pytest.raises(ArgumentError, match=r"^capacity must be at least 1, got 0$"):
        check_capacity(0, None)


def test_rules_are_values() -> None:
    assert PaddingRule(tp=2) == PaddingRule(tp=2, block=1)
    assert len({PaddingRule(tp=2), PaddingRule(tp=2), PaddingRule(tp=4)}) == 2
