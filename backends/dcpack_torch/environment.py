"""This process's place among the others, where a default group says it."""

from __future__ import annotations

import os

import torch.distributed

from dcpack.comm.environment import Launch, whole_number

__all__ = ["current_launch"]


def current_launch() -> Launch:
    """Return this process's place in the default group, which is there already, however it was started."""
    local_rank = os.environ.get("LOCAL_RANK", "")
    return Launch(
        rank=torch.distributed.get_rank(),
        world_size=torch.distributed.get_world_size(),
        local_rank=whole_number("LOCAL_RANK", local_rank, 0) if local_rank else None,
    )
