"""What all data-parallel ranks read: numbers, lengths, ends and faults."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import PeerError
from dcpack.megatron import EndOfData, GlobalBatch, get_batch_and_global_lengths


def sample(length: int, real: int | None = None) -> dict[str, Any]:
    return {"tokens": np.arange(length), "padded_seq_len": length, "original_seq_len": length if real is None else real}


def read(items_of_rank: list[list[Any]], num_microbatches: int) -> list[Any]:
    """The global batch of each rank, or the end that it met."""

    def fn(communicator: dcpack.Communicator) -> Any:
        items = iter(items_of_rank[communicator.rank])
        try:
            return get_batch_and_global_lengths(communicator, items, num_microbatches=num_microbatches)
        except EndOfData as end:
            return end

    return dcpack.run_ranks(len(items_of_rank), fn)


def test_sequences_are_numbered_by_rank_and_place() -> None:
    found: list[GlobalBatch] = read(
        [
            [sample(5, 3), [sample(7), sample(2)], sample(100)],
            [[], [sample(4)]],
            [[sample(1), sample(9, 0)], sample(6, 5)],
        ],
        num_microbatches=2,
    )
    for batch in found:
        assert batch.pairs == [(0, 5), (1, 7), (2, 2), (3, 4), (4, 1), (5, 6)]
        assert all(type(number) is int for pair in batch.pairs for number in pair)
        assert batch.offsets.tolist() == [0, 3, 4, 6]
        assert (batch.padded_lengths.dtype, batch.padded_lengths.tolist()) == (np.int64, [5, 7, 2, 4, 1, 6])
        assert batch.lengths.tolist() == [3, 7, 2, 4, 1, 5]
        assert (batch.num_tokens, batch.num_empty) == (22, 1)
        assert not batch.offsets.flags.writeable
    assert [batch.ids.tolist() for batch in found] == [[0, 1, 2], [3], [4, 5]]
    assert [len(batch.samples) for batch in found] == [3, 1, 2]


def test_only_the_items_of_the_step_are_taken() -> None:
    source = iter([sample(n) for n in (1, 2, 3, 4, 5)])

    def fn(communicator: dcpack.Communicator) -> Any:
        steps = [get_batch_and_global_lengths(communicator, source, num_microbatches=2).pairs for _ in range(2)]
        return steps, next(source)["padded_seq_len"]

    assert dcpack.run_ranks(1, fn) == [([[(0, 1), (1, 2)], [(0, 3), (1, 4)]], 5)]


def test_an_end_on_one_rank_ends_all_and_is_counted() -> None:
    ends = read([[sample(4), sample(8, 5)], [sample(3)], [sample(2), sample(2)]], num_microbatches=2)
    for end in ends:
        assert isinstance(end, EndOfData)
        assert (end.num_items, end.num_sequences, end.num_tokens) == ((2, 1, 2), 5, 4 + 5 + 3 + 2 + 2)
        assert "ranks fetched [2, 1, 2] items, 5 sequences of 16 tokens in all, which are in no batch" in str(end)


def test_a_clean_end_drops_nothing() -> None:
    for end in read([[], []], num_microbatches=1):
        assert (end.num_items, end.num_sequences, end.num_tokens) == ((0, 0), 0, 0)


def test_an_end_ends_a_loop_but_never_in_silence() -> None:
    assert issubclass(EndOfData, StopIteration)

    def steps() -> Iterator[int]:
        yield 1
        raise EndOfData(num_items=[0], num_sequences=0, num_tokens=0)

    with pytest.raises(RuntimeError, match="StopIteration"):
        list(steps())


def failing() -> Iterator[Any]:
    yield sample(3)
    raise KeyError("x")


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ([sample(1), 3], "ArgumentError: data_iterator must yield mappings or lists of mappings: item 1 is int"),
        ([[sample(1), 3.5], "ab"], "item 0 is a list of dict, float, item 1 is str"),
        ([sample(1), {"tokens": np.arange(3)}], "either cu_seqlens or padded_seq_len, not both or neither: sample 1"),
        (failing(), "KeyError: 'x'"),
        (None, "data_iterator must be an iterator, got NoneType"),
    ],
)
def test_a_fault_on_one_rank_is_an_error_on_all(bad: Any, text: str) -> None:
    texts = []

    def fn(communicator: dcpack.Communicator) -> None:
        items = bad if communicator.rank == 1 else [sample(1), sample(1)]
        source: Any = iter(items) if isinstance(items, list) else items
        try:
            get_batch_and_global_lengths(communicator, source, num_microbatches=2)
        except PeerError as error:
            texts.append((error.rank, str(error)))

    dcpack.run_ranks(3, fn)
    assert [rank for rank, _ in texts] == [1, 1, 1]
    assert all(text in found for _, found in texts), texts


def test_ranks_that_want_different_numbers_of_items_all_hear_of_it() -> None:
    texts = []

    def fn(communicator: dcpack.Communicator) -> None:
        try:
            get_batch_and_global_lengths(communicator, iter([sample(3)] * 9), num_microbatches=2 + communicator.rank)
        except dcpack.DcpackError as error:
            texts.append(str(error))

    dcpack.run_ranks(3, fn)
    assert texts == ["num_microbatches must be the same on every rank, got [2, 3, 4]"] * 3


def test_num_microbatches_is_checked() -> None:
    with pytest.raises(PeerError, match="num_microbatches must be from 1 to 2147483647, got 0"):
        read([[sample(1)]], num_microbatches=0)
