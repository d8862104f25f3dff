"""torch-nccl and torch-hccl, with stand-ins for the libraries that refuse what those refuse."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import device_bodies
import pytest
import torch
from torch_ranks import require_contract

from dcpack.comm import get_backend
from dcpack.errors import ArgumentError


def test_nccl(launch: Callable[..., Any]):
    outcomes = launch(3, device_bodies.nccl, environment={"LOCAL_RANK": "1"})
    assert [outcome.error for outcome in outcomes] == [""] * 3, outcomes[0].stderr
    results = [outcome.result for outcome in outcomes]
    for outcome in outcomes:
        outcome.result = outcome.result[0]
    require_contract(outcomes)
    for _, first, second, moved, num_kept in results:
        moving = ["wait_stream", "allgather", "synchronize"]
        down = ["pinned empty", "synchronize"]
        # The group of the child is the one of a duplicate that the contract closed, or is made in its first call.
        assert [note for note in first if note not in ("group", "timeout 79")] == ["pin", *moving, *3 * down]
        assert second == ["wait_stream", "alltoall", "synchronize", "wait_stream", "broadcast", "synchronize"]
        assert moved == ["pin"], "a tensor that is on the device stays there"
        assert num_kept >= 2


@pytest.mark.parametrize("wire_dtype", ["uint8", "int32", "float32"])
def test_hccl(launch: Callable[..., Any], wire_dtype: str, tmp_path: Path):
    outcomes = launch(3, device_bodies.hccl, wire_dtype, str(tmp_path / "hccl-store"), store="none")
    assert [outcome.error for outcome in outcomes] == [""] * 3, outcomes[0].stderr
    for rank, outcome in enumerate(outcomes):
        outcome.result, first_note, ranks, available = outcome.result
        assert first_note == f"set_device {rank}"
        assert ranks == ["ranks [0, 1, 2]"]
        assert available == (True, f"torch {torch.__version__}, torch_npu 2.13.0, 4 NPUs")
    require_contract(outcomes)


def test_what_the_library_refuses_is_a_peer_error(launch: Callable[..., Any]):
    for outcome in launch(2, device_bodies.hccl_refuses):
        assert outcome.error.startswith("PeerError: the connection between ranks broke in all_gather (call 0), though")
        assert "RuntimeError: dtype torch.uint8 is refused" in outcome.error
        assert "dtype torch.uint8 is refused" in outcome.stderr


def test_a_call_that_cannot_be_interrupted_ends_the_process(launch: Callable[..., Any]):
    outcomes = launch(3, device_bodies.nccl_is_stuck, 2.0)
    for rank in (0, 2):
        assert outcomes[rank].exit_code == 75
        assert "PeerError: rank 1 did not arrive in all_to_all (call 1) within 60 s" in outcomes[rank].stderr
        assert "in wait" in outcomes[rank].stderr, "it must say where the threads stand"


_WITHOUT = """
import sys
sys.path = {path!r}
from dcpack.comm import get_backend
from dcpack.errors import BackendError
try:
    get_backend({name!r})
except BackendError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("name", "broken", "text"),
    [
        ("torch-nccl", "", "was built without NCCL; it needs dcpack[torch]"),
        ("torch-hccl", "", "torch_npu cannot be imported: No module named 'torch_npu'; HCCL needs the package torch"),
        ("torch-hccl", "RuntimeError('libhccl.so: no such file')", "cannot be imported: libhccl.so: no such file"),
        ("torch-hccl", "ImportError('libhccl.so: no such file')", "cannot be imported: libhccl.so: no such file"),
    ],
)
def test_a_missing_library_is_named(name: str, broken: str, text: str, tmp_path: Path):
    if broken:
        (tmp_path / "torch_npu.py").write_text(f"raise {broken}\n")
    path = [str(tmp_path), *sys.path]
    done = subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(path=path, name=name)],
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert text in done.stdout
    assert f"back end '{name}' cannot be used here" in done.stdout
    if name == "torch-hccl":
        assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stdout


def test_options_of_other_libraries():
    with pytest.raises(ArgumentError, match="wire_dtype must be one of 'uint8', got 'float32'"):
        get_backend("torch-gloo", wire_dtype="float32")
    with pytest.raises(ArgumentError, match="device must be 'cpu' or None with Gloo, got 'cuda:0'"):
        get_backend("torch-gloo", device="cuda:0")
