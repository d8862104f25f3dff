"""The JAX back end on real processes: arrays, compiled programs, threads, meshes, and the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax_bodies
import numpy as np
import pytest
import shared_bodies

import dcpack
from dcpack.comm import run_ranks
from dcpack.comm.buckets import bucket_bytes


def results(outcomes: list[Any]) -> list[Any]:
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes), [outcome.stderr for outcome in outcomes]
    return [outcome.result for outcome in outcomes]


def test_jax_arrays_come_out_as_jax_arrays(launch: Callable[..., Any]):
    assert results(launch(2, jax_bodies.jax_arrays, num_devices=2)) == [len(jax_bodies.JAX_DTYPES)] * 2


def test_64_bit_values_survive_or_are_an_error(launch: Callable[..., Any]):
    first, second = results(launch(2, jax_bodies.wide_arrays))
    assert first == second
    cut, mixed, key = first
    assert "a JAX array of dtype int64 needs jax_enable_x64 in this process" in cut
    assert cut.startswith("rank 1 failed in broadcast (call 2)")
    assert mixed == "dtypes differ in all_gather (call 3): rank 0: float32; rank 1: jax.float32"
    assert "jax.random.key_data" in key


def test_few_programs_are_compiled_over_a_hundred_steps(launch: Callable[..., Any]):
    num_steps = 100
    for num_compiled, num_sizes in results(launch(2, jax_bodies.count_compilations, num_steps)):
        # Two verbs, and sizes of up to 4096 elements of 8 bytes: 1 KiB, 2 KiB, ... 32 KiB.
        assert 2 <= num_compiled <= 2 * 6
        assert num_sizes > num_steps  # of which each would have been one


def test_threads_share_the_devices(launch: Callable[..., Any]):
    assert results(launch(3, jax_bodies.exchange_in_threads, 8)) == [24] * 3


def test_groups_along_the_axes_of_a_mesh(launch: Callable[..., Any]):
    first, second = results(launch(2, jax_bodies.mesh_groups, num_devices=2))
    assert first["context"] == (0,)
    assert second["context"] == (1,)
    for found in (first, second):
        assert found["data"] == (0, 1)
        assert found["both"] == (0, 1)
        assert found["crossed"] == (0, 1)
        assert (
            "axes must be one or several axes of the mesh, each once: 'data', 'context'; got 'tensor'"
            in found["unknown"]
        )
        assert "the groups along 'context' are not whole processes: process 0 in [(0, 1), (1, 0)]" in found["torn"]
        assert found["topology"] == (("dp", "cp"), (2, 2), [0, 0, 1, 1])
        assert found["default"] == [0, 0, 1, 1]


@pytest.mark.parametrize("size", [2, 4])
def test_a_step_is_the_same_as_on_the_fake_back_end(launch: Callable[..., Any], size: int):
    fake = run_ranks(size, shared_bodies.step)
    assert results(launch(size, jax_bodies.whole_step)) == fake
    assert len({digest for _, digests, _ in fake for digest in digests.values()}) == size
    assert all(identical for _, _, identical in fake)


@pytest.mark.parametrize(("size", "num_devices"), [(1, 8), (2, 2)])
def test_devices_get_what_processes_would(launch: Callable[..., Any], size: int, num_devices: int):
    homes = np.repeat(np.arange(size), num_devices)
    topology = dcpack.Topology.of_domain(size * num_devices, process_of_rank=homes)
    fake = run_ranks(size, lambda communicator: shared_bodies.step(communicator, topology))
    assert results(launch(size, jax_bodies.step_on_devices, num_devices=num_devices)) == fake
    assert sorted(rank for _, digests, _ in fake for rank in digests) == list(range(size * num_devices))
    assert all(identical for _, _, identical in fake)


def test_rl_batches_are_gathered_and_tp_batches_broadcast(launch: Callable[..., Any]):
    gathered = shared_bodies.gathered_rollouts(2)
    for found in results(launch(2, jax_bodies.gather_and_broadcast)):
        assert found == dict.fromkeys(("service", "devices"), (gathered, gathered, shared_bodies.BROADCAST_SEEN))


def test_buckets_hold_what_they_must():
    sizes = [1, 1023, 1024, 1025, 4096, 4097, (1 << 24) - 1, 1 << 24]
    buckets = [bucket_bytes(size) for size in sizes]
    assert buckets == [1024, 1024, 1024, 2048, 4096, 8192, 1 << 24, 1 << 24]
