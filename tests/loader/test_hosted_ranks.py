"""Processes that host several ranks of the mesh, as a process of JAX does with its devices."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack import Topology, build_distributed_dataloader
from dcpack.comm import Communicator
from dcpack.comm.backend import MeshAxes
from dcpack.errors import ArgumentError
from dcpack.loader.roles import assign_roles

from loader_helpers import (  # isort: skip
    LENGTHS,
    Numbered,
    by_index,
    config,
    digest,
    domain,
    facts,
    on_ranks,
    plain_steps,
    plans_cp,
    sampler,
)

PLANNED = ("planned_cp", "planned_cp_metadata")


def build(topology: Topology, mode: str, data: Any, *, local: int, **options: Any) -> dcpack.DistributedDataLoader:
    arguments: dict[str, Any] = {"scheduler": "dynamic_cp"} if plans_cp(mode) else {}
    arguments |= {"metadata": LENGTHS} if by_index(mode) else {}
    if mode == "online":
        arguments["metadata_fn"] = lambda sample: dcpack.SampleMetadata(pack_tokens=len(sample["input_ids"]))
    settings = config(
        seq_len=20 if plans_cp(mode) else 64, local_batch_size=local, metadata_mode=by_index(mode), **options
    )
    order = sampler(drop_last=options.get("drop_last", True))
    return build_distributed_dataloader(data, topology, settings, batch_sampler=order, **arguments)


def epoch(topology: Topology, mode: str, **options: Any) -> tuple[list[Any], Counter[int], list[str]]:
    data = Numbered()
    with build(topology, mode, data, **options) as loader:
        batches, digests = [], []
        for batch in loader:
            batches.append(batch)
            if batch.is_last:
                planned = loader.last_planned  # None on processes that only receive
                digests += [] if planned is None else [plan.digest() for plan in planned.plans]
        return batches, data.reads, digests


@pytest.mark.parametrize("homes", [[0, 0, 1, 1], [1, 0, 0, 1], [0, 0, 0, 1], [0, 0, 0, 0]], ids=str)
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("mode", PLANNED)
def test_the_batch_of_a_process_holds_those_of_its_ranks(mode: str, drop_last: bool, homes: list[int]) -> None:
    # One round a step, so that the samples of a step have one order, however many processes read them.
    num_processes = max(homes) + 1
    mesh = Topology.of_domain(4, process_of_rank=homes)
    alone = on_ranks(4, lambda _: epoch(domain(4), mode, local=3, drop_last=drop_last))
    hosted = on_ranks(num_processes, lambda _: epoch(mesh, mode, local=12 // num_processes, drop_last=drop_last))
    if drop_last or num_processes == 1:  # where the last step is short, processes read other parts of it
        assert [digests for *_, digests in hosted] == [alone[0][2]] * num_processes
    shared = 0
    for process, (batches, _, _) in enumerate(hosted):
        ranks = [rank for rank in range(4) if homes[rank] == process]
        assert len(batches) == len(alone[0][0])
        for number, batch in enumerate(batches):
            theirs = [alone[rank][0][number] for rank in ranks]
            assert len(batch.data) == len(ranks)
            if batch.step == 4:
                continue
            assert [digest(part) for part in batch.data] == [digest(other.data) for other in theirs]
            assert batch.num_valid_tokens == sum(other.num_valid_tokens for other in theirs)
            assert batch.global_valid_tokens == theirs[0].global_valid_tokens
            assert (batch.cp_size, batch.cp_rank, batch.cp_ranks) == (
                theirs[0].cp_size,
                theirs[0].cp_rank,
                theirs[0].cp_ranks,
            )
            assert batch.is_dummy == all(other.is_dummy for other in theirs)
            groups = {other.cp_ranks: other.sample_ids.tolist() for other in theirs}  # what several share counts once
            assert batch.sample_ids.tolist() == [i for ids in groups.values() for i in ids]
            shared += sum(other.cp_size > 1 for other in theirs)
        if by_index(mode):
            assert set(hosted[process][1]) <= {i for batch in batches for i in batch.sample_ids.tolist()}
    assert shared > 0
    # Each sample is read once, and every step is the plain sampler's.
    wanted = plain_steps(53, global_batch_size=12, seed=5, drop_last=drop_last)
    assert sum((reads for _, reads, _ in hosted), start=Counter[int]()) == sum(wanted, start=Counter[int]())
    for step, samples in enumerate(wanted):
        found = {i for batches, *_ in hosted for b in batches if b.step == step for i in b.sample_ids.tolist()}
        assert found - {-1} == set(samples)


@pytest.mark.parametrize("mode", PLANNED)
def test_loads_and_moves_are_of_processes(mode: str) -> None:
    homes = [0, 0, 1, 1]

    def planned_of(mesh: Topology, local: int) -> Any:
        with build(mesh, mode, Numbered(), local=local) as loader:
            next(loader)
            return loader.last_planned

    alone = on_ranks(4, lambda _: planned_of(domain(4), 3))[0]
    for hosted in on_ranks(2, lambda _: planned_of(Topology.of_domain(4, process_of_rank=homes), 6)):
        before = alone.loads_before
        assert hosted.loads_before == pytest.approx((before[0] + before[1], 0, before[2] + before[3], 0))
        assert hosted.loads_after == alone.loads_after
        (plan,) = hosted.plans
        moved = set()
        for b in range(plan.num_bins):
            for sequence in plan.sequence_ids[plan.offsets[b] : plan.offsets[b + 1]].tolist():
                reader = sequence // 6  # each process reads 6 of the 12 samples
                if plan.cp_size[b] > 1 or homes[plan.first_rank[b]] != reader:
                    moved.add(sequence)
        assert hosted.num_moved == len(moved) < alone.num_moved


@pytest.mark.parametrize("mode", ["online", "metadata"])
def test_where_cp_is_not_planned_a_process_is_one_data_rank(mode: str) -> None:
    wanted = on_ranks(2, lambda _: [facts(batch) for batch in epoch(domain(2), mode, local=2)[0]])
    for mesh in (
        Topology.of_domain(4, process_of_rank=[0, 0, 1, 1]),
        Topology(axes=("dp", "cp"), sizes=(2, 2), process_of_rank=[0, 0, 1, 1]),
    ):
        found = on_ranks(2, lambda _, mesh=mesh: [facts(batch) for batch in epoch(mesh, mode, local=2)[0]])
        assert found == wanted


def test_processes_that_share_data_coordinates_get_the_same_batches() -> None:
    # dp 2 x cp 4 on 4 processes of 2 ranks: CP is not planned, so both processes of a CP group get its whole batch.
    mesh = Topology(axes=("dp", "cp"), sizes=(2, 4), process_of_rank=[0, 0, 1, 1, 2, 2, 3, 3])
    results = on_ranks(4, lambda _: epoch(mesh, "online", local=2))
    seen = [[(b.sample_ids.tolist(), digest(b.data)) for b in batches] for batches, *_ in results]
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert seen[0] != seen[2]
    assert [bool(reads) for _, reads, _ in results] == [True, False, True, False]


def test_a_state_fits_any_number_of_processes_and_ranks() -> None:
    wanted = plain_steps(53, global_batch_size=12, seed=5)
    state: Any = None
    found: list[Counter[int]] = []
    for homes in ([0, 0, 1, 1], [0, 1], [0, 0, 0, 1, 1, 1]):
        mesh = Topology.of_domain(len(homes), process_of_rank=homes)

        def body(communicator: Communicator, mesh: Topology = mesh, state: Any = state) -> tuple[set[int], Any]:
            with build(mesh, "planned_cp", Numbered(), local=3) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                batches = [next(loader)]
                while not batches[-1].is_last:
                    batches.append(next(loader))
                return {i for batch in batches for i in batch.sample_ids.tolist()}, loader.state_dict()

        results = on_ranks(2, body)
        found.append(Counter(set().union(*(ids for ids, _ in results)) - {-1}))
        state = results[0][1]
    assert found == wanted[:3]


def test_the_plans_of_an_epoch_are_those_that_come() -> None:
    mesh = Topology.of_domain(4, process_of_rank=[0, 0, 1, 1])

    def body(communicator: Communicator) -> tuple[list[str], list[str]]:
        with build(mesh, "planned_cp_metadata", Numbered(), local=2) as loader:
            ahead = [plan.digest() for planned in loader.plan_epoch() for plan in planned.plans]
        return ahead, epoch(mesh, "planned_cp_metadata", local=2)[2]

    for ahead, found in on_ranks(2, body):
        assert ahead == found
        assert len(ahead) == 4


@pytest.mark.parametrize(
    ("names", "processes", "plans", "text"),
    [
        (("dp", "tp"), [[0, 0], [1, 2]], True, r"must be on one process: plan rank 1 on \[1, 2\]"),
        (("dp", "cp"), [[0, 0], [0, 1]], False, r"process 0 at \[0, 1\], process 1 at \[1\]"),
    ],
)
def test_processes_that_host_parts_of_lanes_are_refused(
    names: tuple[str, ...], processes: list[list[int]], plans: bool, text: str
) -> None:
    with pytest.raises(ArgumentError, match=text):
        assign_roles(MeshAxes(names=names, ranks=np.array(processes)), plans_cp=plans)
