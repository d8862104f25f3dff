"""What a torch back end does in one process: options, the environment, tensors, readers."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from itertools import count, islice
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from dcpack_torch.backend import TorchGlooBackend
from dcpack_torch.wire import array_as_tensor
from torch_bodies import first_error

from dcpack.comm import get_backend
from dcpack.comm.environment import Launch, read_launch
from dcpack.errors import ArgumentError, BackendError
from dcpack.testing.expect import DTYPE_NAMES, pattern

_COMPLETE = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "29500", "LOCAL_RANK": "0"}


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch):
    for name in (*_COMPLETE, "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"):
        monkeypatch.delenv(name, raising=False)


# The environment.


def test_torchrun_environment():
    assert read_launch(_COMPLETE) == Launch(rank=1, world_size=2, local_rank=0)
    assert read_launch({**_COMPLETE, "LOCAL_RANK": ""}) == Launch(rank=1, world_size=2, local_rank=None)
    assert read_launch({}) is None


@pytest.mark.parametrize("missing", ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"])
def test_a_half_set_environment_is_an_error(monkeypatch: pytest.MonkeyPatch, missing: str):
    for name, value in _COMPLETE.items():
        if name != missing:
            monkeypatch.setenv(name, value)
    with pytest.raises(BackendError, match=f"the environment of the launcher is incomplete: .* set, {missing} missing"):
        get_backend("torch-gloo")


def test_a_local_rank_alone_is_an_error():
    with pytest.raises(
        BackendError, match="LOCAL_RANK=0 set, RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT missing; start with torchrun"
    ):
        read_launch({"LOCAL_RANK": "0"})


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("RANK", "-1", "variable RANK must be a whole number of at least 0, got '-1'"),
        ("RANK", "2", "RANK must be below WORLD_SIZE, got RANK=2 of 2"),
        ("WORLD_SIZE", "0", "variable WORLD_SIZE must be a whole number of at least 1, got '0'"),
        ("MASTER_PORT", "http", "variable MASTER_PORT must be a whole number of at least 0, got 'http'"),
        ("LOCAL_RANK", "1.5", "variable LOCAL_RANK must be a whole number of at least 0, got '1.5'"),
    ],
)
def test_variables_that_make_no_sense(name: str, value: str, text: str):
    with pytest.raises(BackendError, match=text):
        read_launch({**_COMPLETE, name: value})


@pytest.mark.parametrize(
    ("launcher", "name"),
    [("srun", "SLURM_STEP_NUM_TASKS"), ("mpirun", "OMPI_COMM_WORLD_SIZE"), ("mpiexec", "PMI_SIZE")],
)
def test_processes_of_other_launchers_are_not_alone(launcher: str, name: str):
    with pytest.raises(BackendError, match=rf"{launcher} started 4 processes \({name}\), but RANK, .* are not set"):
        read_launch({name: "4"})
    assert read_launch({name: "1"}) is None


def test_alone():
    world = get_backend("torch-gloo").world()
    assert (world.rank, world.size, world.ranks) == (0, 1, (0,))


def test_options_are_checked():
    for options, text in (
        ({"deadline_s": 0}, "deadline_s must be a finite number"),
        ({"start_deadline_s": -1}, "^start_deadline_s must be a finite number"),
        ({"max_message_bytes": 0}, "max_message_bytes must be at least 1, got 0"),
        ({"max_groups": 0}, "max_groups must be at least 1, got 0"),
        ({"ranks": 4}, "back end 'torch-gloo' has no option 'ranks'; its options: deadline_s, device, group, max_gr"),
    ):
        with pytest.raises(ArgumentError, match=text):
            get_backend("torch-gloo", **options)
    backend: Any = get_backend("torch-gloo", max_message_bytes=5, deadline_s=3)
    assert (backend.world().max_message_bytes, backend.world().deadline_s) == (5, 3.0)


def test_peers_that_never_join(monkeypatch: pytest.MonkeyPatch):
    for name, value in {**_COMPLETE, "RANK": "0", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(name, value)
    text = first_error(TorchGlooBackend(start_deadline_s=1.0))
    assert text.startswith("PeerError: the 2 processes of the job did not all join within 1 s: ")


def test_torch_is_loaded_when_it_is_chosen():
    code = """
        import sys
        import dcpack
        assert {"torch-gloo", "torch-nccl", "torch-hccl"} <= set(dcpack.comm.list_backends())
        import dcpack_torch
        assert "torch" not in sys.modules
        dcpack.get_backend("torch-gloo")
        assert "torch" in sys.modules
        assert "torch_npu" not in sys.modules
    """
    code = f"import sys; sys.path = {sys.path!r}\n" + textwrap.dedent(code)
    subprocess.run([sys.executable, "-W", "error", "-c", code], timeout=100, check=True)


_SCRIPT = """
import sys
sys.path = {path!r}
import numpy as np
from dcpack.comm import get_backend
backend = get_backend("torch-gloo", deadline_s=30.0)
world = backend.world()
gathered = [int(array) for array in world.all_gather(np.int64(10 * world.rank))]
with world.split([[1, 0]]) as turned:
    received = turned.all_to_all(np.arange(2) + 10 * world.rank, [1, 1], [1, 1]).tolist()
with open(f"{folder}/{{world.rank}}.txt", "w") as file:
    print("of", world.size, gathered, turned.ranks, received, file=file)
