"""The batches of a micro-batch as global arrays: one row a CP group, over the devices of a mesh.

Rank r of a plan is device r. With CP size c, N ranks make a mesh of N/c x c devices, ``data`` x ``context``; a global
array has a row for each CP group (times the rows of a rank), c slices wide, and each device holds its own slice. So one
jitted program serves each CP size and row length, and there are few of both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dcpack import Plan
from dcpack._checks import Int64Array, check_choice, list_offenders
from dcpack.errors import ArgumentError
from dcpack.exchange import PackedBatch, StaticShapes, shapes_of_bins
from dcpack.layout import IGNORED_LABEL
from dcpack_jax.wire import narrowed

__all__ = ["SPELLINGS", "GlobalBatch", "global_batches", "spell"]

_AXES = ("data", "context")
SPELLINGS: dict[str, dict[str, str]] = {
    "dcpack": {},
    "maxtext": {
        "input_ids": "inputs",
        "position_ids": "inputs_position",
        "segment_ids": "inputs_segmentation",
        "labels": "targets",
        "target_positions": "targets_position",
        "target_segments": "targets_segmentation",
    },
    "grain": {
        "input_ids": "inputs",
        "position_ids": "inputs_positions",
        "segment_ids": "inputs_segment_ids",
        "labels": "targets",
        "target_positions": "targets_positions",
        "target_segments": "targets_segment_ids",
    },
}
"""What the fields are called, by whose spelling it is. In MaxText and Grain a target counts where its segment is not 0:
there is no -100 and no loss mask."""


@dataclass(frozen=True, kw_only=True, eq=False)
class GlobalBatch:
    """One micro-batch of all ranks.

    Attributes:
        arrays: global arrays by name, each [groups * rows, cp_size * t, ...], sharded over ``data`` and ``context``.
            The slices of a CP group lie side by side in rank order; ``slots`` says where each token is in its bin.
        mesh: of the devices, ``data`` x ``context``.
        cp_size: ranks that share a row.
        global_valid_tokens: tokens of the whole step that count in the loss: divide the sum of losses by it.
        microbatch: number of the micro-batch.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import exchange_samples, gather_samples
        >>> world, shapes = dcpack.get_backend("jax").world(), StaticShapes(max_sequences=2)
        >>> gathered = gather_samples(world, [{"input_ids": [3, 4, 5]}])
        >>> plan = dcpack.plan(gathered.table.lengths, num_ranks=1, capacity=4, scheduler="uniform_cp")
        >>> batches = exchange_samples(world, gathered, plan, static_shapes=shapes)
        >>> (batch,) = global_batches(plan, batches, jax.devices()[:1], shapes=shapes)
        >>> batch.arrays["labels"].tolist(), batch.cp_size, batch.global_valid_tokens
        ([[4, 5, -100, -100]], 1, 2)
    """

    arrays: dict[str, jax.Array]
    mesh: Mesh
    cp_size: int
    global_valid_tokens: int
    microbatch: int


def spell(tokens: Mapping[str, npt.NDArray[Any]], names: str) -> dict[str, npt.NDArray[Any]]:
    """Return per-token fields under the names of another system.

    Args:
        tokens: fields of a `PackedBatch`, such as its `tokens`; what has no name there keeps its own.
        names: a key of `SPELLINGS`.

    Example:
        >>> fields = {"input_ids": np.array([5, 6]), "labels": np.array([6, -100]), "loss_mask": np.array([1, 0]),
        ...           "position_ids": np.array([0, 1]), "segment_ids": np.array([1, 1])}
        >>> {name: array.tolist() for name, array in spell(fields, "maxtext").items()}
        {'inputs': [5, 6], 'targets': [6, 0], 'inputs_position': [0, 1], 'inputs_segmentation': [1, 1], \
'targets_position': [0, 0], 'targets_segmentation': [1, 0]}
    """
    spelling = SPELLINGS[check_choice("names", names, SPELLINGS)]
    if not spelling:
        return dict(tokens)
    fields = dict(tokens)
    counts = (fields["labels"] != IGNORED_LABEL) & (fields.pop("loss_mask") != 0)
    fields["labels"] = np.where(counts, fields["labels"], 0)
    fields["target_positions"] = np.where(counts, fields["position_ids"], 0)
    fields["target_segments"] = np.where(counts, fields["segment_ids"], 0)
    return {spelling.get(name, name): array for name, array in fields.items()}


def global_batches(
    plan: Plan,
    batches: Mapping[int, Sequence[PackedBatch]],
    devices: Sequence[Any] | Mesh,
    *,
    shapes: StaticShapes,
    names: str = "dcpack",
) -> list[GlobalBatch]:
    """Return the micro-batches of a step as global arrays; all processes call it with their own ranks' batches.

    Nothing is communicated. Plan with `uniform_cp`: then all ranks of a micro-batch have one CP size.

    Args:
        plan: the plan of the step, the same on all processes.
        batches: what `exchange_samples` returned, with these `shapes`.
        devices: the device of each plan rank, as ``jax.devices()``; or a mesh of them in that order.
        shapes: the shapes of the exchange.
        names: whose spelling, a key of `SPELLINGS`.

    Raises:
        ArgumentError: a micro-batch with several CP sizes, other devices than ranks, batches of other ranks or shapes,
            or values that would be cut to 32 bits.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import exchange_samples, gather_samples, StaticShapes
        >>> world = dcpack.get_backend("jax").world()
        >>> gathered = gather_samples(world, [{"input_ids": [3, 4, 5]}, {"input_ids": [6, 7]}])
        >>> plan = dcpack.plan(gathered.table.lengths, num_ranks=1, capacity=8, scheduler="uniform_cp")
        >>> shapes = StaticShapes(max_sequences=2)
        >>> batches = exchange_samples(world, gathered, plan, static_shapes=shapes)
        >>> found = global_batches(plan, batches, jax.devices()[:1], shapes=shapes, names="maxtext")
        >>> found[0].arrays["inputs"].tolist()
        [[3, 4, 5, 6, 7, 0, 0, 0]]
    """
    placed = list(devices.devices.flat) if isinstance(devices, Mesh) else list(devices)
    cp_sizes = _cp_size_of_microbatch(plan)
    if len(placed) != plan.num_ranks:
        raise ArgumentError(f"devices must be one for each of {plan.num_ranks} ranks of the plan, got {len(placed)}")
    mine = [rank for rank, device in enumerate(placed) if device.process_index == jax.process_index()]
    if sorted(batches) != mine:
        raise ArgumentError(f"batches are of ranks {sorted(batches)}, but the devices of this process are ranks {mine}")
    _check_rows(plan, batches, shapes)
    found = []
    for microbatch, cp_size in enumerate(cp_sizes.tolist()):
        mesh = Mesh(np.array(placed).reshape(-1, cp_size), _AXES)
        rows = {rank: [batch for batch in batches[rank] if batch.microbatch == microbatch] for rank in mine}
        arrays = _global_arrays(rows, placed, mesh, names)
        valid = batches[mine[0]][0].global_valid_tokens
        found.append(
            GlobalBatch(arrays=arrays, mesh=mesh, cp_size=cp_size, global_valid_tokens=valid, microbatch=microbatch)
        )
    return found


def _cp_size_of_microbatch(plan: Plan) -> Int64Array:
    """Return int64[num_microbatches]; the same error on all processes where a micro-batch has several CP sizes."""
    low = np.full(plan.num_microbatches, plan.num_ranks)
    high = np.zeros(plan.num_microbatches, np.int64)
    np.minimum.at(low, plan.microbatch, plan.cp_size)
    np.maximum.at(high, plan.microbatch, plan.cp_size)
    if mixed := np.flatnonzero(low != high).tolist():
        listed = list_offenders([f"micro-batch {m} has CP sizes from {low[m]} to {high[m]}" for m in mixed])
        raise ArgumentError(
            f"one program of all devices has one CP size: {listed}; plan with scheduler='uniform_cp', as dynamic CP "
            "inside a micro-batch would need a program for every mixture of sizes"
        )
    if uneven := sorted({int(size) for size in high if plan.num_ranks % size}):
        raise ArgumentError(f"CP sizes must divide the {plan.num_ranks} devices of a mesh, got {uneven}")
    return high


def _check_rows(plan: Plan, batches: Mapping[int, Sequence[PackedBatch]], shapes: StaticShapes) -> None:
    """Raise where a batch was exchanged with other shapes: its processes would make arrays that do not fit."""
    expected = shapes_of_bins(plan, shapes)
    wrong = [
        f"{batch.num_tokens} tokens in micro-batch {batch.microbatch} on rank {rank}, expected {expected[b].row_tokens}"
        for rank, rows in batches.items()
        for b, batch in zip(plan.bins_of_rank(rank).tolist(), rows, strict=True)
        if batch.num_tokens != expected[b].row_tokens
    ]
    if wrong:
        raise ArgumentError(f"batches must be exchanged with static_shapes={shapes}: {list_offenders(wrong)}")


def _global_arrays(
    batches: Mapping[int, Sequence[PackedBatch]], devices: list[Any], mesh: Mesh, names: str
) -> dict[str, jax.Array]:
    """Put the rows of each rank on its device, and call all of them one array a field."""
    local = {
        rank: [spell({**batch.tokens, "slots": batch.slots}, names) for batch in rows] for rank, rows in batches.items()
    }
    sharding = NamedSharding(mesh, PartitionSpec(*_AXES))
    num_groups, cp_size = mesh.devices.shape
    first = next(iter(local.values()))
    arrays = {}
    for name, example in first[0].items():
        pieces = [
            jax.device_put(narrowed(np.stack([fields[name] for fields in rows])), devices[rank])
            for rank, rows in local.items()
        ]
        shape = (num_groups * len(first), cp_size * example.shape[0], *example.shape[1:])
        arrays[name] = jax.make_array_from_single_device_arrays(shape, sharding, pieces)
    return arrays
