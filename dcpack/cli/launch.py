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
from collections.abc import Iterator
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
    processes: list[subprocess.Popen[bytes]] = []
    signal.signal(signal.SIGTERM, _terminated)
    with _free_ports(2) as ports:
        return _run_all(processes, command, count, ports)


def _run_all(processes: list[subprocess.Popen[bytes]], command: list[str], count: int, ports: list[int]) -> int:
    """Start `count` processes, into `processes`, and wait for them; whatever happens, none is left."""
    try:
        for rank in range(count):
            with _held_back(signal.SIGINT, signal.SIGTERM):  # or a process would be started that nobody knows of
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


@contextlib.contextmanager
def _held_back(*numbers: signal.Signals) -> Iterator[None]:
    """Have signals that come meanwhile do what they do only behind the body; those that are ignored still are."""
    come: list[int] = []
    usual = {number: signal.getsignal(number) for number in numbers}
    usual = {number: handler for number, handler in usual.items() if handler != signal.SIG_IGN}
    for number in usual:
        signal.signal(number, lambda number, frame: come.append(number))
    try:
        yield
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)
    for number in come:
        signal.raise_signal(number)


@contextlib.contextmanager
def _free_ports(count: int) -> Iterator[list[int]]:
    """Yield different ports that are free, and that no other program is given meanwhile.

    They stay bound here, without a listener. On Linux a process that says SO_REUSEADDR or SO_REUSEPORT, as the stores
    of torch and JAX do, may listen there all the same; who asks for any port gets another. Elsewhere they are let go.
    """
    with contextlib.ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            if sys.platform == "linux":
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            probe.bind(("127.0.0.1", 0))
        ports = [probe.getsockname()[1] for probe in probes]
        if sys.platform != "linux":
            held.close()
        yield ports


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
