"""What the processes of the tests of RL batches, TP broadcast and random datasets do."""

from __future__ import annotations

from typing import Any

import numpy as np
import shared_bodies
import torch
import torch.distributed as dist
from dcpack_torch.backend import TorchGlooBackend
from dcpack_torch.random_data import get_random_dataset_fsdp_tp, get_random_varlen_dataset_fsdp_tp
from torch.utils.data import DataLoader, IterableDataset

from dcpack import BatchedDataDict, PeerError


def gather_batches(rank: int, size: int) -> dict[str, Any]:
    """Gather NumPy, torch and JAX batches; jagged rows and columns, an empty rank; then over pairs of ranks."""
    import jax

    world = TorchGlooBackend(deadline_s=60.0).world()
    found: dict[str, Any] = {}
    for name, make, kind in (
        ("numpy", np.array, np.ndarray),
        ("torch", torch.tensor, torch.Tensor),
        ("jax", jax.device_put, jax.Array),
    ):
        found[name] = shared_bodies.gather_rollouts(world, make, kind)
    half = _connected_groups([list(range(size // 2)), list(range(size // 2, size))])
    mine = TorchGlooBackend(group=half[rank >= size // 2], deadline_s=60.0).world()
    found["half"] = BatchedDataDict(r=[rank] * rank).all_gather(mine)["r"]
    bfloat = BatchedDataDict(x=torch.full((rank, 1), 0.5, dtype=torch.bfloat16)).all_gather(world)["x"]
    assert bfloat.dtype == torch.bfloat16
    found["bfloat16"] = bfloat.tolist()
    return found


def shard_and_gather(rank: int, size: int) -> list[Any]:
    """Each rank takes its shard of the same batch; gathered and reordered it is the batch again."""
    world = TorchGlooBackend(deadline_s=60.0).world()
    lengths = torch.tensor([5, 1, 8, 3, 2, 7, 4, 6] * size)
    batch = BatchedDataDict(n=lengths, row=list(range(8 * size)))
    cfg = {"max_tokens_per_microbatch": 10, "input_lengths_key": "n"}
    shards, order = batch.shard_by_batch_size(size, sequence_packing_cfg=cfg)
    gathered = BatchedDataDict(shards[rank]).all_gather(world)
    gathered.reorder_data(order)
    assert torch.equal(gathered["n"], lengths)
    return gathered["row"]


def gather_fails(rank: int, size: int) -> str:
    world = TorchGlooBackend(deadline_s=60.0).world()
    batch = BatchedDataDict(x=torch.zeros(2), y=[1] * (3 if rank == size - 1 else 2))
    try:
        batch.all_gather(world)
    except PeerError as error:
        world.barrier()
        return str(error).splitlines()[0]
    return "nothing"


class Stream(IterableDataset[Any]):
    """No length; fails at the end if asked to."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def __iter__(self) -> Any:
        return shared_bodies.stream(torch.tensor, torch.zeros(0, 3, dtype=torch.bfloat16), fails=self.fails)


def broadcast_batches(rank: int, size: int) -> list[Any]:
    """The leader's DataLoader over an endless kind of dataset, and then one that fails."""
    world = TorchGlooBackend(deadline_s=60.0).world()
    return shared_bodies.broadcast_batches(
        world, lambda fails: DataLoader(Stream(fails), batch_size=None), torch.Tensor, torch.bfloat16
    )


def _connected_groups(members: list[list[int]]) -> list[Any]:
    """A group of torch's for each list of ranks, connected on all: who leaves at once then leaves nobody behind."""
    groups: list[Any] = [dist.new_group(ranks) for ranks in members]
    dist.barrier()
    return groups


def random_data(rank: int, size: int, tp_size: int, broadcast_within_tp: bool) -> dict[str, Any]:
    """The samples that this rank sees in two epochs, as numbers of the dataset, and what kind of loader it has."""
    tp_groups = _connected_groups([list(range(start, start + tp_size)) for start in range(0, size, tp_size)])
    dp_groups = _connected_groups([list(range(start, size, tp_size)) for start in range(tp_size)])
    parts = get_random_dataset_fsdp_tp(
        4,
        1000,
        8,
        dp_group=dp_groups[rank % tp_size],
        tp_group=tp_groups[rank // tp_size],
        broadcast_within_tp=broadcast_within_tp,
    )
    loader, sampler = parts["dataloader"], parts["sampler"]
    numbers = {tuple(sample.tolist()): i for i, sample in enumerate(parts["dataset"])}
    epochs = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        epochs.append([numbers[tuple(sample.tolist())] for batch in loader for sample in batch])
    return {
        "epochs": epochs,
        "kind": type(loader).__name__,
        "length": len(loader),
        "replicas": sampler.num_replicas,
    }


def random_varlen(rank: int, size: int) -> tuple[int, list[Any]]:
    """TP over all ranks, no DP group: all see the same batches."""
    parts = get_random_varlen_dataset_fsdp_tp(
        2, 50, 20, num_sequences=6, tp_group=dist.group.WORLD, broadcast_within_tp=True
    )
    batches = [(batch["input_ids"].tolist(), batch["input_lengths"].tolist()) for batch in parts["dataloader"]]
    return parts["sampler"].num_replicas, batches


def random_data_without_dp_group(rank: int, size: int) -> str:
    pairs = _connected_groups([[0, 1], [2, 3]])
    try:
        get_random_dataset_fsdp_tp(1, 10, 4, tp_group=pairs[rank // 2])
    except ValueError as error:
        return str(error)
    return "nothing"
