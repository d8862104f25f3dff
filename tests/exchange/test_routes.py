from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import DcpackError
from dcpack.exchange import ROUTINGS, Routes, SampleTable, build_routes
from dcpack.exchange.routes import ALIGNMENT, deliveries_of

PlanOf = Callable[..., dcpack.Plan]
TableOf = Callable[..., SampleTable]


def text(*lengths: int, dtype: str = "int64") -> list[dict[str, Any]]:
    """Samples of `input_ids` and, made from them, `labels`."""
    return [{"tokens": np.arange(length, dtype=dtype)} for length in lengths]


def segments(routes: Routes, table: SampleTable) -> list[tuple[int, str, int, int, int, int]]:
    """(delivery, field, bytes, source, destination, start) of each segment."""
    names = [table.field_names[f] for f in routes.field]
    columns = [routes.delivery, names, routes.num_bytes, routes.source, routes.destination, routes.start]
    return [(int(d), n, int(b), int(s), int(t), int(a)) for d, n, b, s, t, a in zip(*columns, strict=True)]


# ---- deliveries ------------------------------------------------------------------------------------------------------


def test_deliveries_by_hand(plan_of: PlanOf) -> None:
    # Bin 0 over ranks 0 and 1 holds sequences 1 (8 tokens) and 0 (4 tokens), bin 1 on rank 2 the middle of sequence 2.
    plan = plan_of([4, 8, 9], [(0, 0, 2, [(1, 0, 8), (0, 0, 4)]), (0, 2, 1, [(2, 3, 5)])], num_ranks=3)
    deliveries = deliveries_of(plan, "zigzag")
    assert deliveries.entry.tolist() == [0, 1, 0, 1, 2]
    assert deliveries.bin.tolist() == [0, 0, 0, 0, 1]
    assert deliveries.rank.tolist() == [0, 0, 1, 1, 2]
    assert deliveries.cp_rank.tolist() == [0, 0, 1, 1, 0]
    assert deliveries.num_tokens.tolist() == [4, 2, 4, 2, 5]
    assert deliveries.real.tokens().tolist() == [0, 1, 6, 7, 0, 3, 2, 3, 4, 5, 1, 2, 0, 1, 2, 3, 4]
    assert deliveries.of_bin(0, 1).tolist() == [2, 3]
    assert deliveries.of_bin(1, 0).tolist() == [4]


def test_real_tokens_leave_the_padding_out(plan_of: PlanOf) -> None:
    # 5 tokens padded to 8: rank 0 holds 0 1 and the padding 6 7, rank 1 holds 2 3 4 and the padding 5.
    plan = plan_of([5], [(0, 0, 2, [(0, 0, 5)])], num_ranks=2, padding=dcpack.PaddingRule())
    deliveries = deliveries_of(plan, "zigzag")
    assert deliveries.ranges.tokens().tolist() == [0, 1, 6, 7, 2, 3, 4, 5]
    assert deliveries.real.tokens().tolist() == [0, 1, 2, 3, 4]
    assert deliveries.num_tokens.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("sharding", "tokens"),
    [
        ("zigzag", [[0, 1, 6, 7, 0, 3], [2, 3, 4, 5, 1, 2]]),
        ("zigzag_per_row", [[0, 1, 2, 1, 2, 3], [3, 4, 5, 6, 7, 0]]),
        ("contiguous", [[0, 1, 2, 3, 4, 5], [6, 7, 0, 1, 2, 3]]),
        ("striped", [[0, 2, 4, 6, 0, 2], [1, 3, 5, 7, 1, 3]]),
    ],
)
def test_every_sharding_by_hand(sharding: str, tokens: list[list[int]], plan_of: PlanOf) -> None:
    plan = plan_of([8, 4], [(0, 0, 2, [(0, 0, 8), (1, 0, 4)])], num_ranks=2)
    deliveries = deliveries_of(plan, sharding)
    assert deliveries.real.tokens().tolist() == [token for rank in tokens for token in rank]


