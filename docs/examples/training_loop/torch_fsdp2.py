"""Train a small model with FSDP2 on variable-length samples, through the loader that stays ahead.

    torchrun --nproc-per-node 2 torch_fsdp2.py

Each optimizer step is one global batch, whatever the number of ranks. Micro-batches are packed rows of token ids with
their boundaries; the loss is divided once, by the valid tokens of the whole step.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import dcpack
from dcpack.cost import StepRecorder
from dcpack.loader import time_recorder

VOCABULARY, WIDTH, SEQ_LEN = 64, 32, 64


class Documents:
    """Token sequences of very different lengths, with labels shifted already."""

    def __init__(self, num_samples: int) -> None:
        self.lengths = np.random.default_rng(0).integers(4, SEQ_LEN, num_samples)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        tokens = (np.arange(self.lengths[index] + 1) * (index % 5 + 1)) % VOCABULARY
        return {"input_ids": tokens[:-1], "labels": tokens[1:]}


def describe(sample: dict[str, np.ndarray]) -> dcpack.SampleMetadata:
    """Tell the loader how long a sample is."""
    return dcpack.SampleMetadata(pack_tokens=len(sample["input_ids"]))


def collate(rows: tuple[dict[str, np.ndarray], ...]) -> dict[str, np.ndarray]:
    """Lay the rows of a micro-batch end to end."""
    return {name: np.concatenate([row[name] for row in rows]) for name in ("input_ids", "labels")}


def build_loader(mesh: Any, num_samples: int = 64) -> dcpack.DistributedDataLoader:
    """The loader: global batches of 8 samples, 2 micro-batches a step on two ranks."""
    return dcpack.build_distributed_dataloader(
        Documents(num_samples),
        mesh,
        {"seq_len": SEQ_LEN, "local_batch_size": 2, "balance_window_size": 2, "communication_backend": "gloo"},
        metadata_fn=describe,
        collate_fn=collate,
        batch_sampler=dcpack.GlobalBatchSampler(num_samples, global_batch_size=8, seed=3),
        device="cpu",
    )


def train(num_epochs: int = 2) -> tuple[list[float], list[dict[str, float]], StepRecorder]:
    """Train and return the loss and the metrics of each step, and the times for `MeasuredCost.fit`."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, WIDTH), torch.nn.Linear(WIDTH, VOCABULARY))
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    recorder, losses, metrics = StepRecorder(), [], []
    with build_loader(mesh) as loader:
        loader.on_step(time_recorder(recorder))
        for _ in range(num_epochs):
            total = torch.zeros(())
            for batch in loader:
                logits = model(batch.data["input_ids"])
                loss = torch.nn.functional.cross_entropy(logits, batch.data["labels"], reduction="sum")
                # FSDP averages over ranks; the sum over all of them is wanted, over all tokens of the step.
                (loss * dist.get_world_size() / batch.global_valid_tokens).backward()
                total += loss.detach() / batch.global_valid_tokens
                if batch.is_last:
                    optimizer.step()
                    optimizer.zero_grad()
                    dist.all_reduce(total)
                    losses.append(float(total))
                    metrics.append(loader.metrics())
                    total = torch.zeros(())
    return losses, metrics, recorder


def main() -> None:
    """Run it on the processes that torchrun started."""
    dist.init_process_group("gloo")
    losses, metrics, recorder = train()
    if dist.get_rank() == 0:
        last = metrics[-1]
        print(f"{len(losses)} steps, loss {losses[0]:.3f} to {losses[-1]:.3f}")
        print(f"imbalance {last['loader/imbalance_before']:.3f} to {last['loader/imbalance_after']:.3f}")
        print(f"{len(recorder.samples)} times for MeasuredCost.fit")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
