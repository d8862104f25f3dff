"""What the processes of the tests do."""

from __future__ import annotations

from typing import Any

import megatron_jobs as jobs
import torch
from dcpack_torch.backend import TorchGlooBackend


def all_cases(rank: int, size: int) -> list[dict[str, Any]]:
    """Run the cases one after the other, with tensors as the result."""
    backend = TorchGlooBackend(deadline_s=60.0)
    moved: set[type] = set()

    def to_device(array: Any) -> Any:
        tensor = backend.to_device(array)
        moved.add(type(tensor))
        return tensor

    results = jobs.run_cases(backend.world(), jobs.PROCESS_CASES, to_device)
    assert moved == {torch.Tensor}
    return results
