"""Batches as global arrays, over the devices of one process and of two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax_bodies
import numpy as np
import pytest
from dcpack_jax.arrays import SPELLINGS, spell


@pytest.mark.parametrize(("size", "num_devices"), [(1, 8), (2, 2)])
def test_every_device_holds_the_slice_of_its_rank(launch: Callable[..., Any], size: int, num_devices: int):
    outcomes = launch(size, jax_bodies.place_step, num_devices=num_devices, deadline_s=100.0)
    assert [outcome.error for outcome in outcomes] == [""] * size, [outcome.stderr for outcome in outcomes]
    num_ranks = size * num_devices
    for outcome in outcomes:
        cp_sizes, num_compared, (mixed, devices, rows, ranks) = outcome.result
        assert len(set(cp_sizes)) > 1, "one CP size would show nothing"
        assert num_compared >= len(cp_sizes) * num_devices * 6
        assert "one program of all devices has one CP size: micro-batch" in mixed
        assert "plan with scheduler='uniform_cp'" in mixed
        assert devices == f"devices must be one for each of {num_ranks} ranks of the plan, got {num_ranks - 1}"
        assert "64 tokens in micro-batch" in rows
        assert ranks.startswith("batches are of ranks [], but the devices of this process are ranks [")
        assert max(cp_sizes) <= num_ranks


@pytest.mark.timeout(300)  # most of it is planning and compiling, which a busy machine makes slow
def test_one_program_a_cp_size_and_row_length_over_fifty_steps(launch: Callable[..., Any]):
    (outcome,) = launch(1, jax_bodies.compile_steps, 50, num_devices=8, deadline_s=280.0)
    assert outcome.error == "", outcome.stderr
    num_compiled, shapes, bound = outcome.result
    assert num_compiled == len(shapes) <= bound
    assert len(shapes) > 2


def test_targets_that_do_not_count_have_segment_0():
    fields = {
        "input_ids": np.array([5, 6, 7, 0]),
        "labels": np.array([6, 7, -100, -100]),
        "loss_mask": np.array([0, 1, 0, 0]),
        "position_ids": np.array([0, 1, 2, 0]),
        "segment_ids": np.array([1, 1, 1, 0]),
        "advantages": np.array([0.5, 0.5, 0.5, 0.0]),
    }
    for names, segments in (("maxtext", "targets_segmentation"), ("grain", "targets_segment_ids")):
        found = spell(fields, names)
        assert found["targets"].tolist() == [0, 7, 0, 0]
        assert found[segments].tolist() == [0, 1, 0, 0]
        assert found["advantages"] is fields["advantages"]
        assert "loss_mask" not in found
        assert set(SPELLINGS[names].values()) <= set(found)
    assert spell(fields, "dcpack") == fields
