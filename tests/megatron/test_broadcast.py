"""Tensors, exact numbers, and what the pipeline is told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import PeerError
from dcpack.megatron import broadcast_metadata, broadcast_scalars, broadcast_tensor, pack_sequences


@pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "float16", "float32", "float64"])
def test_tensors(dtype: str) -> None:
    given = np.arange(6).reshape(2, 3).astype(dtype)
    for root in (0, 2):
        for found in dcpack.run_ranks(3, lambda c, r=root: broadcast_tensor(c, given if c.rank == r else None, r)):
            assert (found.dtype, found.tolist()) == (given.dtype, given.tolist())


def test_none_passes() -> None:
    assert dcpack.run_ranks(3, lambda c: broadcast_tensor(c, None)) == [None] * 3
    # What other ranks bring is ignored.
    assert dcpack.run_ranks(3, lambda c: broadcast_tensor(c, None if c.rank == 0 else np.ones(2))) == [None] * 3


def test_an_empty_tensor_keeps_its_dtype() -> None:
    found = dcpack.run_ranks(2, lambda c: broadcast_tensor(c, np.zeros((0, 3), np.int16) if c.rank == 0 else None))
    assert (found[1].dtype, found[1].shape) == (np.int16, (0, 3))


def test_integers_are_exact_beyond_every_float() -> None:
    values = [2**24 + 1, 2**31 + 1, -(2**31) - 1, 2**53 + 1, 2**64 + 1, 3**100, 0]
    for found in dcpack.run_ranks(3, lambda c: broadcast_scalars(c, values if c.rank == 0 else None)):
        assert found == values
        assert all(type(value) is int for value in found)


def test_other_numbers_keep_value_and_type() -> None:
    values = [0.1, 1e300, -0.0, float("inf"), True, None, np.int64(2**62 + 1), np.float32(0.5), np.bool_(False)]
    for found in dcpack.run_ranks(2, lambda c: broadcast_scalars(c, values if c.rank == 1 else None, root=1)):
        assert found == [0.1, 1e300, 0.0, float("inf"), True, None, 2**62 + 1, 0.5, False]
        assert [type(value) for value in found] == [float] * 4 + [bool, type(None), int, float, bool]
        assert str(found[2]) == "-0.0"
    assert dcpack.run_ranks(2, lambda c: broadcast_scalars(c, np.array([1, 2**40]) if c.rank == 0 else None))[1] == [
        1,
        2**40,
    ]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, "2"], "values must be int, float, bool or None: '2' at 1"),
        (None, "values must be a sequence of numbers on the root, got None"),
        ("12", "values must be a sequence of numbers on the root, got '12'"),
        ([1j], "1j at 0"),
    ],
)
def test_what_is_no_number_is_an_error_on_all(values: Any, text: str) -> None:
    failures = []

    def fn(communicator: dcpack.Communicator) -> None:
        try:
            broadcast_scalars(communicator, values if communicator.rank == 0 else None)
        except PeerError as error:
            failures.append(str(error))

    dcpack.run_ranks(2, fn)
    assert len(failures) == 2
    assert all(text in failure for failure in failures)


def row(number: int, length: int) -> dict[str, Any]:
    fields = {"tokens": np.full(length + 1, number), "labels": np.full(length + 1, number)}
    return pack_sequences(
        [{**fields, "original_seq_len": np.array([length]), "padded_seq_len": np.array([length + 1])}]
    )


def test_all_stages_hear_the_first_one_and_get_no_data() -> None:
    totals = {"num_tokens": 2**53 + 1, "squared_length_sum": 2**70 + 1, "digest": "abc"}

    def fn(communicator: dcpack.Communicator) -> tuple[Any, Any, int, int]:
        own = [row(communicator.rank, 3), row(communicator.rank, 5)]
        is_first = communicator.rank == 0
        last = communicator.rank == communicator.size - 1
        rows, found = broadcast_metadata(
            communicator, own if is_first or last else None, totals if is_first else {"n": 1}
        )
        return rows, found, communicator.counters.bytes_sent, communicator.counters.bytes_received

    for rows, found, sent, received in dcpack.run_ranks(4, fn):
        assert found == totals
        names = {"cu_seqlens", "cu_seqlens_padded", "max_seqlen", "local_cp_size", "cp_rank", "num_slots"}
        assert [set(each) for each in rows] == [names] * 2
        assert [each["cu_seqlens"].tolist() for each in rows] == [[0, 3], [0, 5]]
        assert [each["cu_seqlens_padded"].tolist() for each in rows] == [[0, 4], [0, 6]]
        assert [each["max_seqlen"] for each in rows] == [4, 6]
        assert {each["cu_seqlens"].dtype for each in rows} == {np.dtype(np.int32)}
        assert (sent > 0) != (received > 0)  # one message, from the first stage


def test_the_first_stage_must_bring_something() -> None:
    with pytest.raises(PeerError, match="the first stage must bring its micro-batches and totals"):
        dcpack.run_ranks(2, lambda c: broadcast_metadata(c, None, None))
