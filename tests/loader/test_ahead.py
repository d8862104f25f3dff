"""The next step is made while the present one trains; nothing else changes, and nothing is left behind."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import pytest
from fake_time import until

import dcpack
from dcpack import DistributedDataLoader, build_distributed_dataloader
from dcpack.comm import Communicator, FakeBackend
from dcpack.loader import ahead

from loader_helpers import LENGTHS, Numbered, config, describe, domain, on_ranks, sampler, threads_of_loaders  # isort: skip

MODES: dict[str, dict[str, Any]] = {
    "online": {"metadata_fn": describe},
    "metadata": {"metadata": LENGTHS},
    "planned_cp": {"scheduler": "dynamic_cp"},
}
STEP = 12  # samples of a step


def build(mode: str = "online", num_ranks: int = 1, data: Any = None, **options: Any) -> DistributedDataLoader:
    arguments = {**MODES[mode], **options}
    return build_distributed_dataloader(
        Numbered() if data is None else data,
        domain(num_ranks),
        config(local_batch_size=6 // num_ranks, metadata_mode=mode == "metadata"),
        batch_sampler=sampler(STEP),
        **arguments,
    )


def take(loader: DistributedDataLoader, count: int) -> None:
    for _ in range(count):
        next(loader)


_of_others: set[threading.Thread] = set()  # tests of other files may leave some that wait for a deadline


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threads_of_loaders() if thread not in _of_others]


@pytest.fixture(autouse=True, scope="module")
def threads_of_others() -> None:
    gc.collect()
    _of_others.update(threads_of_loaders())


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    gc.collect()
    assert loader_threads() == []
    yield
    gc.collect()
    until(lambda: loader_threads() == [])


@pytest.fixture
def without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A back end whose collectives belong to the caller's thread."""
    monkeypatch.setattr(FakeBackend, "allows_threads", False)


def facts(batch: Any) -> tuple[Any, ...]:
    return batch.epoch, batch.step, batch.microbatch, batch.sample_ids.tolist(), batch.global_valid_tokens


# ---- ahead -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_exactly_one_step_is_ahead(mode: str) -> None:
    data = Numbered()
    with build(mode, data=data) as loader:
        for taken in (1, 2, 3):
            batch = next(loader)
            # The whole next step is read and packed, though nobody asks for it, and nothing behind it is.
            assert loader._ahead is not None
            assert loader._ahead.peek() is not None
            assert sum(data.reads.values()) == (taken + 1) * STEP
            while not batch.is_last:
                batch = next(loader)
            assert sum(data.reads.values()) == (taken + 1) * STEP


def test_it_is_made_by_one_thread_that_is_not_the_callers() -> None:
    seen = set()

    def collate(rows: Any) -> Any:
        seen.add(threading.current_thread().name)
        return rows

    with build(collate_fn=collate) as loader:
        for _ in range(2):
            for _ in loader:
                pass
        assert len(loader_threads()) == 1
    assert seen == {"dcpack-loader"}


def test_a_failure_ahead_is_raised_when_its_step_is_taken() -> None:
    class Failing(Numbered):
        def __getitem__(self, index: int) -> Any:
            if sum(self.reads.values()) == 2 * STEP:
                raise KeyError("sample 25")
            return super().__getitem__(index)

    loader = build(data=Failing())
    assert [next(loader).step for _ in range(4)] == [0, 0, 1, 1]
    with pytest.raises(dcpack.PeerError, match="sample 25") as caught:
        next(loader)
    assert caught.value.cause == "KeyError"
    with pytest.raises(dcpack.ArgumentError, match="has failed: PeerError"):
        next(loader)


# ---- on the caller's thread ------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("without_threads")
@pytest.mark.parametrize("mode", MODES)
def test_hooks_make_the_next_step_by_halves(mode: str) -> None:
    def body(communicator: Communicator) -> list[Any]:
        data = Numbered()
        packed: list[str] = []

        def collate(rows: Any) -> Any:
            packed.append(threading.current_thread().name)
            return rows

        found: list[Any] = []
        with build(mode, 2, data, collate_fn=collate) as loader:
            for batch in loader:
                found.append(facts(batch))
                if batch.step == 1 and batch.is_last:
                    before = len(packed)
                    for _ in range(2):
                        loader.prefetch_plan()
                        assert len(packed) == before
                        # In metadata mode the plan comes before the samples.
                        assert sum(data.reads.values()) == (2 if mode == "metadata" else 3) * STEP // 2
                    loader.prefetch()
                    assert len(packed) > before
                    done = (data.reads.copy(), len(packed))
                    loader.prefetch()
                    assert (data.reads, len(packed)) == done
                if batch.step == 2:
                    loader.prefetch()  # in the middle of a step: the next one
            loader.prefetch_plan()  # at the end of an epoch there is none
            loader.prefetch()
        assert set(packed) == {threading.current_thread().name}
        return found

    with_hooks = on_ranks(2, body)
    without = on_ranks(2, lambda c: [facts(batch) for batch in build(mode, 2)])
    assert with_hooks == without


