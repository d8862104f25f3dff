"""Calls at moments that no training loop is proud of, and user code that fails where nobody looks for it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from fake_time import until

import dcpack
from dcpack import DistributedDataLoader, build_distributed_dataloader
from dcpack.comm import Communicator
from dcpack.loader import ahead
from dcpack.loader.ahead import _WorkThread

from loader_helpers import LENGTHS, Numbered, Texts, config, describe, domain, on_ranks, sampler, settings  # isort: skip


def build(num_ranks: int = 1, **options: Any) -> DistributedDataLoader:
    """A loader of 4 steps of 12 samples, 2 micro-batches each."""
    given: dict[str, Any] = {"metadata_fn": describe, "batch_sampler": sampler(), **options}
    return build_distributed_dataloader(Numbered(), domain(num_ranks), config(local_batch_size=6 // num_ranks), **given)


class Steps:
    """A step source over lists of rows."""

    def __init__(self, count: int = 3) -> None:
        self.count = count

    def __iter__(self) -> Iterator[Any]:
        for number in range(self.count):
            yield [[{"input_ids": np.array([number])}]]


def from_source(source: Any, num_ranks: int = 1) -> DistributedDataLoader:
    return build_distributed_dataloader(
        None, domain(num_ranks), config(), external_step_source=source, metadata_fn=describe
    )


# ---- states ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", ["before", "within", "failed", "closed"])
def test_a_source_without_a_state_has_none_at_any_moment(moment: str) -> None:
    loader = from_source(Steps())
    if moment == "within":
        next(loader)
    elif moment == "failed":
        with pytest.raises(KeyError), loader:
            raise KeyError("of the training")
    elif moment == "closed":
        loader.close()
    with pytest.raises(dcpack.ArgumentError, match="this loader has no state"):
        loader.state_dict()
    loader.close()


def test_a_source_whose_state_is_no_mapping_is_named() -> None:
    class Bare(Steps):
        def state_dict(self) -> Any:
            return [1, 2]

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError(state)

    with from_source(Bare()) as loader, pytest.raises(dcpack.ArgumentError, match=r"must be a mapping, got \[1, 2\]"):
        loader.state_dict()


def test_an_epoch_of_numpy_is_one() -> None:
    with build() as loader:
        loader.set_epoch(np.int64(2))  # type: ignore[arg-type]
        assert next(loader).epoch == 2
        state = loader.state_dict()
    with build() as other:
        other.load_state_dict(state)
        assert next(other).epoch == 2


def test_states_of_a_loader_that_is_closed_or_has_failed_still_load() -> None:
    loader = build()
    ids = [next(loader).sample_ids.tolist() for _ in range(3)]
    with pytest.raises(KeyError), loader:
        raise KeyError("of the training")
    state = loader.state_dict()
    assert state["step"] == 1
    with build() as other:
        other.load_state_dict(state)
        assert next(other).sample_ids.tolist() == ids[2]


class Endless:
    """A sampler of one's own that goes on counting over epochs: 5 micro-batches each, 2 of them a step."""

    global_batch_size = 12
    global_micro_batch_size = 6

    def __init__(self) -> None:
        self.epoch = 0
        self.consumed_samples = 0

    def __iter__(self) -> Iterator[list[int]]:
        while self.consumed_samples < (self.epoch + 1) * 30:
            first = self.consumed_samples % 30
            self.consumed_samples += 6
            yield list(range(first, first + 6))

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.consumed_samples = epoch * 30

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "consumed_samples": self.consumed_samples}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.consumed_samples = state["epoch"], state["consumed_samples"]


@pytest.mark.parametrize("taken", range(4))
def test_steps_begin_where_they_did_with_a_sampler_that_counts_over_epochs(taken: int) -> None:
    def facts(loader: DistributedDataLoader) -> list[Any]:
        return [(batch.step, batch.microbatch, batch.num_microbatches, batch.sample_ids.tolist()) for batch in loader]

    with build(batch_sampler=Endless()) as loader:
        assert [fact[:3] for fact in facts(loader)] == [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2), (2, 0, 1)]
        whole = facts(loader)
        assert [fact[:3] for fact in whole] == [(0, 0, 2), (0, 1, 2), (1, 0, 2), (1, 1, 2), (2, 0, 1)]
    with build(batch_sampler=Endless()) as loader:
        loader.set_epoch(1)
        for _ in range(2 * taken if taken < 3 else 5):
            next(loader)
        state = loader.state_dict()
    assert (state["epoch"], state["step"]) == (1, taken)
    with build(batch_sampler=Endless()) as loader:
        loader.load_state_dict(state)
        assert facts(loader) == whole[2 * taken :]


@pytest.mark.parametrize("taken", range(3))
def test_a_sampler_that_was_inside_a_step_keeps_its_steps_when_resumed(taken: int) -> None:
    def facts(loader: DistributedDataLoader) -> list[Any]:
        return [(batch.step, batch.microbatch, batch.num_microbatches, batch.sample_ids.tolist()) for batch in loader]

    def inside() -> Endless:
        sampler = Endless()
        next(iter(sampler))  # one micro-batch of two
        return sampler

    with build(batch_sampler=inside()) as loader:
        whole = facts(loader)
    assert [fact[2] for fact in whole] == [1, 2, 2, 1]
    with build(batch_sampler=inside()) as loader:
        for _ in range([0, 1, 3][taken]):
            next(loader)
        state = json.loads(json.dumps(loader.state_dict()))
    for resumed in (Endless(), inside()):
        with build(batch_sampler=resumed) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert facts(loader) == whole[[0, 1, 3][taken] :]


# ---- user code that fails --------------------------------------------------------------------------------------------


