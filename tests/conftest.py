"""Fixtures of all tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

_HERE = str(Path(__file__).parent)
if _HERE not in sys.path:
    sys.path.append(_HERE)

import fake_time  # noqa: E402 - found through the lines above


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[fake_time.Clock]:
    """The time of ranks that are threads, which passes when `leap` is called."""
    clock = fake_time.Clock(monkeypatch)
    yield clock
    clock.stop()


@pytest.fixture
def leaping_clock(clock: fake_time.Clock) -> fake_time.Clock:
    """The same; deadlines pass whenever all ranks wait for one that does not come."""
    clock.leap_when_stuck()
    return clock
