"""Processes with a default group of torch.distributed, for tests, without a port that could be taken."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import process_ranks
import torch.distributed as dist
from process_ranks import Outcome, require_contract

__all__ = ["Outcome", "launch", "launch_bodies", "require_contract", "results", "stores"]

stores: Any = dist  # type checkers know no public name of the stores


def launch(size: int, body: Callable[..., Any], *args: Any, store: str = "file", **options: Any) -> list[Outcome]:
    """Run ``body(rank, size, *args)`` on `size` processes; see `process_ranks.launch`.

    Args:
        size: how many.
        body: a function of a module that the processes can import.
        args: further arguments.
        store: ``"file"``; ``"tcp"`` for a store that lives in rank 0; ``"none"`` to start no default group.
        options: those of `process_ranks.launch`.
    """
    prepare = {"file": _with_file_store, "tcp": _with_tcp_store, "none": None}[store]
    return process_ranks.launch(size, body, *args, prepare=prepare, **options)


def launch_bodies(bodies: ModuleType, folder: Path) -> Callable[..., list[Any]]:
    """Return ``run(size, body, *args)``: a function of `bodies`, by name, on processes; what each returned."""

    def run(size: int, body: str, *args: Any, deadline_s: float = 100.0) -> list[Any]:
        outcomes = launch(size, getattr(bodies, body), *args, folder=folder, deadline_s=deadline_s)
        assert [outcome.error for outcome in outcomes] == [""] * size, [outcome.stderr for outcome in outcomes]
        return [outcome.result for outcome in outcomes]

    return run


def results(outcomes: list[Outcome]) -> list[Any]:
    """Return what the bodies returned, by rank; none may have failed."""
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes), [outcome.stderr for outcome in outcomes]
    return [outcome.result for outcome in outcomes]


def _with_file_store(rank: int, size: int, place: Path) -> None:
    _start(rank, size, stores.FileStore(f"{place}/store", size))


def _with_tcp_store(rank: int, size: int, place: Path) -> None:
    _start(rank, size, _tcp_store(rank, place))


def _start(rank: int, size: int, store: Any) -> None:
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timedelta(seconds=30))
    dist.barrier()  # a rank that leaves before all are connected fails the start of others
    dist.barrier()


def _tcp_store(rank: int, place: Path) -> Any:
    """Return a store that lives in rank 0, on whatever port is free."""
    ready = place / "port"
    if rank == 0:
        store = stores.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        (place / "port.new").write_text(str(store.port))
        (place / "port.new").rename(ready)
        return store
    until = time.monotonic() + 30
    while not ready.exists():
        assert time.monotonic() < until, "rank 0 made no store"
        time.sleep(0.01)
    return stores.TCPStore("127.0.0.1", int(ready.read_text()), is_master=False, wait_for_workers=False)
