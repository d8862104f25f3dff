"""`dcpack.BatchedDataDict`: each public method, and arguments that it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hostile_calls import Call

from dcpack.batched_data_dict import BatchedDataDict, DynamicBatching, PackedColumn, SequencePacking

DYNAMIC = {
    "max_tokens_per_microbatch": 8,
    "sequence_length_round": 2,
    "input_key": "ids",
    "input_lengths_key": "n",
}
PACKING = {
    "max_tokens_per_microbatch": 8,
    "input_lengths_key": "n",
    "input_key": "ids",
    "algorithm": "first_fit",
    "sequence_length_pad_multiple": 2,
    "microbatch_multiple": 1,
    "cost": "llama3-8b@h100",
    "group_key": "n",
    "keep_groups": "shard",
}


def batch() -> BatchedDataDict:
    return BatchedDataDict({"ids": np.ones((4, 3), np.int64), "n": np.array([3, 2, 1, 3]), "who": [*"abcd"]})


def shard(**options: Any) -> BatchedDataDict:
    return batch().shard_by_batch_size(1, **options)[0][0]


CALLS = {
    "BatchedDataDict.from_batches": Call(
        BatchedDataDict.from_batches, lambda: {"batches": [batch(), batch()], "pad_value_dict": {"ids": 9}}
    ),
    "BatchedDataDict.all_gather": Call(batch().all_gather, lambda own: {"group": own, "pad_value_dict": {"ids": 9}}),
    "BatchedDataDict.to": Call(lambda device: batch().to(device), lambda: {"device": "cpu"}),
    "BatchedDataDict.slice": Call(batch().slice, lambda: {"start": 1, "end": 3}),
    "BatchedDataDict.select_indices": Call(batch().select_indices, lambda: {"indices": [3, 0]}),
    "BatchedDataDict.chunk": Call(batch().chunk, lambda: {"rank": 1, "chunks": 2}),
    "BatchedDataDict.reorder_data": Call(
        lambda indices: batch().reorder_data(indices), lambda: {"indices": [3, 0, 1, 2]}
    ),
    "BatchedDataDict.repeat_interleave": Call(batch().repeat_interleave, lambda: {"num_repeats": 2}),
    "BatchedDataDict.truncate_tensors": Call(
        lambda **given: batch().truncate_tensors(**given), lambda: {"dim": 1, "truncated_len": 2}
    ),
    "BatchedDataDict.shard_by_batch_size": Call(
        batch().shard_by_batch_size,
        lambda: {
            "shards": 2,
            "batch_size": None,
            "allow_uneven_shards": False,
            "dynamic_batching_cfg": None,
            "sequence_packing_cfg": None,
        },
    ),
    "BatchedDataDict.get_batch": Call(batch().get_batch, lambda: {"batch_idx": 1, "batch_size": 2}),
    "BatchedDataDict.make_microbatch_iterator": Call(batch().make_microbatch_iterator, lambda: {"microbatch_size": 2}),
    "BatchedDataDict.make_microbatch_iterator_with_dynamic_shapes": Call(
        lambda sequence_dim: list(
            shard(dynamic_batching_cfg=DYNAMIC).make_microbatch_iterator_with_dynamic_shapes(sequence_dim)
        ),
        lambda: {"sequence_dim": 1},
    ),
    "BatchedDataDict columns": Call(
        lambda column: BatchedDataDict({"ids": column, "who": ["a"]}).select_indices([0]),
        lambda: {"column": np.ones((1, 2))},
    ),
    "BatchedDataDict lengths": Call(
        lambda n: BatchedDataDict({**batch(), "n": n}).shard_by_batch_size(2, sequence_packing_cfg=PACKING),
        lambda: {"n": np.array([3, 2, 1, 3])},
    ),
    "DynamicBatching": Call(DynamicBatching, lambda: dict(DYNAMIC)),
    "SequencePacking": Call(SequencePacking, lambda: dict(PACKING)),
    "PackedColumn": Call(PackedColumn, lambda: {"values": np.ones((3, 2)), "offsets": [0, 2, 3]}),
    "PackedColumn.from_rows": Call(PackedColumn.from_rows, lambda: {"rows": [np.ones((3, 2)), None]}),
}

LEFT_OUT = {}

# What of the values has a meaning there.
TAKES = {
    "BatchedDataDict.from_batches.batches": "list",
    "BatchedDataDict.from_batches.pad_value_dict": "none, map, odd map",
    "BatchedDataDict.all_gather.pad_value_dict": "none, map, odd map",
    "BatchedDataDict.slice.start": "zero, number of an enum",
    "BatchedDataDict.slice.end": "number of an enum",
    "BatchedDataDict.select_indices.indices": "list, unsigned",
    "BatchedDataDict.chunk.rank": "zero",
    "BatchedDataDict.chunk.chunks": "number of an enum",
    "BatchedDataDict.repeat_interleave.num_repeats": "zero, number of an enum",
    "BatchedDataDict.truncate_tensors.dim": "huge, number of an enum",
    "BatchedDataDict.truncate_tensors.truncated_len": "zero, number of an enum",
    "BatchedDataDict.shard_by_batch_size.batch_size": "none, number of an enum",
    "BatchedDataDict.shard_by_batch_size.allow_uneven_shards": "true, numpy true",
    "BatchedDataDict.shard_by_batch_size.dynamic_batching_cfg": "none",
    "BatchedDataDict.shard_by_batch_size.sequence_packing_cfg": "none",
    "BatchedDataDict.shard_by_batch_size.shards": "number of an enum",
    "BatchedDataDict.get_batch.batch_idx": "zero",
    "BatchedDataDict.get_batch.batch_size": "number of an enum",
    "BatchedDataDict.make_microbatch_iterator_with_dynamic_shapes.sequence_dim": "huge, number of an enum",
    "DynamicBatching.input_key": "text, surrogate",
    "DynamicBatching.input_lengths_key": "text, surrogate",
    "DynamicBatching.max_tokens_per_microbatch": "number of an enum",
    "DynamicBatching.sequence_length_round": "number of an enum",
    "SequencePacking.input_lengths_key": "text, surrogate",
    "SequencePacking.input_key": "none, text, surrogate",
    "SequencePacking.cost": "none",
    "SequencePacking.group_key": "none, text, surrogate",
    "SequencePacking.max_tokens_per_microbatch": "number of an enum",
    "SequencePacking.sequence_length_pad_multiple": "number of an enum",
    "SequencePacking.microbatch_multiple": "number of an enum",
    "PackedColumn.values": "objects, floats",
    "PackedColumn.from_rows.rows": "2-d",
    "BatchedDataDict.make_microbatch_iterator.microbatch_size": "number of an enum",
}
