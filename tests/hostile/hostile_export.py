"""`dcpack.export`: each public callable, and arguments that it takes."""

from __future__ import annotations

import numpy as np
from hostile_calls import Call

from dcpack import export
from dcpack.layout import packed_offsets

PACKED = packed_offsets([3, 2], [4, 4])
ROW = {"input_ids": np.arange(8), "position_ids": np.arange(8), "labels": np.full(8, -100)}
TAIL = {"num_tokens": 9}

CALLS = {
    "ascend_tnd": Call(export.ascend_tnd, lambda: {"packed": PACKED, **TAIL}),
    "seq_idx": Call(export.seq_idx, lambda: {"packed": PACKED, **TAIL}),
    "segment_ids": Call(export.segment_ids, lambda: {"packed": PACKED, **TAIL}),
    "flash_attn_varlen": Call(
        export.flash_attn_varlen,
        lambda: {"packed": PACKED, "seqused": True, **TAIL},
    ),
    "torch_varlen": Call(
        export.torch_varlen,
        lambda: {"packed": PACKED, "seqused": True, **TAIL},
    ),
    "packed_seq_params": Call(
        export.packed_seq_params,
        lambda: {"packed": PACKED, "local_cp_size": 2, "cp_group": None, "padded_in_both": False, **TAIL},
        skips=("cp_group",),  # handed on as it is
    ),
    "huggingface_flat": Call(export.huggingface_flat, lambda: {"packed": PACKED, "fields": ROW}),
    **{
        f"huggingface_flat {name}": Call(
            lambda name=name, **given: export.huggingface_flat(PACKED, {**ROW, name: given["values"]}),
            lambda name=name: {"values": ROW.get(name, np.ones(8))},
        )
        for name in (*ROW, "loss_mask")
    },
    "megatron_fields": Call(export.megatron_fields, lambda: {"fields": ROW}),
    **{
        f"megatron_fields {name}": Call(
            lambda name=name, **given: export.megatron_fields({name: given["values"]}),
            lambda: {"values": [1, 2]},
        )
        for name in ("input_ids", "loss_mask", "other")
    },
}

# What of the values has a meaning there.
TAKES = {
    "ascend_tnd.num_tokens": "none",
    "seq_idx.num_tokens": "none",
    "segment_ids.num_tokens": "none",
    "flash_attn_varlen.seqused": "true, numpy true",
    "flash_attn_varlen.num_tokens": "none",
    "torch_varlen.seqused": "true, numpy true",
    "torch_varlen.num_tokens": "none",
    "packed_seq_params.local_cp_size": "none, number of an enum",
    "packed_seq_params.padded_in_both": "true, numpy true",
    "packed_seq_params.num_tokens": "none",
    "huggingface_flat loss_mask.values": "none",
    "megatron_fields.fields": "map",
    "megatron_fields input_ids.values": "minuses, 2-d, hugest",
    "megatron_fields loss_mask.values": "list, minuses, nans, 2-d, floats, whole floats, unsigned, hugest",
    "megatron_fields other.values": "list, minuses, nans, texts, 2-d, floats, whole floats, unsigned, hugest",
}

LEFT_OUT = {"Packed": "a protocol"}
