"""The packed ways: dcpack plans the step and moves the tokens, each rank computes on its slices, gradients are summed.

This is what a training loop on top of dcpack does; `Packed.__call__` is the part to read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from attention import CpGroups, PackedAttention
from broken import break_inputs, break_samples, break_weights
from evidence import Evidence
from inputs import Inputs
from texts import Sample
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import dcpack
from dcpack.comm import Communicator
from dcpack.exchange import PackedBatch, exchange_samples, gather_samples
from dcpack.loss import averaging_factor, token_weights

__all__ = ["Packed"]


@dataclass(kw_only=True)
class Packed:
    """One step, packed over all ranks.

    Attributes:
        world: all ranks.
        capacity: padded tokens of one row on one rank.
        max_cp_size: 1 for plain data parallelism; None for dynamic CP over all ranks.
        averaged: the wrapper of the model averages gradients over all ranks, which is undone; otherwise they are summed
            here.
        broken: one of `broken.BROKEN`, or None.
        evidence: what has occurred.
    """

    world: Communicator
    capacity: int
    max_cp_size: int | None = None
    averaged: bool = False
    broken: str | None = None
    evidence: Evidence = field(default_factory=Evidence)
    groups: CpGroups = field(default_factory=CpGroups)

    def __call__(self, model: nn.Module, samples: list[Sample]) -> float:
        """Add the gradients of one step to the parameters; return its loss. All ranks call it together."""
        mine = break_samples(self.broken, samples[self.world.rank :: self.world.size])
        gathered = gather_samples(self.world, mine)
        plan = dcpack.plan(
            gathered.table.lengths,
            num_ranks=self.world.size,
            capacity=self.capacity,
            scheduler="packing_aware",
            max_cp_size=self.max_cp_size,
            padding=dcpack.PaddingRule(),
            on_empty="dummy",
        )
        batches = exchange_samples(self.world, gathered, plan)[self.world.rank]
        self.evidence.add(batches, rank=self.world.rank)
        self.groups.prepare(plan)
        factor = averaging_factor(self.world.size) if self.averaged and self.broken != "average_kept" else 1.0
        total = torch.zeros((), dtype=torch.float64)
        for batch in batches:
            with _reduce_after(model, last=batch is batches[-1]):
                loss = self._loss(model, batch)
                (factor * loss).backward()
            total += loss.detach()
        dist.all_reduce(total)
        if not self.averaged:
            _sum_gradients(model)
        return total.item()

    def _loss(self, model: Callable[..., Tensor], batch: PackedBatch) -> Tensor:
        """Return this rank's part of the loss of the step: a sum, already divided by the tokens of the whole step."""
        group = self.groups.of(batch)
        inputs = break_inputs(self.broken, Inputs.of(batch), batch, group)
        attend = PackedAttention.over(inputs.slots, inputs.segments, group)
        logits = model(inputs.input_ids[None], inputs.positions[None], attend)
        token_loss = functional.cross_entropy(logits[0], inputs.labels, ignore_index=-100, reduction="none")
        weights = token_weights(inputs.labels, inputs.loss_mask, global_valid_tokens=batch.global_valid_tokens)
        weights = break_weights(self.broken, weights, batch, num_ranks=self.world.size)
        return (torch.from_numpy(weights).to(token_loss.dtype) * token_loss).sum()


def _reduce_after(model: nn.Module, *, last: bool) -> contextlib.AbstractContextManager[None]:
    """Have DDP reduce gradients after the last micro-batch alone, as trainings do."""
    if isinstance(model, DistributedDataParallel) and not last:
        return model.no_sync()
    return contextlib.nullcontext()


def _sum_gradients(model: nn.Module) -> None:
    """Sum the gradients of all ranks, in one message."""
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    flat = torch.cat([gradient.ravel() for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, total in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(total.view_as(gradient))
