"""The demo's proof over jax: processes of one device started by `dcpack launch`, and one process with many devices."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = ["--steps", "2", "--global-batch-size", "12", "--capacity", "512"]
DEADLINE_S = 100


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "some texts"
    folder.mkdir()
    for i in range(24):
        (folder / f"{i:02}.txt").write_text("naïve words " * (1 + 7 * i % 150))
    return folder


def demo(texts: Path, count: int, num_devices: int, *more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dcpack", "demo", "--backend", "jax", "--data", str(texts), *SMALL, *more]
    if count > 1:
        command = [sys.executable, "-m", "dcpack", "launch", "-n", str(count), "--", *command]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(num_devices)}
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=variables, check=False)


@pytest.mark.parametrize(("count", "num_devices"), [(4, 1), (1, 8)])
def test_the_proof(count: int, num_devices: int, texts: Path) -> None:
    done = demo(texts, count, num_devices)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PROVEN under packing_aware") == 1  # rank 0 alone reports
    assert f"{count * num_devices} ranks, 2 steps" in done.stdout


def test_another_number_of_ranks_is_an_error(texts: Path) -> None:
    done = demo(texts, 1, 4, "--ranks", "3")
    assert done.returncode == 2
    assert "--ranks must be the 4 devices of jax, got 3" in done.stderr
