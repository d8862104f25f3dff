"""Processes with the environment of ``dcpack launch``, for tests of the JAX back end."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import jax
import process_ranks
from process_ranks import Outcome, require_contract

from dcpack.cli.launch import _free_ports as free_ports

__all__ = ["Outcome", "launch", "require_contract"]

_ports = contextlib.ExitStack()  # held as long as the process that chose them


def launch(
    size: int,
    body: Callable[..., Any],
    *args: Any,
    num_devices: int = 1,
    environment: dict[str, str] | None = None,
    stay: bool = True,
    **options: Any,
) -> list[Outcome]:
    """Run ``body(rank, size, *args)`` on `size` processes; see `process_ranks.launch`.

    Args:
        size: how many.
        body: a function of a module that the processes can import.
        args: further arguments.
        num_devices: CPU devices of each process.
        environment: further variables.
        stay: see there; where process 0 ends, JAX ends the others.
        options: those of `process_ranks.launch`.
    """
    variables = {
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
        **(environment or {}),
    }
    return process_ranks.launch(
        size, body, *args, prepare=partial(_prepare, num_devices), environment=variables, stay=stay, **options
    )


def _prepare(num_devices: int, rank: int, size: int, place: Path) -> None:
    """Tell the process its devices, who it is, and where it finds process 0: at a port that is free there."""
    # JAX was imported by the fork server, so variables come too late.
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", num_devices)
    os.environ["RANK"] = str(rank)
    chosen = place / "port"
    if rank == 0:
        (port,) = _ports.enter_context(free_ports(1))
        (place / "port.new").write_text(str(port))
        (place / "port.new").rename(chosen)
    until = time.monotonic() + 60
    while not chosen.exists():
        assert time.monotonic() < until, "rank 0 chose no port"
        time.sleep(0.01)
    os.environ.setdefault("JAX_COORDINATOR_ADDRESS", f"127.0.0.1:{chosen.read_text()}")
