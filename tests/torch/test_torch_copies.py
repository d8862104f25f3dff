"""Copies to a device beside the training: what is done on which stream, noted by stand-ins for ``torch.cuda``."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from dcpack_torch.backend import TorchGlooBackend
from dcpack_torch.copies import CopyStream, device_module

from dcpack import SampleMetadata, Topology, build_distributed_dataloader
from dcpack.loader import GlobalBatchSampler

_DEVICE = torch.device("cuda", 1)


class Streams:
    """Stands in for ``torch.cuda``: each thread has a current stream and device, and all is noted in order."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.num_streams = 0
        self._here = threading.local()
        noted = self

        class Stream:
            def __init__(self) -> None:
                noted.num_streams += 1
                self.name = f"side {noted.num_streams}"

            def wait_event(self, event: Any) -> None:
                assert event.recorded_on is not None, "an event that nothing was recorded in is waited for"
                noted.notes.append(f"{self.name} waits for {event.recorded_on}")

        class Event:
            recorded_on: str | None = None

            def record(self, stream: Stream) -> None:
                self.recorded_on = stream.name
                noted.notes.append(f"event on {stream.name}")

        self.Stream, self.Event = Stream, Event
        self._main = Stream()
        self._main.name, self.num_streams = "training", 0

    def current_device(self) -> int:
        return getattr(self._here, "device", 0)

    def current_stream(self) -> Any:
        assert self.current_device() == _DEVICE.index, "another device is the current one"
        return getattr(self._here, "stream", self._main)

    @contextlib.contextmanager
    def device(self, device: torch.device) -> Iterator[None]:
        before, self._here.device = self.current_device(), device.index
        yield
        self._here.device = before

    @contextlib.contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self._here.stream = self.current_stream(), stream
        yield
        self._here.stream = before


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Streams:
    """Host memory is device memory here: a copy is a clone, and its kind, stream and place are noted."""
    module = Streams()
    pinned: set[int] = set()

    def pin_memory(self: torch.Tensor) -> torch.Tensor:
        module.notes.append("pin")
        copied = self.clone()
        pinned.add(copied.data_ptr())
        return copied

    def to(self: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        if not non_blocking:
            return self
        assert self.data_ptr() in pinned, "memory that is not pinned cannot be copied without waiting"
        assert device == _DEVICE
        module.notes.append(f"copy {self.flatten()[0].item():g} on {module.current_stream().name}")
        return self.clone()

    def record_stream(self: torch.Tensor, stream: Any) -> None:
        module.notes.append(f"{self.flatten()[0].item():g} is used on {stream.name}")

    monkeypatch.setattr(torch, "cuda", module)
    monkeypatch.setattr(torch.Tensor, "is_pinned", lambda self: self.data_ptr() in pinned)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "record_stream", record_stream)
    return module


def test_copies_are_on_a_stream_of_their_own_and_used_on_the_users(streams: Streams):
    copies = CopyStream(streams, _DEVICE)
    assert streams.num_streams == 1, "two threads that begin their first copies at once must share it"
    finish = copies.begin({"a": np.array([3.0, 1.0]), "b": [torch.tensor([5.0])], "name": "x"})
    assert streams.notes == ["pin", "copy 3 on side 1", "pin", "copy 5 on side 1", "event on side 1"]
    streams.notes.clear()
    found = finish()
    assert streams.notes == ["training waits for side 1", "3 is used on training", "5 is used on training"]
    assert (found["a"].tolist(), found["b"][0].tolist(), found["name"]) == ([3, 1], [5], "x")
    streams.notes.clear()
    copies.begin(torch.ones(1).pin_memory())()
    assert streams.num_streams == 1, "one stream for all copies"
    assert streams.notes[:2] == ["pin", "copy 1 on side 1"], "pinned twice"


def test_a_back_end_has_one_stream_a_device(streams: Streams):
    backend: Any = TorchGlooBackend()
    for _ in range(2):
        assert backend.begin_copy([torch.ones(1)], "cuda:1")()[0].tolist() == [1]
    assert streams.num_streams == 1
    assert "copy 1 on side 1" in streams.notes


def test_where_threads_may_copy(streams: Streams):
    backend = TorchGlooBackend()
    assert backend.copies_in_threads("cuda:1")
    assert not backend.copies_in_threads("cuda"), "each thread has a current device of its own"
    assert device_module(torch.device("cpu")) is None
    assert device_module(_DEVICE) is streams
    tensor = torch.ones(2)
    assert backend.begin_copy(tensor, "cpu")() is tensor


class Samples:
    """Sample i is full of i; one may be read before training begins, and one more for each step that was taken."""

    def __init__(self) -> None:
        self.may_read = threading.Semaphore(1)

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> dict[str, Any]:
        assert self.may_read.acquire(timeout=60)
        return {"input_ids": np.full(4, float(index))}


def test_the_next_step_is_copied_while_one_trains(streams: Streams, monkeypatch: pytest.MonkeyPatch):
    begun: list[tuple[float, str]] = []
    may_go_on = threading.Condition()
    begin = CopyStream.begin

    def noted(self: CopyStream, tree: Any) -> Any:
        finish = begin(self, tree)
        with may_go_on:
            begun.append((float(tree[0][0]), threading.current_thread().name))
            may_go_on.notify_all()
        return finish

    monkeypatch.setattr(CopyStream, "begin", noted)
    samples = Samples()
    with build_distributed_dataloader(
        samples,
        Topology.of_domain(1),
        {"seq_len": 4, "local_batch_size": 1, "communication_backend": "gloo", "device_prefetch_depth": 1},
        metadata_fn=lambda sample: SampleMetadata(pack_tokens=len(sample["input_ids"])),
        collate_fn=lambda rows: [row["input_ids"] for row in rows],
        batch_sampler=GlobalBatchSampler(6, global_batch_size=1, shuffle=False),
        device="cuda:1",
    ) as loader:
        for number, batch in enumerate(loader):
            assert batch.data[0].tolist() == [number] * 4
            samples.may_read.release()
            wanted = min(number + 1, 5)
            with may_go_on:  # while this step trains, the only batch of the next one comes to the device
                assert may_go_on.wait_for(lambda wanted=wanted: len(begun) >= wanted, timeout=60)
                assert len(begun) == wanted
    # The first one was asked for before it was made; all others were copied ahead, in the loader's thread.
    assert begun == [(float(number), "dcpack-loader") for number in range(1, 6)]
    for number in range(1, 6):
        copied, used = f"copy {number} on side 1", f"{number} is used on training"
        assert streams.notes.index(copied) < streams.notes.index(used)
