"""Trains a tiny decoder through dcpack on a mesh of 8 devices, and one sequence at a time, and compares the gradients.

    JAX_NUM_CPU_DEVICES=8 python docs/examples/jax_exactness/main.py

It takes under a minute on 2 cores, prints a table, and exits with 1 if the two differ by more than 1e-5, or if a
mistake that is made on purpose (``--broken`` for one of them alone) is not seen.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from dcpack_jax.arrays import GlobalBatch, global_batches
from jax.sharding import Mesh, PartitionSpec

import dcpack
from dcpack.exchange import StaticShapes, exchange_samples, gather_samples
from dcpack.layout import IGNORED_LABEL

TOLERANCE = 1e-5
BROKEN = {
    "attention_across_sequences": "a token sees all earlier ones of its row",
    "positions_run_on": "positions do not restart with each sequence",
    "mean_of_means": "each micro-batch is divided by its own tokens, then averaged",
}
"""What each variant does wrong."""

VOCABULARY, DIM, HEADS, LAYERS = 61, 32, 4, 2
CAPACITY, SHAPES = 64, StaticShapes(max_sequences=16)
Params = dict[str, Any]
Sample = dict[str, np.ndarray]


def make_params(seed: int) -> Params:
    """Return the parameters of the decoder, in float32."""
    keys = iter(jax.random.split(jax.random.key(seed), 2 + 4 * LAYERS))

    def matrix(rows: int, columns: int) -> jax.Array:
        return jax.random.normal(next(keys), (rows, columns)) * rows**-0.5

    params: Params = {"embed": matrix(VOCABULARY, DIM), "head": matrix(DIM, VOCABULARY)}
    for layer in range(LAYERS):
        params[f"qkv{layer}"] = matrix(DIM, 3 * DIM)
        params[f"out{layer}"] = matrix(DIM, DIM)
        params[f"up{layer}"] = matrix(DIM, 2 * DIM)
        params[f"down{layer}"] = matrix(2 * DIM, DIM)
    return params


def decode(params: Params, tokens: jax.Array, positions: jax.Array, attend: Any) -> jax.Array:
    """Return logits, [t, vocabulary]; `attend` takes queries, keys and values, each [t, heads, d]."""
    # Absolute positions, so that it matters where they start.
    angles = positions[:, None] / 50.0 ** (jnp.arange(DIM) / DIM)
    hidden = params["embed"][tokens] + jnp.sin(angles)
    for layer in range(LAYERS):
        query, key, value = jnp.split(
            (_norm(hidden) @ params[f"qkv{layer}"]).reshape(-1, HEADS, 3 * DIM // HEADS), 3, -1
        )
        hidden = hidden + attend(query, key, value).reshape(-1, DIM) @ params[f"out{layer}"]
        hidden = hidden + jax.nn.gelu(_norm(hidden) @ params[f"up{layer}"]) @ params[f"down{layer}"]
    return _norm(hidden) @ params["head"]


def _norm(hidden: jax.Array) -> jax.Array:
    return hidden * jax.lax.rsqrt((hidden**2).mean(-1, keepdims=True) + 1e-6)


def attend_where(query: jax.Array, key: jax.Array, value: jax.Array, visible: jax.Array) -> jax.Array:
    """Attend where bool[t, s] allows it; each query sees at least one key."""
    scores = jnp.einsum("thd,shd->hts", query, key) * query.shape[-1] ** -0.5
    weights = jax.nn.softmax(jnp.where(visible[None], scores, -jnp.inf), axis=-1)
    return jnp.einsum("hts,shd->thd", weights, value)


def sum_of_losses(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the sum of the cross-entropies of the tokens that count."""
    counts = labels != IGNORED_LABEL
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), jnp.where(counts, labels, 0)[:, None], 1)[:, 0]
    return -jnp.where(counts, chosen, 0).sum()


# One sequence at a time: the reference, without dcpack.


