"""Starting N processes for a test: fast, and with a deadline.

A fork server imports the frameworks once, so that a launch takes a tenth of a second.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from dcpack.comm import Communicator
from dcpack.testing import COMMUNICATOR_CHECKS, check_communicator

__all__ = ["Outcome", "launch", "require_contract"]

_PRELOADED = [
    *("pytest", "torch", "torch.distributed", "jax", "ml_dtypes"),
    *("dcpack.testing", "dcpack_torch.backend", "dcpack_jax.backend"),
]


@dataclass
class Outcome:
    """What became of one process.

    Attributes:
        exit_code: 0, what the process exited with, or minus the signal that ended it.
        result: what the body returned.
        error: type and text of what it raised, empty if it did not.
        seconds: how long the body took.
        stderr: what the process wrote there.
    """

    exit_code: int
    result: Any
    error: str
    seconds: float
    stderr: str


def launch(
    size: int,
    body: Callable[..., Any],
    *args: Any,
    folder: Path,
    prepare: Callable[[int, int, Path], Any] | None = None,
    environment: dict[str, str] | None = None,
    deadline_s: float = 100.0,
    kill_after: bool = False,
    stay: bool = False,
) -> list[Outcome]:
    """Run ``body(rank, size, *args)`` on `size` processes and return the outcomes by rank.

    Args:
        size: how many.
        body: a function of a module that the processes can import.
        args: further arguments.
        folder: for files of the launch.
        prepare: called first in each process with rank, size and a folder that they share.
        environment: variables of the processes.
        deadline_s: then whatever still runs is killed.
        kill_after: whether that is expected; it is a failure of the test otherwise.
        stay: processes that are done wait for the others, for where the end of one is the end of all.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    place = Path(tempfile.mkdtemp(dir=folder))
    pipes = [context.Pipe() for _ in range(size)]
    processes = [
        context.Process(
            target=_be,
            args=(rank, size, body, args, str(place), prepare, environment or {}, stay, pipes[rank][1]),
            daemon=True,
        )
        for rank in range(size)
    ]
    messages: list[Any] = [None] * size
    try:
        for process, (_, sender) in zip(processes, pipes, strict=True):
            process.start()
            sender.close()
        until = time.monotonic() + deadline_s  # the first launch of all waits for the fork server
        for rank, (receiver, _) in enumerate(pipes):
            if receiver.poll(max(0.0, until - time.monotonic())):
                with contextlib.suppress(EOFError):
                    messages[rank] = receiver.recv()
        # Rank 0 last: it may hold what the others need to end well.
        for process, (receiver, _) in zip(reversed(processes), reversed(pipes), strict=True):
            receiver.close()
            process.join(max(0.0, until - time.monotonic()))
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
                process.join()
    outcomes = []
    for rank, process in enumerate(processes):
        result, error, seconds = messages[rank] or (None, "", 0.0)
        stderr = (place / f"stderr-{rank}").read_text(errors="replace")
        outcomes.append(Outcome(process.exitcode or 0, result, error, seconds, stderr))
    assert kill_after or not late, f"ranks {late} of {size} did not end within {deadline_s} s: {outcomes}"
    return outcomes


def require_contract(outcomes: Sequence[Any], names: Sequence[str] | None = None) -> None:
    """Hand what the processes found, check by check, to the public suite."""
    size = len(outcomes)
    assert [outcome.error for outcome in outcomes] == [""] * size, [outcome.stderr for outcome in outcomes]

    def recorded(size: int, fn: Callable[[Communicator], Any]) -> list[Any]:
        assert isinstance(fn, partial)
        proofs = [outcome.result[fn.args[0]] for outcome in outcomes]
        if failed := [f"rank {rank}: {proof}" for rank, proof in enumerate(proofs) if isinstance(proof, str)]:
            raise AssertionError("; ".join(failed))
        return proofs

    failures = []
    for name in names or COMMUNICATOR_CHECKS:
        try:
            check_communicator(recorded, sizes=(size,), names=[name])
        except AssertionError as error:
            failures.append(str(error))
    assert not failures, "\n".join(failures)


def _be(
    rank: int,
    size: int,
    body: Callable[..., Any],
    args: tuple[Any, ...],
    place: str,
    prepare: Callable[[int, int, Path], Any] | None,
    environment: dict[str, str],
    stay: bool,
    pipe: Any,
) -> None:
    """Be one process."""
    log = os.open(f"{place}/stderr-{rank}", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.dup2(log, 2)
    os.environ.update(environment)
    result, error = None, ""
    started = time.monotonic()
    try:
        if prepare is not None:
            prepare(rank, size, Path(place))
        started = time.monotonic()
        result = body(rank, size, *args)
    except BaseException as caught:
        error = f"{type(caught).__name__}: {caught}"
        traceback.print_exc()
    pipe.send((result, error, time.monotonic() - started))
    if stay:
        with contextlib.suppress(EOFError):
            pipe.recv()
    pipe.close()
    sys.stderr.flush()
    # Without the teardown of the frameworks, so that exits are alike: what is tested is the body.
    os._exit(1 if error else 0)