@pytest.mark.usefixtures("without_threads")
def test_without_threads_nothing_is_ahead_unless_asked_for() -> None:
    def body(communicator: Communicator) -> int:
        data = Numbered()
        with build("online", 2, data) as loader:
            next(loader)
            return sum(data.reads.values())

    assert on_ranks(2, body) == [STEP // 2] * 2
    assert loader_threads() == []


@pytest.mark.usefixtures("without_threads")
def test_a_failing_hook_is_an_error_on_all_ranks() -> None:
    class Failing(Numbered):
        def __getitem__(self, index: int) -> Any:
            raise KeyError("x")

    def body(communicator: Communicator) -> tuple[Any, Any]:
        loader = build("online", 2, Failing() if communicator.rank == 1 else None)
        try:
            loader.prefetch_plan()
        except dcpack.PeerError as error:
            return error.rank, error.cause
        raise AssertionError("no error")

    assert on_ranks(2, body) == [(1, "KeyError")] * 2


# ---- the state -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", MODES)
def test_the_state_knows_nothing_of_what_is_ahead(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def states() -> list[Any]:
        with build(mode) as loader:
            found = [loader.state_dict()]
            for _ in loader:
                if loader._ahead is not None:
                    loader._ahead.peek()
                found.append(loader.state_dict())
            return found

    usual = states()
    monkeypatch.setattr(ahead._WorkThread, "submit", _inline)
    monkeypatch.setattr(ahead.StepsAhead, "take", _take_on_demand)
    assert states() == usual


def _inline(self: Any, job: Callable[[], Any]) -> Any:
    future: Any = Future()
    future.set_result(job())
    return future


def _take_on_demand(self: Any) -> Any:
    self.prefetch()
    result, self._result = self._result, None
    self._at = (self._at[0], self._at[1] + 1)
    return result.result()


class LiveSource:
    """A step source that hands out its state itself, and goes on changing it."""

    def __init__(self) -> None:
        self.position = {"step": 0}

    def __iter__(self) -> Iterator[Any]:
        while self.position["step"] < 5:
            self.position["step"] += 1
            yield [[{"input_ids": [self.position["step"]]}]]

    def state_dict(self) -> dict[str, int]:
        return self.position

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = dict(state)


def test_a_state_that_its_source_goes_on_changing_is_kept() -> None:
    def loader_of(source: LiveSource) -> DistributedDataLoader:
        return build_distributed_dataloader(
            None, domain(1), config(), metadata_fn=describe, external_step_source=source
        )

    with loader_of(LiveSource()) as loader:
        take(loader, 2)
        assert loader._ahead is not None
        assert loader._ahead.peek() is not None
        state = loader.state_dict()
    assert state["source"] == {"step": 2}
    with loader_of(LiveSource()) as loader:
        loader.load_state_dict(state)
        assert [batch.data[0][0]["input_ids"] for batch in loader] == [[3], [4], [5]]


def test_plans_of_the_rest_of_an_epoch_include_what_is_ahead() -> None:
    with build("metadata") as loader:
        whole = [planned.plans[0].digest() for planned in loader.plan_epoch()]
        assert len(whole) == len(LENGTHS) // STEP
        next(loader)
        assert [planned.plans[0].digest() for planned in loader.plan_epoch()] == whole[1:]


def test_epochs_can_be_left_and_chosen_as_before() -> None:
    with build() as loader:
        first = [facts(batch) for batch in loader]
        loader.set_epoch(0)
        assert [facts(batch) for batch in loader] == first
        second = [facts(batch) for batch in loader]
        assert {batch[0] for batch in second} == {1}


# ---- the end ---------------------------------------------------------------------------------------------------------


class Gated(Numbered):
    """Reads of the second step wait until they are let go on."""

    def __init__(self) -> None:
        super().__init__()
        self.is_inside = threading.Event()
        self.gate = threading.Event()

    def __getitem__(self, index: int) -> Any:
        if sum(self.reads.values()) >= STEP:
            self.is_inside.set()
            assert self.gate.wait(100)
        return super().__getitem__(index)


@pytest.mark.parametrize("taken", range(5))
def test_close_at_any_moment(taken: int) -> None:
    def body(communicator: Communicator) -> bool:
        loader = build("online", 2)
        take(loader, taken)
        loader.close()
        loader.close()
        with pytest.raises(dcpack.ArgumentError, match="is closed"):
            next(loader)
        return True

    assert on_ranks(2, body) == [True, True]
    assert loader_threads() == []


def test_close_while_a_sample_is_read_waits_for_the_reading_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_GRACE_S", 60.0)
    data = Gated()
    loader = build(data=data)
    next(loader)
    assert data.is_inside.wait(60)
    threading.Timer(0.05, data.gate.set).start()
    loader.close()
    assert loader_threads() == []
    assert sum(data.reads.values()) == 2 * STEP  # the step was not thrown away half read


def test_a_stuck_reader_does_not_keep_close_from_returning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ahead, "_GRACE_S", 0.05)
    data = Gated()
    loader = build(data=data)
    next(loader)
    assert data.is_inside.wait(60)
    loader.close()
    assert caplog.messages == ["the thread of a closed loader is still in the user's code; it ends when that returns"]
    data.gate.set()
    until(lambda: loader_threads() == [])


def test_close_while_waiting_for_another_rank_cuts_the_wait_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_GRACE_S", 0.05)
    gate = threading.Event()

    def body(communicator: Communicator) -> str:
        loader = build("online", 2)
        next(loader)
        if communicator.rank == 1:
            assert gate.wait(60)  # away, while rank 0 makes the step behind the next
        else:
            take(loader, 3)
            started = time.monotonic()
            assert loader._ahead is not None
            assert loader._ahead._thread is not None
            thread = loader._ahead._thread._thread
            loader.close()
            thread.join(60)
            assert not thread.is_alive()
            assert time.monotonic() - started < 15  # and not the deadline of 30 s
            gate.set()
            return ""
        try:
            list(loader)
        except dcpack.PeerError as error:
            return str(error).splitlines()[0]
        raise AssertionError("rank 1 was told nothing")

    assert "rank 0" in on_ranks(2, body)[1]


def test_a_collected_loader_ends_its_thread() -> None:
    loader = build()
    next(loader)
    (thread,) = loader_threads()
    del loader
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


@pytest.fixture
def interrupts() -> Iterator[list[int]]:
    """The first Ctrl-C is an interrupt, whatever the parent of this process does with it; all are counted."""
    heard: list[int] = []

    def interrupt(number: int, frame: Any) -> None:
        heard.append(number)
        if len(heard) == 1:
            raise KeyboardInterrupt

    previous = signal.signal(signal.SIGINT, interrupt)
    yield heard
    signal.signal(signal.SIGINT, previous)


def test_ctrl_c_while_waiting_for_the_loader(interrupts: list[int]) -> None:
    data = Gated()
    with build(data=data) as loader:
        take(loader, 2)
        assert data.is_inside.wait(60)
        assert loader._ahead is not None
        future: Any = loader._ahead._result

        def press() -> None:
            until(lambda: future._condition._waiters)
            while not interrupts:  # Python does not hear one that comes just before its thread begins to wait
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                time.sleep(0.01)

        pressing = threading.Thread(target=press)
        pressing.start()
        with pytest.raises(KeyboardInterrupt):
            next(loader)
        pressing.join()
        with pytest.raises(dcpack.ArgumentError, match="has failed: KeyboardInterrupt"):
            next(loader)
        data.gate.set()
    assert loader_threads() == []


def told_of_an_error_in_the_training(train: Callable[[], None]) -> list[tuple[Any, Any]]:
    """What each of two ranks hears where the second fails in the second step and the first trains as it is told."""

    def body(communicator: Communicator) -> tuple[Any, Any]:
        try:
            with build("online", 2) as loader:
                for batch in loader:
                    if batch.step == 1 and communicator.rank == 1:
                        raise ZeroDivisionError("the loss")
                    if batch.step == 1:
                        train()
        except dcpack.PeerError as error:
            return error.rank, error.cause
        except ZeroDivisionError:
            return communicator.rank, "here"
        raise AssertionError("no error")

    return on_ranks(2, body)


def test_ranks_that_train_for_long_hear_of_an_error_in_the_training(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(ahead, "_GRACE_S", 0.05)
    # longer than a loader has to close
    told = told_of_an_error_in_the_training(lambda: until(lambda: bool(caplog.messages)))
    assert told == [(1, "ZeroDivisionError"), (1, "here")]
    (message,) = caplog.messages
    assert message == "an error is told to the other ranks: waiting until they take their next step, 30 s at most"


@pytest.mark.parametrize("error", [ZeroDivisionError("the loss"), KeyboardInterrupt()], ids=["error", "interrupt"])
def test_a_rank_that_failed_waits_for_the_others_no_longer_than_it_says(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    monkeypatch.setattr(ahead, "_GRACE_S", 0.05)
    monkeypatch.setattr(ahead, "_TELL_S", 0.05 if isinstance(error, Exception) else 1e6)
    has_left = threading.Event()

    def body(communicator: Communicator) -> str:
        try:
            with build("online", 2) as loader:
                for batch in loader:
                    if batch.step == 1 and communicator.rank == 1:
                        raise error
                    if batch.step == 1:
                        assert has_left.wait(60)
        except dcpack.PeerError:
            return "a peer"
        except (ZeroDivisionError, KeyboardInterrupt):
            has_left.set()
            return "here"
        raise AssertionError("no error")

    assert on_ranks(2, body) == ["a peer", "here"]


def test_an_error_in_the_training_is_what_the_other_ranks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_GRACE_S", 60.0)
    assert told_of_an_error_in_the_training(lambda: None) == [(1, "ZeroDivisionError"), (1, "here")]
