"""Faults on purpose, in each stage and on each rank: nothing hangs, and all ranks learn the cause."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import dcpack
from dcpack import DistributedDataLoader, SampleMetadata, WorkloadCost, build_distributed_dataloader
from dcpack.comm import Communicator, FakeBackend, Fault
from dcpack.loader import ahead

from loader_helpers import LENGTHS, Numbered, config, mesh, sampler, threads_of_loaders  # isort: skip

STAGES = ("read", "describe", "price", "plan", "pack", "deliver", "device", "train")


class Lost(Exception):
    """What is made to go wrong."""


class Trap:
    """Goes off in one stage of one rank, in the second step or behind it.

    Args:
        stage: of `STAGES`.
        act: what it does.
    """

    def __init__(self, stage: str, act: Callable[[], None]) -> None:
        self.stage, self.act = stage, act
        self.visits = 0

    def visit(self, stage: str, first: int) -> None:
        """Go off at the visit of number `first`."""
        if stage == self.stage:
            self.visits += 1
            if self.visits == first:
                self.act()


class TrappedData(Numbered):
    def __init__(self, trap: Trap) -> None:
        super().__init__()
        self.trap = trap

    def __getitem__(self, index: int) -> Any:
        self.trap.visit("read", 8)
        return super().__getitem__(index)


class TrappedAlgorithm:
    """The balancing of a user."""

    def __init__(self, trap: Trap) -> None:
        self.trap = trap

    def assign(self, samples: Any, *, reference_bins: Any, **_: Any) -> Any:
        self.trap.visit("plan", 2)
        return reference_bins

    def objective(self, rank_costs: Any) -> float:
        return max(cost.llm for cost in rank_costs)


def build(trap: Trap) -> DistributedDataLoader:
    """dp2 x tp2, so that all kinds of groups take part; 2 micro-batches of 3 samples a step and rank."""

    def describe(sample: Any) -> SampleMetadata:
        trap.visit("describe", 8)
        return SampleMetadata(pack_tokens=len(sample["input_ids"]))

    def price(metadata: SampleMetadata) -> WorkloadCost:
        trap.visit("price", 8)
        return WorkloadCost(llm=metadata.pack_tokens)

    def collate(rows: Any) -> Any:
        trap.visit("pack", 3)
        return {"ids": rows[0]["input_ids"], "more": object()} if _is_due(trap) else {"ids": rows[0]["input_ids"]}

    return build_distributed_dataloader(
        TrappedData(trap),
        mesh(dp=2, tp=2),
        config(local_batch_size=3, broadcast_plan=False),
        metadata_fn=describe,
        cost_model=price,
        collate_fn=collate,
        balancing_algorithm=TrappedAlgorithm(trap),
        batch_sampler=sampler(12, len(LENGTHS)),
        device=trap,
    )


def _is_due(trap: Trap) -> bool:
    """Whether this batch shall be one that cannot be sent to the peers."""
    if trap.stage != "deliver":
        return False
    trap.visits += 1
    return trap.visits == 3


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever fails waits until the others have heard of it, however slow they are."""
    monkeypatch.setattr(ahead, "_GRACE_S", 60.0)


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device whose copies may fail."""

    def to_device(self: FakeBackend, array: Any, device: Trap) -> Any:
        device.visit("device", 3)
        return array

    monkeypatch.setattr(FakeBackend, "to_device", to_device)


def train(trap: Trap) -> list[int]:
    steps = []
    with build(trap) as loader:
        for batch in loader:
            trap.visit("train", 3)
            steps.append(batch.step)
    return steps


def run(stage: str, rank: int, act: Callable[[], None]) -> list[tuple[Any, Any] | list[int]]:
    def body(communicator: Communicator) -> Any:
        trap = Trap(stage if communicator.rank == rank else "", act)
        try:
            return train(trap)
        except dcpack.PeerError as error:
            return error.rank, error.cause
        except Lost:
            return communicator.rank, "Lost"

    return dcpack.run_ranks(4, body)


def constructors_only(stage: str, rank: int) -> bool:
    return stage not in ("device", "train") and rank % 2 == 1


CASES = [(stage, rank) for stage in STAGES for rank in range(4) if not constructors_only(stage, rank)]


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize(("stage", "rank"), CASES)
def test_a_rank_that_raises(stage: str, rank: int, threads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBackend, "allows_threads", threads)

    def fail() -> None:
        raise Lost(stage)

    results = run(stage, rank, fail)
    cause = "ArgumentError" if stage == "deliver" else "Lost"
    assert results == [(rank, cause)] * 4
    assert no_thread_is_left()


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(("stage", "rank"), [case for case in CASES if case[0] != "deliver"])
def test_a_rank_that_is_late(stage: str, rank: int) -> None:
    results = run(stage, rank, lambda: time.sleep(0.05))
    assert results == [[0, 0, 1, 1, 2, 2, 3, 3]] * 4
    assert no_thread_is_left()


@pytest.mark.usefixtures("devices")
@pytest.mark.parametrize(("stage", "rank"), [case for case in CASES if case[1] in (0, 2) and case[0] != "deliver"])
def test_a_rank_that_exits(stage: str, rank: int) -> None:
    """SystemExit in the loader's thread and in the caller's is what the others are told."""
    seen: dict[int, Any] = {}

    def leave() -> None:
        raise SystemExit(3)

    def body(communicator: Communicator) -> None:
        trap = Trap(stage if communicator.rank == rank else "", leave)
        try:
            train(trap)
        except dcpack.PeerError as error:
            seen[communicator.rank] = (error.rank, error.cause)
        except SystemExit:
            seen[communicator.rank] = "exit"

    dcpack.run_ranks(4, body)
    assert seen == {other: "exit" if other == rank else (rank, "SystemExit") for other in range(4)}
    assert no_thread_is_left()


_of_others: set[threading.Thread] = set()  # tests of other files may leave some that wait for a deadline


@pytest.fixture(autouse=True, scope="module")
def threads_of_others() -> None:
    gc.collect()
    _of_others.update(threads_of_loaders())


def no_thread_is_left(seconds: float = 60.0) -> bool:
    gc.collect()  # a loader that an earlier test left is only ended when it is collected
    end = time.monotonic() + seconds
    while any(thread not in _of_others for thread in threads_of_loaders()):
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


# ---- each call -------------------------------------------------------------------------------------------------------


def two_steps(communicator: Communicator) -> list[int]:
    """Two ranks, two steps; the calls of the loader's thread and of the building alone."""
    with build_distributed_dataloader(
        Numbered(LENGTHS[:8]),
        mesh(dp=2),
        config(local_batch_size=2),
        metadata_fn=lambda sample: SampleMetadata(pack_tokens=len(sample["input_ids"])),
        batch_sampler=sampler(4, 8),
    ) as loader:
        return [batch.step for batch in loader]


