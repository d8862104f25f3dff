"""Copies to the device: as far ahead as the depth says, each batch once, in order."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest

import dcpack
from dcpack import DistributedDataLoader, build_distributed_dataloader
from dcpack.comm import Communicator, FakeBackend
from dcpack.loader.devices import DeviceQueue

from loader_helpers import LENGTHS, Numbered, config, describe, domain, mesh, on_ranks, sampler  # isort: skip


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The first token of each batch that was put on the device, in order."""
    found: list[Any] = []

    def to_device(self: FakeBackend, array: Any, device: Any) -> Any:
        found.append(int(array["ids"][0]))
        return {"on": device, **array}

    monkeypatch.setattr(FakeBackend, "to_device", to_device)
    return found


def collate(rows: Any) -> Any:
    return {"ids": rows[0]["input_ids"]}


class Copies:
    """A back end whose copies are noted: when they begin, and when they are used."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[int] = []
        self.used: list[int] = []
        self.threads: list[str] = []
        self.fails_at: int | None = None
        self.error: BaseException = MemoryError()
        self._changed = threading.Condition()
        noted = self

        def begin_copy(_: FakeBackend, data: Any, device: Any) -> Any:
            first = int(data["ids"][0])
            if first == noted.fails_at:
                raise noted.error
            with noted._changed:
                noted.begun.append(first)
                noted.threads.append(threading.current_thread().name)
                noted._changed.notify_all()

            def finish() -> Any:
                noted.used.append(first)
                return {"on": device, **data}

            return finish

        monkeypatch.setattr(FakeBackend, "begin_copy", begin_copy)
        monkeypatch.setattr(FakeBackend, "to_device", lambda self, data, device: self.begin_copy(data, device)())

    def wait_for(self, count: int) -> None:
        """Wait until so many have begun, and see that no more do while nothing else happens."""
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.begun) >= count, timeout=60)
            assert len(self.begun) == count


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Copies:
    return Copies(monkeypatch)


def build(device: str, depth: int, *, steps_of: int = 12, data: Any = None) -> DistributedDataLoader:
    return build_distributed_dataloader(
        Numbered(LENGTHS[:24]) if data is None else data,
        domain(1),
        config(local_batch_size=3, device_prefetch_depth=depth),
        batch_sampler=sampler(steps_of, 24),
        metadata_fn=describe,
        collate_fn=collate,
        device=device,
    )


@pytest.mark.parametrize(
    ("device", "depth", "ahead"), [("acc:0", 0, 0), ("acc:0", 1, 1), ("acc", 2, 2), ("acc", 9, 9), ("cpu", 2, 0)]
)
@pytest.mark.parametrize("steps_of", [3, 6, 12])  # 1, 2 and 4 micro-batches a step
def test_batches_are_copied_as_far_ahead_as_the_depth_says(
    copies: Copies, device: str, depth: int, ahead: int, steps_of: int
) -> None:
    with build(device, depth, steps_of=steps_of) as loader:
        seen = []
        for batch in loader:
            assert batch.data["on"] == device
            seen.append(int(batch.data["ids"][0]))
            # Across the end of this step, but not of the next one; no more than two steps are in memory.
            in_memory = (batch.step + 2) * batch.num_microbatches
            copies.wait_for(min(len(seen) + ahead, in_memory, 8))
    assert copies.begun == copies.used == seen
    assert len(seen) == 8


class Gated(Numbered):
    """The samples of a step are read when the step before it was handed out, and not before."""

    def __init__(self) -> None:
        super().__init__(LENGTHS[:24])
        self.may_read = threading.Semaphore(3)

    def __getitem__(self, index: int) -> Any:
        assert self.may_read.acquire(timeout=60)
        return super().__getitem__(index)


def test_the_thread_of_the_loader_copies_what_it_made(copies: Copies) -> None:
    data = Gated()
    with build("acc", 1, steps_of=3, data=data) as loader:
        for number, _ in enumerate(loader):
            assert len(copies.begun) == number + 1
            data.may_read.release(3)
            copies.wait_for(min(number + 2, 8))
    assert copies.threads[0] == threading.current_thread().name  # the first was asked for before it was made
    assert copies.threads[1:] == ["dcpack-loader"] * 7


def test_what_a_thread_may_not_copy_is_copied_by_the_one_that_trains(
    copies: Copies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeBackend, "copies_in_threads", lambda self, device: False)
    with build("acc", 2, steps_of=6) as loader:
        assert len(list(loader)) == 8
    assert set(copies.threads) == {threading.current_thread().name}
    assert copies.begun == copies.used


def test_hooks_copy_the_next_step_too(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeBackend, "allows_threads", False)

    def body(communicator: Communicator) -> list[int]:
        ahead = []
        with build_distributed_dataloader(
            Numbered(LENGTHS[:24]),
            domain(2),
            config(local_batch_size=3, device_prefetch_depth=1),
            batch_sampler=sampler(6, 24),
            metadata_fn=describe,
            collate_fn=collate,
            device="acc",
        ) as loader:
            for batch in loader:
                communicator.barrier()
                before = len(copies.begun)
                communicator.barrier()
                loader.prefetch()
                communicator.barrier()
                ahead.append(len(copies.begun) - before)
                communicator.barrier()
                assert batch.is_last
        return ahead

    assert on_ranks(2, body) == [[2, 2, 2, 0]] * 2  # one on each rank
    assert sorted(copies.begun) == sorted(copies.used)


@pytest.mark.parametrize("error", [MemoryError("no room on the device"), SystemExit(3)])
@pytest.mark.parametrize("in_thread", [True, False])
def test_a_copy_that_fails_ahead_is_an_error_of_the_training(
    copies: Copies, monkeypatch: pytest.MonkeyPatch, error: BaseException, in_thread: bool
) -> None:
    monkeypatch.setattr(FakeBackend, "copies_in_threads", lambda self, device: in_thread)
    with build("acc", 1, steps_of=3) as loader:
        firsts = [int(batch.data["ids"][0]) for batch in loader]
    copies.fails_at, copies.error = firsts[2], error
    data = Gated()
    with build("acc", 1, steps_of=3, data=data) as loader:
        assert int(next(loader).data["ids"][0]) == firsts[0]
        data.may_read.release(24)
        with pytest.raises(type(error)):
            list(loader)
        with pytest.raises(dcpack.ArgumentError, match="this loader has failed"):
            next(loader)


def test_without_a_device_nothing_is_copied(copied: list[Any]) -> None:
    with build_distributed_dataloader(
        Numbered(), domain(1), config(), batch_sampler=sampler(), metadata_fn=describe, collate_fn=collate
    ) as loader:
        assert "on" not in next(loader).data
    assert copied == []


def test_ranks_that_receive_copy_what_they_receive(copied: list[Any]) -> None:
    def body(communicator: Communicator) -> list[int]:
        with build_distributed_dataloader(
            Numbered(),
            mesh(tp=2),
            config(local_batch_size=6, device_prefetch_depth=1),
            batch_sampler=sampler(),
            metadata_fn=describe,
            collate_fn=collate,
            device="acc",
        ) as loader:
            batches = list(loader)
        assert all(batch.data["on"] == "acc" for batch in batches)
        return [int(batch.data["ids"][0]) for batch in batches]

    first, second = on_ranks(2, body)
    assert first == second
    assert sorted(copied) == sorted(first + second)


def test_a_step_that_was_taken_meanwhile_is_left_alone(copies: Copies) -> None:
    """Its thread may come to the copies when the step is the present one already."""
    backend = FakeBackend()
    with build("acc", 0, steps_of=12) as loader:
        batches = [replace(batch, data={"ids": batch.data["ids"]}) for batch in list(loader)[:4]]
    queue = DeviceQueue(backend, "acc", 2)
    assert queue.stage(batches[:1]) == 1
    copies.begun.clear()
    queue.stage_next(batches)
    queue.begin_step(batches)
    assert queue.stage([])
    queue.stage_next(batches)
    assert len(copies.begun) == 1
    queue.take(batches[0], is_own=True)
    assert queue.stage(batches[1:]) == 0
    assert len(copies.begun) == 3
    assert queue.stage(batches[3:]) == 1


def test_a_thread_that_comes_to_the_copies_of_a_closed_loader_makes_none(copies: Copies) -> None:
    """The thread of a closed loader may still be in the user's code, and go on when that returns."""
    with build("acc", 0, steps_of=12) as loader:
        batches = list(loader)
    copies.begun.clear()
    queue = DeviceQueue(FakeBackend(), "acc", 2)
    assert queue.stage([])
    queue.close()
    queue.stage_next(batches)
    assert copies.begun == []


def test_the_thread_is_asked_for_copies_once_a_step(copies: Copies) -> None:
    data = Gated()
    with build("acc", 9, steps_of=12, data=data) as loader:  # 4 micro-batches a step
        data.may_read.release(9)
        for _ in range(4):
            next(loader)
        result: Any = loader._ahead._result  # type: ignore[union-attr]
        assert len(result._done_callbacks) == 1
        data.may_read.release(12)
        copies.wait_for(8)