def test_a_callback_that_stops_does_not_end_the_epoch() -> None:
    def stop(record: Any) -> None:
        raise StopIteration

    with build() as loader:
        loader.on_step(stop)
        with pytest.raises(RuntimeError, match="a callback of on_step raised StopIteration"):
            list(loader)


def errors_of(num_ranks: int, body: Any) -> list[str]:
    """The error of each rank, in words; none takes as long as a deadline."""

    def caught(communicator: Communicator) -> str:
        try:
            body(communicator)
        except Exception as error:
            return f"{type(error).__name__}: {error}".splitlines()[0]
        return "nothing"

    return dcpack.run_ranks(num_ranks, caught, deadline_s=1000.0)


def test_an_epoch_that_cannot_begin_on_one_rank_is_an_error_on_all() -> None:
    def body(communicator: Communicator) -> None:
        class Failing(Endless):
            def __iter__(self) -> Iterator[list[int]]:
                for indices in super().__iter__():
                    yield indices[2 * communicator.rank : 2 * communicator.rank + 2]

            def set_epoch(self, epoch: int) -> None:
                if communicator.rank == 1:
                    raise KeyError("no such epoch")
                super().set_epoch(epoch)

        loader = build(3, batch_sampler=Failing())
        try:
            list(loader)
            list(loader)
        finally:
            loader.close()

    first, second, third = errors_of(3, body)
    assert second == "KeyError: 'no such epoch'"
    assert first == third
    assert "rank 1 failed" in first
    assert "no such epoch" in first


def test_a_length_that_fails_on_one_rank_is_an_error_on_all() -> None:
    def body(communicator: Communicator) -> None:
        class Failing(Steps):
            def __len__(self) -> int:
                if communicator.rank == 1:
                    raise KeyError("no idea")
                return self.count

        from_source(Failing(), 2)

    first, second = errors_of(2, body)
    assert "rank 1 failed" in first
    assert "no idea" in first
    assert "no idea" in second


@pytest.mark.parametrize("error", [TypeError, NotImplementedError])
def test_a_source_that_cannot_say_its_length_has_none(error: type[Exception], caplog: pytest.LogCaptureFixture) -> None:
    """As a DataLoader of torch over an endless data set."""

    def body(communicator: Communicator) -> list[int]:
        class Unknown(Steps):
            def __len__(self) -> int:
                raise error("has no len()")

        with from_source(Unknown(3 + communicator.rank), 2) as loader:
            with pytest.raises(TypeError, match="has no length here"):
                len(loader)
            return [batch.step for batch in loader]

    assert on_ranks(2, body) == [[0, 1, 2]] * 2
    assert len(caplog.messages) == 2


@pytest.mark.parametrize("drop_last", [True, False])
def test_a_step_of_text_that_is_all_stripped_is_all_padding_or_refused(drop_last: bool) -> None:
    class Blank(Texts):
        def __getitem__(self, index: int) -> dict[str, Any]:
            sample = super().__getitem__(index)
            if index < 6:
                sample["input_ids"][:] = 0
                sample["labels"][:] = -100
            return sample

    def body(communicator: Communicator) -> list[int]:
        with build_distributed_dataloader(
            Blank(LENGTHS[:12]),
            domain(2),
            settings("repack", 3, "fake", drop_last=drop_last),
            batch_sampler=sampler(6, 12, shuffle=False, drop_last=drop_last),
        ) as loader:
            return [batch.sample_ids.size * (not batch.is_dummy) for batch in loader]

    if drop_last:
        assert all("is empty" in text for text in errors_of(2, body))
        return
    blank, full = zip(*on_ranks(2, body), strict=True)
    assert blank == (0, 0)
    assert sum(full) == 6


# ---- the end ---------------------------------------------------------------------------------------------------------


def test_a_closed_loader_says_so_whatever_is_asked() -> None:
    loader = build_distributed_dataloader(
        Numbered(),
        domain(1),
        config(local_batch_size=6, metadata_mode=True),
        metadata=LENGTHS,
        batch_sampler=sampler(),
    )
    loader.close()
    for call in (loader.plan_epoch, loader.prefetch, loader.prefetch_plan, loader.__iter__, loader.__next__):
        with pytest.raises(dcpack.ArgumentError, match="this loader is closed"):
            call()


@pytest.mark.parametrize("with_error", [True, False])
def test_closing_while_another_thread_waits_for_a_batch(with_error: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the handler of a signal does, too: what the waiting one gets says that the loader was closed."""
    monkeypatch.setattr(ahead, "_GRACE_S", 60.0)
    gate, is_inside = threading.Event(), threading.Event()

    class Slow(Numbered):
        def __getitem__(self, index: int) -> Any:
            is_inside.set()
            assert gate.wait(60)
            if with_error:
                raise KeyError("came too late")
            return super().__getitem__(index)

    loader = build_distributed_dataloader(
        Slow(), domain(1), config(local_batch_size=6), metadata_fn=describe, batch_sampler=sampler()
    )

    maker: Any = loader._maker
    stages = maker.stages

    def close() -> None:
        assert is_inside.wait(60)
        closing = threading.Thread(target=loader.close)
        closing.start()
        until(stages._stopped.is_set)
        gate.set()
        closing.join()

    closer = threading.Thread(target=close)
    closer.start()
    with pytest.raises(dcpack.PeerError, match="came too late" if with_error else "the loader was closed"):
        next(loader)
    closer.join()


def test_a_thread_that_ends_itself_ends() -> None:
    """The collector may find a loader in any thread, that of the loader included."""
    thread = _WorkThread()
    assert thread.submit(lambda: thread.end(60.0)).result(60) is True
    thread._thread.join(60)
    assert not thread._thread.is_alive()
