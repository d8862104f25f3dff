"""`dcpack.loader`: each public callable, and arguments that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hostile_calls import Call

import dcpack
from dcpack import cost, loader

CONFIG = {"seq_len": 8, "local_batch_size": 1, "communication_backend": "fake"}
DATA = [{"input_ids": np.arange(n)} for n in (3, 2, 4)]
MESH = dcpack.Topology.of_domain(1)
SAMPLE = loader.SampleMetadata(pack_tokens=3)
PLANNING = loader.CPPlanning()


def describe(sample: dict[str, Any]) -> loader.SampleMetadata:
    return loader.SampleMetadata(pack_tokens=3)


def sampler() -> loader.GlobalBatchSampler:
    return loader.GlobalBatchSampler(6, global_batch_size=2, seed=1, micro_batch_size=1, dp_rank=0, dp_world_size=1)


def plain_sampler() -> loader.GlobalBatchSampler:
    return loader.GlobalBatchSampler(3, global_batch_size=1, seed=1)


def build(config: Any = CONFIG, **changes: Any) -> loader.DistributedDataLoader:
    given = {"metadata_fn": describe, "batch_sampler": plain_sampler(), **changes}
    return dcpack.build_distributed_dataloader(DATA, MESH, config, **given)


def with_loader(use: Any) -> Any:
    def fn(**given: Any) -> Any:
        with build() as made:
            return use(made, **given)

    return fn


def built(**given: Any) -> None:
    with dcpack.build_distributed_dataloader(**given):
        pass


class Writer:
    def add_scalar(self, tag: str, value: float, global_step: int) -> None:
        pass

    def log(self, values: dict[str, float], step: int) -> None:
        pass


def packed_batch() -> Any:
    from hostile_exchange import BATCHES

    return BATCHES[0][0]


RECORD = {"input_ids": [1, 2, 3], "labels": [2, 3, -100], "cu_seq_lens": [0, 3]}
ROWS = loader.TextRows(seq_len=8, pad_token_id=0)
STATE = with_loader(lambda made: made.state_dict())()

CALLS: dict[str, Call] = {
    "SampleMetadata": Call(
        loader.SampleMetadata,
        lambda: {
            "pack_tokens": 3,
            "cost": None,
            "sample_id": "a",
            "features": {},
            "packing_costs": {"images": 1.0},
            "key": None,
        },
    ),
    "SampleMetadata.with_key": Call(SAMPLE.with_key, lambda: {"key": loader.SampleKey(position=1)}),
    "SampleMetadata.from_tree": Call(loader.SampleMetadata.from_tree, lambda: {"tree": SAMPLE.to_tree()}),
    "WorkloadCost": Call(
        loader.WorkloadCost,
        lambda: {"io": 1.0, "transform": 1.0, "encoder": 1.0, "llm": 1.0, "memory": 1.0, "communication": 1.0},
    ),
    "WorkloadCost.of_parts": Call(loader.WorkloadCost.of_parts, lambda: {"parts": loader.WorkloadCost().parts()}),
    "PackingConstraints": Call(
        loader.PackingConstraints,
        lambda: {"seq_len": 8, "oversized_policy": "error", "packing_budgets": {"images": 3.0}},
    ),
    **{
        f"PackingConstraints.{name}": Call(
            getattr(loader.PackingConstraints(8), name), lambda what=what, value=value: {what: value}
        )
        for name, what, value in (
            ("is_oversized", "sample", SAMPLE),
            ("sample_faults", "sample", SAMPLE),
            ("fits", "samples", [SAMPLE]),
            ("validate_samples", "samples", [SAMPLE]),
        )
    },
    "TensorFieldSpec": Call(loader.TensorFieldSpec, lambda: {"shape": (None, 3), "dtype": "int64"}),
    "TensorFieldSpec.fits": Call(
        loader.TensorFieldSpec((None, 3), "int64").fits, lambda: {"dtype": "int64", "shape": (2, 3)}
    ),
    "DistributedDatasetConfig": Call(
        loader.DistributedDatasetConfig,
        lambda: {
            **CONFIG,
            "drop_last": True,
            "dp_dim_names": ("dp",),
            "dataset_reader_ranks": (0,),
            "dataset_already_sharded": False,
            "planner_rank": 0,
            "oversized_policy": "error",
            "seed": 3,
            "min_balance_gain": 0.5,
            "packing_budgets": {"images": 3},
            "balance_group_size": 1,
            "metadata_mode": False,
            "broadcast_plan": True,
            "balance_window_size": 1,
            "log_balance": False,
            "repack_sequences": False,
            "pad_token_id": 0,
            "device_prefetch_depth": 1,
        },
    ),
    "DistributedDatasetConfig.from_dict": Call(
        loader.DistributedDatasetConfig.from_dict, lambda: {"values": dict(CONFIG)}
    ),
    "DistributedDatasetConfig.from_file": Call(
        lambda path: (
            Path("a config.json").write_text('{"seq_len": 8, "local_batch_size": 1}'),
            loader.DistributedDatasetConfig.from_file(path),
        ),
        lambda: {"path": "a config.json"},
    ),
    "CPPlanning": Call(
        loader.CPPlanning,
        lambda: {
            "scheduler": "dynamic_cp",
            "cp_sizes": (1, 2),
            "min_cp_size": 1,
            "max_cp_size": 2,
            "block": 2,
            "sequence_parallel": True,
            "sync": "step",
            "microbatch_multiple": 2,
            "max_sequences": 4,
            "sharding": "zigzag",
            "static_shapes": None,
            "per_token": ("x",),
            "aligned_fields": ("image",),
        },
    ),
    "CPPlanning.padding": Call(PLANNING.padding, lambda: {"tp_size": 2}),
    "CPPlanning.plan": Call(
        PLANNING.plan,
        lambda: {
            "lengths": np.array([3, 2]),
            "num_ranks": 1,
            "capacity": 8,
            "tp_size": 1,
            "cost": dcpack.QuadraticCost(),
            "overlong": "error",
        },
    ),
    "GlobalBatchSampler": Call(
        loader.GlobalBatchSampler,
        lambda: {
            "num_samples": 6,
            "global_batch_size": 2,
            "seed": 1,
            "shuffle": True,
            "shuffle_buffer": 4,
            "drop_last": True,
            "micro_batch_size": 1,
            "dp_rank": 0,
            "dp_world_size": 1,
        },
    ),
    "GlobalBatchSampler.bind": Call(
        lambda **given: loader.GlobalBatchSampler(6, global_batch_size=2).bind(**given),
        lambda: {"dp_rank": 0, "dp_world_size": 1, "micro_batch_size": 1, "seed": 1},
    ),
    "GlobalBatchSampler.for_rank": Call(sampler().for_rank, lambda: {"dp_rank": 0}),
    "GlobalBatchSampler.set_epoch": Call(sampler().set_epoch, lambda: {"epoch": 1}),
    "GlobalBatchSampler.positions": Call(sampler().positions, lambda: {"start": 0, "count": 2}),
    "GlobalBatchSampler.load_state_dict": Call(
        lambda state: sampler().load_state_dict(state), lambda: {"state": sampler().state_dict()}
    ),
    **{
        f"GlobalBatchSampler.load_state_dict {key}": Call(
            lambda value, key=key: sampler().load_state_dict({**sampler().state_dict(), key: value}),
            lambda value=value: {"value": value},
        )
        for key, value in sampler().state_dict().items()
    },
    "TextRows": Call(loader.TextRows, lambda: {"seq_len": 8, "pad_token_id": 0}),
    "TextRows.split": Call(ROWS.split, lambda: {"record": dict(RECORD)}),
    **{
        f"TextRows.split {name}": Call(
            lambda values, name=name: ROWS.split({**RECORD, name: values}), lambda name=name: {"values": RECORD[name]}
        )
        for name in RECORD
    },
    "TextRows.pack": Call(ROWS.pack, lambda: {"sequences": ROWS.split(RECORD)}),
    "TextRows.collate": Call(ROWS.collate, lambda: {"rows": [ROWS.pack(ROWS.split(RECORD))]}),
    "TextRows.batch_spec": Call(ROWS.batch_spec, lambda: {"local_batch_size": 1}),
    "TPBroadcastDataLoader": Call(loader.TPBroadcastDataLoader, lambda own: {"loader": [1], "communicator": own}),
    "TPBroadcastDataLoader.set_epoch": Call(
        lambda own, epoch: loader.TPBroadcastDataLoader(build(), own).set_epoch(epoch),
        lambda own: {"own": own, "epoch": 1},
        skips=("own",),
    ),
    "build_distributed_dataloader": Call(
        built,
        lambda: {
            "dataset": DATA,
            "mesh": MESH,
            "config": dict(CONFIG),
            "metadata_fn": describe,
            "metadata": None,
            "dataloader_kwargs": {},
            "pack_fn": None,
            "split_fn": None,
            "collate_fn": None,
            "device": None,
            "model_batch_spec": None,
            "batch_sampler": plain_sampler(),
            "external_step_source": None,
            "model_config": None,
            "cost_model": None,
            "balancing_algorithm": None,
            "scheduler": None,
        },
        skips=("device",),  # handed on to the back end
        few=True,
    ),
    "DistributedDataLoader.set_epoch": Call(
        with_loader(lambda made, epoch: made.set_epoch(epoch)), lambda: {"epoch": 1}, few=True
    ),
    "DistributedDataLoader.load_state_dict": Call(
        with_loader(lambda made, state: made.load_state_dict(state)), lambda: {"state": dict(STATE)}, few=True
    ),
    **{
        f"DistributedDataLoader.load_state_dict {key}": Call(
            with_loader(lambda made, value, key=key: made.load_state_dict({**STATE, key: value})),
            lambda value=value: {"value": value},
            few=True,
        )
        for key, value in STATE.items()
    },
    "DistributedDataLoader.on_step": Call(
        with_loader(lambda made, callback: made.on_step(callback)), lambda: {"callback": print}, few=True
    ),
    "log_to_tensorboard": Call(loader.log_to_tensorboard, lambda: {"writer": Writer(), "first_step": 0}),
    "log_to_wandb": Call(loader.log_to_wandb, lambda: {"run": Writer(), "first_step": 0}),
    "packed_fields": Call(loader.packed_fields, lambda: {"batch": packed_batch()}),
    "time_recorder": Call(loader.time_recorder, lambda: {"recorder": cost.StepRecorder()}),
}


LEFT_OUT = {
    "BalancingAlgorithm": "a protocol",
    "BalancingAlgorithm.assign": "of a protocol",
    "BalancingAlgorithm.objective": "of a protocol",
    "BatchSampler": "a protocol",
    "BatchSampler.load_state_dict": "of a protocol",
    "BatchSampler.set_epoch": "of a protocol",
    "DistributedDataLoader": "made by build_distributed_dataloader",
    "ExternalStepSource": "a protocol",
    "LoaderBatch": "a result of the loader",
    "LoaderBatch.with_data": "hands on what it gets",
    "LoaderBatch.with_group": "called by the loader",
    "SampleKey": "made by the loader, for its own copies",
    "Span": "a result, in that of StepRecord",
    "StepRecord": "a result of the loader",
}

# What of the values has a meaning there.
TAKES = {
    "SampleMetadata.cost": "none, zero, huge, half, fraction, minus zero, number of an enum",
    "SampleMetadata.sample_id": "none, zero, huge, number of an enum, text, surrogate",
    "SampleMetadata.features": "map",
    "SampleMetadata.packing_costs": "map",
    "SampleMetadata.key": "none",
    "SampleMetadata.pack_tokens": "number of an enum",
    "WorkloadCost.io": "zero, huge, half, fraction, minus zero, number of an enum",
    "WorkloadCost.transform": "zero, huge, half, fraction, minus zero, number of an enum",
    "WorkloadCost.encoder": "zero, huge, half, fraction, minus zero, number of an enum",
    "WorkloadCost.llm": "zero, huge, half, fraction, minus zero, number of an enum",
    "WorkloadCost.memory": "zero, huge, half, fraction, minus zero, number of an enum",
    "WorkloadCost.communication": "zero, huge, half, fraction, minus zero, number of an enum",
    "PackingConstraints.seq_len": "huge, number of an enum",
    "PackingConstraints.packing_budgets": "map",
    "PackingConstraints.fits.samples": "list",
    "PackingConstraints.validate_samples.samples": "list",
    "TensorFieldSpec.shape": "list, nones, hugest",
    "TensorFieldSpec.fits.dtype": "text, surrogate",
    "TensorFieldSpec.fits.shape": (
        "text, surrogate, bytes, list, minuses, nans, texts, nones, maps, ragged, whole floats, hugest"
    ),
    "TensorFieldSpec.dtype": "numpy true",
    "DistributedDatasetConfig.drop_last": "true, numpy true",
    "DistributedDatasetConfig.dp_dim_names": "none, texts",
    "DistributedDatasetConfig.dataset_reader_ranks": "none",
    "DistributedDatasetConfig.planner_rank": "none, zero, number of an enum",
    "DistributedDatasetConfig.seed": "zero, number of an enum",
    "DistributedDatasetConfig.min_balance_gain": "zero, half, fraction, minus zero",
    "DistributedDatasetConfig.packing_budgets": "none, map",
    "DistributedDatasetConfig.balance_group_size": "none, number of an enum",
    "DistributedDatasetConfig.metadata_mode": "true, numpy true",
    "DistributedDatasetConfig.broadcast_plan": "true, numpy true",
    "DistributedDatasetConfig.log_balance": "true, numpy true",
    "DistributedDatasetConfig.repack_sequences": "true, numpy true",
    "DistributedDatasetConfig.pad_token_id": "none, zero, number of an enum",
    "DistributedDatasetConfig.device_prefetch_depth": "zero, number of an enum",
    "DistributedDatasetConfig.seq_len": "number of an enum",
    "DistributedDatasetConfig.local_batch_size": "number of an enum",
    "DistributedDatasetConfig.balance_window_size": "number of an enum",
    "CPPlanning.cp_sizes": "unsigned, hugest",
    "CPPlanning.max_cp_size": "none, huge, number of an enum",
    "CPPlanning.sequence_parallel": "true, numpy true",
    "CPPlanning.microbatch_multiple": "huge, number of an enum",
    "CPPlanning.max_sequences": "none, huge, number of an enum",
    "CPPlanning.static_shapes": "none",
    "CPPlanning.per_token": "list, map, texts",
    "CPPlanning.aligned_fields": "list, map, texts",
    "CPPlanning.plan.lengths": "list, unsigned",
    "CPPlanning.plan.num_ranks": "number of an enum",
    "CPPlanning.plan.tp_size": "number of an enum",
    "CPPlanning.min_cp_size": "number of an enum",
    "CPPlanning.block": "number of an enum",
    "GlobalBatchSampler.num_samples": "zero, number of an enum",
    "GlobalBatchSampler.seed": "none, zero, number of an enum",
    "GlobalBatchSampler.shuffle": "true, numpy true",
    "GlobalBatchSampler.shuffle_buffer": "none, huge, number of an enum",
    "GlobalBatchSampler.drop_last": "true, numpy true",
    "GlobalBatchSampler.dp_rank": "zero",
    "GlobalBatchSampler.bind.dp_rank": "zero",
    "GlobalBatchSampler.bind.seed": "none, zero, number of an enum",
    "GlobalBatchSampler.bind.dp_world_size": "number of an enum",
    "GlobalBatchSampler.bind.micro_batch_size": "number of an enum",
    "GlobalBatchSampler.for_rank.dp_rank": "zero",
    "GlobalBatchSampler.set_epoch.epoch": "zero, huge, number of an enum",
    "GlobalBatchSampler.positions.start": "zero, number of an enum",
    "GlobalBatchSampler.positions.count": "zero, number of an enum",
    "GlobalBatchSampler.load_state_dict shuffle.value": "true",
    "GlobalBatchSampler.load_state_dict shuffle_buffer.value": "none",
    "GlobalBatchSampler.load_state_dict drop_last.value": "true",
    "GlobalBatchSampler.load_state_dict epoch.value": "zero, huge, number of an enum",
    "GlobalBatchSampler.load_state_dict consumed_samples.value": "zero, number of an enum",
    "GlobalBatchSampler.load_state_dict next_index.value": "zero",
    "GlobalBatchSampler.load_state_dict buffer.value": "list",
    "GlobalBatchSampler.global_batch_size": "number of an enum",
    "GlobalBatchSampler.micro_batch_size": "number of an enum",
    "GlobalBatchSampler.dp_world_size": "number of an enum",
    "TextRows.pad_token_id": "none, zero, number of an enum",
    "TextRows.pack.sequences": "list",
    "TextRows.batch_spec.local_batch_size": "huge, number of an enum",
    "TextRows.seq_len": "number of an enum",
    "TPBroadcastDataLoader.loader": (
        "text, surrogate, bytes, list, map, odd map, set, generator, minuses, nans, texts, nones, maps, ragged, "
        "0-d, 2-d, objects, floats, whole floats, unsigned, hugest"
    ),
    "TPBroadcastDataLoader.set_epoch.epoch": "zero, huge, number of an enum",
    "build_distributed_dataloader.metadata": "none",
    "build_distributed_dataloader.dataloader_kwargs": "none",
    "build_distributed_dataloader.pack_fn": "none",
    "build_distributed_dataloader.split_fn": "none",
    "build_distributed_dataloader.collate_fn": "none",
    "build_distributed_dataloader.model_batch_spec": "none, true, minus, huge, half, text, list",
    "build_distributed_dataloader.external_step_source": "none",
    "build_distributed_dataloader.model_config": "none",
    "build_distributed_dataloader.cost_model": "none",
    "build_distributed_dataloader.balancing_algorithm": "none",
    "build_distributed_dataloader.scheduler": "none",
    "DistributedDataLoader.set_epoch.epoch": "huge",
    "log_to_tensorboard.first_step": "zero, huge, number of an enum",
    "log_to_wandb.first_step": "zero, huge, number of an enum",
    "CPPlanning.padding.tp_size": "number of an enum",
}
