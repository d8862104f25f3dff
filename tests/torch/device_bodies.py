"""What the processes of the tests with stand-ins for NCCL and HCCL do."""

from __future__ import annotations

import os
import time
from typing import Any

import library_doubles
import numpy as np
import patience
import shared_bodies
import torch
import torch.distributed as dist
from dcpack_torch.wire import WIRE_DTYPES
from torch_ranks import stores

from dcpack.comm import get_backend

__all__ = ["hccl", "hccl_refuses", "nccl", "nccl_is_stuck"]


def nccl(rank: int, size: int) -> Any:
    """Run the contract, and return what the devices and groups noted in one call of each verb."""
    module = library_doubles.install_nccl()
    backend: Any = get_backend("torch-nccl", deadline_s=60.0)
    world: Any = backend.world()
    found = shared_bodies.run_checks(world)
    with world.split([list(range(size))[::-1]]) as child:
        pool = child._pool
        child.barrier()
        module.notes.clear()
        child.all_gather(np.arange(3))
        first = list(module.notes)
        module.notes.clear()
        child.all_to_all(torch.arange(size), [1] * size, [1] * size)
        child.broadcast(torch.arange(2.0), 0)
        second = list(module.notes)
    module.notes.clear()
    backend.to_device([np.arange(3), {"x": torch.arange(2)}])
    return found, first, second, module.notes, pool.num_kept


def hccl(rank: int, size: int, wire_dtype: str, store: str) -> Any:
    """Run the contract with a library that takes `wire_dtype` alone."""
    module = library_doubles.install_hccl({WIRE_DTYPES[wire_dtype]})
    os.environ["LOCAL_RANK"] = str(rank)
    dist.init_process_group("hccl", store=stores.FileStore(store, size), rank=rank, world_size=size)
    backend: Any = get_backend({"name": "torch-hccl", "wire_dtype": wire_dtype, "deadline_s": 60.0})
    world: Any = backend.world()
    found = shared_bodies.run_checks(world)
    return found, module.notes[0], [note for note in module.notes if note.startswith("ranks")][:1], backend.available()


def hccl_refuses(rank: int, size: int) -> None:
    """Send bytes to a library that takes float32 alone."""
    patience.wait_for_notes(size)
    library_doubles.install_hccl({torch.float32})
    get_backend("torch-hccl", deadline_s=60.0).world().all_gather(np.arange(3))


def nccl_is_stuck(rank: int, size: int, deadline_s: float) -> None:
    """Never come back from a call of the library; rank 1 is not even in it."""
    library_doubles.install_nccl()
    patience.wait_for_notes(size - 1)
    world: Any = get_backend("torch-nccl", deadline_s=60.0).world()

    class Stuck:
        def wait(self) -> None:
            time.sleep(100)

    world.barrier()
    group: Any = world._group.payload
    group.alltoall_base = lambda *args: Stuck()
    exchange = world._exchange

    def exchange_and_hurry(*args: Any) -> Any:
        """The time of the call is short where the library moves the payload."""
        result = exchange(*args)
        world._deadline_at = time.monotonic() + deadline_s
        return result

    world._exchange = exchange_and_hurry
    if rank == 1:
        world._all_to_all_bytes = lambda *args: patience.wait_for_verdict(world)
    world.all_to_all(np.arange(size), [1] * size, [1] * size)
