from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack import SampleMetadata, build_distributed_dataloader
from dcpack.comm import Communicator, FakeBackend

from loader_helpers import config, domain, mesh, on_ranks  # isort: skip


class Steps:
    """Steps of rows of numbers; a number is what its sample costs, times ten, and who it is."""

    def __init__(self, steps: list[list[list[int]]]) -> None:
        self.steps = steps
        self.epoch = 0
        self.at = 0

    def __iter__(self) -> Iterator[list[list[Any]]]:
        while self.at < len(self.steps):
            self.at += 1
            yield [[{"n": np.array(n)} for n in row] for row in self.steps[self.at - 1]]
        self.at = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.at = 0


class Resumable(Steps):
    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def describe(sample: dict[str, Any]) -> SampleMetadata:
    return SampleMetadata(pack_tokens=2, cost=int(sample["n"]) // 10)


def numbers(batch: Any) -> list[list[int]]:
    return [[int(sample["n"]) for sample in row] for row in batch.data]


def build(steps: Steps, communicator: Communicator, **options: Any) -> dcpack.DistributedDataLoader:
    settings = config(**{"seq_len": 4, "local_batch_size": 2, **options})
    return build_distributed_dataloader(
        None, domain(communicator.size), settings, external_step_source=steps, metadata_fn=describe
    )


# Rank r's rows: ranks 0 and 1 are uneven, ranks 2 and 3 even.
UNEVEN = [[[90], [91]], [[10], [11]], [[50], [51]], [[52], [53]]]


@pytest.mark.parametrize(("group", "moves"), [(2, [True, False]), (1, [False] * 2), (4, [True, True])])
def test_balancing_stays_inside_groups_and_moves_only_what_must(group: int, moves: list[bool]) -> None:
    def body(communicator: Communicator) -> tuple[list[Any], int]:
        loader = build(Steps([UNEVEN[communicator.rank]]), communicator, balance_group_size=group)
        groups = loader._communicators  # the last one is the group
        return list(loader), groups[-1].counters.calls["all_to_all"]

    results = on_ranks(4, body)
    for first in range(0, 4, 2):
        before = Counter(n for row in [*UNEVEN[first], *UNEVEN[first + 1]] for n in row)
        after = Counter(n for rank in (first, first + 1) for b in results[rank][0] for row in numbers(b) for n in row)
        assert (before == after) or group == 4
    everything = Counter(n for batches, _ in results for b in batches for row in numbers(b) for n in row)
    assert everything == Counter(n for rows in UNEVEN for row in rows for n in row)
    assert [calls > 0 for _, calls in results[::2]] == moves
    loads = [sum(n // 10 for b in batches for row in numbers(b) for n in row) for batches, _ in results]
    assert loads == {2: [10, 10, 10, 10], 1: [18, 2, 10, 10], 4: [10, 10, 10, 10]}[group]
    for batches, _ in results:
        assert [(b.step, b.microbatch, b.num_microbatches, len(b.data)) for b in batches] == [
            (0, 0, 2, 1),
            (0, 1, 2, 1),
        ]
        assert {b.global_valid_tokens for b in batches} == {16}


@pytest.mark.parametrize("variable", [None, "7"])
def test_the_ranks_of_a_node_are_a_group(monkeypatch: pytest.MonkeyPatch, variable: str | None) -> None:
    # Ranks are threads here: the host is told by their names, odd ranks on another one.
    monkeypatch.setattr("socket.gethostname", lambda: f"host {int(threading.current_thread().name[-1]) % 2}")

    def body(communicator: Communicator) -> tuple[int, ...]:
        return build(Steps([UNEVEN[communicator.rank]]), communicator)._communicators[-1].ranks

    if variable is None:
        monkeypatch.delenv("GROUP_RANK", raising=False)
        assert on_ranks(4, body) == [(0, 2), (1, 3), (0, 2), (1, 3)]
    else:
        monkeypatch.setenv("GROUP_RANK", variable)  # the launcher's word counts before the host's name
        assert on_ranks(4, body) == [(0, 1, 2, 3)] * 4


def test_uneven_ends_are_agreed_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    # Sources of 87 and 89 steps: 87 are delivered on both, and rank 1 counts what it had taken of the 88th.
    def body(communicator: Communicator) -> tuple[int, int, list[int]]:
        length = (87, 89)[communicator.rank]
        steps = Steps([[[10 * (s + 1)], [10 * (s + 1) + 1]] for s in range(length)])
        loader = build(steps, communicator)
        batches = list(loader)
        return len(batches), loader.num_dropped, sorted({b.step for b in batches})

    with caplog.at_level(logging.WARNING, logger="dcpack"):
        results = on_ranks(2, body)
    assert results == [(174, 0, list(range(87))), (174, 2, list(range(87)))]
    (message,) = [m for m in caplog.messages if "rank 1 drops" in m]
    assert message == "the sources of ranks [0] ended, so the epoch ends on all; rank 1 drops a step of 2 samples"


def test_a_source_with_a_length_says_what_is_behind_the_end(caplog: pytest.LogCaptureFixture) -> None:
    class Sized(Steps):
        def __len__(self) -> int:
            return len(self.steps)

    def body(communicator: Communicator) -> tuple[int, int]:
        loader = build(Sized([[[10], [10]]] * (3, 5)[communicator.rank]), communicator)
        return len(loader), len(list(loader))

    with caplog.at_level(logging.WARNING, logger="dcpack"):
        assert on_ranks(2, body) == [(6, 6), (6, 6)]
    assert any(m.endswith("a step of 2 samples, and 1 more steps of its source") for m in caplog.messages)


def test_after_a_resume_it_says_so_too(caplog: pytest.LogCaptureFixture) -> None:
    class Sized(Resumable):
        def __len__(self) -> int:
            return len(self.steps)

    def body(communicator: Communicator) -> int:
        steps = [[[10], [10]]] * (3, 5)[communicator.rank]
        with build(Sized(steps), communicator) as loader:
            for _ in range(4):
                next(loader)
            state = loader.state_dict()
        with build(Sized(steps), communicator) as loader:
            loader.load_state_dict(state)
            return len(list(loader))

    with caplog.at_level(logging.WARNING, logger="dcpack"):
        assert on_ranks(2, body) == [2, 2]
    assert any(m.endswith("a step of 2 samples, and 1 more steps of its source") for m in caplog.messages)


def test_a_lone_stop_is_an_error_on_the_others() -> None:
    def body(communicator: Communicator) -> int:
        count = 0
        for _ in build(Steps([[[10], [11]]] * 9), communicator):
            count += 1
            if communicator.rank == 1 and count == 6:
                return count
        return count

    with pytest.raises(dcpack.PeerError, match=r"rank 1 (has finished|has closed|failed in agree)"):
        on_ranks(2, body)


def test_a_source_with_a_state_is_resumed_and_one_without_has_none() -> None:
    steps = [[[10 * s + 10], [10 * s + 11]] for s in range(5)]

    def body(communicator: Communicator) -> list[list[Any]]:
        whole = [numbers(b) for b in build(Resumable(steps), communicator)]
        found = []
        for stop in range(6):
            first = build(Resumable(steps), communicator)
            taken = [numbers(next(first)) for _ in range(2 * stop)]
            state = first.state_dict()
            second = build(Resumable(steps), communicator)
            second.load_state_dict(state)
            found.append(taken + [numbers(b) for b in second])
        with pytest.raises(dcpack.ArgumentError, match="its source has no state_dict"):
            build(Steps(steps), communicator).state_dict()
        return [whole, *found]

    for whole, *found in on_ranks(2, body):
        assert len(whole) == 10
        assert found == [whole] * 6


def test_epochs_reach_the_source() -> None:
    def body(communicator: Communicator) -> list[int]:
        source = Steps([[[10], [11]]])
        loader = build(source, communicator)
        seen = []
        for epoch in range(3):
            loader.set_epoch(epoch)
            seen += [source.epoch for _ in loader]
        return seen

    assert on_ranks(2, body) == [[0, 0, 1, 1, 2, 2]] * 2


@pytest.mark.parametrize(
    ("step", "text"),
    [
        ([[10]], "must yield local_batch_size 2 rows a step, got 1"),
        ([[10], []], "must yield rows that are not empty, got row 1"),
    ],
)
def test_steps_that_cannot_be_are_errors_on_all(step: list[list[int]], text: str) -> None:
    def body(communicator: Communicator) -> list[Any]:
        return list(build(Steps([step] if communicator.rank else [[[10], [11]]]), communicator))

    with pytest.raises(dcpack.PeerError, match=text) as caught:
        on_ranks(2, body)
    assert caught.value.rank == 1


@pytest.mark.parametrize("method", ["__iter__", "row", "state_dict"])
@pytest.mark.parametrize("threads", [True, False])
def test_a_stop_iteration_that_is_no_end_is_an_error_on_all(
    method: str, threads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeBackend, "allows_threads", threads)

    class Row:
        def __iter__(self) -> Iterator[Any]:
            raise StopIteration

    class Stops(Resumable):
        wrong = ""

        def __iter__(self) -> Iterator[Any]:
            if self.wrong == "__iter__":
                raise StopIteration
            return iter([[Row(), Row()]]) if self.wrong == "row" else super().__iter__()

        def state_dict(self) -> dict[str, int]:
            if self.wrong == "state_dict" and self.at == 1:  # not while the loader is built
                raise StopIteration
            return super().state_dict()

    def body(communicator: Communicator) -> Any:
        source = Stops([[[10], [11]]] * 3)
        source.wrong = method if communicator.rank else ""
        with pytest.raises(dcpack.PeerError, match="StopIteration was raised by what cannot end here") as caught:
            list(build(source, communicator))
        return caught.value.rank, caught.value.cause

    assert on_ranks(2, body) == [(1, "RuntimeError")] * 2


def test_it_is_data_parallel_only() -> None:
    def body(communicator: Communicator) -> None:
        build_distributed_dataloader(
            None, mesh(dp=1, tp=2), config(), external_step_source=Steps([]), metadata_fn=describe
        )

    with pytest.raises(dcpack.PeerError, match="data parallel only, but 2 ranks share a batch"):
        on_ranks(2, body)
