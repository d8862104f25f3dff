"""Ten million sequences in less than 1 GiB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dcpack.data import write_megatron_idx

COUNT = 10_000_000
LONGEST = 32768
GIB = 2**30
TIMEOUT_S = 100

MEASURED = """
import pathlib, resource, sys
import dcpack.cli

def peak_bytes():
    # The figure of resource begins with that of the parent, the one of /proc with this program.
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        return int(status.read_text().split("VmHWM:")[1].split()[0]) * 2**10
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 2**10)

code = dcpack.cli.main(dcpack.cli._parser().parse_args(sys.argv[1:]))
sys.stderr.write(str(peak_bytes()))
sys.exit(code)
"""


def _lengths() -> np.ndarray:
    """A long tail, as in fine-tuning data: one block, over and over."""
    drawn = 600 * np.exp(1.3 * np.random.default_rng(0).standard_normal(100_000))
    return np.tile(np.clip(np.rint(drawn), 16, LONGEST).astype("<i4"), COUNT // 100_000)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of ten million sequences; the tables behind the lengths are a hole, which no command reads."""
    file = tmp_path_factory.mktemp("index") / "ten million.idx"
    write_megatron_idx(file, [], np.uint16)
    header = file.read_bytes()[:18]
    with file.open("wb") as stream:
        stream.write(header + np.array([COUNT, 2], "<u8").tobytes())
        stream.write(_lengths().tobytes())
        stream.truncate(34 + 12 * COUNT + 16)
    return file


def _measure(*arguments: object) -> tuple[str, int]:
    """What a command prints, and the peak of its memory in bytes."""
    command = [sys.executable, "-c", MEASURED, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, int(done.stderr.splitlines()[-1])  # Matplotlib may tell of its font cache before


def test_lengths(index: Path) -> None:
    out, peak = _measure("lengths", index)
    lengths = _lengths()
    total = int(lengths.sum(dtype=np.int64))
    assert out.splitlines()[0] == f"10,000,000 sequences, {total:,} tokens, mean {total / COUNT:,.1f}"
    # A list of Python's integers alone would take 300 MiB, the sorted copy takes 40.
    assert 64 * 2**20 < peak < GIB / 2


def test_plan(index: Path) -> None:
    out, peak = _measure("plan", index, "--max-steps", 100, "--ranks", 16, "--json")
    strategies = {strategy["name"]: strategy for strategy in json.loads(out)["strategies"]}
    tokens = int(_lengths()[: 100 * 512].sum(dtype=np.int64))
    best = strategies["packing_aware"]
    assert len(best["steps"]) == 100
    assert sum(step["num_tokens"] for step in best["steps"]) == tokens
    assert "sequences are longer than the limit of 8192" in strategies["in_order"]["failure"]
    assert 32 * 2**20 < peak < GIB / 2


def test_a_picture_of_the_lengths(index: Path, tmp_path: Path) -> None:
    _, peak = _measure("lengths", index, "--image", tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert peak < GIB
