"""The three collectives of the devices, on rows of words: each shape is one compiled program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

__all__ = ["Collectives"]

_Words = npt.NDArray[np.uint32]


class Collectives:
    """The collectives that all devices of the world enter together.

    Words travel as int32, which every XLA device adds and moves exactly. What goes in is uploaded from the host, so
    that no value becomes a constant of the program: programs are then the same on all devices.

    Args:
        runtime: a `Runtime`.
        device: the device of this rank.
    """

    def __init__(self, runtime: Any, device: torch.device) -> None:
        self._runtime = runtime
        self._device = device

    def all_gather(self, words: _Words) -> _Words:
        """Return [ranks, w] from each rank's [w]."""
        return self._run(self._runtime.all_gather, words[None])

    def all_to_all(self, rows: _Words) -> _Words:
        """Return [ranks, w]: row i is the row for this rank of rank i's [ranks, w]."""
        return self._run(self._runtime.all_to_all, rows)

    def sum(self, words: _Words) -> _Words:
        """Return [w], the sum of each rank's [w] (modulo 2**32)."""
        return self._run(self._runtime.sum, words)

    def _run(self, record: Callable[[torch.Tensor], torch.Tensor], words: _Words) -> _Words:
        with self._runtime.apart(self._device):
            result = record(torch.from_numpy(words.view(np.int32)).to(self._device))
        return self._runtime.fetch(result).numpy().view(np.uint32)
