"""Train a tiny decoder with JAX on sequences of very different lengths, with one CP size in each micro-batch.

    JAX_PLATFORMS=cpu dcpack launch -n 2 -- python docs/examples/training_loop/jax_uniform_cp.py

Each process has one device. Each optimizer step is one global batch; the loader plans how many micro-batches it takes,
and how many devices share a row in each. One jitted program serves each CP size. The loss is divided once, by the valid
tokens of the whole step.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dcpack_jax.arrays import GlobalBatch, global_batches
from jax.sharding import Mesh, PartitionSpec

import dcpack
from dcpack.exchange import StaticShapes
from dcpack.layout import IGNORED_LABEL
from dcpack.loader import CPPlanning

VOCABULARY, WIDTH, SEQ_LEN, LEARNING_RATE = 32, 16, 64, 0.5
SHAPES = StaticShapes(max_sequences=8)
Params = dict[str, Any]


class Documents:
    """Token sequences, few of them long; each counts up in steps of its own."""

    def __init__(self, num_samples: int) -> None:
        drawn = np.random.default_rng(0).pareto(1.0, num_samples)
        self.lengths = np.minimum(6 + drawn * 8, SEQ_LEN).astype(int)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        return {"input_ids": (np.arange(self.lengths[index], dtype=np.int32) * (index % 3 + 1)) % VOCABULARY}


def build_loader(mesh: Mesh, num_samples: int) -> dcpack.DistributedDataLoader:
    """The loader: global batches of 8 samples; as many micro-batches and CP sizes as the plan of each step says.

    All devices together hold the longest document, one alone does not: some rows must be shared.
    """
    return dcpack.build_distributed_dataloader(
        Documents(num_samples),
        mesh,
        {"seq_len": SEQ_LEN // mesh.size, "local_batch_size": 8 // mesh.size, "communication_backend": "jax"},
        scheduler=CPPlanning(scheduler="uniform_cp", max_sequences=SHAPES.max_sequences, static_shapes=SHAPES),
        cost_model=dcpack.RingCost(),
        metadata_fn=lambda sample: dcpack.SampleMetadata(pack_tokens=len(sample["input_ids"])),
        collate_fn=lambda packed: packed,
        batch_sampler=dcpack.GlobalBatchSampler(num_samples, global_batch_size=8, seed=3),
    )


def make_params() -> Params:
    """One layer of attention between an embedding and a head, the same on every process."""
    draw = np.random.default_rng(1)
    shapes = {
        "embed": (VOCABULARY, WIDTH),
        "qkv": (WIDTH, 3 * WIDTH),
        "out": (WIDTH, WIDTH),
        "head": (WIDTH, VOCABULARY),
    }
    return {name: draw.normal(0, shape[0] ** -0.5, shape).astype(np.float32) for name, shape in shapes.items()}


@functools.cache
def loss_and_gradients(mesh: Mesh) -> Any:
    """The jitted function for one CP size: a row for each CP group, a slice of it for each device."""
    rows = PartitionSpec("data", "context")

    def local_loss(params: Params, arrays: dict[str, jax.Array], weight: jax.Array) -> jax.Array:
        mine = {name: array[0] for name, array in arrays.items()}
        gather = functools.partial(jax.lax.all_gather, axis_name="context", tiled=True)
        # A token sees its own segment up to its own place in the bin; padding, segment 0, sees padding.
        visible = mine["segment_ids"][:, None] == gather(mine["segment_ids"])[None]
        visible &= mine["slots"][:, None] >= gather(mine["slots"])[None]
        hidden = params["embed"][mine["input_ids"]] + jnp.sin(mine["position_ids"][:, None] * 0.7 ** jnp.arange(WIDTH))
        query, key, value = jnp.split(hidden @ params["qkv"], 3, axis=-1)
        scores = jnp.where(visible, query @ gather(key).T * WIDTH**-0.5, -jnp.inf)
        hidden = hidden + jax.nn.softmax(scores) @ gather(value) @ params["out"]
        counts = mine["labels"] != IGNORED_LABEL
        targets = jnp.where(counts, mine["labels"], 0)
        each = jnp.take_along_axis(jax.nn.log_softmax(hidden @ params["head"]), targets[:, None], axis=1)[:, 0]
        return jax.lax.psum(-jnp.where(counts, each, 0).sum() * weight, ("data", "context"))

    whole = PartitionSpec()
    total = jax.shard_map(local_loss, mesh=mesh, in_specs=(whole, rows, whole), out_specs=whole)
    return jax.jit(jax.value_and_grad(total))


def micro_step(params: Params, batch: GlobalBatch) -> tuple[jax.Array, Params]:
    """Queue one micro-batch on the devices, and return its part of the loss and of the gradients."""
    names = ("input_ids", "labels", "position_ids", "segment_ids", "slots")
    arrays = {name: batch.arrays[name] for name in names}
    return loss_and_gradients(batch.mesh)(params, arrays, np.float32(1 / batch.global_valid_tokens))


@jax.jit
def update(params: Params, gradients: list[Params]) -> Params:
    """Plain gradient descent on the sum over micro-batches."""
    return jax.tree.map(lambda value, *parts: value - LEARNING_RATE * sum(parts), params, *gradients)


def train(num_samples: int = 48, num_epochs: int = 2) -> tuple[list[float], list[dict[str, float]], list[list[int]]]:
    """Train and return of each step the loss, the metrics, and the CP sizes of its micro-batches."""
    dcpack.get_backend("jax").world()  # before any device is used
    mesh = Mesh(np.array(jax.devices()), ("data",))
    params: Params = make_params()
    losses, metrics, cp_sizes = [], [], []
    with build_loader(mesh, num_samples) as loader:
        for _ in range(num_epochs):
            packed = []
            for batch in loader:
                packed.append(batch.data)
                if not batch.is_last:
                    continue
                assert loader.last_planned is not None
                (plan,) = loader.last_planned.plans
                placed = global_batches(plan, {jax.process_index(): packed}, mesh, shapes=SHAPES)
                found = [micro_step(params, each) for each in placed]
                params = update(params, [gradients for _, gradients in found])
                # The devices compute. Meanwhile the next step is read, planned, exchanged and packed, on this thread.
                loader.prefetch()
                losses.append(float(sum(loss for loss, _ in found)))  # waits for them
                metrics.append(loader.metrics())
                cp_sizes.append([each.cp_size for each in placed])
                packed = []
    return losses, metrics, cp_sizes


def main() -> None:
    """Run it on the processes that `dcpack launch` started."""
    losses, metrics, cp_sizes = train()
    if jax.process_index() == 0:
        for step, (loss, numbers, sizes) in enumerate(zip(losses, metrics, cp_sizes, strict=True)):
            balance = f"imbalance {numbers['loader/imbalance_before']:.2f} to {numbers['loader/imbalance_after']:.2f}"
            print(f"step {step}: loss {loss:.4f}, CP sizes {sizes}, {balance}")


if __name__ == "__main__":
    main()
