"""What is taken of JAX's own state: the client, the place in the job, and letting go of the service unsaid."""

from __future__ import annotations

import importlib
import sys
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
from dcpack_jax import private


class Part:
    """A client or service whose end would be a goodbye."""


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """In place of JAX's state that of a process of a job."""
    made = SimpleNamespace(
        process_id=2, num_processes=5, client=Part(), service=Part(), preemption_sync_manager=Part(), other=Part()
    )
    monkeypatch.setattr(importlib.import_module("jax._src.distributed"), "global_state", made)
    return made


def test_the_place_in_the_job(state: SimpleNamespace) -> None:
    assert private.job() == (2, 5)
    assert private.service_client() is state.client


def test_the_service_is_forgotten_and_never_freed(state: SimpleNamespace) -> None:
    parts: list[Any] = [state.client, state.service, state.preemption_sync_manager]
    ends = [weakref.ref(part) for part in parts]
    counts = [sys.getrefcount(part) for part in parts]
    private.forget_service()
    # One reference was taken that nobody gives back, the one of the state was given back.
    assert [sys.getrefcount(part) for part in parts] == counts
    parts.clear()
    assert all(end() is not None for end in ends)
    assert (state.client, state.service, state.preemption_sync_manager) == (None, None, None)
    assert isinstance(state.other, Part)


def test_jax_has_the_names_that_are_used() -> None:
    # A release that moves them would break the end of a process after a failure, which few runs see.
    real = importlib.import_module("jax._src.distributed").global_state
    for name in ("process_id", "num_processes", "client", "service", "preemption_sync_manager"):
        assert hasattr(real, name), name
    assert private.service_client() is None  # no job here
