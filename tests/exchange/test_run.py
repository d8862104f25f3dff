from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import DcpackError, PeerError
from dcpack.exchange import (
    GatheredSamples,
    PackedBatch,
    build_routes,
    check_same_plan,
    exchange_samples,
    gather_samples,
    process_of_rank,
    ranks_of_process,
)

PlanOf = Callable[..., dcpack.Plan]
Fail = Callable[..., list[tuple[type[DcpackError], str]]]


def text(*lengths: int, start: int = 100) -> list[dict[str, Any]]:
    return [{"tokens": np.arange(start, start + length)} for length in lengths]


def tokens_of(batches: Sequence[PackedBatch]) -> list[list[int]]:
    return [batch.tokens["input_ids"].tolist() for batch in batches]


def first_lines(errors: list[tuple[type[DcpackError], str]]) -> list[str]:
    assert {kind for kind, _ in errors} == {PeerError}
    return [text.splitlines()[0] for _, text in errors]


# ---- the calls -------------------------------------------------------------------------------------------------------


def test_one_all_to_all_and_no_size_is_negotiated(plan_of: PlanOf) -> None:
    bins = [(0, 0, 1, [(2, 0, 3), (0, 0, 1)]), (0, 1, 1, [(1, 0, 2)])]
    plan = plan_of([1, 2, 3], bins, num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> tuple[dict[str, int], int, int, GatheredSamples]:
        samples = [{**sample, "image": np.ones((2, 3))} for sample in text(*[[1, 2], [3]][communicator.rank])]
        gathered = gather_samples(communicator, samples)
        before = communicator.counters
        exchange_samples(communicator, gathered, plan)
        after = communicator.counters
        calls = {verb: count - before.calls[verb] for verb, count in after.calls.items()}
        digest = 32  # what each rank sends of its plan
        sent = after.bytes_sent - before.bytes_sent - digest
        received = after.bytes_received - before.bytes_received - digest
        return {verb: count for verb, count in calls.items() if count}, sent, received, gathered

    results = dcpack.run_ranks(2, fn)
    for rank, (calls, sent, received, gathered) in enumerate(results):
        assert calls == {"agree": 3, "all_gather": 1, "all_to_all": 1}
        routes = build_routes(plan, gathered.table, num_processes=2)
        assert sent == routes.send_counts(rank).sum()
        assert received == routes.receive_counts(rank).sum()
    # The sequence of 2 and its image go one way, that of 3 and its image the other.
    assert [result[1] for result in results] == [16 + 16 + 48, 32 + 32 + 48]


def test_nothing_is_sent_where_everything_is_at_home(plan_of: PlanOf) -> None:
    plan = plan_of([3, 4], [(0, 0, 1, [(0, 0, 3)]), (0, 1, 1, [(1, 0, 4)])], num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> tuple[int, list[list[int]]]:
        gathered = gather_samples(communicator, text(3 + communicator.rank))
        before = communicator.counters.bytes_sent
        batches = exchange_samples(communicator, gathered, plan)
        return communicator.counters.bytes_sent - before, tokens_of(batches[communicator.rank])

    digest = 32
    assert dcpack.run_ranks(2, fn) == [(digest, [[100, 101, 102]]), (digest, [[100, 101, 102, 103]])]


def test_cp_siblings_with_copies_send_nothing(plan_of: PlanOf) -> None:
    plan = plan_of([8], [(0, 0, 2, [(0, 0, 8)])], num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> tuple[int, list[list[int]]]:
        gathered = gather_samples(communicator, text(8), ids=[0])
        before = communicator.counters.bytes_sent
        batches = exchange_samples(communicator, gathered, plan)
        return communicator.counters.bytes_sent - before, tokens_of(batches[communicator.rank])

    assert dcpack.run_ranks(2, fn) == [(32, [[100, 101, 106, 107]]), (32, [[102, 103, 104, 105]])]


@pytest.mark.parametrize("routing", ["sliced", "whole"])
@pytest.mark.parametrize("max_message_bytes", [1, 7, 64])
def test_large_messages_travel_in_rounds(routing: str, max_message_bytes: int, plan_of: PlanOf) -> None:
    plan = plan_of([8, 4], [(0, 0, 2, [(0, 0, 8), (1, 0, 4)])], num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> list[list[int]]:
        gathered = gather_samples(communicator, text([8, 4][communicator.rank]))
        return tokens_of(exchange_samples(communicator, gathered, plan, routing=routing)[communicator.rank])

    found = dcpack.run_ranks(2, fn, max_message_bytes=max_message_bytes)
    assert found == [[[100, 101, 106, 107, 100, 103]], [[102, 103, 104, 105, 101, 102]]]


def test_groups_exchange_side_by_side(plan_of: PlanOf) -> None:
    # Two domains of two ranks each: members 3 and 1, 0 and 2; group-local numbers are plan ranks.
    plan = plan_of([1, 1], [(0, 0, 1, [(1, 0, 1)]), (0, 1, 1, [(0, 0, 1)])], num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> list[list[int]]:
        domain = communicator.split([[3, 1], [0, 2]])
        gathered = gather_samples(domain, text(1, start=communicator.rank))
        return tokens_of(exchange_samples(domain, gathered, plan)[domain.rank])

    assert dcpack.run_ranks(4, fn) == [[[2]], [[3]], [[0]], [[1]]]


# ---- ranks and processes ---------------------------------------------------------------------------------------------


def test_ranks_of_a_process(plan_of: PlanOf) -> None:
    plan = plan_of([], [(0, r, 1, []) for r in range(4)], num_ranks=4)
    assert process_of_rank(plan).tolist() == [0, 1, 2, 3]
    topology = dcpack.Topology.of_domain(4, process_of_rank=[1, 1, 0, 1])
    assert process_of_rank(plan, topology).tolist() == [1, 1, 0, 1]

    def fn(communicator: dcpack.Communicator) -> tuple[list[int], list[int]]:
        hosted = ranks_of_process(communicator, plan, topology)
        return ranks_of_process(communicator, plan).tolist(), hosted.tolist()

    assert dcpack.run_ranks(2, fn) == [([0], [2]), ([1], [0, 1, 3])]


@pytest.mark.parametrize("routing", ["sliced", "whole"])
def test_one_process_with_all_ranks(routing: str, plan_of: PlanOf) -> None:
    plan = plan_of([8], [(0, 0, 2, [(0, 0, 8)])], num_ranks=2)
    topology = dcpack.Topology.of_domain(2, process_of_rank=[0, 0])

    def fn(communicator: dcpack.Communicator) -> dict[int, list[list[int]]]:
        gathered = gather_samples(communicator, text(8))
        batches = exchange_samples(communicator, gathered, plan, topology=topology, routing=routing)
        return {rank: tokens_of(mine) for rank, mine in batches.items()}

    assert dcpack.run_ranks(1, fn) == [{0: [[100, 101, 106, 107]], 1: [[102, 103, 104, 105]]}]


def test_a_process_without_plan_ranks_only_sends(plan_of: PlanOf) -> None:
    plan = plan_of([2, 3], [(0, 0, 1, [(0, 0, 2), (1, 0, 3)])], num_ranks=1)

    def fn(communicator: dcpack.Communicator) -> dict[int, list[list[int]]]:
        gathered = gather_samples(communicator, text(2 + communicator.rank))
        return {rank: tokens_of(mine) for rank, mine in exchange_samples(communicator, gathered, plan).items()}

    assert dcpack.run_ranks(2, fn) == [{0: [[100, 101, 100, 101, 102]]}, {}]


def test_the_nodes_of_a_topology_choose_the_sender(plan_of: PlanOf) -> None:
    # 2 nodes of 2 ranks; processes 0 and 2 hold the sample, rank 3 asks process 2, rank 1 asks process 0.
    plan = plan_of([16], [(0, 0, 4, [(0, 0, 16)])], num_ranks=4)
    topology = dcpack.Topology.of_domain(4, node_size=2)

    def fn(communicator: dcpack.Communicator) -> int:
        holds = communicator.rank in (0, 2)
        gathered = gather_samples(communicator, text(16) if holds else [], ids=[0] if holds else [])
        before = communicator.counters.bytes_sent
        exchange_samples(communicator, gathered, plan, topology=topology)
        return communicator.counters.bytes_sent - before - 3 * 32

    assert dcpack.run_ranks(4, fn) == [64, 0, 64, 0]


@pytest.mark.parametrize("node_size", [None, 2])
@pytest.mark.parametrize(
    ("processes", "message"),
    [
        ([0, 5], "process_of_rank must hold 2 numbers below 2, got 2 up to 5"),
        ([0, 1, 1], "process_of_rank must hold 2 numbers below 2, got 3 up to 1"),
    ],
)
def test_a_topology_for_other_processes(
    processes: list[int], node_size: int | None, message: str, plan_of: PlanOf, fail_everywhere: Fail
) -> None:
    plan = plan_of([1, 1], [(0, 0, 1, [(0, 0, 1)]), (0, 1, 1, [(1, 0, 1)])], num_ranks=2)
    topology = dcpack.Topology.of_domain(len(processes), process_of_rank=processes, node_size=node_size)

    def fn(communicator: dcpack.Communicator) -> None:
        gathered = gather_samples(communicator, text(1))
        exchange_samples(communicator, gathered, plan, topology=topology)

    for line in first_lines(fail_everywhere(2, fn)):
        assert line.endswith(message)


# ---- what must be the same everywhere --------------------------------------------------------------------------------


def change(plan: dcpack.Plan, **fields: Any) -> dcpack.Plan:
    return replace(plan, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"sequence_ids": np.array([0, 2, 1, 3])},
            "bin 1: micro-batch 0, ranks 1..1, row 0, entries 1[0:4] against "
            "micro-batch 0, ranks 1..1, row 0, entries 2[0:4]",
        ),
        ({"capacity": 65}, "capacity: 64 against 65"),
        ({"oversized": np.array([True, False, False, False])}, "entries 0[0:4], oversized"),
        ({"padding": dcpack.PaddingRule()}, "padding: None against "),
    ],
)
def test_plans_that_differ_on_one_rank(
    fields: dict[str, Any], message: str, plan_of: PlanOf, fail_everywhere: Fail
) -> None:
    bins = [(m, r, 1, [(2 * m + r, 0, 4)]) for m in range(2) for r in range(2)]
    plan = plan_of([4] * 4, bins, num_ranks=2)
    payloads: list[int] = []

    def fn(communicator: dcpack.Communicator) -> None:
        gathered = gather_samples(communicator, text(4, 4) if communicator.rank < 2 else [])
        mine = change(plan, **fields) if communicator.rank == 1 else plan
        try:
            exchange_samples(communicator, gathered, mine)
        finally:
            payloads.append(communicator.counters.calls["all_to_all"])

    lines = first_lines(fail_everywhere(3, fn))
    assert len(set(lines)) == 1
    assert lines[0].startswith("rank 1 failed")
    assert "this rank's plan differs from that of rank 0: " in lines[0]
    assert message in lines[0]
    assert payloads == [0, 0, 0]


def test_the_group_goes_on_after_plans_that_differed(plan_of: PlanOf) -> None:
    plans = [plan_of([1, 1], [(0, r, 1, [(r ^ flip, 0, 1)]) for r in range(2)], num_ranks=2) for flip in (0, 1)]

    def fn(communicator: dcpack.Communicator) -> list[list[int]]:
        gathered = gather_samples(communicator, text(1, start=communicator.rank))
        with pytest.raises(PeerError, match="plan differs"):
            check_same_plan(communicator, plans[communicator.rank])
        return tokens_of(exchange_samples(communicator, gathered, plans[1])[communicator.rank])

    assert dcpack.run_ranks(2, fn) == [[[1]], [[0]]]


def test_bounds_may_differ(plan_of: PlanOf) -> None:
    # They inform and decide nothing.
    plan = plan_of([1], [(0, 0, 1, [(0, 0, 1)])], num_ranks=1)

    def fn(communicator: dcpack.Communicator) -> None:
        check_same_plan(communicator, replace(plan, bounds={"step_time": float(communicator.rank)}))

    assert dcpack.run_ranks(2, fn) == [None, None]


def test_a_plan_for_other_lengths(plan_of: PlanOf, fail_everywhere: Fail) -> None:
    plan = plan_of([2, 2], [(0, 0, 1, [(0, 0, 2)]), (0, 1, 1, [(1, 0, 2)])], num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> None:
        exchange_samples(communicator, gather_samples(communicator, text(2 + communicator.rank)), plan)

    message = "the plan is for other samples: 2 sequences of 4 tokens, 2 samples of 5"
    for line in first_lines(fail_everywhere(2, fn)):
        assert line.endswith(message)


def test_a_plan_without_ranks(fail_everywhere: Fail) -> None:
    def fn(communicator: dcpack.Communicator) -> None:
        exchange_samples(communicator, gather_samples(communicator, text(2)), dcpack.pack([2, 2], capacity=4))

    for kind, message in fail_everywhere(2, fn):
        assert kind is PeerError
        assert "Error: " in message
        assert "IndexError" not in message.splitlines()[0]


def two_rank_plan(plan_of: PlanOf) -> dcpack.Plan:
    return plan_of([8], [(0, 0, 2, [(0, 0, 8)])], num_ranks=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sharding": "diagonal"}, "sharding must be one of 'zigzag', "),
        ({"routing": "direct"}, "routing must be one of 'sliced', 'whole', got 'direct'"),
    ],
)
def test_wrong_options_of_one_rank(
    options: dict[str, Any], message: str, plan_of: PlanOf, fail_everywhere: Fail
) -> None:
    plan = two_rank_plan(plan_of)

    def fn(communicator: dcpack.Communicator) -> None:
        gathered = gather_samples(communicator, text(8) if communicator.rank == 0 else [])
        exchange_samples(communicator, gathered, plan, **(options if communicator.rank == 1 else {}))

    for line in first_lines(fail_everywhere(2, fn)):
        assert line.startswith("rank 1 failed")
        assert message in line


@pytest.mark.parametrize(
    "options",
    [
        {"sharding": "contiguous"},  # the same sizes as zigzag: without a check the tokens would be mixed up silently
        {"routing": "whole"},
        {"topology": dcpack.Topology.of_domain(2, process_of_rank=[1, 0])},
    ],
    ids=["sharding", "routing", "topology"],
)
def test_options_that_differ_between_ranks(options: dict[str, Any], plan_of: PlanOf, fail_everywhere: Fail) -> None:
    plan = two_rank_plan(plan_of)

    def fn(communicator: dcpack.Communicator) -> None:
        gathered = gather_samples(communicator, text(8) if communicator.rank == 0 else [])
        exchange_samples(communicator, gathered, plan, **(options if communicator.rank == 1 else {}))

    assert {kind for kind, _ in fail_everywhere(2, fn)} == {PeerError}


def test_lengths_that_the_sharding_cannot_divide(plan_of: PlanOf, fail_everywhere: Fail) -> None:
    plan = plan_of([7], [(0, 0, 2, [(0, 0, 7)])], num_ranks=2)

    def fn(communicator: dcpack.Communicator) -> None:
        gathered = gather_samples(communicator, text(7) if communicator.rank == 0 else [])
        exchange_samples(communicator, gathered, plan)

    for line in first_lines(fail_everywhere(2, fn)):
        assert "(plan with a PaddingRule): sequence 0 padded to 7 by 4" in line
