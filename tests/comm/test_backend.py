from __future__ import annotations

import itertools
import threading
import time
from typing import Any

import numpy as np
import pytest

from dcpack.comm import Communicator, FakeBackend
from dcpack.errors import ArgumentError, PeerError


class Grid:
    """Ranks 0 to 5 as two rows of three."""

    def groups(self, axes: Any):
        return {"dp": [(0, 3), (1, 4), (2, 5)], "cp": [(0, 1, 2), (3, 4, 5)], ("dp", "cp"): [range(6)]}[axes]


class Wrong:
    def groups(self, axes: Any):
        return axes


def test_from_mesh():
    backend = FakeBackend(num_ranks=6)

    def fn(communicator: Communicator):
        groups = [backend.from_mesh(Grid(), axes) for axes in ("dp", "cp", ("dp", "cp"))]
        return [[int(array) for array in group.all_gather(np.int64(communicator.rank))] for group in groups]

    everyone = list(range(6))
    assert backend.run(fn) == [[[r % 3, r % 3 + 3], everyone[r // 3 * 3 :][:3], everyone] for r in range(6)]


def test_from_mesh_of_another_world():
    backend = FakeBackend(num_ranks=2)

    def fn(communicator: Communicator):
        with pytest.raises(PeerError, match=r"rank 0 failed .*names ranks that are not in the world of 2: 2, 7"):
            backend.from_mesh(Wrong(), [(0, 1), (2, 7)])
        with pytest.raises(PeerError, match="1 is missing"):
            backend.from_mesh(Wrong(), [(0,)])
        # One rank whose mesh lacks the axis does not leave the other waiting.
        with pytest.raises(PeerError, match=r"rank 1 failed .*KeyError: 'pp'"):
            backend.from_mesh(Grid() if communicator.rank else Wrong(), "pp" if communicator.rank else [(0, 1)])
        return backend.from_mesh(Wrong(), [(1, 0)]).ranks

    assert backend.run(fn) == [(1, 0), (1, 0)]


def test_to_device_keeps_arrays_where_they_are():
    array = np.zeros(2)
    assert FakeBackend().to_device(array) is array


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_reader_keeps_the_order(num_workers: Any):
    class Slow:
        def __getitem__(self, index: Any):
            time.sleep(0.001 * (index % 3))
            return index * index

    indices = [5, 3, 8, 0, 1, 2, 9, 7]
    reader = FakeBackend().make_reader(Slow(), indices, num_workers=num_workers)
    assert list(reader) == [index * index for index in indices]
    assert list(FakeBackend().make_reader(Slow(), [], num_workers=num_workers)) == []


@pytest.mark.parametrize("num_workers", [0, 2])
def test_reader_raises_where_the_sample_would_come(num_workers: Any):
    reader = FakeBackend().make_reader(["a", "b"], [0, 1, 9, 0], num_workers=num_workers)
    assert [next(reader), next(reader)] == ["a", "b"]
    with pytest.raises(IndexError, match="list index out of range"):
        next(reader)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_reader_takes_endless_indices(num_workers: Any):
    taken = []

    def count():
        for index in itertools.count():
            taken.append(index)
            yield index

    reader = FakeBackend().make_reader(range(10**9), count(), num_workers=num_workers)
    assert list(itertools.islice(reader, 10)) == list(range(10))
    assert len(taken) <= 10 + 2 * num_workers


def test_reader_reads_at_the_same_time():
    together = threading.Barrier(2, timeout=100)

    class Meeting:
        def __getitem__(self, index: Any):
            together.wait()  # a single worker would wait here for ever
            return index

    assert list(FakeBackend().make_reader(Meeting(), [4, 5, 6, 7], num_workers=2)) == [4, 5, 6, 7]


def test_reader_lets_its_threads_go():
    reader = FakeBackend().make_reader(range(100), range(100), num_workers=2)
    next(reader)
    assert any(thread.name.startswith("dcpack-reader") for thread in threading.enumerate())
    reader.close()  # pyright: ignore[reportAttributeAccessIssue] an Iterator by its type, a generator in fact
    for thread in threading.enumerate():
        if thread.name.startswith("dcpack-reader"):
            thread.join(60)
            assert not thread.is_alive()


def test_reader_checks_its_workers():
    with pytest.raises(ArgumentError, match="num_workers must be from 0 to 4096, got -1"):
        FakeBackend().make_reader([], [], num_workers=-1)
