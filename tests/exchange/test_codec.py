from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import dcpack
from dcpack.exchange import (
    ROUTINGS,
    GatheredSamples,
    Routes,
    SampleTable,
    build_routes,
    decode,
    encode,
    prepare_samples,
)
from dcpack.exchange.codec import take_runs
from dcpack.sharding import SHARDINGS, ShardRanges

PlanOf = Callable[..., dcpack.Plan]
TableOf = Callable[..., SampleTable]
Parcels = dict[tuple[int, str], npt.NDArray[Any]]


def carry(plan: dcpack.Plan, routes: Routes, gathered: list[GatheredSamples]) -> list[tuple[Parcels, Parcels]]:
    """What each process kept and received, the messages carried by hand."""
    num = len(gathered)
    sent = [encode(plan, gathered[p], routes, p) for p in range(num)]
    results = []
    for p in range(num):
        messages = [np.split(sent[q][0], np.cumsum(routes.send_counts(q))[:-1])[p] for q in range(num)]
        received = decode(plan, gathered[p].table, routes, p, np.concatenate(messages))
        results.append((sent[p][1], received))
    return results


def gathered_by(
    samples: list[Mapping[str, Any]], holders: list[list[int]], num: int, table: SampleTable
) -> list[GatheredSamples]:
    mine = [[s for s, held in zip(samples, holders, strict=True) if p in held] for p in range(num)]
    return [GatheredSamples(table=table, local=prepare_samples(own, ["emb"])) for own in mine]


def make_samples() -> list[Mapping[str, Any]]:
    rng = np.random.default_rng(0)
    return [
        {
            "tokens": rng.integers(0, 99, 16),
            "image": rng.random((3, 2, 2)).astype(np.float32),
            "score": np.float16(0.5),
        },
        {"tokens": rng.integers(0, 99, 8).astype(np.uint8), "emb": rng.random((8, 3)), "one": np.array([True])},
        {"tokens": rng.integers(0, 99, 12), "image": np.zeros((0, 2, 2), np.float32), "emb": rng.random((12, 3))},
        {"tokens": rng.integers(0, 99, 4), "image": rng.random((1, 2, 2)).astype(np.float32).transpose(0, 2, 1)},
    ]


@pytest.mark.parametrize("sharding", sorted(SHARDINGS))
@pytest.mark.parametrize("routing", ROUTINGS)
@pytest.mark.parametrize("process_of_rank", [[0, 1, 2], [1, 1, 0], [2, 2, 2]])
def test_round_trip_without_a_communicator(
    sharding: str, routing: str, process_of_rank: list[int], plan_of: PlanOf, table_of: TableOf
) -> None:
    samples, holders = make_samples(), [[0], [0, 1], [2], [1, 2]]
    bins = [
        (0, 0, 2, [(0, 0, 16), (1, 0, 8)]),
        (0, 2, 1, [(2, 0, 7)]),
        (1, 0, 2, [(3, 0, 4)]),
        (1, 2, 1, [(2, 7, 5)]),
    ]
    plan = plan_of([16, 8, 12, 4], bins, num_ranks=3)
    table = table_of(samples, holders, ["emb"])
    routes = build_routes(
        plan, table, num_processes=3, process_of_rank=process_of_rank, sharding=sharding, routing=routing
    )
    prepared = prepare_samples(samples, ["emb"])
    num_seen = 0
    for p, (kept, received) in enumerate(carry(plan, routes, gathered_by(samples, holders, 3, table))):
        assert not set(kept) & set(received)
        wanted = {
            (int(d), table.field_names[f])
            for d, f, target in zip(routes.delivery, routes.field, routes.destination, strict=True)
            if target == p
        }
        assert {*kept, *received} == wanted
        for (d, name), found in {**kept, **received}.items():
            entry = routes.deliveries.entry[d]
            original = prepared[plan.sequence_ids[entry]].fields[name]
            if name in ("input_ids", "labels", "emb"):
                start = plan.starts[entry]
                original = original[start : start + plan.entry_lengths[entry]]
                if routing == "sliced":
                    one = ShardRanges(
                        starts=routes.deliveries.real.starts[:, [d]],
                        stops=routes.deliveries.real.stops[:, [d]],
                        steps=routes.deliveries.real.steps[[d]],
                    )
                    original = original[one.tokens()]
            assert found.dtype == original.dtype
            assert found.shape == original.shape
            assert found.tobytes() == original.tobytes()
            num_seen += found.size
    assert num_seen >= 2 * (16 + 8 + 12 + 4)


