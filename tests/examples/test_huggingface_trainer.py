"""The batch sampler and the collator for Hugging Face's Trainer, on what the Trainer builds of them.

That is a DataLoader of torch, whose rows accelerate deals in turn to the processes. With the real Trainer the example
is run by ``tests/huggingface/run.sh``, in an environment of its own.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.errors import ArgumentError, InfeasibleError

packed_rows: Any = importlib.import_module("packed_rows")
PackedRows, flatten = packed_rows.PackedRows, packed_rows.flatten

LENGTHS = np.random.default_rng(1).integers(2, 60, 90)


class Share:
    """What a process gets of a batch sampler: the batches number rank, rank + size, ..."""

    def __init__(self, rows: Any, rank: int, size: int) -> None:
        self.rows, self.rank, self.size = rows, rank, size

    def __len__(self) -> int:
        return len(self.rows) // self.size

    def __iter__(self) -> Iterator[list[int]]:
        return islice(iter(self.rows), self.rank, None, self.size)


class Samples(torch.utils.data.Dataset[dict[str, list[int]]]):
    """Sample i holds 1000 i, 1000 i + 1, ...; the first half of it is a prompt."""

    def __len__(self) -> int:
        return LENGTHS.size

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        ids = [1000 * index + n for n in range(LENGTHS[index])]
        return {"input_ids": ids, "labels": [-100 if n < len(ids) // 2 else token for n, token in enumerate(ids)]}


def batches(rank: int, size: int, *, epoch: int = 0, num_workers: int = 0) -> list[dict[str, Any]]:
    rows = PackedRows(LENGTHS, capacity=64, rows_per_step=4, seed=5, window=30)
    rows.set_epoch(epoch)
    loader: Any = torch.utils.data.DataLoader(
        Samples(), batch_sampler=Share(rows, rank, size), collate_fn=flatten, num_workers=num_workers
    )
    assert len(loader) * size == len(rows)
    return list(loader)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_every_token_once_an_epoch_over_all_processes(size: int) -> None:
    of_each = [batches(rank, size, num_workers=2 if size == 2 else 0) for rank in range(size)]
    assert len({len(found) for found in of_each}) == 1
    tokens = torch.cat([batch["input_ids"][0] for found in of_each for batch in found]).tolist()
    assert sorted(tokens) == [1000 * i + n for i in range(LENGTHS.size) for n in range(LENGTHS[i])]
    assert max(batch["input_ids"].shape[1] for found in of_each for batch in found) <= 64


def test_the_same_steps_on_any_number_of_processes() -> None:
    (alone,), pair = [batches(0, 1)], [batches(rank, 2) for rank in range(2)]
    interleaved = [batch for both in zip(*pair, strict=True) for batch in both]
    assert [b["input_ids"].tolist() for b in interleaved] == [b["input_ids"].tolist() for b in alone]


def test_an_epoch_reorders_steps_and_keeps_their_rows_and_number() -> None:
    def steps(epoch: int) -> list[list[list[int]]]:
        rows = PackedRows(LENGTHS, capacity=64, rows_per_step=4, seed=5, window=30)
        rows.set_epoch(epoch)
        found = list(rows)
        assert len(found) == len(rows)
        return [found[start : start + 4] for start in range(0, len(found), 4)]

    first, second = steps(0), steps(1)
    assert first == steps(0)  # epoch and seed alone decide
    assert first != second
    assert sorted(first) == sorted(second)
    assert PackedRows(LENGTHS, capacity=64, rows_per_step=4, seed=6, window=30).steps[0] not in first


def test_rows_that_meet_in_a_micro_batch_cost_alike() -> None:
    # 16 rows a step on 2 processes: rows i and i + 1 are trained at the same time. Sorted by cost, all their waiting
    # together is no more than the spread of the step.
    cost = dcpack.QuadraticCost()
    rows = PackedRows(LENGTHS, capacity=64, rows_per_step=16, seed=5, cost=cost)
    for step in rows.steps:
        times = np.array([np.sum(LENGTHS[row].astype(np.float64) ** 2) for row in step])
        assert np.all(np.diff(times) <= 0)


@settings(max_examples=25, deadline=None)
@given(lengths=st.lists(st.integers(1, 50), min_size=8, max_size=60), rows_per_step=st.integers(1, 8))
def test_any_lengths_come_once_in_whole_steps(lengths: list[int], rows_per_step: int) -> None:
    rows = PackedRows(lengths, capacity=50, rows_per_step=rows_per_step, window=16)
    found = list(rows)
    assert sorted(sample for row in found for sample in row) == list(range(len(lengths)))
    assert all(sum(lengths[i] for i in row) <= 50 for row in found)
    assert len(found) % rows_per_step == 0
    assert all(any(step) for step in rows.steps), "a step without samples"


def test_the_row_by_hand() -> None:
    row = flatten([{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9]}])
    assert {name: value.tolist() for name, value in row.items() if not isinstance(value, int)} == {
        "input_ids": [[5, 6, 7, 8, 9]],
        "labels": [[-100, 6, 7, -100, 9]],
        "position_ids": [[0, 1, 2, 0, 1]],
        "cu_seq_lens_q": [0, 3, 5],
        "cu_seq_lens_k": [0, 3, 5],
    }
    assert (row["max_length_q"], row["max_length_k"]) == (3, 3)
    assert [row[name].dtype for name in ("input_ids", "cu_seq_lens_q")] == [torch.int64, torch.int32]


def test_rows_that_nobody_fills_have_no_weight() -> None:
    # Four samples fill four rows; two steps of three rows are six.
    rows = PackedRows([31, 31, 31, 31], capacity=50, rows_per_step=3)
    assert sorted(map(len, rows)) == [0, 0, 1, 1, 1, 1]
    row = flatten([])
    assert (row["input_ids"].tolist(), row["labels"].tolist(), row["max_length_q"]) == ([[0]], [[-100]], 1)
    loader: Any = torch.utils.data.DataLoader(Samples(), batch_sampler=Share(rows, 0, 1), collate_fn=flatten)
    assert sum(int((batch["labels"] == -100).all()) for batch in loader) == 2


def test_what_cannot_be_is_said() -> None:
    with pytest.raises(ArgumentError, match=r"without tokens .* \[1, 3\]"):
        PackedRows([4, 0, 5, 0], capacity=8, rows_per_step=1)
    with pytest.raises(InfeasibleError, match="longer than the limit of 8"):
        PackedRows([4, 9], capacity=8, rows_per_step=1)
    with pytest.raises(ArgumentError, match=r"samples \[1\] of the row"):
        flatten([{"input_ids": [1, 2]}, {"input_ids": [1, 2], "labels": [1]}])
