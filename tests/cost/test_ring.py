from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.cost import CostModel, RingCost
from dcpack.errors import ArgumentError


def time_of(cost: CostModel, lengths: list[int], cp: int, crosses: bool = False) -> float:
    sums = cost.columns(np.array(lengths, np.int64)).sum(axis=0, keepdims=True)
    return float(cost.bin_time(sums, np.array([cp]), np.array([crosses]))[0])


def test_every_term_by_hand() -> None:
    cost = RingCost(linear=3.0, quadratic=0.5, ring_intra=2.0, ring_inter=50.0)
    # lengths 8 and 4: 12 tokens, 80 pairs worth 40
    assert time_of(cost, [8, 4], 1) == 3 * 12 + 40
    assert time_of(cost, [8, 4], 1, crosses=True) == 3 * 12 + 40  # one rank passes nothing on
    # cp 2: t = 6, a round is 40 / 4 = 10, a transfer 12: the second round waits
    assert time_of(cost, [8, 4], 2) == 3 * 6 + 10 + 1 * 12
    # cp 4: t = 3, a round is 40 / 16 = 2.5, a transfer 6, between nodes 150
    assert time_of(cost, [8, 4], 4) == 3 * 3 + 2.5 + 3 * 6
    assert time_of(cost, [8, 4], 4, crosses=True) == 3 * 3 + 2.5 + 3 * 150


def test_attention_hides_the_ring_of_long_sequences() -> None:
    cost = RingCost(linear=0.0, ring_intra=1024.0)
    # 65536 tokens over 4: a round of 16384 ** 2 pairs against 1024 * 16384 for the transfer
    assert time_of(cost, [65536], 4) == 4 * 16384.0**2
    # 2048 over 4: a round of 512 ** 2 waits three times for 1024 * 512
    assert time_of(cost, [2048], 4) == 512.0**2 + 3 * 1024 * 512


@settings(deadline=None)
@given(length=st.integers(1, 2**20), cp=st.sampled_from([2, 3, 4, 8, 14, 64]), crosses=st.booleans())
def test_splitting_never_lowers_the_total_work(length: int, cp: int, crosses: bool) -> None:
    cost = RingCost()
    assert time_of(cost, [length], cp, crosses) * cp >= time_of(cost, [length], 1) * (1 - 1e-12)
    assert time_of(cost, [length], cp, True) >= time_of(cost, [length], cp, False)
    assert time_of(cost, [length + 1], cp, crosses) > time_of(cost, [length], cp, crosses)


def test_the_default_is_an_eight_gpu_node() -> None:
    assert (RingCost().node_size, RingCost().unit) == (8, "cost")
    assert RingCost(node_size=None).node_size is None
    assert RingCost().columns(np.array([5])).tolist() == [[5.0, 25.0]]


@pytest.mark.parametrize("name", ["linear", "quadratic", "ring_intra", "ring_inter"])
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), True, "3", None])
def test_a_coefficient_that_is_no_cost_is_named(name: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=f"^{name} must be a finite number of at least 0, got "):
        RingCost(**{name: value})


@pytest.mark.parametrize("value", [np.float64(3), np.float32(3), np.int64(3)])
def test_a_coefficient_may_be_any_real_number(value: Any) -> None:
    assert time_of(RingCost(linear=value, quadratic=0), [2], 1) == 6.0


def test_a_node_has_a_rank_at_least() -> None:
    with pytest.raises(ArgumentError, match="node_size must be at least 1, got 0"):
        RingCost(node_size=0)
