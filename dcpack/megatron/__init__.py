"""Megatron-Core's data path on any back end: from a dataset's samples to the packed micro-batches of each rank.

Each step of the path is a function on communicators; `wrap_data_iterator` calls them all. Names of fields are
Megatron's (``tokens``, ``original_seq_len``), because samples come and micro-batches go under them.
"""

from dcpack.megatron.broadcast import broadcast_metadata, broadcast_scalars, broadcast_tensor
from dcpack.megatron.global_batch import EndOfData, GlobalBatch, get_batch_and_global_lengths
from dcpack.megatron.groups import ParallelGroups, build_groups
from dcpack.megatron.iterators import make_data_iterators, pick_data_iterator
from dcpack.megatron.options import StepOptions, plan_step
from dcpack.megatron.pack import METADATA_KEYS, build_packed_microbatches, metadata_of, pack_sequences
from dcpack.megatron.rank_batch import RankBatch, get_batch_for_rank, slice_for_cp_rank
from dcpack.megatron.reroute import complete_sample, per_token_fields, reroute_samples
from dcpack.megatron.samples import LENGTH_KEYS, UnpackedSamples, unpack_samples
from dcpack.megatron.stages import (
    FIRST_STAGE_FIELDS,
    LAST_STAGE_FIELDS,
    needs_of_stage,
    needs_of_virtual_stages,
)
from dcpack.megatron.step import StepData, StepTotals, wrap_data_iterator

__all__ = [
    "FIRST_STAGE_FIELDS",
    "LAST_STAGE_FIELDS",
    "LENGTH_KEYS",
    "METADATA_KEYS",
    "EndOfData",
    "GlobalBatch",
    "ParallelGroups",
    "RankBatch",
    "StepData",
    "StepOptions",
    "StepTotals",
    "UnpackedSamples",
    "broadcast_metadata",
    "broadcast_scalars",
    "broadcast_tensor",
    "build_groups",
    "build_packed_microbatches",
    "complete_sample",
    "get_batch_and_global_lengths",
    "get_batch_for_rank",
    "make_data_iterators",
    "metadata_of",
    "needs_of_stage",
    "needs_of_virtual_stages",
    "pack_sequences",
    "per_token_fields",
    "pick_data_iterator",
    "plan_step",
    "reroute_samples",
    "slice_for_cp_rank",
    "unpack_samples",
    "wrap_data_iterator",
]