# ---- bytes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("routing", "each"), [("sliced", 32), ("whole", 64)])
def test_the_worked_example(routing: str, each: int, plan_of: PlanOf, table_of: TableOf) -> None:
    # 8 tokens of int64 on process 0, half of them needed by process 1.
    plan, table = plan_of([8], [(0, 0, 2, [(0, 0, 8)])], num_ranks=2), table_of(text(8))
    routes = build_routes(plan, table, num_processes=2, routing=routing)
    assert segments(routes, table) == [
        (0, "input_ids", each, 0, 0, 0),
        (0, "labels", each, 0, 0, each),
        (1, "input_ids", each, 0, 1, 0),
        (1, "labels", each, 0, 1, each),
    ]
    assert routes.send_counts(0).tolist() == [0, 2 * each]
    assert routes.receive_counts(1).tolist() == [2 * each, 0]
    assert routes.send_counts(1).tolist() == routes.receive_counts(0).tolist() == [0, 0]
    assert routes.bytes_moved == 2 * each


def test_segments_start_at_multiples_of_16(plan_of: PlanOf, table_of: TableOf) -> None:
    sample = {
        "tokens": np.arange(3, dtype=np.int16),
        "image": np.zeros((5, 3), np.int8),
        "score": np.float32(1),
        "nothing": np.zeros((0, 7)),
    }
    plan = plan_of([3, 1], [(0, 0, 1, [(1, 0, 1)]), (0, 1, 1, [(0, 0, 3)])], num_ranks=2)
    table = table_of([sample, {"tokens": np.arange(1)}])
    routes = build_routes(plan, table, num_processes=2)
    assert [part for part in segments(routes, table) if part[4] == 1] == [
        (1, "image", 15, 0, 1, 0),
        (1, "input_ids", 6, 0, 1, 16),
        (1, "labels", 6, 0, 1, 32),
        (1, "nothing", 0, 0, 1, 48),
        (1, "score", 4, 0, 1, 48),
    ]
    assert routes.send_counts(0).tolist() == [0, 64]
    assert routes.bytes_moved == 64


def test_three_processes_by_hand(plan_of: PlanOf, table_of: TableOf) -> None:
    # Sequences of 1, 2 and 3 tokens go round: process 0 -> 1 -> 2 -> 0; process 0 also keeps one.
    bins = [(0, 0, 1, [(2, 0, 3), (3, 0, 4)]), (0, 1, 1, [(0, 0, 1)]), (0, 2, 1, [(1, 0, 2)])]
    plan, table = plan_of([1, 2, 3, 4], bins, num_ranks=3), table_of(text(1, 2, 3, 4), [[0], [1], [2], [0]])
    routes = build_routes(plan, table, num_processes=3)
    assert [routes.send_counts(p).tolist() for p in range(3)] == [[0, 32, 0], [0, 0, 32], [64, 0, 0]]
    assert [routes.receive_counts(p).tolist() for p in range(3)] == [[0, 0, 64], [32, 0, 0], [0, 32, 0]]
    assert routes.bytes_moved == 128  # 24 bytes of int64 take 32


@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("process_of_rank", [[0, 1, 2, 3], [0, 0, 1, 1], [2, 0, 2, 1], [3, 3, 3, 3]])
def test_every_message_is_what_its_receiver_expects(
    routing: str, process_of_rank: list[int], plan_of: PlanOf, table_of: TableOf
) -> None:
    rng = np.random.default_rng(0)
    lengths = [16, 8, 8, 24, 8, 8]
    bins = [
        (0, 0, 4, [(0, 0, 16), (1, 0, 8)]),
        (1, 0, 2, [(2, 0, 8), (3, 0, 12)]),
        (1, 2, 1, [(3, 12, 12)]),
        (1, 3, 1, [(4, 0, 8), (5, 0, 8)]),
    ]
    samples = text(*lengths)
    for sample in samples[::2]:
        sample["image"] = rng.random((3, 5))
    table = table_of(samples, [[0], [0, 1], [2], [1, 3], [3], [0, 1, 2, 3]])
    plan = plan_of(lengths, bins, num_ranks=4)
    routes = build_routes(plan, table, num_processes=4, process_of_rank=process_of_rank, routing=routing)
    sent = np.array([routes.send_counts(p) for p in range(4)])
    received = np.array([routes.receive_counts(p) for p in range(4)])
    assert sent.sum() > 0
    assert np.array_equal(sent, received.T)
    assert np.diagonal(sent).tolist() == [0] * 4
    assert routes.bytes_moved == sent.sum()
    assert set((routes.start % ALIGNMENT).tolist()) == {0}
    for source in range(4):
        for destination in set(range(4)) - {source}:
            in_message = (routes.source == source) & (routes.destination == destination)
            starts, sizes = routes.start[in_message], routes.num_bytes[in_message]
            order = np.argsort(starts, kind="stable")
            assert np.array_equal(order, np.arange(order.size)), "segments lie by delivery and field"
            ends = np.append(starts[1:], sent[source, destination])
            assert np.all(starts + sizes <= ends)
            assert np.all(ends - starts - sizes < ALIGNMENT)
    # Every source really holds the sample, and a process that holds it asks nobody else.
    for segment, delivery in enumerate(routes.delivery):
        sample = plan.sequence_ids[routes.deliveries.entry[delivery]]
        holders = table.holders[table.holder_offsets[sample] : table.holder_offsets[sample + 1]].tolist()
        wanted = routes.destination[segment]
        assert routes.source[segment] == wanted if wanted in holders else routes.source[segment] in holders


