from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import ArgumentError, InfeasibleError, PlanError
from dcpack.padding import PaddingRule
from dcpack.scheduling import ON_EMPTY, SCHEDULERS, Group, get_scheduler


def test_schedulers_by_name() -> None:
    assert list(SCHEDULERS) == ["in_order", "packing_aware", "dynamic_cp", "balanced", "local_gain", "uniform_cp"]
    for name, scheduler in SCHEDULERS.items():
        assert get_scheduler(name) is scheduler
        assert get_scheduler(scheduler) is scheduler
        assert scheduler.name == name
    assert ON_EMPTY == ("error", "dummy")


def test_each_scheduler_says_which_sizes_it_assigns() -> None:
    lengths = [10] * 8
    assert dcpack.plan(lengths, num_ranks=8, capacity=100).cp_sizes == (1, 2, 4, 8)
    assert dcpack.plan(lengths, num_ranks=8, capacity=100, scheduler="in_order").cp_sizes == (1,)
    assert dcpack.plan(lengths, num_ranks=8, capacity=100, scheduler="in_order", min_cp_size=3).cp_sizes == (4,)


def test_what_is_overlong_follows_from_the_sizes_that_are_assigned() -> None:
    assert dcpack.plan([160], num_ranks=2, capacity=100).cp_size.tolist() == [2]
    with pytest.raises(InfeasibleError, match=r"limit of 100 tokens \(100 x 1 ranks\): sequence 0 has 160"):
        dcpack.plan([160], num_ranks=2, capacity=100, max_cp_size=1)
    # padded to a multiple of 32 at CP 2: 192 is the most that fits in 200
    rule = PaddingRule(block=16)
    assert dcpack.plan([192], num_ranks=2, capacity=100, padding=rule).num_bins == 1
    with pytest.raises(InfeasibleError, match=r"limit of 192 tokens \(100 x 2 ranks, PaddingRule\(.*block=16"):
        dcpack.plan([193], num_ranks=2, capacity=100, padding=rule)


def test_a_smaller_size_may_hold_more_where_padding_is_coarse() -> None:
    # At CP 3 lengths are multiples of 48 (96 in 120), at CP 2 of 32 (64 in 80), at CP 1 of 16 (32 in 40).
    plan = dcpack.plan([96, 64, 32], num_ranks=3, capacity=40, cp_sizes="any", padding=PaddingRule(block=16))
    assert dict(zip(plan.sequence_ids.tolist(), plan.cp_size.tolist(), strict=True)) == {0: 3, 1: 2, 2: 1}
    # A single token is padded to 4 at CP 2, which two rows of one token do not hold.
    plan = dcpack.plan([1, 1], num_ranks=2, capacity=1, padding=PaddingRule())
    assert plan.to_sample_id_groups() == [[[0], [1]]]
    with pytest.raises(InfeasibleError, match="limit of 1 token "):
        dcpack.plan([2], num_ranks=2, capacity=1, padding=PaddingRule())


def test_bounds_hold_with_oversized_sequences() -> None:
    plan = dcpack.plan([900], num_ranks=8, capacity=100, overlong="single")
    assert plan.num_microbatches == 1
    assert plan.bounds["num_microbatches"] <= 1


def test_flags_follow_their_bins_when_blocks_are_placed() -> None:
    # The oversized sequence takes all ranks of its own micro-batch, dummies stand behind the real bins.
    plan = dcpack.plan([500, 40], num_ranks=4, capacity=100, overlong="single")
    assert [plan.describe_bin(b) for b in range(plan.num_bins)] == [
        "micro-batch 0, ranks 0..3, row 0, entries 0[0:500], oversized",
        "micro-batch 1, ranks 0..3, row 0, entries 1[0:40]",
    ]
    plan = dcpack.plan([40, 30], num_ranks=3, capacity=40, scheduler="in_order", on_empty="dummy")
    assert plan.dummy.tolist() == [False, False, True]


def test_pieces_of_cut_sequences_keep_their_places() -> None:
    plan = dcpack.plan([250, 30], num_ranks=2, capacity=50, overlong="split")
    parts = sorted(zip(plan.sequence_ids.tolist(), plan.starts.tolist(), plan.entry_lengths.tolist(), strict=True))
    assert parts == [(0, 0, 100), (0, 100, 100), (0, 200, 50), (1, 0, 30)]
    assert plan.dropped.tolist() == [0, 0]


class Slow:
    """A cost model of a user: a second a token."""

    node_size = None
    unit = "s"

    def columns(self, padded_lengths: np.ndarray) -> Any:
        return padded_lengths[:, np.newaxis] * 1.0

    def bin_time(self, column_sums: np.ndarray, cp_size: np.ndarray, crosses_node: np.ndarray) -> Any:
        del crosses_node
        return column_sums[:, 0] / cp_size


