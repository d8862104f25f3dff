"""Which rank this thread is, of how many, and how it finds the others; never a smaller world than there should be."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from dcpack_torch.c10d import HashStore, default_store

from dcpack.comm.environment import Launch, read_launch
from dcpack.errors import BackendError

__all__ = ["POOL_SIZE", "Membership", "find_membership"]

POOL_SIZE = "XLA_THREAD_POOL_SIZE"
"""The variable that says how many threads torch_xla runs programs with."""

# Where ranks that are threads of one process find each other.
_threads_store = HashStore()


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """This rank's place in the world.

    Attributes:
        rank: number of its device among all devices.
        size: number of devices.
        store: a store of torch.distributed through which the ranks find each other.
    """

    rank: int
    size: int
    store: Any


def find_membership(runtime: Any) -> Membership:
    """Return this thread's place in the world.

    Args:
        runtime: a `Runtime`.

    Raises:
        BackendError: the environment of the launcher is set in part; the runtime knows other processes than the
            launcher started; devices are not joined; or this thread cannot be a rank.
    """
    launch = read_launch()
    store = runtime.rendezvous() if dist.is_torchelastic_launched() else None  # before any device is used
    if runtime.is_spmd:
        raise BackendError("SPMD mode of torch_xla has no ranks: leave XLA_USE_SPMD and use_spmd() aside")
    _check_processes(runtime, launch)
    _check_devices(runtime)
    if runtime.num_processes == 1:
        store = _threads_store
    elif dist.is_initialized():
        store = default_store()
    elif store is None:
        store = runtime.rendezvous()
    return Membership(rank=runtime.ordinal, size=runtime.num_joined, store=store)


def _check_processes(runtime: Any, launch: Launch | None) -> None:
    if launch is not None and launch.world_size != runtime.num_processes:
        raise BackendError(
            f"the launcher started {launch.world_size} processes (WORLD_SIZE), but the XLA runtime of this one knows "
            f"{runtime.num_processes} on {runtime.kind}, so each would be alone. CPU processes never join: there, "
            "ranks are threads, CPU_NUM_DEVICES=N in one process without a launcher; on a TPU host start a process for "
            "each chip with torchrun, or with torch_xla.launch"
        )


def _check_devices(runtime: Any) -> None:
    local = runtime.num_local_devices
    if local > 1 and threading.current_thread() is threading.main_thread():
        raise BackendError(
            f"this process has {local} XLA devices, each of which is a rank with a thread of its own, and this is none "
            "of those threads: XlaBackend.run(fn) and torch_xla.launch start them; on a TPU host torchrun starts a "
            "process for each chip"
        )
    if runtime.num_joined != runtime.num_devices:
        raise BackendError(
            f"there are {runtime.num_devices} XLA devices, but collectives span {runtime.num_joined}: start the ranks "
            "with torchrun, torch_xla.launch or XlaBackend.run(fn)"
        )
    pool = os.environ.get(POOL_SIZE, "")
    pool_size = int(pool) if pool.isdigit() else os.cpu_count() or 1
    if local > pool_size:
        raise BackendError(
            f"{local} XLA devices of one process need as many threads, or their collectives hang, and {POOL_SIZE} is "
            f"{pool or f'not set, which means {pool_size}'}: set it to {local} or more before torch_xla starts"
        )
