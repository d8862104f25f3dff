"""`dcpack.megatron`: each public callable, and arguments that it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hostile_calls import Call

import dcpack
from dcpack import megatron

MESH = dcpack.Topology(axes=("dp",), sizes=(1,))
PLAN = dcpack.plan([3, 2], num_ranks=1, capacity=8)
OPTIONS = megatron.StepOptions(capacity=8)
STAGE = {"is_first": True, "is_last": False}


def samples() -> list[dict[str, Any]]:
    return [megatron.complete_sample(sample) for sample in megatron.unpack_samples(items()).samples]


def items() -> list[dict[str, Any]]:
    return [{"tokens": np.arange(n), "padded_seq_len": n} for n in (3, 2)]


def row() -> dict[str, Any]:
    return megatron.pack_sequences(samples())


CALLS = {
    "unpack_samples": Call(megatron.unpack_samples, lambda: {"items": items(), "to_host": np.asarray}),
    **{
        f"unpack_samples {name}": Call(
            lambda name=name, **given: megatron.unpack_samples([{**items()[0], name: given["value"]}]),
            lambda name=name: {"value": {**items()[0], "original_seq_len": 2, "labels": [1, 2, 3]}[name]},
        )
        for name in ("tokens", "padded_seq_len", "original_seq_len", "labels")
    },
    "unpack_samples cu_seqlens": Call(
        lambda value: megatron.unpack_samples([{"tokens": np.arange(4), "cu_seqlens": value}]),
        lambda: {"value": [0, 4]},
    ),
    "complete_sample": Call(megatron.complete_sample, lambda: {"sample": samples()[0]}),
    "get_batch_and_global_lengths": Call(
        megatron.get_batch_and_global_lengths,
        lambda communicator: {
            "communicator": communicator,
            "data_iterator": iter(items()),
            "num_microbatches": 2,
            "to_host": np.asarray,
        },
    ),
    "per_token_fields": Call(megatron.per_token_fields, lambda own: {"communicator": own, "samples": samples()}),
    "reroute_samples": Call(
        megatron.reroute_samples,
        lambda communicator: {
            "communicator": communicator,
            "samples": samples(),
            "ids": [0, 1],
            "plan": PLAN,
            "sharding": "zigzag",
            "per_token": None,
            "to_host": np.asarray,
        },
    ),
    "pack_sequences": Call(
        megatron.pack_sequences,
        lambda: {
            "samples": samples(),
            "padded_lengths": [4, 2],
            "num_slots": 8,
            "local_cp_size": 2,
            "cp_rank": 1,
            "per_token": None,
        },
    ),
    "build_packed_microbatches": Call(
        megatron.build_packed_microbatches,
        lambda: {
            "samples": dict(enumerate(samples())),
            "plan": PLAN,
            "plan_rank": 0,
            "ranks": [0],
            "per_token": None,
        },
    ),
    "metadata_of": Call(megatron.metadata_of, lambda: {"row": row()}),
    "plan_step": Call(megatron.plan_step, lambda: {"padded_lengths": [3, 2], "options": OPTIONS, "num_ranks": 1}),
    "StepOptions": Call(
        megatron.StepOptions,
        lambda: {
            "capacity": 64,
            "scheduler": "dynamic_cp",
            "cp_size": 2,
            "tp_size": 2,
            "pp_size": 2,
            "vpp_size": 2,
            "microbatch_group_size": 2,
            "padding": dcpack.PaddingRule(tp=2),
            "sharding": "zigzag",
            "cp_sizes": (1, 2),
            "min_cp_size": 1,
            "max_cp_size": 2,
            "max_sequences": 4,
            "on_empty": "dummy",
            "cost": dcpack.QuadraticCost(),
            "sync": "step",
        },
    ),
    "needs_of_stage": Call(megatron.needs_of_stage, lambda: {**STAGE, "vpp_size": 2, "vpp_stage": 1, "has_mtp": False}),
    "needs_of_virtual_stages": Call(
        megatron.needs_of_virtual_stages, lambda: {**STAGE, "vpp_size": 4, "mtp_stages": [1]}
    ),
    "pick_data_iterator": Call(megatron.pick_data_iterator, lambda: {"data_iterator": [iter("a")], "vpp_size": 1}),
    "make_data_iterators": Call(
        megatron.make_data_iterators,
        lambda: {"rows": [row()], "needs": [(True, True), (False, False)], "is_tp_first": True},
    ),
    "slice_for_cp_rank": Call(
        megatron.slice_for_cp_rank,
        lambda: {
            "cu_seqlens_padded": [0, 8],
            "num_slots": 10,
            "cp_size": 2,
            "cp_rank": 0,
            "sharding": "zigzag",
        },
    ),
    "RankBatch.get": Call(
        megatron.RankBatch(fields={}, packed_seq_params={}, padding_mask=None, sample_fields=[]).get,
        lambda: {"name": "tokens"},
    ),
    "get_batch_for_rank": Call(
        megatron.get_batch_for_rank,
        lambda world: {
            "groups": megatron.build_groups(world, MESH),
            "data_iterator": iter([row()]),
            "vpp_size": 1,
            "vpp_stage": 0,
            "has_mtp": False,
            "sharding": "zigzag",
            "padded_in_both": False,
            "to_device": None,
        },
        few=True,
    ),
    "wrap_data_iterator": Call(
        megatron.wrap_data_iterator,
        lambda world: {
            "groups": megatron.build_groups(world, MESH),
            "data_iterator": iter(items()),
            "options": OPTIONS,
            "num_microbatches": 2,
            "mtp_stages": (),
            "to_host": np.asarray,
            "to_device": None,
        },
        few=True,
    ),
    "build_groups": Call(megatron.build_groups, lambda world: {"world": world, "topology": MESH}),
    "ParallelGroups": Call(
        megatron.ParallelGroups, lambda world: {"tp": world, "pp": world, "dp": world, "dp_cp": world}
    ),
    "ParallelGroups.cp_group": Call(
        lambda world, cp_rank, cp_size: megatron.build_groups(world, MESH).cp_group(cp_rank, cp_size),
        lambda world: {"world": world, "cp_rank": 0, "cp_size": 1},
    ),
    "broadcast_tensor": Call(
        megatron.broadcast_tensor,
        lambda own: {"communicator": own, "tensor": np.arange(3), "root": 0},
    ),
    "broadcast_scalars": Call(
        megatron.broadcast_scalars, lambda own: {"communicator": own, "values": [1, 2.5], "root": 0}
    ),
    "broadcast_metadata": Call(
        megatron.broadcast_metadata,
        lambda own: {"communicator": own, "rows": [row()], "totals": {"a": 1}},
    ),
}

LEFT_OUT = {
    "GlobalBatch": "a result of get_batch_and_global_lengths",
    "RankBatch": "a result of get_batch_for_rank",
    "StepData": "a result of wrap_data_iterator",
    "StepTotals": "a result, in that of wrap_data_iterator",
    "UnpackedSamples": "a result of unpack_samples",
}

# What of the values has a meaning there.
TAKES = {
    "unpack_samples.items": "list",
    "unpack_samples padded_seq_len.value": "0-d",
    "unpack_samples original_seq_len.value": "zero, number of an enum, 0-d",
    "per_token_fields.samples": "list",
    "reroute_samples.per_token": "none, map",
    "pack_sequences.padded_lengths": "none, unsigned",
    "pack_sequences.num_slots": "none",
    "pack_sequences.cp_rank": "zero",
    "pack_sequences.per_token": "none, map",
    "pack_sequences.local_cp_size": "number of an enum",
    "build_packed_microbatches.plan_rank": "zero",
    "build_packed_microbatches.ranks": "none",
    "build_packed_microbatches.per_token": "none, map",
    "metadata_of.row": "map, odd map",
    "plan_step.padded_lengths": "list, unsigned",
    "plan_step.num_ranks": "number of an enum",
    "StepOptions.microbatch_group_size": "none, number of an enum",
    "StepOptions.padding": "none",
    "StepOptions.max_cp_size": "none, huge, number of an enum",
    "StepOptions.max_sequences": "none, huge, number of an enum",
    "StepOptions.capacity": "number of an enum",
    "StepOptions.cp_size": "number of an enum",
    "StepOptions.tp_size": "number of an enum",
    "StepOptions.pp_size": "number of an enum",
    "StepOptions.vpp_size": "number of an enum",
    "StepOptions.cp_sizes": "unsigned",
    "StepOptions.min_cp_size": "number of an enum",
    "needs_of_stage.is_first": "true, numpy true",
    "needs_of_stage.is_last": "true, numpy true",
    "needs_of_stage.vpp_stage": "zero",
    "needs_of_stage.has_mtp": "true, numpy true",
    "needs_of_stage.vpp_size": "number of an enum",
    "needs_of_virtual_stages.is_first": "true, numpy true",
    "needs_of_virtual_stages.is_last": "true, numpy true",
    "needs_of_virtual_stages.mtp_stages": "list, unsigned",
    "needs_of_virtual_stages.vpp_size": "number of an enum",
    "pick_data_iterator.data_iterator": "none, generator",
    "make_data_iterators.rows": "list",
    "make_data_iterators.is_tp_first": "true, numpy true",
    "slice_for_cp_rank.cp_rank": "zero",
    "slice_for_cp_rank.cp_size": "number of an enum",
    "RankBatch.get.name": "text, surrogate",
    "get_batch_for_rank.vpp_stage": "none",
    "get_batch_for_rank.has_mtp": "true, numpy true",
    "get_batch_for_rank.padded_in_both": "true, numpy true",
    "get_batch_for_rank.to_device": "none",
    "wrap_data_iterator.mtp_stages": "list",
    "wrap_data_iterator.to_device": "none",
    "ParallelGroups.cp_group.cp_rank": "zero",
    "broadcast_tensor.tensor": (
        "none, true, numpy true, zero, minus, huge, nan, inf, half, minus zero, text, surrogate, list, map, "
        "minuses, nans, texts, nones, maps, ragged, 0-d, 2-d, floats, whole floats, unsigned, hugest"
    ),
    "broadcast_tensor.root": "zero",
    "broadcast_scalars.values": "list, minuses, nans, nones, floats, whole floats, unsigned, hugest",
    "broadcast_scalars.root": "zero",
    "broadcast_metadata.rows": "list, maps",
    "broadcast_metadata.totals": "map",
    "get_batch_and_global_lengths.num_microbatches": "number of an enum",
}
