"""Packed batches under the names and in the dtypes that other systems take; NumPy in, NumPy out.

Inside dcpack every concept has one spelling; here it gets the others. Nothing is computed that a kernel could not
compute from the same offsets, and nothing is moved to a device: pass the result to ``Backend.to_device``.
"""

from dcpack.export.ascend import ascend_tnd
from dcpack.export.base import Packed
from dcpack.export.flash_attn import flash_attn_varlen, torch_varlen
from dcpack.export.huggingface import huggingface_flat
from dcpack.export.megatron import megatron_fields, packed_seq_params
from dcpack.export.segments import segment_ids, seq_idx

__all__ = [
    "Packed",
    "ascend_tnd",
    "flash_attn_varlen",
    "huggingface_flat",
    "megatron_fields",
    "packed_seq_params",
    "segment_ids",
    "seq_idx",
    "torch_varlen",
]
