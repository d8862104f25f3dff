"""Collectives: the calls that a group of processes makes together, and the back ends that carry them out."""

from __future__ import annotations

from dcpack.comm.backend import Backend
from dcpack.comm.communicator import Communicator
from dcpack.comm.counters import Counters
from dcpack.comm.fake import FakeBackend
from dcpack.comm.faults import Fault
from dcpack.comm.launch import run_ranks
from dcpack.comm.registry import BackendStatus, backend_statuses, get_backend, list_backends
from dcpack.comm.trees import all_gather_trees, broadcast_tree, decode_tree, encode_tree, encoded_size

__all__ = [
    "Backend",
    "BackendStatus",
    "Communicator",
    "Counters",
    "FakeBackend",
    "Fault",
    "all_gather_trees",
    "backend_statuses",
    "broadcast_tree",
    "decode_tree",
    "encode_tree",
    "encoded_size",
    "get_backend",
    "list_backends",
    "run_ranks",
]
