"""What the decoder and the loss take from a packed batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dcpack.exchange import PackedBatch

__all__ = ["Inputs"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Inputs:
    """The tokens of one slice as tensors.

    Attributes:
        input_ids: int64[t].
        labels: int64[t].
        loss_mask: float64[t].
        positions: int64[t].
        segments: int64[t].
        slots: int64[t], places in the bin.
    """

    input_ids: Tensor
    labels: Tensor
    loss_mask: Tensor
    positions: Tensor
    segments: Tensor
    slots: Tensor

    @classmethod
    def of(cls, batch: PackedBatch) -> Inputs:
        """Return the tensors of `batch`."""
        tokens = batch.tokens
        return cls(
            input_ids=_tensor(tokens["input_ids"], np.int64),
            labels=_tensor(tokens["labels"], np.int64),
            loss_mask=_tensor(tokens["loss_mask"], np.float64),
            positions=_tensor(tokens["position_ids"], np.int64),
            segments=_tensor(tokens["segment_ids"], np.int64),
            slots=_tensor(batch.slots, np.int64),
        )


def _tensor(array: npt.ArrayLike, dtype: npt.DTypeLike) -> Tensor:
    return torch.from_numpy(np.array(array, dtype))
