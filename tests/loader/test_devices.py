"""Copies to the device: as far ahead as the depth says, each batch once, in order."""

from __future__ import annotations

from typing import Any

import pytest

from dcpack import build_distributed_dataloader
from dcpack.comm import Communicator, FakeBackend

from loader_helpers import Numbered, config, describe, domain, mesh, on_ranks, sampler  # isort: skip


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


@pytest.mark.parametrize(("device", "depth", "ahead"), [("acc:0", 0, 0), ("acc:0", 1, 1), ("acc", 2, 2), ("cpu", 2, 0)])
def test_batches_are_copied_as_far_ahead_as_the_depth_says(
    copied: list[Any], device: str, depth: int, ahead: int
) -> None:
    with build_distributed_dataloader(
        Numbered(),
        domain(1),
        config(local_batch_size=3, device_prefetch_depth=depth),  # 4 micro-batches a step
        batch_sampler=sampler(12),
        metadata_fn=describe,
        collate_fn=collate,
        device=device,
    ) as loader:
        seen = []
        for batch in loader:
            assert batch.data["on"] == device
            seen.append(int(batch.data["ids"][0]))
            left = batch.num_microbatches - 1 - batch.microbatch  # copies are ahead within a step
            assert len(copied) == len(seen) + min(ahead, left)
    assert copied == seen


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
