from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.comm.control import MAX_NDIM, RECORD_BYTES, VERBS, ControlRecord, count_checksums
from dcpack.errors import ArgumentError

_int64s = st.integers(0, 2**63 - 1)
_uint64s = st.integers(0, 2**64 - 1)
records = st.builds(
    ControlRecord,
    call=_uint64s,
    verb=st.sampled_from(VERBS),
    max_message_bytes=_int64s,
    ok=st.booleans(),
    root=st.integers(-1, 2**63 - 1),
    shape=st.none() | st.lists(_int64s, max_size=MAX_NDIM).map(tuple),
    dtype=st.text("abcdefgh0123456789_.", max_size=32),
    num_bytes=_int64s,
    largest_message=_int64s,
    report_bytes=_int64s,
    digest=st.binary(min_size=16, max_size=16),
    send_checksum=_uint64s,
    recv_checksum=_uint64s,
)


@settings(max_examples=100, deadline=None)
@given(records)
def test_round_trip_of_fixed_size(record: Any):
    data = record.encode()
    assert len(data) == RECORD_BYTES
    assert ControlRecord.decode(data) == record


def test_no_array_and_no_dims_are_told_apart():
    scalar = ControlRecord(call=0, verb="broadcast", max_message_bytes=1, shape=())
    nothing = ControlRecord(call=0, verb="broadcast", max_message_bytes=1)
    assert ControlRecord.decode(scalar.encode()).shape == ()
    assert ControlRecord.decode(nothing.encode()).shape is None


def test_what_does_not_fit_is_refused():
    with pytest.raises(
        ArgumentError, match=r"9 dims cannot be sent: at most 8, got shape \(1, 1, 1, 1, 1, 1, 1, 1, 1\)"
    ):
        ControlRecord(call=0, verb="agree", max_message_bytes=1, shape=(1,) * 9).encode()
    with pytest.raises(ArgumentError, match="longer than 32 characters"):
        ControlRecord(call=0, verb="agree", max_message_bytes=1, dtype="x" * 33).encode()


def _checksums_agree(sent: Any, expected: Any):
    sums = [count_checksums(rank, sent[rank], expected[rank]) for rank in range(len(sent))]
    return (sum(s for s, _ in sums) - sum(r for _, r in sums)) % 2**64 == 0


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_checksums_agree_exactly_for_transposed_counts(data: Any):
    size = data.draw(st.integers(1, 6))
    row = st.lists(st.integers(0, 2**40), min_size=size, max_size=size)
    sent = np.array(data.draw(st.lists(row, min_size=size, max_size=size)), np.int64)
    assert _checksums_agree(sent, sent.T)
    wrong = sent.T.copy()
    wrong[data.draw(st.integers(0, size - 1)), data.draw(st.integers(0, size - 1))] += data.draw(st.integers(1, 9))
    assert not _checksums_agree(sent, wrong)


def test_checksums_see_swaps_that_keep_all_sums():
    sent = np.array([[1, 2, 3], [3, 1, 2], [2, 3, 1]])
    swapped = sent.copy()  # not the transpose, with the same row and column sums and the same multiset
    assert _checksums_agree(sent, sent.T)
    assert not _checksums_agree(sent, swapped)


def test_checksums_are_the_same_on_every_machine():
    # splitmix64 of state 0 gives e220a8397b1dcdaf; so h(0, 0, 0) is the mix of it, mixed again.
    def mix(x: Any):
        x = (x + 0x9E3779B97F4A7C15) % 2**64
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
        return x ^ (x >> 31)

    assert mix(0) == 0xE220A8397B1DCDAF
    expected = mix(mix(mix(0)))
    assert count_checksums(0, np.array([0]), np.array([0])) == (expected, expected)
    sent = (mix(mix(mix(1) ^ 0) ^ 7) + mix(mix(mix(1) ^ 1) ^ 9)) % 2**64
    received = (mix(mix(mix(0) ^ 1) ^ 4) + mix(mix(mix(1) ^ 1) ^ 9)) % 2**64
    assert count_checksums(1, np.array([7, 9]), np.array([4, 9])) == (sent, received)
