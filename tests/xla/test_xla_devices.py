"""The torch-xla back end on four CPU devices: tensors, compiled programs, groups, failures, and the step."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import shared_bodies
import torch
from dcpack_torch.wire import array_as_tensor
from dcpack_xla.backend import XlaBackend
from dcpack_xla.communicator import DEVICE_DTYPES
from dcpack_xla.runtime import Runtime

import dcpack
from dcpack.comm import Communicator, broadcast_tree, run_ranks
from dcpack.errors import ArgumentError, BackendError, PeerError
from dcpack.testing.expect import pattern

SIZE = 4
Run = Callable[..., list[Any]]


def make_tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    return array_as_tensor(pattern(name.removeprefix("torch."), shape, seed))


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.reshape(-1).contiguous().view(torch.uint8).tolist()


def test_tensors_on_devices_come_out_on_devices(run: Run, runtime: Runtime) -> None:
    def body(world: Communicator) -> int:
        device = runtime.device
        for seed, name in enumerate(sorted(DEVICE_DTYPES)):
            given = [make_tensor(name, (member, 3), seed + member) for member in range(SIZE)]
            whole = make_tensor(name, (2, 2), seed)
            root = seed % SIZE
            row = make_tensor(name, (2 * SIZE,), seed)
            received = [
                *zip(world.all_gather(given[world.rank].to(device)), given, strict=True),
                (world.broadcast(whole.to(device) if world.rank == root else None, root), whole),
                (
                    world.all_to_all(row.to(device), [2] * SIZE, [2] * SIZE),
                    torch.cat([row[2 * world.rank :][:2]] * SIZE),
                ),
            ]
            for actual, expected in received:
                assert actual.device == device
                assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
                # As the device holds it: it may write a NaN in another way.
                assert bits(runtime.fetch(actual)) == bits(runtime.fetch(expected.to(device))), name
        return len(DEVICE_DTYPES)

    assert run(body) == [16] * SIZE


def test_tensors_of_the_host_stay_there_and_mix_with_nothing(run: Run, runtime: Runtime) -> None:
    def body(world: Communicator) -> str:
        host = torch.arange(3) + world.rank
        assert [part.tolist() for part in world.all_gather(host)] == [[k, k + 1, k + 2] for k in range(SIZE)]
        assert world.broadcast(host if world.rank == 1 else None, 1).device.type == "cpu"
        tree = {"on": host.to(runtime.device), "off": host, "array": np.arange(2)}
        received = broadcast_tree(world, tree if world.rank == 2 else None, 2)
        assert (received["on"].device, received["off"].device.type) == (runtime.device, "cpu")
        assert runtime.fetch(received["on"]).tolist() == received["off"].tolist() == [2, 3, 4]
        with pytest.raises(PeerError) as caught:
            world.all_gather(host.to(runtime.device) if world.rank == 3 else host)
        return str(caught.value)

    (text,) = set(run(body))
    assert text == "dtypes differ in all_gather (call 3): ranks 0, 1, 2: torch.int64; rank 3: xla.torch.int64"


def test_what_the_device_was_given_is_its_own(run: Run, runtime: Runtime) -> None:
    backend = XlaBackend()

    def body(world: Communicator) -> list[float]:
        arrays = [np.ones(1000), torch.ones(1000)]
        moved = backend.to_device(arrays)
        for array in arrays:
            array[:] = 5
        return [float(runtime.fetch(tensor).sum()) for tensor in moved]

    assert run(body) == [[1000.0, 1000.0]] * SIZE


def test_programs_of_the_caller_are_not_run(run: Run, runtime: Runtime) -> None:
    """What the caller has recorded stays recorded, collectives included, and comes out right later."""

    def body(world: Communicator) -> list[float]:
        mine = torch.full((3,), float(world.rank)).to(runtime.device)
        pending = runtime.sum(mine * 2) + 1
        before = runtime.count_executions()
        world.barrier()  # all have counted
        world.all_to_all(np.arange(SIZE), [1] * SIZE, [1] * SIZE)
        world.barrier()
        assert runtime.count_executions() == before + SIZE, "each device ran one program, the exchange"
        world.barrier()  # all have looked
        recorded = importlib.import_module("torch_xla")._XLAC._get_xla_tensors_text([pending])
        assert "aten::add" in recorded, f"what the caller recorded was run: {recorded}"
        return runtime.fetch(pending).tolist()

    assert run(body) == [[13.0] * 3] * SIZE


def test_few_programs_are_compiled_over_a_hundred_steps(run: Run, runtime: Runtime) -> None:
    num_steps = 100
    generator = np.random.default_rng(7)
    sizes = generator.integers(0, 1 << generator.integers(1, 13, num_steps)[:, None, None], (num_steps, SIZE, SIZE))
    assert len(np.unique(sizes.max((1, 2)))) > 50  # of which each would have been a program

    def body(world: Communicator) -> None:
        for counts in sizes:
            sent = np.arange(counts[world.rank].sum()) * SIZE + world.rank
            received = world.all_to_all(sent, counts[world.rank], counts[:, world.rank])
            starts = np.cumsum(counts, axis=1) - counts
            expected = [
                (starts[other, world.rank] + np.arange(counts[other, world.rank])) * SIZE + other
                for other in range(SIZE)
            ]
            assert np.array_equal(received, np.concatenate(expected))

    before = runtime.count_compilations()
    run(body)
    # Blocks of up to 4096 elements of 8 bytes: 1 KiB, 2 KiB, ... 32 KiB.
    assert runtime.count_compilations() - before <= 6


def test_groups_and_duplicates_stay_off_the_devices(run: Run, runtime: Runtime) -> None:
    def body(world: Communicator) -> list[list[int]]:
        group, twin = world.split([[0], [1, 2, 3]]), world.dup()
        before = runtime.count_executions()
        world.barrier()
        found = [[int(part[0]) for part in other.all_gather(np.array([world.rank]))] for other in (group, twin)]
        world.barrier()
        assert runtime.count_executions() == before
        world.barrier()
        return found

    everyone = list(range(SIZE))
    assert run(body) == [[everyone[:1] if rank == 0 else everyone[1:], everyone] for rank in everyone]


def test_a_step_is_the_same_as_on_the_fake_back_end(run: Run) -> None:
    fake = run_ranks(SIZE, shared_bodies.step)
    assert run(shared_bodies.step) == fake
    assert len({digest for _, digests, _ in fake for digest in digests.values()}) == SIZE
    assert all(identical for _, _, identical in fake)


# ---- failures --------------------------------------------------------------------------------------------------------


def test_a_rank_that_fails_is_an_error_on_all(run: Run) -> None:
    def body(world: Communicator) -> str:
        def fail() -> None:
            with world.guard():
                if world.rank == 2:
                    raise ValueError("no such sample")

        with pytest.raises(PeerError) as caught:
            fail()
        assert int(world.all_gather(np.array([world.rank]))[3][0]) == 3, "the group goes on"
        return str(caught.value).partition("\n")[0]

    assert set(run(body)) == {"rank 2 failed in agree (call 0): ValueError: no such sample"}


def test_a_rank_that_stays_away_is_named_at_the_deadline(run: Run) -> None:
    def body(world: Communicator) -> str:
        world.barrier()
        if world.rank == 1:
            time.sleep(4.0)
            return ""
        with pytest.raises(PeerError) as caught:
            world.all_gather(np.zeros(3))
        return str(caught.value)

    texts = run(body, deadline_s=2.0)
    assert texts.pop(1) == ""
    assert set(texts) == {"rank 1 did not arrive in all_gather (call 1) within 2 s"}


def test_what_a_rank_raises_comes_out_of_the_run(run: Run) -> None:
    def body(world: Communicator) -> None:
        if world.rank == 3:
            raise KeyError("own")
        world.barrier()

    with pytest.raises(KeyError, match="own"):
        run(body, deadline_s=2.0)


def test_the_main_thread_is_no_rank() -> None:
    with pytest.raises(BackendError, match="this process has 4 XLA devices, each of which is a rank"):
        dcpack.get_backend("torch-xla").world()


def test_what_a_device_would_cut_is_refused(run: Run) -> None:
    def body(world: Communicator) -> None:
        with pytest.raises(ArgumentError, match=r"does not hold torch\.complex128 exactly"):
            XlaBackend().to_device(np.zeros(1, np.complex128))

    run(body)


def test_it_is_usable_here() -> None:
    usable, text = XlaBackend.available()
    assert usable
    assert text == f"torch {torch.__version__}, torch_xla 2.9.0, CPU"
