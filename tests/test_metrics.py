from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.cost import QuadraticCost, RingCost
from dcpack.errors import ArgumentError, PlanError
from dcpack.exchange import PackedBatch, StaticShapes, exchange_samples, gather_samples, move_samples, routes_for
from dcpack.metrics import batch_metrics, mean_cp_size, plan_metrics, route_metrics
from dcpack.padding import PaddingRule

PLAN_KEYS = [
    "plan/num_microbatches",
    "plan/num_sequences",
    "plan/num_tokens",
    "plan/num_dropped_tokens",
    "plan/num_cut_sequences",
    "plan/num_dummy_bins",
    "plan/padding_share",
    "plan/utilization",
    "plan/imbalance",
    "plan/mean_cp_size",
    "plan/step_time(cost)",
    "plan/bound(cost)",
    "plan/above_bound",
]
ROUTE_KEYS = ["exchange/bytes_moved(B)", "exchange/num_segments", "exchange/max_bytes_sent(B)"]
BATCH_KEYS = [
    "batch/num_batches",
    "batch/num_tokens",
    "batch/num_real_tokens",
    "batch/num_valid_tokens",
    "batch/padding_share",
]


def _check_floats(metrics: dict[str, float], keys: list[str]) -> None:
    """The keys are a promise to whoever plots them; the values must be plain numbers that JSON can hold."""
    assert list(metrics) == keys
    assert all(type(value) is float and math.isfinite(value) for value in metrics.values()), metrics


# ---- plans --------------------------------------------------------------------------------------------------------


def test_a_plan_by_hand() -> None:
    # 150 over ranks 0 and 1, 60 and 30 together over ranks 2 and 3; work L * L / cp: 11250 and 2250 a rank.
    plan = dcpack.plan([150, 60, 30], num_ranks=4, capacity=100, cost=dcpack.RingCost(), scheduler="packing_aware")
    assert plan.to_sample_id_groups() == [[[0], [0], [1, 2], [1, 2]]]
    metrics = plan_metrics(plan, QuadraticCost())
    _check_floats(metrics, PLAN_KEYS)
    # The bound was priced by the cost that `plan` was given, 24576 a token and L * L: the work shared by 4 ranks,
    # (240 * 24576 + 27000) / 4. A plan is judged by the cost that it was made for.
    assert plan.bounds["step_time"] == 240 * 24576 / 4 + 27000 / 4
    plan = dcpack.plan([150, 60, 30], num_ranks=4, capacity=100, cost=QuadraticCost(), scheduler="packing_aware")
    # Now the bound is 27000 / 4, above 150 * 150 / 4.
    assert plan_metrics(plan, QuadraticCost()) == pytest.approx(
        {
            "plan/num_microbatches": 1,
            "plan/num_sequences": 3,
            "plan/num_tokens": 240,
            "plan/num_dropped_tokens": 0,
            "plan/num_cut_sequences": 0,
            "plan/num_dummy_bins": 0,
            "plan/padding_share": 0,
            "plan/utilization": 0.6,
            "plan/imbalance": 11250 / 6750,
            "plan/mean_cp_size": 2,
            "plan/step_time(cost)": 11250,
            "plan/bound(cost)": 6750,
            "plan/above_bound": 11250 / 6750 - 1,
        }
    )


def test_padding_by_hand() -> None:
    # 5 and 3 tokens at multiples of 4, on a rank of 16: 8 and 4 slots in 16.
    plan = dcpack.plan([5, 3], num_ranks=1, capacity=16, padding=PaddingRule(block=4))
    metrics = plan_metrics(plan, QuadraticCost())
    assert metrics["plan/padding_share"] == pytest.approx(4 / 12)
    assert metrics["plan/utilization"] == pytest.approx(8 / 16)
    assert metrics["plan/step_time(cost)"] == 64 + 16  # padding is worked on, too


@pytest.mark.parametrize(
    ("policy", "tokens", "dropped", "cut"),
    [
        ("split", 17, 0, 1),  # 4 4 1 and 4 and 4
        ("truncate", 12, 5, 1),
        ("drop", 8, 9, 0),  # what is gone altogether was not cut
        ("single", 17, 0, 0),
    ],
)
def test_overlong_policies_by_hand(policy: str, tokens: int, dropped: int, cut: int) -> None:
    plan = dcpack.plan([9, 4, 4, 0], num_ranks=1, capacity=4, overlong=policy)
    metrics = plan_metrics(plan, QuadraticCost())
    assert metrics["plan/num_sequences"] == 4
    assert metrics["plan/num_tokens"] == tokens
    assert metrics["plan/num_dropped_tokens"] == dropped
    assert metrics["plan/num_cut_sequences"] == cut


def test_dummies_by_hand() -> None:
    # One sequence for three ranks: two dummies, a third of the slots, and three times the mean work.
    plan = dcpack.plan([8], num_ranks=3, capacity=8, max_cp_size=1, on_empty="dummy")
    metrics = plan_metrics(plan, QuadraticCost())
    assert metrics["plan/num_dummy_bins"] == 2
    assert metrics["plan/utilization"] == pytest.approx(1 / 3)
    assert metrics["plan/imbalance"] == pytest.approx(3.0)


