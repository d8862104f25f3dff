"""What the processes of the tests of staying ahead do."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import loader_bodies
import patience
from dcpack_torch.communicator import TorchCommunicator
from loader_bodies import loader_helpers

import dcpack
from dcpack import DistributedDataLoader, Topology, build_distributed_dataloader
from dcpack.loader import ahead


class Trapped(loader_helpers.Numbered):
    """Something happens at a read of the second step."""

    def __init__(self, action: str) -> None:
        super().__init__()
        self.action = action

    def __getitem__(self, index: int) -> Any:
        if sum(self.reads.values()) == 7:
            if self.action == "raise":
                raise KeyError("x")
            if self.action == "delay":
                time.sleep(0.3)
            if self.action == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        return super().__getitem__(index)


def build(size: int, data: Any = None, **options: Any) -> DistributedDataLoader:
    return build_distributed_dataloader(
        loader_helpers.Numbered() if data is None else data,
        Topology.of_domain(size),
        loader_bodies.settings("online", 3),
        batch_sampler=loader_helpers.sampler(6 * size),
        metadata_fn=loader_helpers.describe,
        **options,
    )


def count_rounds(rank: int, size: int) -> list[int]:
    """The collectives of the library in each step of this rank's loader, balanced and with samples that move."""
    moves: list[str] = []
    for name in ("_exchange", "_move"):
        inner = getattr(TorchCommunicator, name)

        def counted(self: Any, *args: Any, name: str = name, inner: Any = inner) -> Any:
            moves.append(name)
            return inner(self, *args)

        setattr(TorchCommunicator, name, counted)
    counts = []
    with build(size) as loader:
        maker: Any = loader._maker
        plan_step = maker.plan_step

        def plan(*at: Any) -> Any:
            counts.append(len(moves))
            return plan_step(*at)

        maker.plan_step = plan
        records: list[Any] = []
        loader.on_step(records.append)
        list(loader)
    assert any(record.bytes_sent for record in records), "no sample moved"
    return [after - before for before, after in itertools.pairwise(counts)]


class InWorkers(loader_helpers.Numbered):
    """Says which process read a sample; one of rank 1 dies in the second step."""

    def __init__(self, dies: bool) -> None:
        super().__init__()
        self.dies = dies

    def __getitem__(self, index: int) -> Any:
        if self.dies and sum(self.reads.values()) == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        return {**super().__getitem__(index), "worker": os.getpid()}


def read_with_workers(rank: int, size: int, dies: bool) -> Any:
    """The processes that read an epoch, and whether they are gone after it; or what became of it."""
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # as in loader_bodies
    pids: set[int] = set()

    def collate(rows: Any) -> Any:
        pids.update(row["worker"] for row in rows)
        return rows

    kwargs = {"num_workers": 1, "multiprocessing_context": "fork"}
    try:
        with build(size, InWorkers(dies and rank == 1), collate_fn=collate, dataloader_kwargs=kwargs) as loader:
            list(loader)
    except dcpack.PeerError as error:
        return error.rank, error.cause
    until = time.monotonic() + 20
    while multiprocessing.active_children():
        assert time.monotonic() < until, "workers are left"
        time.sleep(0.01)
    return len(pids), os.getpid() not in pids


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "dcpack-loader"]


def meet_a_fault(rank: int, size: int, at: int, action: str) -> Any:
    """Train while the dataset of rank `at` does something; what came of it, and the threads that are left."""
    if action == "die":
        patience.wait_for_notes(size - 1)
    loader = build(size, Trapped(action if rank == at else ""))
    try:
        with loader:
            found: Any = [batch.step for batch in loader]
    except dcpack.PeerError as error:
        found = (error.rank, error.cause)
    return found, threads()


def leave_together(rank: int, size: int, taken: int) -> tuple[list[str], float]:
    """All ranks stop in the middle, and build another loader, which finds the groups in order."""
    loader = build(size)
    for _ in range(taken):
        next(loader)
    started = time.monotonic()
    loader.close()
    seconds = time.monotonic() - started
    with build(size) as again:
        assert [batch.step for batch in again] == [step for step in range(4) for _ in range(2)]
    return threads(), seconds


def fail_in_training(rank: int, size: int) -> Any:
    """The training of rank 1 fails; the others hear why."""
    ahead._GRACE_S = 60.0  # it waits until they do
    try:
        with build(size) as loader:
            for batch in loader:
                if rank == 1 and batch.step == 1:
                    raise ZeroDivisionError("the loss")
    except dcpack.PeerError as error:
        return error.rank, error.cause, threads()
    except ZeroDivisionError:
        return "here", threads()
    return "no error"


def close_alone(rank: int, size: int, folder: str) -> Any:
    """Rank 0 closes while it waits for rank 1, which is away."""
    gate = Path(folder) / "gate"
    loader = build(size)
    next(loader)
    if rank == 1:
        until = time.monotonic() + 20
        while not gate.exists():
            assert time.monotonic() < until
            time.sleep(0.01)
        loader.close()
        return threads()
    for _ in range(3):
        next(loader)
    started = time.monotonic()
    loader.close()
    assert time.monotonic() - started < 15  # two times 2 seconds, and not the deadline of 60
    gate.touch()
    return threads()
