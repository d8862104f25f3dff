"""What holds for every balancer, whatever the costs."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack._checks import Int64Array
from dcpack.balancing import BALANCERS, EFFORTS, integer_costs, lpt
from dcpack.bounds import balance_lower_bound

COSTS = st.lists(st.integers(0, 20), max_size=80) | st.lists(
    st.floats(0, allow_infinity=False, allow_nan=False), max_size=80
)


def part_sums(costs: Int64Array, parts: Int64Array, num_parts: int) -> Int64Array:
    sums = np.zeros(num_parts, np.int64)
    np.add.at(sums, parts, costs)
    return sums


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("equal_size", [False, True])
@pytest.mark.parametrize("name", sorted(BALANCERS))
@given(costs=COSTS, num_parts=st.integers(1, 20))
def test_every_balance_is_legal(
    name: str, equal_size: bool, effort: str, costs: list[int] | list[float], num_parts: int
) -> None:
    parts = BALANCERS[name](costs, num_parts, equal_size=equal_size, effort=effort)
    assert parts.shape == (len(costs),)
    assert parts.dtype == np.int64
    counts = np.bincount(parts, minlength=num_parts)
    assert counts.size == num_parts  # no part beyond the last
    assert np.count_nonzero(counts) == min(num_parts, len(costs))
    if equal_size:
        assert counts.max() - counts.min() <= 1
    sums = part_sums(integer_costs(costs), parts, num_parts)
    assert sums.max() >= balance_lower_bound(integer_costs(costs), num_parts) * (1 - 1e-12)
    again = BALANCERS[name](np.array(costs), num_parts, equal_size=equal_size, effort=effort)
    assert parts.tolist() == again.tolist()


@pytest.mark.parametrize("equal_size", [False, True])
@pytest.mark.parametrize("name", sorted(BALANCERS))
@given(costs=COSTS, num_parts=st.integers(1, 20))
def test_the_best_effort_is_never_worse(
    name: str, equal_size: bool, costs: list[int] | list[float], num_parts: int
) -> None:
    exact = integer_costs(costs)
    fast, best = (
        part_sums(exact, BALANCERS[name](costs, num_parts, equal_size=equal_size, effort=effort), num_parts)
        for effort in EFFORTS
    )
    assert best.max() <= fast.max()


@pytest.mark.parametrize("effort", EFFORTS)
@pytest.mark.parametrize("equal_size", [False, True])
@pytest.mark.parametrize("name", sorted(BALANCERS))
@settings(deadline=None)
@given(costs=st.lists(st.integers(0, 12), min_size=1, max_size=60), num_parts=st.integers(1, 12), data=st.data())
def test_the_order_of_items_changes_nothing_but_their_numbers(
    name: str, equal_size: bool, effort: str, costs: list[int], num_parts: int, data: st.DataObject
) -> None:
    # Part by part, the costs are the same; which of the items of one cost they belong to goes by their order.
    shuffled = data.draw(st.permutations(costs))
    one, other = (
        sorted(
            zip(BALANCERS[name](given, num_parts, equal_size=equal_size, effort=effort).tolist(), given, strict=True)
        )
        for given in (costs, shuffled)
    )
    assert one == other


@given(costs=st.lists(st.integers(0, 10**6), min_size=1, max_size=80), num_parts=st.integers(1, 20))
def test_lpt_is_a_list_schedule(costs: list[int], num_parts: int) -> None:
    # Whatever was put last on the dearest part was put there when that part was the least loaded: its sum before was at
    # most the mean of the other costs. Graham's (2 - 1/k) rule follows from it.
    parts = lpt(costs, num_parts, effort="fast")
    sums = [0] * num_parts
    for part, cost in zip(parts.tolist(), costs, strict=True):
        sums[part] += cost
    dearest = int(np.argmax(sums))
    last = min(cost for part, cost in zip(parts.tolist(), costs, strict=True) if part == dearest)
    assert num_parts * (sums[dearest] - last) <= sum(costs) - last
    assert num_parts * sums[dearest] <= (2 * num_parts - 1) * balance_lower_bound(costs, num_parts)