@jax.jit
@jax.value_and_grad
def _sequence_loss(params: Params, tokens: jax.Array, labels: jax.Array) -> jax.Array:
    causal = jnp.tril(jnp.ones((len(tokens), len(tokens)), bool))
    logits = decode(params, tokens, jnp.arange(len(tokens)), functools.partial(attend_where, visible=causal))
    return sum_of_losses(logits, labels)


def one_at_a_time(params: Params, samples: Sequence[Sample]) -> tuple[float, Params]:
    """Return loss and gradients of one step, sequence by sequence."""
    labels = [np.append(sample["input_ids"][1:], IGNORED_LABEL) for sample in samples]
    num_valid = sum(int((each != IGNORED_LABEL).sum()) for each in labels)
    loss, gradients = 0.0, jax.tree.map(jnp.zeros_like, params)
    # Padded at the end to few lengths, for the sake of compilation: causal attention does not look there.
    for sample, each in zip(samples, labels, strict=True):
        pad = (0, -len(each) % CAPACITY)
        tokens, targets = np.pad(sample["input_ids"], pad), np.pad(each, pad, constant_values=IGNORED_LABEL)
        value, gradient = _sequence_loss(params, jnp.array(tokens), jnp.array(targets))
        loss += float(value) / num_valid
        gradients = jax.tree.map(lambda total, part: total + part / num_valid, gradients, gradient)
    return loss, gradients


# Packed, on a mesh: a row for each CP group, a slice of it for each device.


@functools.cache
def packed_loss(mesh: Mesh) -> Any:
    """Return the jitted function of loss and gradients for one mesh of data x context."""
    rows = PartitionSpec("data", "context")

    def local_loss(params: Params, arrays: dict[str, jax.Array], weight: jax.Array) -> jax.Array:
        mine = {name: array[0] for name, array in arrays.items()}
        everyone = {name: jax.lax.all_gather(mine[name], "context", tiled=True) for name in ("slots", "segment_ids")}
        # A token sees its own segment up to its own place in the bin; padding, segment 0, sees padding.
        visible = (mine["segment_ids"][:, None] == everyone["segment_ids"][None]) & (
            mine["slots"][:, None] >= everyone["slots"][None]
        )

        def attend(query: jax.Array, key: jax.Array, value: jax.Array) -> jax.Array:
            keys, values = (jax.lax.all_gather(part, "context", tiled=True) for part in (key, value))
            return attend_where(query, keys, values, visible)

        logits = decode(params, mine["input_ids"], mine["position_ids"], attend)
        return jax.lax.psum(sum_of_losses(logits, mine["labels"]) * weight, ("data", "context"))

    total = jax.shard_map(
        local_loss, mesh=mesh, in_specs=(PartitionSpec(), rows, PartitionSpec()), out_specs=PartitionSpec()
    )
    return jax.jit(jax.value_and_grad(total))


def packed(params: Params, samples: Sequence[Sample], broken: str | None = None) -> tuple[float, Params, list[int]]:
    """Return loss, gradients and CP sizes of one step through dcpack, on all devices of this process."""
    backend: Any = dcpack.get_backend("jax")
    with backend.world() as world:
        gathered = gather_samples(world, list(samples))
        plan = dcpack.plan(
            gathered.table.lengths,
            num_ranks=len(jax.devices()),
            capacity=CAPACITY,
            scheduler="uniform_cp",
            cost=dcpack.RingCost(),
            padding=dcpack.PaddingRule(),
            max_sequences=SHAPES.max_sequences,
            on_empty="dummy",
        )
        topology = backend.topology()
        batches = exchange_samples(world, gathered, plan, topology=topology, static_shapes=SHAPES)
    loss, gradients = 0.0, jax.tree.map(jnp.zeros_like, params)
    placed = global_batches(plan, batches, jax.devices(), shapes=SHAPES)
    for batch in placed:
        arrays, weight = break_batch(batch, broken, len(placed))
        replicated = jax.device_put(params, jax.sharding.NamedSharding(batch.mesh, PartitionSpec()))
        value, gradient = packed_loss(batch.mesh)(replicated, arrays, jnp.float32(weight))
        loss += float(value)
        gradients = jax.tree.map(lambda total, part: total + np.asarray(part), gradients, gradient)
    return loss, gradients, sorted({batch.cp_size for batch in placed})


