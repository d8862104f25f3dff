"""Train the decoder one of the ways, and keep the loss and the gradients of each step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist
from decoder import Decoder, DecoderOptions
from texts import Sample
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

__all__ = ["StepResult", "Way", "make_decoder", "train", "wrap_ddp", "wrap_fsdp"]

Way = Callable[[nn.Module, list[Sample]], float]
"""From the model and the samples of a step to its loss; adds the gradients to the parameters."""

_LEARNING_RATE = 0.05


@dataclass(frozen=True, kw_only=True, slots=True)
class StepResult:
    """What one step came to.

    Attributes:
        loss: mean over the tokens of the step that count; 0 if none does.
        gradients: by parameter name, whole.
    """

    loss: float
    gradients: dict[str, Tensor]


def make_decoder(dtype: torch.dtype, *, seed: int) -> Decoder:
    """Return the decoder with the same parameters in every process."""
    torch.manual_seed(seed)
    return Decoder(DecoderOptions()).to(dtype)


def wrap_ddp(model: nn.Module) -> nn.Module:
    """Return `model` under DDP over all ranks."""
    return DistributedDataParallel(model)


def wrap_fsdp(model: Decoder) -> nn.Module:
    """Return `model` under FSDP2, each block and the rest sharded over all ranks."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def train(model: nn.Module, steps: list[list[Sample]], way: Way) -> list[StepResult]:
    """Train by plain gradient descent; return what each step came to.

    Small steps, and no Adam, which divides each gradient by its own size: rounding would grow from step to step, and
    after 20 steps the check would be one of how chaotic the training is.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=_LEARNING_RATE)
    results = []
    for samples in steps:
        optimizer.zero_grad()
        loss = way(model, samples)
        results.append(StepResult(loss=loss, gradients=_gradients(model)))
        optimizer.step()
    return results


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    found = {}
    for name, parameter in model.named_parameters():
        gradient = parameter.grad
        assert gradient is not None, name
        whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        found[name.removeprefix("module.")] = whole.detach().clone()
    return found
