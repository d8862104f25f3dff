"""Processes of the torch-xla back end without torch_xla: its runtime is played by a default group of Gloo."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import patience
import shared_bodies
import torch
import torch.distributed as dist
from dcpack_xla import backend, communicator
from dcpack_xla.backend import XlaBackend

from dcpack.comm import Communicator
from dcpack.comm.watchdog import end_process_after
from dcpack.errors import PeerError
from dcpack.testing import COMMUNICATOR_CHECKS, run_communicator_check


class GlooRuntime:
    """What `dcpack_xla.runtime.Runtime` is on a TPU host with one chip a process; `calls` counts the collectives."""

    version = "0.0"
    kind = "TPU"
    is_spmd = False
    num_local_devices = 1
    device = torch.device("cpu")

    def __init__(self) -> None:
        self.num_processes = self.num_devices = self.num_joined = dist.get_world_size()
        self.ordinal = dist.get_rank()
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        self.calls.append(("all_gather", tuple(tensor.shape)))
        parts = [torch.empty_like(tensor) for _ in range(self.num_devices)]
        dist.all_gather(parts, tensor)
        return torch.cat(parts)

    def all_to_all(self, tensor: torch.Tensor) -> torch.Tensor:
        self.calls.append(("all_to_all", tuple(tensor.shape)))
        received = torch.empty_like(tensor)
        dist.all_to_all_single(received, tensor)
        return received

    def sum(self, tensor: torch.Tensor) -> torch.Tensor:
        self.calls.append(("sum", tuple(tensor.shape)))
        dist.all_reduce(tensor)
        return tensor

    @contextlib.contextmanager
    def apart(self, device: torch.device) -> Iterator[None]:
        yield

    def fetch(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()


def play(runtime: Any) -> Any:
    """Have the back end of this process use `runtime`."""
    setattr(backend, "load_runtime", lambda: runtime)  # noqa: B010 - type checkers see no such assignment
    return runtime


def fresh_world(**options: Any) -> Communicator:
    return XlaBackend(deadline_s=60.0, **options).world()


def contract(rank: int, size: int) -> dict[str, Any]:
    """Run each check on a world of its own: only there the devices carry payload."""
    runtime = play(GlooRuntime())
    found: dict[str, Any] = {}
    for name in COMMUNICATOR_CHECKS:
        try:
            with fresh_world() as world:
                found[name] = run_communicator_check(name, world)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
    assert {verb for verb, _ in runtime.calls} == {"all_gather", "all_to_all", "sum"}
    return found


def step(rank: int, size: int) -> tuple[str, dict[int, str], bool]:
    play(GlooRuntime())
    return shared_bodies.step(fresh_world())


def shapes(rank: int, size: int, num_steps: int) -> tuple[set[tuple[str, tuple[int, ...]]], int]:
    """Make steps of random sizes; return the shapes that the devices saw, and how many sizes there were."""
    runtime = play(GlooRuntime())
    world = fresh_world(max_message_bytes=1 << 14)
    generator = np.random.default_rng(7)
    sizes = set()
    for _ in range(num_steps):
        counts = generator.integers(0, 1 << generator.integers(1, 13), (size, size))
        sizes.add(int(counts.max()))
        sent = np.arange(counts[rank].sum()) * size + rank
        received = world.all_to_all(sent, counts[rank], counts[:, rank])
        starts = np.cumsum(counts, axis=1) - counts
        expected = [(starts[other, rank] + np.arange(counts[other, rank])) * size + other for other in range(size)]
        assert np.array_equal(received, np.concatenate(expected))
    return set(runtime.calls), len(sizes)


def groups_stay_off_the_devices(rank: int, size: int) -> list[int]:
    """Return how many collectives the devices ran for a split, for a duplicate, and for the world itself."""
    runtime = play(GlooRuntime())
    world = fresh_world()
    counts = []
    for group in (world.split([[0], [1, 2]]), world.dup(), world):
        before = len(runtime.calls)
        group.all_gather(np.arange(3))
        group.broadcast(np.arange(3), 0)
        group.all_to_all(np.arange(group.size), [1] * group.size, [1] * group.size)
        counts.append(len(runtime.calls) - before)
    return counts


def lose_a_device(rank: int, size: int, deadline_s: float) -> None:
    """Rank 1 is killed inside a collective of the devices, which never comes back on the others."""

    class Stuck(GlooRuntime):
        def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
            if self.ordinal == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(100)
            raise AssertionError("the process must have ended")

    def hurried(seconds: float, make_error: Any) -> Any:
        assert deadline_s - 2 < seconds <= deadline_s
        return end_process_after(1.0, make_error)

    setattr(communicator, "end_process_after", hurried)  # noqa: B010 - type checkers see no such assignment
    patience.wait_for_notes(size - 1)
    play(Stuck())
    XlaBackend(deadline_s=deadline_s).world().all_gather(np.zeros(3))


def stay_away(rank: int, size: int, deadline_s: float) -> str:
    """Rank 1 makes no call."""
    patience.wait_for_notes(size - 1)
    play(GlooRuntime())
    world: Any = XlaBackend(deadline_s=deadline_s).world()
    if rank == 1:
        patience.wait_for_verdict(world)
        return ""
    try:
        world.all_gather(np.zeros(3))
    except PeerError as error:
        return str(error)
    return "no error"


def come_not(rank: int, size: int) -> str:
    """Rank 1 makes no world."""
    play(GlooRuntime())
    text = ""
    if rank != 1:
        patience.wait_for_starters(size - 1)
        try:
            XlaBackend(start_deadline_s=1.5).world()
        except PeerError as error:
            text = str(error)
    dist.barrier()  # rank 1 is there, and makes no world
    return text
