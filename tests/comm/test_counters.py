from __future__ import annotations

import dataclasses

import pytest

from dcpack.comm.counters import Counters


def test_bytes_sent_are_those_of_all_verbs() -> None:
    counters = Counters(
        calls={"all_gather": 2, "broadcast": 1}, sent={"all_gather": 48, "broadcast": 16}, bytes_received=5
    )
    assert counters.bytes_sent == 64
    assert counters.bytes_received == 5


def test_who_sent_nothing_has_sent_no_bytes() -> None:
    counters = Counters(calls={"broadcast": 1}, sent={}, bytes_received=16)
    assert counters.bytes_sent == 0


def test_a_snapshot_is_not_changed() -> None:
    counters = Counters(calls={}, sent={}, bytes_received=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        counters.bytes_received = 1  # pyright: ignore[reportAttributeAccessIssue]