def test_nothing_moves_where_everything_is_at_home(plan_of: PlanOf, table_of: TableOf) -> None:
    plan = plan_of([3, 4], [(0, 0, 1, [(0, 0, 3)]), (0, 1, 1, [(1, 0, 4)])], num_ranks=2)
    routes = build_routes(plan, table_of(text(3, 4), [[0], [1]]), num_processes=2)
    assert routes.bytes_moved == 0
    assert routes.num_bytes.tolist() == [24, 24, 32, 32]  # kept, not sent
    assert routes.source.tolist() == routes.destination.tolist() == [0, 0, 1, 1]


def test_sliced_moves_what_whole_moves_divided_by_cp(plan_of: PlanOf, table_of: TableOf) -> None:
    # 32 tokens from process 0 to three others; int64 tokens and labels.
    plan, table = plan_of([32], [(0, 0, 4, [(0, 0, 32)])], num_ranks=4), table_of(text(32))
    moved = {r: build_routes(plan, table, num_processes=4, routing=r).bytes_moved for r in ROUTINGS}
    assert moved == {"sliced": 3 * 8 * 16, "whole": 3 * 32 * 16}


def test_a_step_without_samples_has_no_routes(plan_of: PlanOf, table_of: TableOf) -> None:
    plan = plan_of([], [(0, 0, 1, []), (0, 1, 1, [])], num_ranks=2)
    routes = build_routes(plan, table_of([]), num_processes=2)
    assert routes.bytes_moved == routes.delivery.size == 0
    assert routes.send_counts(0).tolist() == routes.receive_counts(1).tolist() == [0, 0]


# ---- who sends -------------------------------------------------------------------------------------------------------


def sources(plan: dcpack.Plan, table: SampleTable, **options: Any) -> dict[int, list[int]]:
    """Who sends the tokens, by destination, one element a delivery."""
    routes = build_routes(plan, table, **options)
    found: dict[int, list[int]] = {}
    is_tokens = routes.field == table.field_names.index("input_ids")
    for source, destination in zip(
        routes.source[is_tokens].tolist(), routes.destination[is_tokens].tolist(), strict=True
    ):
        found.setdefault(destination, []).append(source)
    return found


def test_the_nearest_holder_sends(plan_of: PlanOf, table_of: TableOf) -> None:
    # Processes 1 and 3 hold the sample; 0 and 1 share a node, 2 and 3 another.
    plan, table = plan_of([16], [(0, 0, 4, [(0, 0, 16)])], num_ranks=4), table_of(text(16), [[1, 3]])
    found = sources(plan, table, num_processes=4, node_of_process=[0, 0, 1, 1])
    assert found == {0: [1], 1: [1], 2: [3], 3: [3]}
    assert sources(plan, table, num_processes=4, node_of_process=[0, 1, 1, 0]) == {0: [3], 1: [1], 2: [1], 3: [3]}