@pytest.mark.parametrize(("sync", "step_time"), [("microbatch", 162), ("step", 117)])
def test_sync_modes(sync: str, step_time: int) -> None:
    # Rank 0 works 81 and 36, rank 1 25 and 81.
    plan = dcpack.plan([9, 5, 6, 9], num_ranks=2, capacity=10, scheduler="in_order", max_cp_size=1)
    metrics = plan_metrics(plan, QuadraticCost(), sync=sync)
    assert metrics["plan/step_time(cost)"] == step_time
    assert metrics["plan/imbalance"] == pytest.approx(117 / 111.5)  # of the whole step, whenever ranks meet


def test_the_unit_of_the_cost_is_in_the_keys() -> None:
    class Seconds(QuadraticCost):
        @property
        def unit(self) -> str:
            return "s"

    metrics = plan_metrics(dcpack.plan([3], num_ranks=1, capacity=4), Seconds())
    assert {key for key in metrics if "(" in key} == {"plan/step_time(s)", "plan/bound(s)"}


@pytest.mark.parametrize("lengths", [[], [0], [0, 0, 0]])
@pytest.mark.parametrize("cost", [QuadraticCost(), RingCost()])
@pytest.mark.parametrize("sync", ["microbatch", "step"])
@pytest.mark.parametrize("num_ranks", [1, 4])
def test_an_empty_plan_has_no_nan(lengths: list[int], cost: Any, sync: str, num_ranks: int) -> None:
    metrics = plan_metrics(dcpack.plan(lengths, num_ranks=num_ranks, capacity=8), cost, sync=sync)
    _check_floats(metrics, PLAN_KEYS)
    assert metrics["plan/num_sequences"] == len(lengths)
    assert metrics["plan/imbalance"] == metrics["plan/mean_cp_size"] == 1.0
    assert metrics["plan/above_bound"] == metrics["plan/utilization"] == 0.0


def test_a_plan_of_dummies_alone_has_no_nan() -> None:
    plan = dcpack.plan([9], num_ranks=2, capacity=4, max_cp_size=1, overlong="drop", on_empty="dummy")
    metrics = plan_metrics(plan, QuadraticCost())
    _check_floats(metrics, PLAN_KEYS)
    assert metrics["plan/num_dropped_tokens"] == 9


def test_a_plan_without_ranks_has_no_such_metrics() -> None:
    with pytest.raises(PlanError, match="a plan without ranks has no rank times"):
        plan_metrics(dcpack.pack([3, 4], capacity=8), QuadraticCost())


def test_a_wrong_sync() -> None:
    with pytest.raises(ArgumentError, match="sync must be one of 'microbatch', 'step', got 'never'"):
        plan_metrics(dcpack.plan([3], num_ranks=1, capacity=4), QuadraticCost(), sync="never")


def test_mean_cp_size_by_hand() -> None:
    assert mean_cp_size(dcpack.plan([150, 50], num_ranks=3, capacity=100)) == 1 + 150 / 200
    assert mean_cp_size(dcpack.plan([50, 50], num_ranks=2, capacity=100)) == 1.0
    assert mean_cp_size(dcpack.plan([], num_ranks=2, capacity=100)) == 1.0
    assert mean_cp_size(dcpack.pack([5, 4], capacity=8)) == 1.0


@settings(max_examples=50, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 60), max_size=20),
    num_ranks=st.integers(1, 6),
    scheduler=st.sampled_from(["in_order", "packing_aware"]),
    cost=st.sampled_from([QuadraticCost(), RingCost()]),
    sync=st.sampled_from(["microbatch", "step"]),
)
def test_plan_metrics_stay_within_their_bounds(
    lengths: list[int], num_ranks: int, scheduler: str, cost: Any, sync: str
) -> None:
    plan = dcpack.plan(
        lengths,
        num_ranks=num_ranks,
        capacity=20,
        scheduler=scheduler,
        cost=cost,
        padding=PaddingRule(),
        overlong="split",
        on_empty="dummy",
    )
    metrics = plan_metrics(plan, cost, sync=sync)
    _check_floats(metrics, PLAN_KEYS)
    assert metrics["plan/num_tokens"] == sum(lengths)
    assert 0 <= metrics["plan/padding_share"] < 1
    assert 0 <= metrics["plan/utilization"] <= 1
    assert 1 - 1e-12 <= metrics["plan/imbalance"] <= num_ranks + 1e-9
    assert 1 <= metrics["plan/mean_cp_size"] <= num_ranks
    assert metrics["plan/above_bound"] >= -1e-12


# ---- exchanges and batches ----------------------------------------------------------------------------------------


def _tokens(length: int) -> dict[str, Any]:
    return {"input_ids": np.arange(length, dtype=np.int32)}