world.barrier()
"""


def test_torchrun(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT.format(path=sys.path, folder=tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    # Files, as lines that two processes print to one pipe may run into one another.
    assert (tmp_path / "0.txt").read_text() == "of 2 [0, 10] (1, 0) [11, 1]\n"
    assert (tmp_path / "1.txt").read_text() == "of 2 [0, 10] (1, 0) [10, 0]\n"


# Tensors.


@pytest.mark.parametrize("name", DTYPE_NAMES)
def test_to_device_keeps_dtype_and_bits(name: str):
    for shape in ((), (0, 2), (3, 2)):
        array = pattern(name, shape, seed=1)
        tensor = TorchGlooBackend().to_device(array)
        assert tensor.dtype == getattr(torch, name)
        assert tuple(tensor.shape) == shape
        assert tensor.reshape(-1).contiguous().view(torch.uint8).tolist() == list(array.tobytes())


def test_to_device_shares_memory_where_it_may():
    array = np.arange(6)
    backend = TorchGlooBackend()
    backend.to_device(array)[0] = 7
    assert array[0] == 7
    array.setflags(write=False)
    backend.to_device(array)[0] = 8
    assert array[0] == 7, "read-only memory must not be written to"
    assert backend.to_device(np.arange(6)[::-2]).tolist() == [5, 3, 1]
    assert backend.to_device(np.arange(3, dtype=">i4")).tolist() == [0, 1, 2]


def test_to_device_of_nested_values():
    moved = TorchGlooBackend().to_device({"a": [np.ones(2), 3], "b": ({"c": torch.ones(1)}, "text", None, np.int32(4))})
    assert torch.equal(moved["a"][0], torch.ones(2, dtype=torch.float64))
    assert moved["a"][1] == 3
    assert isinstance(moved["b"], tuple)
    assert torch.equal(moved["b"][0]["c"], torch.ones(1))
    assert moved["b"][1:3] == ("text", None)
    assert moved["b"][3].dtype == torch.int32
    with pytest.raises(ArgumentError, match="dtype object cannot be sent"):
        TorchGlooBackend().to_device(np.array([None]))


def test_what_makes_no_array_is_refused_by_an_error_of_ours():
    world = TorchGlooBackend().world()
    for call in (world.to_wire, world.wire_size):
        with pytest.raises(ArgumentError, match=r"array cannot be sent: .*inhomogeneous"):
            call([[1], [2, 3]])


def test_a_dtype_that_torch_lacks():
    with pytest.raises(ArgumentError, match="dtype float8_e3m4 cannot be made a tensor: torch has no such dtype"):
        array_as_tensor(np.zeros(2, ml_dtypes.float8_e3m4))


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (torch.zeros(2).to_sparse(), "a tensor of layout torch.sparse_coo on device cpu cannot be sent"),
        (torch.zeros(2, device="meta"), "on device meta cannot be sent"),
        (torch.zeros(2, dtype=torch.float4_e2m1fn_x2), "dtype torch.float4_e2m1fn_x2 cannot be sent: bool, uint8,"),
        (torch.zeros((1,) * 9), "an array of 9 dims cannot be sent: at most 8"),
    ],
)
def test_tensors_that_cannot_travel(tensor: torch.Tensor, text: str):
    with pytest.raises(RuntimeError, match=text):
        TorchGlooBackend().world().all_gather(tensor)


def test_an_unknown_dtype_of_a_sender():
    world: Any = TorchGlooBackend().world()
    with pytest.raises(BackendError, match=r"dtype torch\.float3 is unknown to torch"):
        world.wire_itemsize("torch.float3")


# Readers.


# JAX, which other tests load, warns of every fork. The workers that are forked here use torch and NumPy alone.
forks = pytest.mark.filterwarnings("ignore:os.fork")


class Squares:
    def __getitem__(self, index: int) -> Any:
        if index == 13:
            raise ValueError("sample 13 is broken")
        return {"input_ids": np.full(2, index * index), "process": os.getpid()}


@forks
@pytest.mark.parametrize("num_workers", [0, 2])
def test_reader_keeps_the_order_and_the_samples(num_workers: int):
    indices = [5, 2, 9, 0, 7, 7, 1]
    samples = list(TorchGlooBackend().make_reader(Squares(), indices, num_workers=num_workers))
    assert [sample["input_ids"].tolist() for sample in samples] == [[i * i, i * i] for i in indices]
    assert all(isinstance(sample["input_ids"], np.ndarray) for sample in samples)
    assert len({sample["process"] for sample in samples} - {os.getpid()}) == num_workers


@forks
@pytest.mark.parametrize("num_workers", [0, 1])
def test_reader_of_endless_indices(num_workers: int):
    reader = TorchGlooBackend().make_reader(Squares(), count(), num_workers=num_workers)
    assert [int(sample["input_ids"][0]) for sample in islice(reader, 3)] == [0, 1, 4]


@forks
@pytest.mark.parametrize("num_workers", [0, 1])
def test_reader_errors_come_where_the_sample_would(num_workers: int):
    reader = TorchGlooBackend().make_reader(Squares(), [12, 13], num_workers=num_workers)
    assert int(next(reader)["input_ids"][0]) == 144
    with pytest.raises(ValueError, match="sample 13 is broken"):
        next(reader)


def test_reader_options():
    with pytest.raises(ArgumentError, match="num_workers must be from 0 to 4096, got -1"):
        TorchGlooBackend().make_reader(Squares(), [1], num_workers=-1)


def test_reading_here_leaves_the_random_numbers_alone():
    read = TorchGlooBackend().open_reader(["a", "b"])
    before = torch.get_rng_state()
    assert list(read([1, 0])) == ["b", "a"]
    assert torch.equal(torch.get_rng_state(), before)
