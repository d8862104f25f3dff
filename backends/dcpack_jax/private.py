"""What JAX has no public name for, in one place: the coordination service of jax.distributed. As in JAX 0.10."""

from __future__ import annotations

import ctypes
import importlib
from typing import Any

__all__ = ["forget_service", "job", "service_client"]


def _state() -> Any:
    return importlib.import_module("jax._src.distributed").global_state


def service_client() -> Any:
    """Return the client of the job's coordination service: a key-value store that all processes reach."""
    return _state().client


def job() -> tuple[int, int]:
    """Return this process's number and the number of processes."""
    return _state().process_id, _state().num_processes


def forget_service() -> None:
    """Let JAX leave without a goodbye to the coordination service, which would wait for processes that are gone."""
    state = _state()
    for part in (state.preemption_sync_manager, state.client, state.service):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))  # to free them is to say goodbye, too
    state.preemption_sync_manager = state.client = state.service = None