def test_a_far_holder_sends_where_no_near_one_exists(plan_of: PlanOf, table_of: TableOf) -> None:
    plan, table = plan_of([8], [(0, 0, 2, [(0, 0, 8)])], num_ranks=2), table_of(text(8), [[2]])
    assert sources(plan, table, num_processes=3, node_of_process=[0, 0, 1]) == {0: [2], 1: [2]}


def shares(found: list[int], holders: list[int]) -> list[int]:
    return [found.count(holder) for holder in holders]


def test_equally_near_holders_take_turns(plan_of: PlanOf, table_of: TableOf) -> None:
    # 12 samples that processes 0, 1 and 2 hold, all for the one rank, which lives on process 3.
    bins = [(m, 0, 1, [(m, 0, 4)]) for m in range(12)]
    plan, table = plan_of([4] * 12, bins, num_ranks=1), table_of(text(*[4] * 12), [[0, 1, 2]] * 12)
    found = sources(plan, table, num_processes=4, process_of_rank=[3])
    assert shares(found[3], [0, 1, 2]) == [4, 4, 4]


def test_turns_do_not_depend_on_what_the_other_ranks_do(plan_of: PlanOf, table_of: TableOf) -> None:
    # Processes 0 and 1 are CP siblings with samples 0..7, processes 2 and 3 with 8..31. In each of 8 micro-batches
    # rank 2 gets a sample of 0 and 1, all others one of their own or of 2 and 3 at home.
    holders = [[0, 1]] * 8 + [[0]] * 8 + [[1]] * 8 + [[3]] * 8
    bins = [(m, r, 1, [(8 * [1, 2, 0, 3][r] + m, 0, 4)]) for m in range(8) for r in range(4)]
    plan, table = plan_of([4] * 32, bins, num_ranks=4), table_of(text(*[4] * 32), holders)
    found = sources(plan, table, num_processes=4)
    assert shares(found[2], [0, 1]) == [4, 4]


def test_near_holders_share_evenly_beside_far_ones(plan_of: PlanOf, table_of: TableOf) -> None:
    # Process 2 needs 14 samples that all others hold; 0 and 1 are on its node and should send 7 each.
    bins = [(m, 0, 1, [(m, 0, 4)]) for m in range(14)]
    plan, table = plan_of([4] * 14, bins, num_ranks=1), table_of(text(*[4] * 14), [[0, 1, 3, 4, 5, 6, 7]] * 14)
    nodes = [0, 0, 0, 1, 1, 1, 1, 1]
    found = sources(plan, table, num_processes=8, process_of_rank=[2], node_of_process=nodes)
    assert shares(found[2], [0, 1]) == [7, 7]


# ---- whole fields ----------------------------------------------------------------------------------------------------


def fields_by_rank(routes: Routes, table: SampleTable) -> dict[int, list[str]]:
    found: dict[int, list[str]] = {}
    for delivery, field in zip(routes.delivery.tolist(), routes.field.tolist(), strict=True):
        found.setdefault(int(routes.deliveries.rank[delivery]), []).append(table.field_names[field])
    return found


@pytest.mark.parametrize("routing", ROUTINGS)
def test_rows_go_with_the_first_piece_and_scalars_with_every_one(
    routing: str, plan_of: PlanOf, table_of: TableOf
) -> None:
    sample = {"tokens": np.arange(12), "image": np.ones((2, 3)), "score": 1.0, "one": np.ones(1)}
    bins = [(0, 0, 1, [(0, 8, 4)]), (0, 1, 1, [(0, 0, 4)]), (0, 2, 1, [(0, 4, 4)])]
    table = table_of([sample])
    routes = build_routes(plan_of([12], bins, num_ranks=3), table, num_processes=3, routing=routing)
    later = ["input_ids", "labels", "score"]
    assert fields_by_rank(routes, table) == {
        0: later,
        1: ["image", "input_ids", "labels", "one", "score"],
        2: later,
    }


