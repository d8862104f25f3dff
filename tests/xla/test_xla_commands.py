"""What users start: the demo's proof, the check of devices, and torchrun where it cannot work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dcpack.testing import COMMUNICATOR_CHECKS

SMALL = ["--steps", "2", "--global-batch-size", "12", "--capacity", "512"]
SCRIPT = Path(__file__).parents[2] / "docs" / "examples" / "check_xla_devices.py"
DEADLINE_S = 280


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "some texts"
    folder.mkdir()
    for i in range(24):
        (folder / f"{i:02}.txt").write_text("naïve words " * (1 + 7 * i % 150))
    return folder


def python(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        # Without a pool size: the commands must find one.
        env={name: value for name, value in os.environ.items() if name != "XLA_THREAD_POOL_SIZE"},
        check=False,
    )


def test_the_proof(texts: Path) -> None:
    done = python("-m", "dcpack", "demo", "--backend", "torch-xla", "--data", str(texts), *SMALL)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PROVEN under packing_aware") == 1  # rank 0 alone reports
    assert "4 ranks, 2 steps" in done.stdout


def test_another_number_of_ranks_is_an_error(texts: Path) -> None:
    done = python("-m", "dcpack", "demo", "--backend", "torch-xla", "--data", str(texts), "--ranks", "3")
    assert done.returncode == 2, done.stderr
    assert "--ranks must be the 4 processes of torch-xla, got 3" in done.stderr


def test_the_check_of_devices(texts: Path) -> None:
    done = python(str(SCRIPT), "--mib", "1", "--data", str(texts))
    assert done.returncode == 0, done.stderr
    head, timing, proof, verdict = done.stdout.splitlines()[-4:]  # before them Gloo tells of its connections
    assert head == f"torch-xla, 4 ranks, CPU, {len(COMMUNICATOR_CHECKS) + 1} checks on each rank"
    assert timing.startswith("all-to-all of 1 MiB a rank: ")
    assert proof.startswith("PROVEN under dynamic_cp")
    assert verdict == "ALL RIGHT"


def test_processes_on_the_cpu_are_told_that_they_would_be_alone() -> None:
    body = "import dcpack; dcpack.get_backend('torch-xla').world()"
    done = python(
        *("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python", sys.executable),
        *("-c", body),
    )
    assert done.returncode != 0
    assert "the launcher started 2 processes (WORLD_SIZE), but the XLA runtime of this one knows 1" in done.stderr
