"""RL batches and TP broadcast on real processes over Gloo, with 2 and 4 ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import rl_bodies
import shared_bodies
from torch_ranks import results


@pytest.mark.parametrize("size", [2, 4])
def test_all_gather_of_ragged_rows_and_empty_ranks(launch: Callable[..., Any], size: int):
    ranks = [rank for rank in range(size) for _ in range(rank)]  # 1, 2, 2, 3, 3, 3
    expected = shared_bodies.gathered_rollouts(size)
    for rank, found in enumerate(results(launch(size, rl_bodies.gather_batches))):
        for library in ("numpy", "torch", "jax"):
            assert found[library] == expected
        members = range(size // 2) if rank < size // 2 else range(size // 2, size)
        assert found["half"] == [member for member in members for _ in range(member)]
        assert found["bfloat16"] == [[0.5]] * len(ranks)


@pytest.mark.parametrize("size", [2, 4])
def test_shard_then_gather_is_the_identity(launch: Callable[..., Any], size: int):
    assert results(launch(size, rl_bodies.shard_and_gather)) == [list(range(8 * size))] * size


@pytest.mark.parametrize("size", [2, 4])
def test_a_wrong_batch_on_one_rank_is_an_error_on_all(launch: Callable[..., Any], size: int):
    (text,) = set(results(launch(size, rl_bodies.gather_fails)))
    assert text.startswith(f"rank {size - 1} failed")
    assert "'x' has 2, 'y' has 3" in text


@pytest.mark.parametrize("size", [2, 4])
def test_tp_broadcast(launch: Callable[..., Any], size: int):
    assert results(launch(size, rl_bodies.broadcast_batches)) == [shared_bodies.BROADCAST_SEEN] * size
