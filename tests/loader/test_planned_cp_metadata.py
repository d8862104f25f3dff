"""Planned CP from lengths by index: the plan comes first, and each sample is read by one of the ranks it goes to."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack import Topology, build_distributed_dataloader
from dcpack.comm import Communicator
from dcpack.loader import CPPlanning

from loader_helpers import (  # isort: skip
    plans_ahead_and_taken,
    Numbered,
    by_step,
    config,
    domain,
    facts,
    mesh,
    on_ranks,
    plain_steps,
    sampler,
)

LONG = np.random.default_rng(11).choice([3, 5, 9, 30, 70], 50)
CAPACITY = 20  # so that 30 and 70 need several ranks


def build(
    topology: Topology,
    data: Any,
    *,
    by_index: bool = True,
    metadata: Any = LONG,
    scheduler: Any = "dynamic_cp",
    drop_last: bool = True,
    **options: Any,
) -> dcpack.DistributedDataLoader:
    settings = config(seq_len=CAPACITY, local_batch_size=1, metadata_mode=by_index, drop_last=drop_last, **options)
    arguments = {"metadata": metadata} if by_index else {}
    order = sampler(12, len(LONG), drop_last=drop_last)
    return build_distributed_dataloader(data, topology, settings, batch_sampler=order, scheduler=scheduler, **arguments)


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("broadcast_plan", [True, False])
@pytest.mark.parametrize(
    "topology",
    [domain(4), mesh(dp=2, cp=2), mesh(dp=2, cp=2, tp=2)],
    ids=["dp4", "dp2xcp2", "dp2xcp2xtp2"],
)
def test_the_batches_are_those_of_samples_read_first(topology: Topology, broadcast_plan: bool, drop_last: bool) -> None:
    options: dict[str, Any] = {"broadcast_plan": broadcast_plan, "drop_last": drop_last}

    def body(communicator: Communicator) -> tuple[list[Any], list[Any], Counter[int]]:
        first = [facts(batch) for batch in build(topology, Numbered(LONG), by_index=False, **options)]
        data = Numbered(LONG)
        return first, [facts(batch) for batch in build(topology, data, **options)], data.reads

    results = on_ranks(topology.num_ranks, body)
    for first, then, _ in results:
        assert then == first
        assert max(batch["cp_size"] for batch in then) == 4
    wanted = sum(plain_steps(50, global_batch_size=12, seed=5, drop_last=drop_last), start=Counter[int]())
    assert sum((reads for *_, reads in results), start=Counter[int]()) == wanted  # each sample once
    # By a rank that computes on it, and not always by the same of a group.
    for _, batches, reads in results:
        assert set(reads) <= {i for batch in batches for i in batch["ids"]}
    long = set(np.flatnonzero(LONG == 70).tolist())
    assert sum(bool(long & set(reads)) for *_, reads in results) >= 3  # of four constructors


def test_nothing_is_sent_where_no_sample_is_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[int] = []
    all_to_all = Communicator.all_to_all

    def counted(self: Communicator, data: Any, send_sizes: Any, receive_sizes: Any) -> Any:
        sent.append(int(np.sum(send_sizes)))
        return all_to_all(self, data, send_sizes, receive_sizes)

    monkeypatch.setattr(Communicator, "all_to_all", counted)
    short = np.minimum(LONG, 9)

    def body(communicator: Communicator, by_index: bool) -> list[Any]:
        with build(
            domain(4), Numbered(short), by_index=by_index, metadata=short, scheduler=CPPlanning(max_cp_size=1)
        ) as loader:
            return [facts(batch) for batch in loader]

    results = on_ranks(4, lambda communicator: body(communicator, True))
    assert len(sent) == 16
    assert set(sent) == {0}
    assert on_ranks(4, lambda communicator: body(communicator, False)) == results
    assert max(sent) > 0  # read first, samples must move


@pytest.mark.parametrize("drop_last", [True, False])
def test_an_epoch_is_planned_ahead_without_reading(drop_last: bool) -> None:
    def body(communicator: Communicator) -> tuple[list[str], list[str], int]:
        data = Numbered(LONG)
        loader = build(mesh(dp=2, cp=2), data, drop_last=drop_last)
        return plans_ahead_and_taken(loader, data)

    for ahead, found, reads in on_ranks(4, body):
        assert ahead == found
        assert len(ahead) == (4 if drop_last else 5)
        assert reads == 0


def test_a_tail_is_delivered_whole() -> None:
    def body(communicator: Communicator) -> list[Any]:
        return list(build(domain(4), Numbered(LONG), drop_last=False))

    outputs = [[batch for batch in batches if batch.cp_rank == 0] for batches in on_ranks(4, body)]
    assert by_step(outputs) == dict(enumerate(plain_steps(50, global_batch_size=12, seed=5, drop_last=False)))


def test_lengths_that_are_not_those_of_the_samples_are_an_error_on_all() -> None:
    wrong = LONG.copy()
    wrong[[7, 31]] += 1

    def body(communicator: Communicator) -> str:
        with pytest.raises(dcpack.DcpackError) as caught:
            list(build(domain(4), Numbered(LONG), metadata=wrong))
        return str(caught.value)

    for text in on_ranks(4, body):
        assert "samples must be as long as their metadata says" in text
        assert f"dataset[7] has {LONG[7]} tokens, metadata says {wrong[7]}" in text or "dataset[31] has" in text
