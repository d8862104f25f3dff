"""`dcpack launch`: the environment of each process, exit codes, and no process left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from signal import SIGINT, SIGTERM

import pytest
from fake_time import until

from dcpack.cli import launch as launching

LAUNCH = [sys.executable, "-m", "dcpack", "launch"]

PRINT_ENVIRONMENT = """
import json, os, pathlib, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
pathlib.Path(sys.argv[1], os.environ["RANK"]).write_text(json.dumps({name: os.environ[name] for name in names}))
"""

# Rank 1 fails once all have said that they run; the others would go on for long.
ONE_FAILS = """
import os, pathlib, sys, time
folder, rank = pathlib.Path(sys.argv[1]), os.environ["RANK"]
(folder / f"new{{rank}}").write_text(str(os.getpid()))
(folder / f"new{{rank}}").rename(folder / f"pid{{rank}}")
while len(list(folder.glob("pid?"))) < 3:
    time.sleep(0.02)
if rank == "1":
    {how}
time.sleep(100)
"""


def launch(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LAUNCH, *arguments], capture_output=True, text=True, timeout=100, check=False)


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"


def test_every_process_has_its_environment(tmp_path: Path) -> None:
    done = launch("-n", "3", "--", sys.executable, "-c", PRINT_ENVIRONMENT, str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    seen = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in seen] == [("0", "0"), ("1", "1"), ("2", "2")]
    assert {(one["WORLD_SIZE"], one["LOCAL_WORLD_SIZE"], one["MASTER_ADDR"]) for one in seen} == {
        ("3", "3", "127.0.0.1")
    }
    assert len({one["MASTER_PORT"] for one in seen}) == 1


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [("sys.exit(7)", 7, "rank 1 ended with 7"), ("os.kill(os.getpid(), 9)", 137, "rank 1 ended with -9")],
)
def test_one_that_fails_ends_the_others(how: str, code: int, said: str, tmp_path: Path) -> None:
    done = launch("-n", "3", "--", sys.executable, "-c", ONE_FAILS.format(how=how), str(tmp_path))
    assert done.returncode == code
    assert said in done.stderr
    assert all(gone(int(file.read_text())) for file in tmp_path.glob("pid?"))


def test_ctrl_c_ends_all(tmp_path: Path) -> None:
    command = [*LAUNCH, "-n", "3", "--", sys.executable, "-c", ONE_FAILS.format(how="pass"), str(tmp_path)]
    # Processes that a shell starts in the background ignore the signal, and so would theirs.
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGINT, previous)
    with process:
        try:
            until(lambda: len(list(tmp_path.glob("pid?"))) == 3)
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=100)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "dcpack launch: interrupted" in errors
    assert all(gone(int(file.read_text())) for file in tmp_path.glob("pid?"))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_process_is_started_leaves_none_behind(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal comes when the process runs, and before the launcher knows it."""
    start = launching._start

    def interrupted(*args: object) -> subprocess.Popen[bytes]:
        process = start(*args)  # pyright: ignore[reportArgumentType]
        signal.raise_signal(number)
        started.append(process)
        return process

    started: list[subprocess.Popen[bytes]] = []
    monkeypatch.setattr(launching, "_start", interrupted)
    usual = {SIGINT: signal.default_int_handler, SIGTERM: launching._terminated}[number]
    previous = signal.signal(number, usual)
    processes: list[subprocess.Popen[bytes]] = []
    try:
        with pytest.raises(KeyboardInterrupt if number == SIGINT else SystemExit):
            launching._run_all(processes, [sys.executable, "-c", "import time; time.sleep(100)"], 2, [1, 2])
    finally:
        signal.signal(number, previous)
    assert processes == started
    assert [process.returncode is not None for process in started] == [True]  # the second one was not begun


def test_ports_belong_to_the_job() -> None:
    is_held = sys.platform == "linux"  # elsewhere ports are let go before they are used
    with launching._free_ports(2) as ports:
        assert len(set(ports)) == 2
        for port in ports:
            for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
                with socket.socket() as store:
                    store.setsockopt(socket.SOL_SOCKET, option, 1)
                    store.bind(("0.0.0.0", port))
                    store.listen()
            refused = pytest.raises(OSError, match="in use") if is_held else contextlib.nullcontext()
            with socket.socket() as stranger, refused:
                stranger.bind(("127.0.0.1", port))
    for port in ports:
        with socket.socket() as anybody:
            anybody.bind(("127.0.0.1", port))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "0", "--", "true"], "--num-processes must be from 1 to 4096, got 0"),
        (["-n", "2"], "nothing to launch"),
        (["-n", "2", "--", "no such program"], "cannot start 'no such program'"),
    ],
)
def test_what_cannot_be_launched(arguments: list[str], said: str) -> None:
    done = launch(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith("dcpack launch: ")
    assert said in done.stderr
