"""One rank reads, all receive: order, the end, lengths, failures."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dcpack import ArgumentError, PeerError, TPBroadcastDataLoader, run_ranks
from dcpack.comm import Communicator

BATCHES: list[Any] = [
    {"ids": np.array([[1, 2], [3, 4]]), "meta": {"names": ["a", "b"], "shape": (2, None)}, "loss": 0.5},
    (np.zeros((0, 3), np.float32), [True, 2**60]),
    None,
    [],
]


class Source:
    """A loader that counts how often it is iterated, and can fail."""

    def __init__(self, batches: list[Any], fails_at: int | None = None, kind: type[BaseException] = OSError) -> None:
        self.batches = batches
        self.fails_at = fails_at
        self.kind = kind
        self.num_iterations = 0
        self.epochs: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        self.num_iterations += 1
        for i, batch in enumerate(self.batches):
            if i == self.fails_at:
                raise self.kind("disk gone")
            yield batch

    def __len__(self) -> int:
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        self.epochs.append(epoch)


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
def test_all_ranks_get_what_the_leader_reads(num_ranks: int):
    def fn(communicator: Communicator) -> Any:
        source = Source(BATCHES)
        loader = TPBroadcastDataLoader(source, communicator)
        first, second = list(loader), list(loader)
        assert repr(first) == repr(second)
        assert first[0]["ids"].dtype == np.int64
        assert source.num_iterations == (2 if communicator.rank == 0 else 0)
        return len(loader), repr(first)

    assert run_ranks(num_ranks, fn) == [(4, repr(BATCHES))] * num_ranks


def test_peers_need_no_loader_and_a_batch_is_one_message():
    def fn(communicator: Communicator) -> Any:
        loader = TPBroadcastDataLoader(BATCHES if communicator.rank == 0 else None, communicator)
        before = communicator.counters.calls
        assert len(list(loader)) == len(loader) == 4
        after = communicator.counters.calls
        return {verb: after[verb] - before[verb] for verb in after if after[verb] != before[verb]}

    assert run_ranks(3, fn) == [{"broadcast": 5}] * 3  # four batches and the end


def test_length_is_fixed_once_and_never_a_collective():
    def fn(communicator: Communicator) -> Any:
        source = Source([1, 2]) if communicator.rank == 0 else Source([9] * 5)
        loader = TPBroadcastDataLoader(source, communicator)
        source.batches.append(3)
        communicator.close()
        return len(loader)

    assert run_ranks(2, fn) == [2, 2]


def test_an_unknown_length_is_a_type_error_on_all_and_the_end_is_found():
    def fn(communicator: Communicator) -> Any:
        loader = TPBroadcastDataLoader(iter([1, 2, 3]), communicator)
        with pytest.raises(TypeError, match="the loader of the leader, rank 0, has no length"):
            len(loader)
        return list(loader)

    assert run_ranks(2, fn) == [[1, 2, 3]] * 2


def test_an_empty_loader_ends_at_once():
    assert run_ranks(2, lambda c: list(TPBroadcastDataLoader([], c))) == [[], []]


def test_a_failure_of_the_leader_is_an_error_on_all_and_the_group_goes_on():
    def fn(communicator: Communicator) -> Any:
        loader = TPBroadcastDataLoader(Source([1, 2, 3], fails_at=2), communicator)
        seen = []
        with pytest.raises(PeerError, match=r"(?s)rank 0 failed .*OSError: disk gone") as caught:  # noqa: PT012
            for batch in loader:
                seen.append(batch)
        assert (caught.value.rank, caught.value.cause) == (0, "OSError")
        assert isinstance(caught.value.__cause__, OSError) is (communicator.rank == 0)
        return seen, list(TPBroadcastDataLoader([7], communicator))

    assert run_ranks(3, fn) == [([1, 2], [7])] * 3


@pytest.mark.parametrize("method", ["__iter__", "__len__"])
def test_a_stop_iteration_of_the_leader_is_an_error_on_all_and_no_end(method: str):
    class Stops:
        def __iter__(self) -> Iterator[Any]:
            return self._raise("__iter__") or iter([1])

        def __len__(self) -> int:
            return self._raise("__len__") or 1

        def _raise(self, name: str) -> Any:
            if name == method:
                raise StopIteration

    def fn(communicator: Communicator) -> Any:
        source = Stops() if communicator.rank == 0 else None
        with pytest.raises(PeerError, match=r"rank 0 failed .*StopIteration was raised by what cannot end") as caught:
            list(TPBroadcastDataLoader(source, communicator))
        return caught.value.rank, caught.value.cause

    assert run_ranks(2, fn) == [(0, "RuntimeError")] * 2


def test_an_exit_of_the_leader_is_told_and_stays_one():
    def fn(communicator: Communicator) -> Any:
        loader = TPBroadcastDataLoader(Source([1, 2], fails_at=1, kind=KeyboardInterrupt), communicator)
        try:
            list(loader)
        except KeyboardInterrupt:
            return "stopped"
        except PeerError as error:
            return error.cause

    assert run_ranks(2, fn) == ["stopped", "KeyboardInterrupt"]


def test_a_batch_that_cannot_be_sent_is_an_error_on_all():
    with pytest.raises(PeerError, match=r"rank 0 failed .*tree\[0\]\['x'\] is of type set"):
        run_ranks(2, lambda c: list(TPBroadcastDataLoader([{"x": {1}}], c)))


def test_a_leader_without_a_loader_is_an_error_on_all():
    def fn(communicator: Communicator) -> None:
        with pytest.raises(PeerError, match=r"rank 0 failed .*the leader needs a loader to iterate, got NoneType"):
            TPBroadcastDataLoader(None if communicator.rank == 0 else [], communicator)

    run_ranks(2, fn)


def test_ranks_may_stop_early_together():
    def fn(communicator: Communicator) -> Any:
        loader = TPBroadcastDataLoader([1, 2, 3], communicator)
        return [next(iter(loader)), *loader]

    assert run_ranks(2, fn) == [[1, 1, 2, 3]] * 2


class WithSampler:
    def __init__(self, name: str) -> None:
        self.inner = Source([])
        setattr(self, name, self.inner)

    def __iter__(self) -> Iterator[Any]:
        return iter([])


def test_set_epoch_passes_through():
    def fn(communicator: Communicator) -> Any:
        source = Source([])
        TPBroadcastDataLoader(source, communicator).set_epoch(3)
        for name in ("sampler", "batch_sampler"):
            outer = WithSampler(name)
            TPBroadcastDataLoader(outer, communicator).set_epoch(4)
            assert outer.inner.epochs == [4]
        return source.epochs

    assert run_ranks(2, fn) == [[3], [3]]


def test_set_epoch_without_effect_warns_once_on_the_leader():
    def fn(communicator: Communicator) -> Any:
        return TPBroadcastDataLoader([1] if communicator.rank == 0 else None, communicator)

    leader, peer = run_ranks(2, fn)
    with pytest.warns(UserWarning, match="set_epoch has no effect: neither list nor a sampler of it has set_epoch"):
        leader.set_epoch(1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        leader.set_epoch(2)
        peer.set_epoch(1)
    with pytest.raises(ValueError, match="epoch must be at least 0, got -1"):
        leader.set_epoch(-1)


def test_a_failure_of_the_group_that_the_loader_reads_in_is_told_too():
    def fn(communicator: Communicator) -> Any:
        source = Source([1], fails_at=0, kind=PeerError)
        with pytest.raises(PeerError, match=r"rank 0 failed .*disk gone"):
            list(TPBroadcastDataLoader(source, communicator))
        return communicator.broadcast(np.array(3), 0).item()

    assert run_ranks(2, fn) == [3, 3]


def test_the_communicator_is_one() -> None:
    group: Any = object()
    with pytest.raises(ArgumentError, match="communicator must be a dcpack Communicator, got object"):
        TPBroadcastDataLoader([1], group)
