"""Causal attention over one sequence, over padded rows, and over a packed bin that the ranks of a CP group share.

Under CP each rank holds a slice of the queries and gathers the keys and values of its group. What a query may see is
said by segments and slots alone, so any slicing works. A real training would call a variable-length kernel here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional

from dcpack import Plan
from dcpack.exchange import PackedBatch

__all__ = ["CpGroups", "PackedAttention", "attend_one_sequence", "attend_where", "gather_tokens"]


def attend_one_sequence(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Attend causally in each row; torch's own kernel, so that the reference shares no code with what it judges."""
    shared = query.shape[-2] // key.shape[-2]
    heads = (query, key.repeat_interleave(shared, -2), value.repeat_interleave(shared, -2))
    query, key, value = (tensor.transpose(1, 2) for tensor in heads)
    return functional.scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2)


def attend_where(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """Attend where a mask allows it.

    Args:
        query: [b, t, heads, d].
        key: [b, s, kv heads, d].
        value: [b, s, kv heads, d].
        visible: bool[b, t, s]; each query sees at least one key.

    Returns:
        [b, t, heads, d].
    """
    grouped = query.unflatten(-2, (key.shape[-2], -1))
    scores = torch.einsum("btkgd,bskd->bkgts", grouped, key) * query.shape[-1] ** -0.5
    weights = scores.masked_fill(~visible[:, None, None], -torch.inf).softmax(dim=-1)
    return torch.einsum("bkgts,bskd->btkgd", weights, value).flatten(-3, -2)


class _Gather(torch.autograd.Function):
    """All-gather along the tokens; backwards, the gradients that all ranks have for this rank's part are summed."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(group.size())]
        dist.all_gather(parts, local.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        total = gradients[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)  # Gloo has no reduce-scatter of its own
        return total.chunk(ctx.group.size(), dim=1)[ctx.group.rank()], None


def gather_tokens(local: Tensor, group: dist.ProcessGroup | None) -> Tensor:
    """Return [b, cp * t, ...] from each rank's [b, t, ...], in rank order; differentiable. None is a group of one."""
    return local if group is None else _Gather.apply(local, group)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedAttention:
    """Attention over one packed bin, to be passed to the decoder; the ranks of the group call it together.

    Attributes:
        group: the ranks that share the bin, or None.
        visible: bool[1, t, cp * t], what each local token may see of the slices laid end to end.
    """

    group: dist.ProcessGroup | None
    visible: Tensor

    @classmethod
    def over(cls, slots: Tensor, segments: Tensor, group: dist.ProcessGroup | None) -> PackedAttention:
        """Return the attention in which a token sees its own segment up to its own slot.

        Padding is segment 0: it sees padding and counts nowhere. The ranks of the group call this together.

        Args:
            slots: int64[t], places of the local tokens in the bin.
            segments: int64[t], their sequences.
            group: the ranks that share the bin, or None.
        """
        mine = torch.stack([slots, segments], dim=-1)[None]
        seen = gather_tokens(mine, group)[:, None, :, :]
        query = mine[:, :, None, :]
        visible = (seen[..., 1] == query[..., 1]) & (seen[..., 0] <= query[..., 0])
        return cls(group=group, visible=visible)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attend; see `attend_where`."""
        key, value = gather_tokens(torch.cat([key, value], dim=-1), self.group).chunk(2, dim=-1)
        return attend_where(query, key, value, self.visible)


class CpGroups:
    """The process groups of all CP groups that have occurred.

    All ranks must make all groups, in the same order. They have the same plan, so each makes the groups of the whole
    plan, its own or not.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[int, ...], Any] = {}

    def prepare(self, plan: Plan) -> None:
        """Make the groups of `plan` that are not there yet; all ranks call it together."""
        blocks = sorted({(int(first), int(size)) for first, size in zip(plan.first_rank, plan.cp_size, strict=True)})
        for first, size in blocks:
            ranks = tuple(range(first, first + size))
            if size > 1 and ranks not in self._groups:
                self._groups[ranks] = dist.new_group(list(ranks))

    def of(self, batch: PackedBatch) -> dist.ProcessGroup | None:
        """Return the group that shares the bin of `batch`, None if this rank has it alone."""
        return None if batch.cp_size == 1 else self._groups[batch.cp_ranks]