def test_what_stays_is_in_no_message(plan_of: PlanOf, table_of: TableOf) -> None:
    samples = [{"tokens": [1, 2, 3]}, {"tokens": [4]}]
    plan = plan_of([3, 1], [(0, 0, 1, [(0, 0, 3)]), (0, 1, 1, [(1, 0, 1)])], num_ranks=2)
    table = table_of(samples, [[0], [1]])
    routes = build_routes(plan, table, num_processes=2)
    for p in range(2):
        gathered = GatheredSamples(table=table, local=prepare_samples(samples[p : p + 1]))
        buffer, kept = encode(plan, gathered, routes, p)
        assert buffer.size == 0
        assert kept[p, "input_ids"].tolist() == samples[p]["tokens"]
        assert decode(plan, table, routes, p, buffer) == {}


def test_the_bytes_of_a_message(plan_of: PlanOf, table_of: TableOf) -> None:
    # Three int16 tokens, labels behind them at byte 16; the gaps are zeros and not what lay in memory.
    samples = [{"tokens": np.array([1, 2, 3], np.int16)}]
    plan, table = plan_of([3], [(0, 0, 1, [(0, 0, 3)])], num_ranks=1), table_of(samples)
    routes = build_routes(plan, table, num_processes=2, process_of_rank=[1])
    buffer, kept = encode(plan, GatheredSamples(table=table, local=prepare_samples(samples)), routes, 0)
    expected = np.zeros(16, np.int16)
    expected[:3], expected[8:11] = [1, 2, 3], [2, 3, -100]
    assert buffer.view(np.int16).tolist() == expected.tolist()
    assert kept == {}


def test_empty_parcels_keep_dtype_and_dims(plan_of: PlanOf, table_of: TableOf) -> None:
    samples = [{"tokens": [1], "image": np.zeros((0, 5, 2), np.float16), "wide": np.zeros((3, 0), np.int8)}]
    plan, table = plan_of([1], [(0, 0, 1, [(0, 0, 1)])], num_ranks=1), table_of(samples)
    routes = build_routes(plan, table, num_processes=2, process_of_rank=[1])
    buffer, _ = encode(plan, GatheredSamples(table=table, local=prepare_samples(samples)), routes, 0)
    received = decode(plan, table, routes, 1, buffer)
    assert (received[0, "image"].dtype, received[0, "image"].shape) == (np.float16, (0, 5, 2))
    assert (received[0, "wide"].dtype, received[0, "wide"].shape) == (np.int8, (3, 0))


def runs(starts: list[int], stops: list[int], step: int = 1) -> ShardRanges:
    return ShardRanges(starts=np.array([starts]).T, stops=np.array([stops]).T, steps=np.array([step]))


@pytest.mark.parametrize(
    ("ranges", "start", "expected"),
    [
        (runs([0, 6], [2, 8]), 0, [0, 1, 6, 7]),
        (runs([0, 6], [2, 8]), 2, [2, 3, 8, 9]),
        (runs([1, 0], [8, 0], 3), 0, [1, 4, 7]),
        (runs([3, 0], [3, 0]), 0, []),
        (runs([4, 7], [4, 9]), 0, [7, 8]),
    ],
)
def test_take_runs(ranges: ShardRanges, start: int, expected: list[int]) -> None:
    assert take_runs(np.arange(10), ranges, 0, start).tolist() == expected


def test_take_runs_keeps_further_dims() -> None:
    values = np.arange(20).reshape(10, 2)
    assert take_runs(values, runs([0, 6], [1, 7]), 0).tolist() == [[0, 1], [12, 13]]
    assert take_runs(values, runs([0, 0], [0, 0]), 0).shape == (0, 2)
