"""The exactness example in JAX, and that its check can fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples" / "jax_exactness"
# One process for all, as most of the time goes into compiling.
SCRIPT = f"""
import functools, sys
sys.path.insert(0, {str(FOLDER)!r})
import main
main.compare = functools.cache(main.compare)
print("status", main.main(["--steps", "1"]))
main.TOLERANCE = 1e-12
print("status", main.main(["--steps", "1", "--broken"]))
main.TOLERANCE = 10.0
print("status", main.main(["--steps", "1", "--broken", "mean_of_means"]))
"""


@pytest.mark.timeout(300)  # most of it is compiling, which a busy machine makes slow
def test_the_proof_and_that_it_can_fail() -> None:
    variables = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=280, check=False, env=variables
    )
    assert done.returncode == 0, done.stderr
    proven, too_strict, too_lax = done.stdout.split("status ")[:3]
    assert done.stdout.count("status 0") == 1
    assert done.stdout.count("status 1") == 2
    assert proven.startswith("8 devices, 1 steps, tolerance 1e-05")
    assert proven.endswith("PROVEN\n")
    assert "NOT PROVEN" not in proven
    assert "NOT PROVEN\npacked, one CP size a micro-batch: differs" in too_strict
    assert "NOT PROVEN\nmean_of_means: passes, though it is broken" in too_lax


def test_the_page_shows_the_command() -> None:
    command = "JAX_NUM_CPU_DEVICES=8 python docs/examples/jax_exactness/main.py"
    assert command in (ROOT / "docs" / "jax.md").read_text()
    assert command in (FOLDER / "main.py").read_text()
