from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack._checks import Int64Array
from dcpack.balancing import BALANCERS, EFFORTS, get_balancer, integer_costs
from dcpack.balancing.base import deal_in_order
from dcpack.errors import ArgumentError


def test_integers_stay_exact() -> None:
    for dtype in (np.uint8, np.int32, np.int64, np.uint64):
        costs = integer_costs(
            np.array([3, 0, 200], dtype) if dtype is np.uint8 else np.array([3, 0, 200]).astype(dtype)
        )
        assert costs.tolist() == [3, 0, 200]
        assert costs.dtype == np.int64
    assert integer_costs([2**58, 2**58 - 1]).tolist() == [2**58, 2**58 - 1]
    assert integer_costs([]).dtype == np.int64


def test_floats_are_scaled_by_a_power_of_two() -> None:
    # The largest, 3.0, is below 2**2, so the unit is 2**-38.
    assert integer_costs([3.0, 1.5, 0.0]).tolist() == [3 * 2**38, 3 * 2**37, 0]
    # The third is 0.3 in that unit: rounded to the nearest, not down.
    assert integer_costs([3.0, 2.0**-38 * 0.7, 2.0**-38 * 0.3]).tolist() == [3 * 2**38, 1, 0]
    assert integer_costs([0.0, 0.0]).tolist() == [0, 0]


def test_scaling_floats_by_a_power_of_two_changes_nothing() -> None:
    costs = np.random.default_rng(3).lognormal(0, 3, 50)
    expected = integer_costs(costs).tolist()
    assert max(expected) >= 2**39
    for factor in (2.0**-900, 2.0**-20, 2.0**30, 2.0**900):
        assert integer_costs(costs * factor).tolist() == expected
    assert (
        integer_costs(costs.astype(np.float32)).tolist()
        == integer_costs(costs.astype(np.float32).astype(np.float64)).tolist()
    )


@pytest.mark.parametrize("largest", [2.0**-1074, 2.0**-1022, 1.0, np.finfo(np.float64).max])
def test_the_whole_range_of_floats(largest: float) -> None:
    costs = integer_costs([largest, 0.0])
    assert 2**39 <= costs[0] <= 2**40
    assert costs[1] == 0


def test_huge_integers_are_scaled_so_that_sums_stay_in_int64() -> None:
    # 4 has 3 bits, which leaves 56 of 59: 2**63 has 64 and comes down by 8. 255 / 256 is rounded to 1, 127 / 256 to 0.
    costs = integer_costs(np.array([2**63, 2**62, 255, 127], np.uint64))
    assert costs.tolist() == [2**55, 2**54, 1, 0]
    many = integer_costs(np.full(1000, 2**63 - 1))
    assert sum(many.tolist()) < 2**59
    assert many[0] >= 2**48


def test_many_floats_get_fewer_bits() -> None:
    costs = integer_costs(np.full(2**19, 1.75))
    # 2**19 has 20 bits, which leaves 39 of 59: 1.75 is below 2, so the unit is 2**-38
    assert costs[0] == 7 * 2**36
    assert integer_costs(np.full(2**19 - 1, 1.75))[0] == 7 * 2**37


def test_all_bad_costs_are_named() -> None:
    with pytest.raises(
        ArgumentError,
        match=r"^costs must be finite and at least 0: costs\[1\] = nan, costs\[2\] = inf, costs\[4\] = -0\.5$",
    ):
        integer_costs([1.0, float("nan"), float("inf"), 0.0, -0.5])
    with pytest.raises(ArgumentError, match=r"^costs must be finite and at least 0: costs\[0\] = -3$"):
        integer_costs([-3, 1])
    with pytest.raises(ArgumentError, match=r"costs must be one-dimensional, got shape \(1, 2\)"):
        integer_costs([[1, 2]])
    with pytest.raises(ArgumentError, match="costs must hold integers or floats, got dtype bool"):
        integer_costs(np.array([True]))
    with pytest.raises(ArgumentError, match=r"costs must hold numbers, got bools: costs\[1\] = True"):
        integer_costs([2.5, True])
    with pytest.raises(ArgumentError, match="costs must be a one-dimensional array of numbers"):
        integer_costs([[1], [2, 3]])  # ragged on purpose


