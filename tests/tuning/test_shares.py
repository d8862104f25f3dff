"""Where the time goes, by hand and as a property: the parts add up to ranks x step time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.cost import get_cost
from dcpack.padding import PaddingRule
from dcpack.tuning import TimeShares, time_shares

QUADRATIC = dcpack.QuadraticCost()


def test_by_hand_without_communication() -> None:
    # Capacity 4, two ranks: 8 tokens on both ranks (64 / 2 each), then 4 (16) beside 2 (4).
    plan = dcpack.plan([8, 4, 2], num_ranks=2, capacity=4, cost=QUADRATIC, scheduler="packing_aware")
    assert plan.num_microbatches == 2
    shares = time_shares(plan, QUADRATIC)
    assert (shares.work, shares.padding, shares.ring, shares.waiting) == (84.0, 0.0, 0.0, 12.0)
    assert shares.total == 2 * plan.simulate(QUADRATIC)
    assert shares.held_back_by() == "waiting for long sequences"


def test_padding_by_hand() -> None:
    plan = dcpack.plan([3, 3], num_ranks=2, capacity=4, padding=PaddingRule(tp=4), cost=QUADRATIC)
    shares = time_shares(plan, QUADRATIC)
    assert (shares.work, shares.padding, shares.waiting) == (18.0, 14.0, 0.0)
    assert shares.held_back_by() == "padding"


def test_the_ring_is_what_cp_costs_on_top() -> None:
    cost = get_cost("llama3-8b@h100")
    plan = dcpack.plan([4096], num_ranks=8, capacity=512, cost=cost)
    alone = cost.bin_time(cost.columns(np.array([4096])), np.array([1]), np.array([False]))[0]
    shares = time_shares(plan, cost)
    assert shares.work == pytest.approx(alone)
    assert shares.ring == pytest.approx(8 * plan.simulate(cost) - alone)
    assert shares.ring > 0.1 * shares.work
    assert shares.held_back_by() == "CP communication"


def test_whose_slowest_bin_holds_many_waits_for_fuller_ranks() -> None:
    plan = dcpack.plan([4, 4, 4, 1], num_ranks=2, capacity=12, scheduler="in_order", cp_sizes=(1,), cost=QUADRATIC)
    assert plan.to_sample_id_groups() == [[[0, 1, 2], [3]]]
    shares = time_shares(plan, QUADRATIC)
    assert (shares.waiting, shares.waiting_for_one) == (47.0, 0.0)
    assert shares.held_back_by() == "waiting for fuller ranks"


def test_dummies_and_nothing_are_no_work() -> None:
    nothing = time_shares(dcpack.plan([], num_ranks=2, capacity=4), QUADRATIC)
    assert nothing == TimeShares()
    assert nothing.held_back_by() == "the work itself"
    assert nothing.share("work") == 0.0
    plan = dcpack.plan([4], num_ranks=2, capacity=4, cp_sizes=(1,), on_empty="dummy", cost=QUADRATIC)
    assert plan.dummy.any()
    shares = time_shares(plan, QUADRATIC)
    assert (shares.work, shares.waiting) == (16.0, 16.0)


def test_they_add_up() -> None:
    assert TimeShares(work=1.0, ring=2.0) + TimeShares(work=3.0, waiting=4.0, waiting_for_one=1.0) == TimeShares(
        work=4.0, ring=2.0, waiting=4.0, waiting_for_one=1.0
    )


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 3000), min_size=8, max_size=40),
    sync=st.sampled_from(["microbatch", "step"]),
    tp=st.sampled_from([1, 4]),
)
def test_the_parts_are_all_of_it(lengths: list[int], sync: str, tp: int) -> None:
    cost = get_cost("llama3-8b@h100")
    plan = dcpack.plan(lengths, num_ranks=4, capacity=1024, cost=cost, padding=PaddingRule(tp=tp), on_empty="dummy")
    shares = time_shares(plan, cost, sync=sync)
    assert shares.total == pytest.approx(4 * plan.simulate(cost, sync=sync))
    assert min(shares.work, shares.padding, shares.ring, shares.waiting) >= -1e-9 * shares.total
    assert 0.0 <= shares.waiting_for_one <= shares.waiting
