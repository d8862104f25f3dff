"""The loader on real JAX processes: batches as over `fake`, byte for byte; few programs on its global arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax_bodies
import numpy as np
import pytest

import dcpack


@pytest.mark.parametrize(("num_devices", "num_epochs"), [(1, 13), (2, 2)])
def test_the_batches_are_those_of_the_fake_back_end(launch: Callable[..., Any], num_devices: int, num_epochs: int):
    """A device a process, and processes of two devices: these get what both of them need."""
    topology = dcpack.Topology.of_domain(2 * num_devices, process_of_rank=np.repeat([0, 1], num_devices))
    fake = dcpack.run_ranks(2, lambda communicator: jax_bodies.load_epochs(topology, "fake"))
    outcomes = launch(2, jax_bodies.load_on_processes, num_epochs, num_devices=num_devices, deadline_s=100.0)
    assert [outcome.error for outcome in outcomes] == ["", ""], [outcome.stderr for outcome in outcomes]
    assert [outcome.result[0] for outcome in outcomes] == fake
    for outcome in outcomes:
        assert "scheduler 'dynamic_cp' mixes CP sizes in a micro-batch, but on back end 'jax'" in outcome.result[1]
        num_compiled, shapes, bound, num_steps = outcome.result[2]
        assert num_steps == 4 * num_epochs
        assert num_compiled == len(shapes) <= bound
        assert {cp_size for cp_size, _ in shapes} >= {1, 2}
    for mode in jax_bodies.LOADER_MODES:
        (mine, reads, *_), (theirs, other_reads, *_) = fake[0][mode], fake[1][mode]
        assert len(mine) == len(theirs) >= 8
        assert sum(reads.values()) + sum(other_reads.values()) == 48
        assert not set(reads) & set(other_reads)
    assert {batch["cp_size"] for batch in fake[0]["planned_cp"][0]} >= {1, 2}