def test_a_method_sees_descending_costs_of_2_to_n_parts() -> None:
    asked: list[tuple[list[int], int, bool]] = []

    def deal(costs: Int64Array, num_parts: int, equal_size: bool) -> Int64Array:
        asked.append((costs.tolist(), num_parts, equal_size))
        return np.arange(costs.size) % num_parts

    def parts(costs: list[int], num_parts: int) -> list[int]:
        return deal_in_order(costs, num_parts, equal_size=True, effort="fast", deal=deal).tolist()

    assert parts([2, 9, 2, 5], 2) == [0, 0, 1, 1]  # 9 5 2 2 is items 1 3 0 2
    assert parts([2, 9], 10**12) == [1, 0]
    assert parts([2, 9], 1) == [0, 0]
    assert parts([], 3) == []
    assert asked == [([9, 5, 2, 2], 2, True), ([9, 2], 2, True)]


@pytest.mark.parametrize("equal_size", [False, True])
@pytest.mark.parametrize("name", sorted(BALANCERS))
class TestEveryBalancer:
    def test_124_items_in_15_parts(self, name: str, equal_size: bool) -> None:
        costs = np.random.default_rng(5).lognormal(7, 1, 124)
        counts = np.bincount(get_balancer(name)(costs, 15, equal_size=equal_size), minlength=15)
        assert counts.size == 15
        assert counts.min() >= 1
        if equal_size:
            assert sorted(counts.tolist()) == [8] * 11 + [9] * 4  # 124 = 15 * 8 + 4

    @pytest.mark.parametrize("costs", [[0] * 7, [0, 0, 9, 0, 0, 0, 0], [5] * 7, [1000, 1, 0, 0, 0, 0, 0]])
    @pytest.mark.parametrize("num_parts", range(1, 8))
    def test_no_part_is_empty_where_items_cost_nothing(
        self, name: str, equal_size: bool, costs: list[int], num_parts: int
    ) -> None:
        counts = np.bincount(get_balancer(name)(costs, num_parts, equal_size=equal_size), minlength=num_parts)
        assert counts.size == num_parts
        assert counts.min() >= 1
        if equal_size:
            assert counts.max() - counts.min() <= 1

    def test_surplus_parts_stay_empty(self, name: str, equal_size: bool) -> None:
        assert get_balancer(name)([2, 0, 5], 7, equal_size=equal_size).tolist() == [1, 2, 0]

    def test_nothing_to_balance(self, name: str, equal_size: bool) -> None:
        parts = get_balancer(name)([], 3, equal_size=equal_size)
        assert (parts.tolist(), parts.dtype) == ([], np.int64)

    def test_one_part(self, name: str, equal_size: bool) -> None:
        assert get_balancer(name)([4, 0, 2], 1, equal_size=equal_size).tolist() == [0, 0, 0]

    def test_floats_and_integers_decide_alike(self, name: str, equal_size: bool) -> None:
        costs = np.random.default_rng(6).integers(0, 2**31, 60)
        balancer = get_balancer(name)
        parts = balancer(costs, 7, equal_size=equal_size)
        assert parts.dtype == np.int64
        assert parts.tolist() == balancer(costs.astype(np.float64), 7, equal_size=equal_size).tolist()
        assert parts.tolist() == balancer(costs.tolist(), 7, equal_size=equal_size).tolist()

    def test_bad_arguments_are_named(self, name: str, equal_size: bool) -> None:
        with pytest.raises(ArgumentError, match="num_parts must be at least 1, got 0"):
            get_balancer(name)([1], 0, equal_size=equal_size)
        with pytest.raises(ArgumentError, match=r"costs must be finite and at least 0: costs\[1\] = nan"):
            get_balancer(name)([1.0, float("nan")], 2, equal_size=equal_size)
        with pytest.raises(ArgumentError, match="effort must be one of 'fast', 'best', got 'most'"):
            get_balancer(name)([1], 1, equal_size=equal_size, effort="most")

    def test_the_best_effort_is_the_default_and_refines(self, name: str, equal_size: bool) -> None:
        costs = np.random.default_rng(7).lognormal(7, 1, 300)
        parts = {effort: get_balancer(name)(costs, 16, equal_size=equal_size, effort=effort) for effort in EFFORTS}
        assert parts["best"].tolist() == get_balancer(name)(costs, 16, equal_size=equal_size).tolist()
        maxima = {effort: np.bincount(parts[effort], costs).max() for effort in EFFORTS}
        assert maxima["best"] < maxima["fast"]
        assert maxima["best"] < 1.0001 * costs.sum() / 16


def test_unknown_balancer_lists_those_there_are() -> None:
    with pytest.raises(ArgumentError, match="balancing method must be one of 'karmarkar_karp', 'lpt', got 'kk'"):
        get_balancer("kk")


@pytest.mark.parametrize("equal_size", ["False", None, 1])
def test_equal_size_is_true_or_false(equal_size: Any) -> None:
    with pytest.raises(ArgumentError, match="equal_size must be True or False, got"):
        get_balancer("lpt")([3, 4, 5], 2, equal_size=equal_size)
