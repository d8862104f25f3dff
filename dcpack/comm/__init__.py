"""Collectives: the calls that a group of processes makes together, and the back ends that carry them out."""

from __future__ import annotations

from dcpack.comm.backend import Backend
from dcpack.comm.communicator import Communicator
from dcpack.comm.counters import Counters
from dcpack.comm.fake import FakeBackend
from dcpack.comm.faults import Fault
from dcpack.comm.launch import run_ranks
from dcpack.comm.registry import BackendStatus, backend_statuses, get_backend, list_backends

__all__ = [
    "Backend",
    "BackendStatus",
    "Communicator",
    "Counters",
    "FakeBackend",
    "Fault",
    "backend_statuses",
    "get_backend",
    "list_backends",
    "run_ranks",
]