def break_batch(batch: GlobalBatch, broken: str | None, num_microbatches: int) -> tuple[dict[str, jax.Array], float]:
    """Return what the loss takes, and the weight of each token in it, as the variant has them."""
    arrays = {name: batch.arrays[name] for name in ("input_ids", "labels", "position_ids", "segment_ids", "slots")}
    weight = 1.0 / max(batch.global_valid_tokens, 1)
    if broken == "attention_across_sequences":
        arrays["segment_ids"] = jnp.minimum(arrays["segment_ids"], 1)
    if broken == "positions_run_on":
        arrays["position_ids"] = jnp.maximum(arrays["slots"], 0)
    if broken == "mean_of_means":
        here = int((np.asarray(arrays["labels"]) != IGNORED_LABEL).sum())
        weight = 1.0 / (max(here, 1) * num_microbatches)
    return arrays, weight


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """How far one way is from the reference, at its worst step.

    Attributes:
        name: of the way.
        loss: relative to the loss.
        gradients: relative to the largest element of each parameter's gradient.
        cp_sizes: that were met.
    """

    name: str
    loss: float
    gradients: float
    cp_sizes: tuple[int, ...]

    @property
    def agrees(self) -> bool:
        """Whether both are within the tolerance; NaN is not."""
        return self.loss <= TOLERANCE and self.gradients <= TOLERANCE


def compare(num_steps: int, seed: int, broken: str | None) -> Row:
    """Compare the two ways on random documents; each step has other parameters."""
    losses, gradients, cp_sizes = [], [], set()
    for step in range(num_steps):
        generator = np.random.default_rng([seed, step])
        lengths = np.minimum(1 + (generator.pareto(1.0, 20) * 20).astype(int), 300)
        samples = [{"input_ids": generator.integers(0, VOCABULARY, length).astype(np.int32)} for length in lengths]
        params = make_params(seed + step)
        expected_loss, expected = one_at_a_time(params, samples)
        found_loss, found, sizes = packed(params, samples, broken)
        losses.append(abs(found_loss - expected_loss) / expected_loss)
        gradients += [
            float(jnp.abs(found[name] - wanted).max() / jnp.abs(wanted).max()) for name, wanted in expected.items()
        ]
        cp_sizes |= set(sizes)
    name = broken or "packed, one CP size a micro-batch"
    return Row(name=name, loss=max(losses), gradients=max(gradients), cp_sizes=tuple(sorted(cp_sizes)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print, and return the exit status."""
    parser = argparse.ArgumentParser(description="Compares training through dcpack with one sequence at a time.")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--broken", choices=BROKEN, nargs="*", default=list(BROKEN), help="which mistakes to make")
    args = parser.parse_args(arguments)
    faults = []
    print(f"{len(jax.devices())} devices, {args.steps} steps, tolerance {TOLERANCE:g}")
    for broken in (None, *args.broken):
        row = compare(args.steps if broken is None else 1, args.seed, broken)
        if row.agrees == (broken is not None):
            faults.append(f"{row.name}: {'passes, though it is broken' if broken else 'differs'}")
        sizes = " ".join(map(str, row.cp_sizes))
        print(f"{row.name:<36} loss {row.loss:.1e}  gradients {row.gradients:.1e}  CP sizes {sizes}")
        if broken is None and len(row.cp_sizes) < 2:
            faults.append(f"only CP size {sizes} was met")
    print("\n".join(["NOT PROVEN", *faults]) if faults else "PROVEN")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