def test_a_process_with_several_ranks_gets_whole_fields_once(plan_of: PlanOf, table_of: TableOf) -> None:
    # One sequence over 4 ranks; process 1 hosts the last three of them.
    table = table_of([{"tokens": np.arange(16), "image": np.ones((2, 3)), "score": 1.0}])
    plan = plan_of([16], [(0, 0, 4, [(0, 0, 16)])], num_ranks=4)
    tokens = ["input_ids", "labels"]
    first = ["image", "input_ids", "labels", "score"]
    sliced = build_routes(plan, table, num_processes=2, process_of_rank=[0, 1, 1, 1])
    assert fields_by_rank(sliced, table) == {0: first, 1: first, 2: tokens, 3: tokens}
    whole = build_routes(plan, table, num_processes=2, process_of_rank=[0, 1, 1, 1], routing="whole")
    assert fields_by_rank(whole, table) == {0: first, 1: first}
    image_and_score = 48 + 16
    assert sliced.bytes_moved == 3 * 2 * 4 * 8 + image_and_score
    assert whole.bytes_moved == 2 * 16 * 8 + image_and_score


def test_samples_lack_fields_that_others_have(plan_of: PlanOf, table_of: TableOf) -> None:
    samples = [{"tokens": [1]}, {"tokens": [1], "image": np.ones((2, 2))}, {"tokens": [1], "score": 1}]
    table = table_of(samples)
    bins = [(0, r, 1, [(r, 0, 1)]) for r in range(3)]
    routes = build_routes(plan_of([1, 1, 1], bins, num_ranks=3), table, num_processes=3)
    assert fields_by_rank(routes, table) == {
        0: ["input_ids", "labels"],
        1: ["image", "input_ids", "labels"],
        2: ["input_ids", "labels", "score"],
    }


# ---- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"routing": "direct"}, "routing must be one of 'sliced', 'whole', got 'direct'"),
        ({"sharding": "diagonal"}, "sharding must be one of 'zigzag', .*, got 'diagonal'"),
        ({"process_of_rank": [0]}, "process_of_rank must hold 2 numbers below 2, got 1 up to 0"),
        ({"process_of_rank": [0, 2]}, "process_of_rank must hold 2 numbers below 2, got 2 up to 2"),
        ({"process_of_rank": [0, -1]}, r"process_of_rank must be at least 0: process_of_rank\[1\] = -1"),
        ({"num_processes": 1}, "process_of_rank must hold 2 numbers below 1, got 2 up to 1"),
        ({"node_of_process": [0]}, "node_of_process must have 2 elements, got 1"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], message: str, plan_of: PlanOf, table_of: TableOf) -> None:
    plan, table = plan_of([8], [(0, 0, 2, [(0, 0, 8)])], num_ranks=2), table_of(text(8))
    with pytest.raises(DcpackError, match=message):
        build_routes(plan, table, **{"num_processes": 2, **options})


def test_a_plan_for_other_samples(plan_of: PlanOf, table_of: TableOf) -> None:
    plan = plan_of([8], [(0, 0, 2, [(0, 0, 8)])], num_ranks=2)
    message = "the plan is for other samples: 1 sequences of 8 tokens, 2 samples of 9"
    with pytest.raises(DcpackError, match=message):
        build_routes(plan, table_of(text(8, 1)), num_processes=2)


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        (
            "zigzag",
            "sharding 'zigzag' cannot divide evenly .*: sequence 0 padded to 6 by 4, sequence 1 padded to 5 by 4",
        ),
        ("zigzag_per_row", "sharding 'zigzag_per_row' cannot divide evenly .*: bin 0 of 11 tokens by 4"),
        ("striped", "sharding 'striped' cannot divide evenly .*: bin 0 of 11 tokens by 2"),
        ("contiguous", "sharding 'contiguous' cannot divide evenly .*: bin 0 of 11 tokens by 2"),
    ],
)
def test_lengths_that_cannot_be_divided(sharding: str, message: str, plan_of: PlanOf, table_of: TableOf) -> None:
    plan = plan_of([6, 5], [(0, 0, 2, [(0, 0, 6), (1, 0, 5)])], num_ranks=2)
    with pytest.raises(DcpackError, match=message):
        build_routes(plan, table_of(text(6, 5)), num_processes=2, sharding=sharding)


def test_a_plan_without_ranks_goes_nowhere(table_of: TableOf) -> None:
    with pytest.raises(DcpackError, match=r"without ranks|0 ranks"):
        build_routes(dcpack.pack([8], capacity=8), table_of(text(8)), num_processes=1)