@pytest.mark.parametrize(
    ("method", "returned", "text"),
    [
        ("columns", [[1.0], [2.0]], r"cost\.columns must return an array \[2, k\] of numbers for 2 lengths, got "),
        ("columns", np.ones(2), r"cost\.columns must return "),
        ("columns", np.ones((2, 1), np.object_), r"cost\.columns must return "),
        ("bin_time", [1.0, 2.0], r"cost\.bin_time must return an array of 2 finite numbers of at least 0 for 2 bins"),
        ("bin_time", 3.0, r"cost\.bin_time must return "),
        ("bin_time", np.array([1.0, np.nan]), r"cost\.bin_time must return "),
        ("bin_time", np.array([1.0, -1.0]), r"cost\.bin_time must return "),
        ("bin_time", np.array([1.0, 2.0, 3.0]), r"cost\.bin_time must return "),
    ],
)
def test_a_cost_model_that_returns_something_else_is_named(method: str, returned: Any, text: str) -> None:
    cost = Slow()
    assert dcpack.plan([3, 2], num_ranks=1, capacity=5, cost=cost).simulate(cost) == 5.0
    setattr(cost, method, lambda *arguments: returned)
    with pytest.raises(ArgumentError, match=text):
        dcpack.plan([3, 2], num_ranks=1, capacity=5, cost=cost)


class Picky(Slow):
    """Knows only the CP sizes and the lengths that a test has: others are infinite, negative or an error of its own."""

    def columns(self, padded_lengths: np.ndarray) -> Any:
        if padded_lengths.min() < 8:
            raise RuntimeError("no measurement below 8 tokens")
        return np.stack([np.ones(padded_lengths.size), padded_lengths], axis=1)

    def bin_time(self, column_sums: np.ndarray, cp_size: np.ndarray, crosses_node: np.ndarray) -> Any:
        del crosses_node
        fitted = column_sums[:, 1] - 5 * column_sums[:, 0]  # below 0 for lengths under 5
        return np.where(cp_size < 2, np.inf, fitted / cp_size)


@pytest.mark.parametrize("lengths", [[9, 12], [16], []])
@pytest.mark.parametrize("scheduler", ["dynamic_cp", "uniform_cp", "in_order"])
def test_a_cost_model_is_tried_only_where_the_plan_needs_it(scheduler: str, lengths: list[int]) -> None:
    plan = dcpack.plan(lengths, num_ranks=2, capacity=8, cost=Picky(), min_cp_size=2, scheduler=scheduler)
    assert plan.num_microbatches == len(lengths)


def test_a_cost_model_is_tried_with_the_shortest_and_the_longest_sequence() -> None:
    class Falling(Slow):
        def bin_time(self, column_sums: np.ndarray, cp_size: np.ndarray, crosses_node: np.ndarray) -> Any:
            return 100.0 - column_sums[:, 0]

    assert dcpack.plan([30, 99, 5], num_ranks=2, capacity=100, cost=Falling())
    with pytest.raises(ArgumentError, match=r"^cost\.bin_time must return an array of 2 finite .*, got .*95.*-1"):
        dcpack.plan([30, 101, 5], num_ranks=2, capacity=100, cost=Falling())


@pytest.mark.parametrize(
    ("rows", "listed"),
    [
        ([[0, 0, 0], [0, 1]], "row 1 of micro-batch 0"),  # as many groups as rows, and not in each
        ([[0], [1], [1, 0]], "row 1 of micro-batch 0, row 0 of micro-batch 1"),
        ([[0], []], "row 0 of micro-batch 1"),
        ([[0], [10]], ", ".join(f"row {row} of micro-batch 0" for row in range(1, 9)) + " and 12 more"),
        ([[2**62]], ", ".join(f"row {row} of micro-batch 0" for row in range(8)) + f" and {2**62 - 8} more"),
    ],
)
def test_rows_without_a_group_are_named(rows: list[list[int]], listed: str) -> None:
    class Own:
        name = "own"

        def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
            return legal

        def schedule(self, problem: Any) -> Any:
            items = iter(range(problem.lengths.size))
            return [[Group(1, [next(items)], row=row) for row in of_one] for of_one in rows]

    with pytest.raises(PlanError) as caught:
        dcpack.plan([4] * sum(map(len, rows)), num_ranks=1, capacity=8, scheduler=Own())
    assert str(caught.value) == (
        "scheduler 'own' must return a group for each row of each micro-batch (rows are numbered from 0), got none "
        f"for {listed}"
    )