def _exchange(lengths: list[list[int]], *, routing: str = "sliced", capacity: int = 8, **options: Any) -> list[Any]:
    """Per rank: the metrics of the routes, bytes sent and received in the all-to-all alone, and the batches."""
    static_shapes = options.pop("static_shapes", None)

    def fn(communicator: dcpack.Communicator) -> tuple[dict[str, float], int, int, list[PackedBatch]]:
        gathered = gather_samples(communicator, [_tokens(n) for n in lengths[communicator.rank]])
        plan = dcpack.plan(
            gathered.table.lengths,
            num_ranks=communicator.size,
            capacity=capacity,
            padding=PaddingRule(),
            on_empty="dummy",
            **options,
        )
        routes = routes_for(communicator, gathered, plan, None, "zigzag", routing)
        before = communicator.counters
        move_samples(communicator, gathered, plan, routes)
        after = communicator.counters
        batches = exchange_samples(communicator, gathered, plan, routing=routing, static_shapes=static_shapes)
        sent, received = after.bytes_sent - before.bytes_sent, after.bytes_received - before.bytes_received
        return route_metrics(routes), sent, received, batches[communicator.rank]

    return dcpack.run_ranks(len(lengths), fn)


def test_routes_by_hand() -> None:
    # 5 tokens of 4 bytes over 2 ranks in chunks of 2; rank 0 holds them. Rank 1 gets tokens 2 to 4, 12 bytes in 16,
    # twice: input_ids and labels. Four segments, two of which stay.
    results = _exchange([[5], []], capacity=4)
    for metrics, *_ in results:
        _check_floats(metrics, ROUTE_KEYS)
        assert list(metrics.values()) == [32.0, 4.0, 32.0]
    # Whole: 20 bytes in 32, twice.
    assert list(_exchange([[5], []], capacity=4, routing="whole")[0][0].values()) == [64.0, 4.0, 64.0]


def test_what_stays_on_its_rank_is_not_counted_as_moved() -> None:
    for metrics, sent, received, _ in _exchange([[8, 7]]):
        assert metrics["exchange/bytes_moved(B)"] == metrics["exchange/max_bytes_sent(B)"] == sent == received == 0
        assert metrics["exchange/num_segments"] == 4


def test_routes_of_nothing() -> None:
    for metrics, sent, received, batches in _exchange([[], []]):
        _check_floats(metrics, ROUTE_KEYS)
        assert set(metrics.values()) == {0.0}
        assert (sent, received, batches) == (0, 0, [])


@pytest.mark.parametrize("routing", ["sliced", "whole"])
@pytest.mark.parametrize("lengths", [[[20, 3], [5]], [[1, 9, 30], [], [8, 8]], [[4], [4], [4], [31, 2, 17]]])
def test_routes_say_what_the_communicator_really_moves(lengths: list[list[int]], routing: str) -> None:
    results = _exchange(lengths, routing=routing, capacity=16)
    sent = [sent for _, sent, _, _ in results]
    for metrics, *_ in results:
        assert metrics["exchange/bytes_moved(B)"] == sum(sent) > 0
        assert metrics["exchange/max_bytes_sent(B)"] == max(sent)
    assert sum(received for _, _, received, _ in results) == sum(sent)


def test_batches_by_hand() -> None:
    # Capacity 8, both ranks share 13 tokens padded to 16: rank 0 has chunks of 4, the first full, the last of 1 token.
    (*_, first), (*_, second) = _exchange([[13], []])
    for batches, real, valid in ((first, 5, 4), (second, 8, 8)):
        metrics = batch_metrics(batches)
        _check_floats(metrics, BATCH_KEYS)
        assert list(metrics.values()) == [1.0, 8.0, real, valid, 1 - real / 8]


def test_batches_are_summed() -> None:
    (*_, batches), (*_, others) = _exchange([[8, 6], [7, 5]], max_cp_size=1, scheduler="in_order")
    assert len(batches) == len(others) == 2
    metrics = batch_metrics(batches)
    assert metrics["batch/num_batches"] == 2
    assert metrics["batch/num_tokens"] == metrics["batch/num_real_tokens"] == 15
    assert metrics["batch/num_valid_tokens"] == 13
    assert batch_metrics(iter(batches)) == metrics  # any iterable


def test_dummies_hold_no_real_tokens() -> None:
    (*_, real), (*_, dummy) = _exchange([[6], []], max_cp_size=1)
    assert not real[0].is_dummy
    assert dummy[0].is_dummy
    metrics = batch_metrics(dummy)
    assert metrics["batch/num_tokens"] >= 1
    assert metrics["batch/num_real_tokens"] == metrics["batch/num_valid_tokens"] == 0
    assert metrics["batch/padding_share"] == 1.0


def test_the_tail_of_static_shapes_is_padding() -> None:
    ((*_, batches),) = _exchange([[6]], static_shapes=StaticShapes(max_sequences=4))
    metrics = batch_metrics(batches)
    assert metrics["batch/num_tokens"] == 8
    assert metrics["batch/num_real_tokens"] == 6
    assert metrics["batch/padding_share"] == pytest.approx(0.25)


def test_no_batches() -> None:
    metrics = batch_metrics([])
    _check_floats(metrics, BATCH_KEYS)
    assert set(metrics.values()) == {0.0}
