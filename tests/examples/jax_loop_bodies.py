"""The JAX training loop of the examples, as one process of a launch."""

from __future__ import annotations

import importlib
from typing import Any

from dcpack import DistributedDataLoader
from dcpack.loader.planned_cp import PlannedCPSteps

jax_uniform_cp: Any = importlib.import_module("jax_uniform_cp")


def train_loop(rank: int, size: int) -> tuple[list[float], dict[str, float], list[list[int]], list[bool]]:
    """Losses, the metrics of the last step, CP sizes, and of each planning whether it was done in `prefetch`."""
    prefetch, plan_step = DistributedDataLoader.prefetch, PlannedCPSteps.plan_step
    in_prefetch, planned = [False], []

    def noted_prefetch(loader: DistributedDataLoader) -> None:
        in_prefetch[0] = True
        prefetch(loader)
        in_prefetch[0] = False

    def noted_plan_step(maker: PlannedCPSteps, epoch: int, step: int) -> Any:
        planned.append(in_prefetch[0])
        return plan_step(maker, epoch, step)

    DistributedDataLoader.prefetch = noted_prefetch  # type: ignore[method-assign]
    PlannedCPSteps.plan_step = noted_plan_step  # type: ignore[method-assign]
    losses, metrics, cp_sizes = jax_uniform_cp.train()
    return losses, metrics[-1], cp_sizes, planned
