"""``dcpack launch``: local processes for a back end, where no launcher is at hand."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from dcpack._checks import check_int
from dcpack.errors import ArgumentError

__all__ = ["add_parser"]

_POLL_S = 0.05
_GRACE_S = 10.0
_MOST_PROCESSES = 4096  # of one machine; more are a mistake that would take it down


def add_parser(commands: Any) -> None:
    """Add the command to the sub-parsers `commands`."""
    parser = commands.add_parser(
        "launch",
        help="start local processes for a torch or JAX back end",
        description="Starts N processes of a command on this machine with the environment that torch.distributed "
        "reads (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and JAX_COORDINATOR_ADDRESS "
        "for jax. When one fails, the others are ended, and its exit code is returned. It does not restart processes "
        "or span machines; torchrun does.",
    )
    parser.add_argument("-n", "--num-processes", type=int, required=True, metavar="N", help="processes to start")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="the command of each process")
    parser.set_defaults(run=_run)


def _run(args: argparse.Namespace) -> int:
    count = check_int("--num-processes", args.num_processes, minimum=1, maximum=_MOST_PROCESSES)
    command = args.arguments[1:] if args.arguments[:1] == ["--"] else args.arguments
    if not command:
        raise ArgumentError("nothing to launch: dcpack launch -n 4 -- COMMAND")
    ports = _free_ports(2)
    processes: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, _terminated)
    try:
        for rank in range(count):
            processes.append(_start(command, rank, count, ports))
        return _wait(processes)
    except KeyboardInterrupt:
        _end(processes, signal.SIGINT)
        raise
    finally:
        _end(processes, signal.SIGTERM)


def _terminated(number: int, frame: object) -> None:
    """End as after an error, so that no process is left behind: schedulers send SIGTERM."""
    del frame
    raise SystemExit(128 + number)


def _start(command: list[str], rank: int, count: int, ports: list[int]) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(count),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(ports[0]),
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{ports[1]}",
    }
    try:
        return subprocess.Popen(command, env=environment)
    except OSError as error:
        raise ArgumentError(f"cannot start {command[0]!r}: {error}") from error


def _free_ports(count: int) -> list[int]:
    """Return different ports that are free: all are held until all are found."""
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


def _wait(processes: list[subprocess.Popen[bytes]]) -> int:
    """Return 0 when all have ended well, else the exit code of the first that has not."""
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                sys.stderr.write(f"dcpack launch: rank {rank} ended with {code}; ending the others\n")
                return code if code > 0 else 128 - code  # a signal, as shells report it
        if all(code == 0 for code in codes):
            return 0
        time.sleep(_POLL_S)


def _end(processes: list[subprocess.Popen[bytes]], how: signal.Signals) -> None:
    """Ask the processes that still run to end, and make them after a while."""
    for process in processes:
        if process.poll() is None:
            process.send_signal(how)
    until = time.monotonic() + _GRACE_S
    for process in processes:
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
