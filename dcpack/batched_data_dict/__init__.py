"""`BatchedDataDict`: shard, micro-batch, gather and reorder the rollouts of an RL step, in torch, JAX and NumPy."""

from __future__ import annotations

from dcpack.batched_data_dict.core import BatchedDataDict, SlicedDataDict
from dcpack.batched_data_dict.options import DynamicBatching, SequencePacking
from dcpack.batched_data_dict.packed_column import PackedColumn

__all__ = ["BatchedDataDict", "DynamicBatching", "PackedColumn", "SequencePacking", "SlicedDataDict"]
