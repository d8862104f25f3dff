"""`dcpack.sharding`: each public callable, and arguments that it takes."""

from __future__ import annotations

from hostile_calls import Call

from dcpack import sharding

CALLS = {
    "get_sharding": Call(sharding.get_sharding, lambda: {"name": "zigzag"}),
    "local_token_indices": Call(
        sharding.local_token_indices,
        lambda: {"cu_seqlens_padded": [0, 8], "cp_size": 2, "cp_rank": 0, "method": "zigzag"},
    ),
    "local_cu_seqlens": Call(
        sharding.local_cu_seqlens,
        lambda: {"cu_seqlens_padded": [0, 8], "cp_size": 2, "cp_rank": 0, "method": "zigzag"},
    ),
    "restore_indices": Call(
        sharding.restore_indices, lambda: {"cu_seqlens_padded": [0, 8], "cp_size": 2, "method": "zigzag"}
    ),
}

_ARRAYS = "computes on arrays of our own, many at once, and checks nothing"
LEFT_OUT = {
    "RangeSharding": "a protocol",
    "RangeSharding.divisor": "of a protocol",
    "RangeSharding.ranges": "of a protocol",
    "ShardRanges": _ARRAYS,
    "ShardRanges.clip": _ARRAYS,
    **{
        f"{name}.{method}": _ARRAYS
        for name in ("Contiguous", "Striped", "Zigzag", "ZigzagPerRow")
        for method in ("divisor", "ranges")
    },
}

# What of the values has a meaning there.
TAKES = {
    "local_token_indices.cp_rank": "zero",
    "local_token_indices.cp_size": "number of an enum",
    "local_cu_seqlens.cp_rank": "zero",
    "local_cu_seqlens.cp_size": "number of an enum",
    "restore_indices.cp_size": "number of an enum",
}
