"""Reading in order with processes: nothing is changed on the way, and workers stay from one reading to the next."""

from __future__ import annotations

import itertools
import os
from typing import Any

import numpy as np
import pytest
from dcpack_torch.reader import WorkerReader, read_with_workers

from dcpack.comm.reader import MAX_WORKERS
from dcpack.errors import ArgumentError


class Squares:
    """Samples of everything, and who read them; number 13 cannot be read."""

    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise KeyError("no sample 13")
        return {"tokens": np.array([index, index * index], np.int16), "name": str(index), "by": os.getpid()}


def numbers(samples: Any) -> list[int]:
    return [int(sample["tokens"][0]) for sample in samples]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_samples_come_in_order_and_as_they_are(num_workers: int) -> None:
    found = list(read_with_workers(Squares(), [5, 2, 2, 9, 0], num_workers=num_workers))
    assert numbers(found) == [5, 2, 2, 9, 0]
    for sample in found:
        assert type(sample["tokens"]) is np.ndarray  # no tensor, and no batch
        assert (sample["tokens"].dtype, sample["tokens"].shape) == (np.int16, (2,))
        assert (sample["by"] == os.getpid()) == (num_workers == 0)
    assert list(read_with_workers(Squares(), [], num_workers=num_workers)) == []


def test_an_endless_order_is_read_a_little_ahead() -> None:
    asked: list[int] = []

    def order() -> Any:
        for index in itertools.count(20):
            asked.append(index)
            yield index

    reading = read_with_workers(Squares(), order(), num_workers=2, prefetch_factor=2)
    assert numbers(itertools.islice(reading, 5)) == [20, 21, 22, 23, 24]
    assert len(asked) <= 5 + 2 * 2


@pytest.mark.parametrize("num_workers", [0, 1])
def test_an_error_comes_where_its_sample_would(num_workers: int) -> None:
    reading = read_with_workers(Squares(), [12, 13, 14], num_workers=num_workers)
    assert numbers([next(reading)]) == [12]
    with pytest.raises(KeyError, match="no sample 13"):
        next(reading)


def test_workers_stay_until_the_reader_is_gone() -> None:
    read = WorkerReader(Squares(), num_workers=2)
    first, second = list(read([1, 2, 3, 4])), list(read(range(5, 8)))
    assert (numbers(first), numbers(second)) == ([1, 2, 3, 4], [5, 6, 7])
    workers = {sample["by"] for sample in first}
    assert len(workers) == 2
    assert {sample["by"] for sample in second} == workers


def test_workers_end_with_a_reading_where_that_is_asked_for() -> None:
    read = WorkerReader(Squares(), num_workers=1, persistent_workers=False)
    (first,), (second,) = list(read([1])), list(read([2]))
    assert first["by"] != second["by"]


def test_without_workers_samples_are_read_here_when_they_are_asked_for() -> None:
    class Counting(Squares):
        read = 0

        def __getitem__(self, index: int) -> Any:
            Counting.read += 1
            return super().__getitem__(index)

    reading = WorkerReader(Counting())([4, 5, 6])
    assert Counting.read == 0
    assert numbers([next(reading)]) == [4]
    assert Counting.read == 1


def read_one(dataset: Any, num_workers: Any) -> Any:
    return read_with_workers(dataset, [0], num_workers=num_workers)


@pytest.mark.parametrize("make", [WorkerReader, read_one])
def test_what_cannot_be_read_is_refused_before_a_worker_starts(make: Any) -> None:
    for wrong in (-1, 1.5, True, "2", MAX_WORKERS + 1):
        with pytest.raises(ArgumentError, match="num_workers must be"):
            make(Squares(), num_workers=wrong)
    for num_workers in (0, 1):
        with pytest.raises(ArgumentError, match=r"dataset must give dataset\[i\], got int"):
            make(3, num_workers=num_workers)


def test_an_order_must_be_one() -> None:
    wrong: Any = 3
    with pytest.raises(ArgumentError, match="indices must be"):
        read_with_workers(Squares(), wrong)
