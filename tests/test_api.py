"""The three calls: what they hand on, and what they refuse before anything is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.cost import QuadraticCost, RingCost, get_cost
from dcpack.errors import ArgumentError, DcpackError, InfeasibleError, PlanError
from dcpack.padding import PaddingRule
from dcpack.plans import Plan
from dcpack.scheduling import Group, MicroBatch, Problem

METHODS = ["best_fit_decreasing", "concat_then_split", "first_fit", "first_fit_decreasing", "next_fit"]


def bins_of(plan: Plan) -> list[list[tuple[int, int, int]]]:
    """(sequence, first token, tokens) of each entry, bin by bin."""
    entries = list(zip(plan.sequence_ids.tolist(), plan.starts.tolist(), plan.entry_lengths.tolist(), strict=True))
    return [entries[a:b] for a, b in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)]


# ---- pack ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_packs_by_every_method_without_ranks(method: str) -> None:
    plan = dcpack.pack([5, 0, 4, 3, 3], capacity=8, method=method)
    plan.validate([5, 0, 4, 3, 3])
    assert (plan.num_ranks, plan.num_microbatches, plan.rows_per_rank, plan.capacity) == (0, 0, 0, 8)
    for array in (plan.microbatch, plan.first_rank, plan.row):
        assert array.tolist() == [-1] * plan.num_bins
    assert 1 not in plan.sequence_ids
    assert plan.cp_size.tolist() == [1] * plan.num_bins
    assert plan.bounds["num_bins"] == 2 <= plan.num_bins


def test_methods_by_hand() -> None:
    lengths = [5, 4, 3, 3]
    assert bins_of(dcpack.pack(lengths, capacity=8)) == [[(0, 0, 5), (2, 0, 3)], [(1, 0, 4), (3, 0, 3)]]
    assert bins_of(dcpack.pack(lengths, capacity=8, method="next_fit")) == [
        [(0, 0, 5)],
        [(1, 0, 4), (2, 0, 3)],
        [(3, 0, 3)],
    ]
    assert bins_of(dcpack.pack(lengths, capacity=8, method="concat_then_split")) == [
        [(0, 0, 5), (1, 0, 3)],
        [(1, 3, 1), (2, 0, 3), (3, 0, 3)],
    ]


@pytest.mark.parametrize("method", METHODS)
def test_padding_counts_against_the_capacity(method: str) -> None:
    # 5 tokens pad to 8: two do not fit in 15
    plan = dcpack.pack([5, 5], capacity=15, method=method, padding=PaddingRule(block=8))
    assert plan.num_bins == 2
    assert plan.padding == PaddingRule(block=8)
    assert dcpack.pack([5, 5], capacity=16, method=method, padding=PaddingRule(block=8)).num_bins == 1


@pytest.mark.parametrize("method", METHODS)
def test_a_cap_on_sequences_holds(method: str) -> None:
    plan = dcpack.pack([1] * 7, capacity=100, method=method, max_sequences=3)
    assert max(np.diff(plan.offsets)) <= 3
    assert plan.bounds["num_bins"] == 3 <= plan.num_bins


@pytest.mark.parametrize("method", METHODS)
def test_no_sequences_give_no_bins(method: str) -> None:
    for lengths in ([], [0, 0]):
        plan = dcpack.pack(lengths, capacity=8, method=method)
        assert (plan.num_bins, plan.num_sequences) == (0, len(lengths))
        assert plan.bounds["num_bins"] == 0


def test_overlong_bound_counts_oversized_bins() -> None:
    plan = dcpack.pack([20, 5, 5], capacity=8, overlong="single")
    assert plan.oversized.tolist() == [len(entries) == 1 and entries[0][0] == 0 for entries in bins_of(plan)]
    assert plan.bounds["num_bins"] == 3 == plan.num_bins


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"capacity": 8.0}, "capacity must be an integer, got 8.0"),
        ({"capacity": 8, "method": "worst_fit"}, "method must be one of .*'concat_then_split', got 'worst_fit'"),
        ({"capacity": 8, "max_sequences": 0}, "max_sequences must be at least 1, got 0"),
        ({"capacity": 8, "overlong": "cut"}, "overlong.* must be one of .*, got 'cut'"),
        ({"capacity": 8, "padding": 4}, "padding must be a PaddingRule or None, got 4"),
        ({"capacity": 8, "padding": PaddingRule(tp=9, sequence_parallel=True)}, "capacity must be at least 9"),
    ],
)
@pytest.mark.parametrize("method", ["best_fit_decreasing", "concat_then_split"])
def test_pack_refuses_bad_options(method: str, options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        dcpack.pack([3], **{"method": method, **options})


@pytest.mark.parametrize("lengths", [[-1], [1.5], [[1]], "abc", [True]])
def test_lengths_are_checked_by_both_calls(lengths: Any) -> None:
    with pytest.raises(ArgumentError, match="lengths"):
        dcpack.pack(lengths, capacity=8)
    with pytest.raises(ArgumentError, match="lengths"):
        dcpack.plan(lengths, num_ranks=2, capacity=8)


def test_a_bin_over_int32_is_the_users_error_and_named() -> None:
    with pytest.raises(InfeasibleError, match=r"2147483648|2147483647"):
        dcpack.pack([2**31], capacity=2**40)
    with pytest.raises(InfeasibleError, match=r"3221225472|2147483647"):
        dcpack.plan([2**30] * 3, num_ranks=1, capacity=2**40)


@pytest.mark.parametrize("capacity", [2**62, 2**63, 2**80])
def test_a_huge_capacity_is_no_limit_or_refused_by_name(capacity: int) -> None:
    refusals: list[str] = []
    for call in (
        lambda: dcpack.pack([5, 6], capacity=capacity).validate([5, 6]),
        lambda: dcpack.plan([5, 6], num_ranks=8, capacity=capacity).validate([5, 6]),
    ):
        try:
            call()
        except ArgumentError as error:
            refusals.append(str(error))
    assert all("capacity" in text for text in refusals)


# ---- balance ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["karmarkar_karp", "lpt"])
def test_balance_names_the_part_of_each_item(method: str) -> None:
    costs = np.array([8, 7, 6, 5, 4])
    parts = dcpack.balance(costs, num_parts=2, method=method)
    assert (parts.shape, parts.dtype) == ((5,), np.int64)
    # 30 in two parts: both heuristics stop at 14 and 16 or 13 and 17, the optimum is 15 and 15
    assert max(costs[parts == part].sum() for part in (0, 1)) <= 17
    assert dcpack.balance(costs, num_parts=2, method=method).tolist() == parts.tolist()


def test_balance_refuses_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match=r"costs\[1\] = -1"):
        dcpack.balance([1, -1], num_parts=2)
    with pytest.raises(ArgumentError, match="num_parts must be at least 1, got 0"):
        dcpack.balance([1], num_parts=0)
    with pytest.raises(ArgumentError, match=r"'karmarkar_karp'.*got 'best'"):
        dcpack.balance([1], num_parts=1, method="best")


# ---- plan ------------------------------------------------------------------------------------------------------------


def test_a_plan_with_nothing_but_lengths_ranks_and_capacity() -> None:
    plan = dcpack.plan([150, 60, 30], num_ranks=4, capacity=100)
    assert plan.to_sample_id_groups() == [[[0], [0], [1, 2], [1, 2]]]
    assert (plan.num_ranks, plan.rows_per_rank, plan.padding, plan.cp_sizes) == (4, 1, None, (1, 2, 4))
    assert set(plan.bounds) == {"work", "longest", "step_time", "num_microbatches"}


def test_the_default_cost_is_a_7b_class_model_on_h100() -> None:
    lengths = [150, 60, 30]
    options: dict[str, Any] = {"num_ranks": 4, "capacity": 100}
    rule = {**options, "scheduler": "packing_aware"}
    default = dcpack.plan(lengths, **options)
    same = dcpack.plan(lengths, **options, cost=get_cost("llama3-8b@h100"))
    assert default.digest() == same.digest()
    ring = dcpack.plan(lengths, **rule, cost=RingCost())
    square = dcpack.plan(lengths, **rule, cost=QuadraticCost())
    # packing_aware decides by a rule of its own: costs price its bounds only.
    assert dcpack.plan(lengths, **rule).digest() == ring.digest() == square.digest()
    assert default.digest() == dcpack.plan(lengths, **options, scheduler="dynamic_cp").digest()
    assert dict(default.bounds) == dict(same.bounds)
    assert default.bounds["work"] != ring.bounds["work"]
    # (150 ** 2 + 60 ** 2 + 30 ** 2) / 4 of work; the longest takes 150 ** 2 / 4 on all ranks
    assert square.bounds["work"] == 6750.0
    assert square.bounds["longest"] == 5625.0


def test_nodes_come_from_the_cost_model() -> None:
    lengths = [5, 5, 3, 3]
    options: dict[str, Any] = {"num_ranks": 16, "capacity": 1, "cp_sizes": (3, 5)}
    nodes = dcpack.plan(lengths, cost=RingCost(node_size=8), **options)
    flat = dcpack.plan(lengths, cost=RingCost(node_size=None), **options)
    assert list(zip(nodes.first_rank.tolist(), nodes.cp_size.tolist(), strict=True)) == [
        (0, 5),
        (5, 3),
        (8, 5),
        (13, 3),
    ]
    assert list(zip(flat.first_rank.tolist(), flat.cp_size.tolist(), strict=True)) == [(0, 5), (5, 5), (10, 3), (13, 3)]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"num_ranks": 0}, "num_ranks must be at least 1, got 0"),
        ({"num_ranks": 2.0}, "num_ranks must be an integer, got 2.0"),
        ({"capacity": -5}, "capacity must be at least 1, got -5"),
        (
            {"scheduler": "random"},
            "scheduler must be one of 'in_order', 'packing_aware', 'dynamic_cp', .*, got 'random'",
        ),
        ({"scheduler": 7}, "scheduler must be a name or an object with usable_cp_sizes"),
        ({"cp_sizes": "powers"}, "cp_sizes must be 'powers_of_two'"),
        ({"min_cp_size": 0}, "min_cp_size must be at least 1, got 0"),
        ({"max_cp_size": 0}, "max_cp_size must be at least 1, got 0"),
        ({"padding": "fp8"}, "padding must be a PaddingRule or None, got 'fp8'"),
        ({"sync": "never"}, "sync must be one of 'microbatch', 'step', got 'never'"),
        ({"microbatch_multiple": 0}, "microbatch_multiple must be at least 1, got 0"),
        ({"max_sequences": 0}, "max_sequences must be at least 1, got 0"),
        ({"on_empty": "skip"}, "on_empty must be one of 'error', 'dummy', got 'skip'"),
        ({"overlong": "cut"}, "overlong.* must be one of .*, got 'cut'"),
        ({"cost": "quadratic"}, "cost"),
    ],
)
@pytest.mark.parametrize("lengths", [[3], []])
def test_plan_refuses_bad_options_whatever_the_lengths(lengths: list[int], options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        dcpack.plan(lengths, **{"num_ranks": 2, "capacity": 8, **options})


def test_integers_of_numpy_are_welcome() -> None:
    plain = dcpack.plan([9, 4, 4], num_ranks=4, capacity=5, max_sequences=2, min_cp_size=2)
    from_arrays = dcpack.plan(
        np.array([9, 4, 4], np.uint16),
        num_ranks=np.int64(4),  # pyright: ignore[reportArgumentType] - sizes often come out of arrays
        capacity=np.int32(5),  # pyright: ignore[reportArgumentType]
        max_sequences=np.int8(2),  # pyright: ignore[reportArgumentType]
        min_cp_size=np.uint8(2),  # pyright: ignore[reportArgumentType]
        microbatch_multiple=np.int64(1),  # pyright: ignore[reportArgumentType]
    )
    assert plain.digest() == from_arrays.digest()


class OneByOne:
    """A scheduler of a user: every sequence on all ranks, one a micro-batch."""

    name = "one_by_one"

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        return legal[-1:]

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        return [[Group(problem.num_ranks, [item])] for item in range(problem.lengths.size)]


def test_a_scheduler_of_a_user_is_used_and_proven() -> None:
    plan = dcpack.plan([7, 0, 3], num_ranks=3, capacity=4, scheduler=OneByOne())
    assert plan.to_sample_id_groups() == [[[0]] * 3, [[2]] * 3]
    assert plan.cp_sizes == (3,)

    class Forgetful(OneByOne):
        def schedule(self, problem: Problem) -> list[MicroBatch]:
            return super().schedule(problem)[1:]

    with pytest.raises(DcpackError, match="sequence 0: 0 placed, 0 dropped of 7"):
        dcpack.plan([7, 3], num_ranks=3, capacity=4, scheduler=Forgetful())


def test_a_scheduler_that_ignores_the_multiple_is_caught() -> None:
    with pytest.raises(PlanError, match="'one_by_one' broke its limits: 2 micro-batches are no multiple of 4"):
        dcpack.plan([7, 3], num_ranks=3, capacity=4, scheduler=OneByOne(), microbatch_multiple=4)
