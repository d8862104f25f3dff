"""Which token of a packed row sits on which CP rank."""

from dcpack.sharding.base import RangeSharding, ShardRanges
from dcpack.sharding.contiguous import Contiguous
from dcpack.sharding.indices import SHARDINGS, get_sharding, local_cu_seqlens, local_token_indices, restore_indices
from dcpack.sharding.striped import Striped
from dcpack.sharding.zigzag import Zigzag
from dcpack.sharding.zigzag_per_row import ZigzagPerRow

__all__ = [
    "SHARDINGS",
    "Contiguous",
    "RangeSharding",
    "ShardRanges",
    "Striped",
    "Zigzag",
    "ZigzagPerRow",
    "get_sharding",
    "local_cu_seqlens",
    "local_token_indices",
    "restore_indices",
]