def calls_of_two_steps() -> range:
    """The numbers of all calls that rank 0 makes, found by a fault behind the last."""
    number = 0
    while True:
        try:
            dcpack.run_ranks(2, two_steps, faults=[Fault(rank=0, call=number, action="delay", seconds=1e-6)])
        except dcpack.ArgumentError:  # it did not come true
            return range(number)
        number += 1


@pytest.fixture(scope="module")
def calls() -> range:
    found = calls_of_two_steps()
    assert len(found) > 10
    return found


def test_every_call_may_fail(calls: range) -> None:
    for rank in range(2):
        for call in calls:

            def body(communicator: Communicator) -> Any:
                try:
                    return two_steps(communicator)
                except dcpack.PeerError as error:
                    return error.rank, error.cause

            results = dcpack.run_ranks(2, body, faults=[Fault(rank=rank, call=call, action="raise")])
            assert results == [(rank, "RuntimeError")] * 2, call
    assert no_thread_is_left()


@pytest.mark.parametrize("rank", range(2))
@pytest.mark.usefixtures("leaping_clock")
def test_a_rank_may_vanish_in_any_call(calls: range, rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_GRACE_S", 0.1)
    for call in calls[rank::2]:
        heard: dict[int, Any] = {}

        def body(communicator: Communicator, heard: dict[int, Any] = heard) -> None:
            try:
                two_steps(communicator)
            except dcpack.PeerError as error:
                heard[communicator.rank] = error.rank
                raise

        fault = Fault(rank=rank, call=call, action="vanish")
        with pytest.raises(dcpack.PeerError, match=f"rank {rank}"):
            dcpack.run_ranks(2, body, faults=[fault], deadline_s=1000.0)
        assert heard[1 - rank] == rank, call
