"""The two plain ways: one sequence at a time, which is the reference, and padded rows. Neither uses dcpack."""

from __future__ import annotations

import numpy as np
import torch
from attention import attend_one_sequence, attend_where
from texts import Sample
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["one_at_a_time", "padded"]

_IGNORED = -100


def one_at_a_time(model: nn.Module, samples: list[Sample]) -> float:
    """Add the gradients of one step to the parameters, sequence by sequence; return its loss, the mean over tokens."""
    targets = [_targets(sample) for sample in samples]
    num_valid = max(sum(int((target != _IGNORED).sum()) for target in targets), 1)
    total = 0.0
    for sample, target in zip(samples, targets, strict=True):
        input_ids = torch.from_numpy(sample["input_ids"].astype(np.int64))
        logits = model(input_ids[None], torch.arange(input_ids.numel())[None], attend_one_sequence)
        loss = functional.cross_entropy(logits[0], target, ignore_index=_IGNORED, reduction="sum") / num_valid
        loss.backward()
        total += loss.item()
    return total


def padded(model: nn.Module, samples: list[Sample]) -> float:
    """Do the same with all sequences of the step as the rows of one array, padded to the longest."""
    rows = [torch.from_numpy(sample["input_ids"].astype(np.int64)) for sample in samples]
    input_ids = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    targets = nn.utils.rnn.pad_sequence(
        [_targets(sample) for sample in samples], batch_first=True, padding_value=_IGNORED
    )
    size = input_ids.shape[1]
    lengths = torch.tensor([row.numel() for row in rows])
    causal = torch.ones(size, size, dtype=torch.bool).tril()
    visible = causal & (torch.arange(size) < lengths[:, None])[:, None, :]
    positions = torch.arange(size).expand_as(input_ids)
    logits = model(input_ids, positions, lambda query, key, value: attend_where(query, key, value, visible))
    total = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=_IGNORED, reduction="sum")
    loss = total / max(int((targets != _IGNORED).sum()), 1)
    loss.backward()
    return loss.item()


def _targets(sample: Sample) -> Tensor:
    """Return int64[t]: the token that follows each, or -100 where it does not count."""
    if "labels" in sample:
        targets = sample["labels"].astype(np.int64)
    else:
        targets = np.append(sample["input_ids"][1:], _IGNORED).astype(np.int64)
    if "loss_mask" in sample:
        targets = np.where(sample["loss_mask"] != 0, targets, _IGNORED)
    return torch.from_numpy(targets)
