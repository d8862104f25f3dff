"""The training loop of the examples, as one process of a launch."""

from __future__ import annotations

import importlib
import threading
from typing import Any

torch_fsdp2: Any = importlib.import_module("torch_fsdp2")


def train_loop(rank: int, size: int) -> tuple[list[float], dict[str, float], int, list[str]]:
    """Losses, the metrics of the last step, how many times were recorded, and the threads that are left."""
    losses, metrics, recorder = torch_fsdp2.train()
    left: list[Any] = [thread.name for thread in threading.enumerate() if thread.name == "dcpack-loader"]
    return losses, metrics[-1], len(recorder.samples), left
