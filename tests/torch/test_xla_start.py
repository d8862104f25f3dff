"""How the torch-xla back end finds its world, and what it says where there is none; torch_xla is not needed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from dcpack_xla import backend, start
from dcpack_xla.backend import XlaBackend
from dcpack_xla.communicator import DEVICE_DTYPES
from dcpack_xla.start import Membership, find_membership

import dcpack
from dcpack.errors import ArgumentError, BackendError, PeerError

LAUNCHED = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
VARIABLES = (*LAUNCHED, "LOCAL_RANK", "CPU_NUM_DEVICES", "XLA_THREAD_POOL_SIZE")


@dataclass
class Facts:
    """What a runtime says of a thread."""

    kind: str = "CPU"
    is_spmd: bool = False
    num_processes: int = 1
    num_devices: int = 1
    num_local_devices: int = 1
    num_joined: int = 1
    ordinal: int = 0
    device: Any = field(default_factory=lambda: torch.device("cpu"))
    num_rendezvous: int = 0

    def rendezvous(self) -> str:
        self.num_rendezvous += 1
        return "the store of torch_xla"


THREADS = Facts(num_devices=4, num_local_devices=4, num_joined=4, ordinal=2)
CHIP = Facts(kind="TPU", num_processes=4, num_devices=4, num_joined=4, ordinal=3)


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XLA_THREAD_POOL_SIZE", "8")


def in_thread(fn: Any) -> Any:
    """Call `fn` in another thread, as a rank that is one would; raise what it raises."""
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.append((fn(), None))
        except Exception as error:
            outcome.append((None, error))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    result, error = outcome[0]
    if error is not None:
        raise error
    return result


def test_a_process_with_one_device_is_alone() -> None:
    facts = Facts()
    assert find_membership(facts) == Membership(rank=0, size=1, store=start._threads_store)
    assert facts.num_rendezvous == 0, "no port is opened for ranks of one process"


def test_ranks_that_are_threads_meet_in_memory() -> None:
    assert in_thread(lambda: find_membership(THREADS)) == Membership(rank=2, size=4, store=start._threads_store)


def test_ranks_that_are_processes_meet_where_torch_xla_says() -> None:
    assert find_membership(replace(CHIP)) == Membership(rank=3, size=4, store="the store of torch_xla")


def test_under_torchrun_the_rendezvous_comes_before_any_device(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Facts):
        def rendezvous(self) -> str:
            self.num_processes = self.num_devices = self.num_joined = 4
            return super().rendezvous()

    monkeypatch.setattr(dist, "is_torchelastic_launched", lambda: True)
    for name, value in {**LAUNCHED, "RANK": "3", "WORLD_SIZE": "4"}.items():
        monkeypatch.setenv(name, value)
    facts = Late(kind="TPU", ordinal=3)
    assert find_membership(facts) == Membership(rank=3, size=4, store="the store of torch_xla")
    assert facts.num_rendezvous == 1


@pytest.mark.parametrize(
    ("facts", "variables", "text"),
    [
        (Facts(), LAUNCHED, "the launcher started 2 processes (WORLD_SIZE), but the XLA runtime of this one knows 1"),
        (Facts(), {"RANK": "0"}, "the environment of the launcher is incomplete: RANK=0 set"),
        (CHIP, LAUNCHED, "the launcher started 2 processes (WORLD_SIZE), but the XLA runtime of this one knows 4"),
        (replace(CHIP, is_spmd=True), {}, "SPMD mode of torch_xla has no ranks"),
        (replace(CHIP, num_joined=1), {}, "there are 4 XLA devices, but collectives span 1"),
        (THREADS, {"XLA_THREAD_POOL_SIZE": "3"}, "XLA_THREAD_POOL_SIZE is 3: set it to 4 or more"),
    ],
)
def test_never_a_smaller_world(
    monkeypatch: pytest.MonkeyPatch, facts: Facts, variables: dict[str, str], text: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BackendError) as caught:
        in_thread(lambda: find_membership(facts))
    assert text in str(caught.value)


def test_the_pool_is_as_large_as_the_machine_unless_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_THREAD_POOL_SIZE")
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    with pytest.raises(BackendError, match="XLA_THREAD_POOL_SIZE is not set, which means 2: set it to 4"):
        in_thread(lambda: find_membership(THREADS))


def test_the_main_thread_is_no_rank_among_several() -> None:
    with pytest.raises(BackendError, match="this process has 4 XLA devices, each of which is a rank"):
        find_membership(THREADS)


def test_without_torch_xla_the_error_says_what_brings_it() -> None:
    with pytest.raises(BackendError, match=r"'torch-xla' cannot be used here: .*'torch_xla'.* needs dcpack\[xla\]$"):
        dcpack.get_backend("torch-xla")


def test_torch_xla_is_imported_only_when_chosen() -> None:
    script = "import sys, dcpack_xla.backend; print([name for name in sys.modules if name.startswith('torch_xla')])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == "[]"


# ---- runs ------------------------------------------------------------------------------------------------------------


class Threads(Facts):
    """A runtime whose threads are called one after the other."""

    def run_threads(self, fn: Any) -> list[Any]:
        return [fn() for _ in range(2)]


def play(monkeypatch: pytest.MonkeyPatch, facts: Any) -> XlaBackend:
    monkeypatch.setattr(backend, "load_runtime", lambda: facts)
    return XlaBackend()


def test_on_the_cpu_a_run_starts_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XLA_THREAD_POOL_SIZE")
    monkeypatch.setenv("CPU_NUM_DEVICES", "64")
    found = play(monkeypatch, Threads()).run(lambda world: (world.rank, world.size))
    assert found == [(0, 1), (0, 1)]
    assert os.environ["XLA_THREAD_POOL_SIZE"] == "64"


def test_elsewhere_a_run_is_this_rank_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert play(monkeypatch, Facts(kind="TPU")).run(lambda world: world.size) == [1]


def test_a_run_raises_what_failed_first(monkeypatch: pytest.MonkeyPatch) -> None:
    errors: list[Exception] = [PeerError("rank 1 did not arrive", rank=1), KeyError("own")]
    errors += [PeerError("first", rank=1), PeerError("second", rank=0)]

    def fail(world: Any) -> None:
        raise errors.pop(0)

    for kind in (KeyError, PeerError):
        with pytest.raises(kind, match=r"own|first"):
            play(monkeypatch, Threads()).run(fail)


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    play(monkeypatch, Facts())
    for name, value in (("deadline_s", 0), ("start_deadline_s", -1), ("max_message_bytes", 0), ("max_groups", 0)):
        options: dict[str, Any] = {name: value}
        with pytest.raises(ArgumentError, match=f"^{name} must be"):
            XlaBackend(**options)


def test_what_a_device_would_cut_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    made = play(monkeypatch, Facts())
    moved = made.to_device({"ids": np.array([2**40]), "more": [torch.ones(2), ("text", None)]})
    assert moved["ids"].tolist() == [2**40]
    assert moved["more"][1] == ("text", None)
    assert made.to_device(torch.zeros(1), device="meta").device.type == "meta"
    assert "torch.complex128" not in DEVICE_DTYPES
    for array in (np.zeros(1, np.complex128), torch.zeros(1, dtype=torch.complex128)):
        with pytest.raises(ArgumentError, match=r"an XLA device does not hold torch\.complex128 exactly: bfloat16, "):
            made.to_device([array], device="xla:0")
