"""The check of devices that users run, on Gloo: that it passes, and that it can fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from dcpack.testing import COMMUNICATOR_CHECKS

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "examples" / "check_devices.py"
ARGUMENTS = ["--mib", "1", "--data", str(ROOT / "docs")]
TORCH = ["--backend", "torch-gloo", *ARGUMENTS]
BROKEN = f"""
import sys
import runpy
import dcpack.testing

def barrier(communicator):
    assert communicator.rank == 0, "rank 1 is wrong"

dcpack.testing.COMMUNICATOR_CHECKS["barrier"] = barrier
sys.argv = {["check", *TORCH]!r}
runpy.run_path({str(SCRIPT)!r}, run_name="__main__")
"""


def launch(*command: str) -> subprocess.CompletedProcess[str]:
    launcher = [sys.executable, "-m", "dcpack", "launch", "-n", "2", "--", sys.executable]
    return subprocess.run([*launcher, *command], capture_output=True, text=True, timeout=100, check=False)


def test_all_right() -> None:
    done = launch(str(SCRIPT), *TORCH)
    assert done.returncode == 0, done.stderr
    head, timing, proof, verdict = done.stdout.splitlines()
    assert head == f"torch-gloo, 2 ranks, cpu, {len(COMMUNICATOR_CHECKS) + 1} checks on each rank"
    assert timing.startswith("all-to-all of 1 MiB a rank: ")
    assert proof.startswith("PROVEN under dynamic_cp")
    assert verdict == "ALL RIGHT"


def test_all_right_with_jax() -> None:
    done = launch(str(SCRIPT), "--backend", "jax", "--platform", "cpu", *ARGUMENTS)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()  # Gloo writes among them, from both processes at once
    assert f"jax, 2 ranks, cpu:0, {len(COMMUNICATOR_CHECKS) + 1} checks on each rank" in done.stdout
    assert lines[-2].startswith("PROVEN under dynamic_cp")
    assert lines[-1] == "ALL RIGHT"


def test_a_fault_of_one_rank_is_told() -> None:
    done = launch("-c", BROKEN)
    assert done.returncode == 1, done.stderr
    assert done.stdout.splitlines()[3:] == ["FAILED barrier on rank 1: AssertionError: rank 1 is wrong"]
