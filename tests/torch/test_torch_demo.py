"""The demo's proof over real processes: started by `dcpack launch`, and by two torchrun agents as two nodes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dcpack.cli.launch import _free_ports as free_ports

SMALL = ["--steps", "2", "--global-batch-size", "12", "--capacity", "512"]
DEADLINE_S = 100


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "some texts"
    folder.mkdir()
    for i in range(24):
        (folder / f"{i:02}.txt").write_text("naïve words " * (1 + 7 * i % 150))
    return folder


def demo(texts: Path, *more: str) -> list[str]:
    return ["-m", "dcpack", "demo", "--backend", "torch-gloo", "--data", str(texts), *SMALL, *more]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=environment(), check=False)


def launch(count: int, *command: str) -> subprocess.CompletedProcess[str]:
    return run([sys.executable, "-m", "dcpack", "launch", "-n", str(count), "--", sys.executable, *command])


@pytest.mark.parametrize("count", [3, 4])
def test_the_proof_over_processes(count: int, texts: Path) -> None:
    done = launch(count, *demo(texts))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("PROVEN under packing_aware") == 1  # rank 0 alone reports
    assert f"{count} ranks, 2 steps" in done.stdout


def test_another_number_of_ranks_is_an_error_on_all(texts: Path) -> None:
    done = launch(2, *demo(texts, "--ranks", "3"))
    assert done.returncode == 2
    assert "--ranks must be the 2 processes of torch-gloo, got 3" in done.stderr


def test_missing_data_on_all_ranks_ends_all(texts: Path) -> None:
    done = launch(2, *demo(texts / "nowhere"))
    assert done.returncode != 0
    assert "data not found" in done.stderr
    assert "PROVEN" not in done.stdout


def test_two_agents_as_two_nodes(texts: Path) -> None:
    with free_ports(1) as (port,):
        agents = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"),
                    *("--node-rank", str(node), "--master-addr", "127.0.0.1", "--master-port", str(port)),
                    *demo(texts),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(),
            )
            for node in range(2)
        ]
        try:
            outputs = [agent.communicate(timeout=DEADLINE_S) for agent in agents]
        finally:
            for agent in agents:
                agent.kill()
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert sum(out.count("PROVEN under packing_aware") for out, _ in outputs) == 1
