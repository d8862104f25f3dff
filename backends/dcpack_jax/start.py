"""The start of jax.distributed where the program has not started it, and an end of it that never hangs."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from typing import Any

import jax

from dcpack.comm.environment import Launch, read_launch
from dcpack.comm.watchdog import end_process_after
from dcpack.errors import ArgumentError, BackendError, PeerError
from dcpack_jax.private import forget_service, job, service_client

__all__ = ["COORDINATOR", "Ending", "start_processes"]

COORDINATOR = "JAX_COORDINATOR_ADDRESS"
"""The variable that says where process 0 lets the others find it."""
# How much longer than the watchdog JAX itself may wait: it would end the process with a message that says less.
_SLACK_S = 60
# How long the process with the service stays for the others after a failure: its end is theirs.
_LINGER_S = 3.0


class Ending:
    """What becomes of jax.distributed at the end of this process, where this package started it.

    JAX ends by waiting for all processes, and ends the process with an abort if one does not come. After a failure that
    only keeps the failed ones from ending.
    """

    def __init__(self) -> None:
        self._has_lost = False

    def note_loss(self) -> None:
        """Note that some process is missing."""
        self._has_lost = True

    def watch(self) -> None:
        """Have this looked after when the process ends."""
        # Functions that were registered last are called first: this one before JAX's own.
        atexit.register(self._end)

    def _end(self) -> None:
        if not self._has_lost and not hasattr(sys, "last_value"):
            return  # all went well here, so wait for the others
        rank, _ = job()
        client = service_client()
        with contextlib.suppress(RuntimeError):
            if rank == 0:
                until = time.monotonic() + _LINGER_S
                while time.monotonic() < until and not _have_left(client):
                    time.sleep(0.05)
            else:
                client.key_value_set_bytes(f"dcpack/left/{rank}", b"")
        forget_service()


def _have_left(client: Any) -> bool:
    return len(client.key_value_dir_get_bytes("dcpack/left/")) == job()[1] - 1


def start_processes(coordinator: str | None, seconds: float, ending: Ending) -> None:
    """Start jax.distributed, unless it is started or there is one process.

    Args:
        coordinator: ``host:port`` of process 0; None for what the environment says.
        seconds: how long all processes may take; then this one is ended.
        ending: looks after the end.

    Raises:
        BackendError: the environment is set in part, or devices were used before.
    """
    if jax.distributed.is_initialized():
        return
    address = coordinator or os.environ.get(COORDINATOR)
    if address is None and _start(seconds, {}):  # a cluster that JAX knows
        ending.watch()
        return
    launch = read_launch()
    if launch is None:
        if address is not None:
            raise BackendError(
                f"{COORDINATOR} is {address}, but RANK and WORLD_SIZE are not set; start with dcpack launch"
            )
        return
    if launch.world_size == 1:
        return
    if address is None:
        raise BackendError(
            f"{COORDINATOR} is not set: host:port of process 0, another port than MASTER_PORT; start with dcpack "
            "launch, set it, or pass coordinator="
        )
    _start(seconds, _arguments(address, launch))
    ending.watch()


def _arguments(address: str, launch: Launch) -> dict[str, Any]:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ArgumentError(f"the coordinator must be host:port, got {address!r}")
    if port == os.environ.get("MASTER_PORT"):
        raise BackendError(f"the coordinator of JAX needs another port than MASTER_PORT, {port}")
    return {
        "coordinator_address": address,
        "num_processes": launch.world_size,
        "process_id": launch.rank,
        # Launchers start one process for each accelerator; CPUs and TPUs are not touched by this.
        "local_device_ids": None if launch.local_rank is None else [launch.local_rank],
        "cluster_detection_method": "deactivate",
    }


def _start(seconds: float, arguments: dict[str, Any]) -> bool:
    """Start jax.distributed; return False where no arguments are given and JAX finds no cluster either."""

    def late() -> PeerError:
        return PeerError(f"the processes of the job did not all start within {seconds:g} s")

    try:
        with end_process_after(seconds, late):
            jax.distributed.initialize(**arguments, initialization_timeout=int(seconds) + _SLACK_S)
    except ValueError as error:
        if arguments:
            raise
        if "should be defined" not in str(error) and "must be defined" not in str(error):
            raise BackendError(f"JAX could not find the processes of the job: {error}") from error
        return False
    except RuntimeError as error:
        text = str(error).partition("\n")[0]
        if "must be called before" in str(error):
            if not arguments:
                return False
            text = "devices of JAX were used before the world was made; make it first"
        raise BackendError(f"jax.distributed could not be started: {text}") from error
    return True
