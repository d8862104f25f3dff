"""The universal form of every sharding: index arrays into the padded row.

Sharding is ``take`` with `local_token_indices`; restoring is ``take`` with `restore_indices` on the slices laid end to
end in rank order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_choice, check_int, list_offenders
from dcpack.errors import ArgumentError
from dcpack.layout import check_cu_seqlens, cu_seqlens_from_lengths
from dcpack.padding import MAX_CP_SIZE
from dcpack.sharding.base import RangeSharding, ShardRanges
from dcpack.sharding.contiguous import Contiguous
from dcpack.sharding.striped import Striped
from dcpack.sharding.zigzag import Zigzag
from dcpack.sharding.zigzag_per_row import ZigzagPerRow

__all__ = ["SHARDINGS", "get_sharding", "local_cu_seqlens", "local_token_indices", "restore_indices"]

SHARDINGS: dict[str, RangeSharding] = {
    method.name: method for method in (Zigzag(), ZigzagPerRow(), Contiguous(), Striped())
}
"""The sharding methods by name."""


def get_sharding(name: str) -> RangeSharding:
    """Return the sharding method called `name`.

    Args:
        name: one of `SHARDINGS`.

    Raises:
        ArgumentError: an unknown name.

    Example:
        >>> get_sharding("striped").name
        'striped'
    """
    return SHARDINGS[check_choice("sharding", name, SHARDINGS)]


def local_token_indices(cu_seqlens_padded: Any, cp_size: int, cp_rank: int, method: str = "zigzag") -> Int64Array:
    """Return which slots of the padded row CP rank `cp_rank` holds, in its order.

    Args:
        cu_seqlens_padded: int32[n + 1], offsets of the padded row.
        cp_size: ranks that share the row.
        cp_rank: the rank asked for, from 0 to ``cp_size - 1``.
        method: one of ``SHARDINGS``.

    Returns:
        int64[row length / cp_size].

    Raises:
        ArgumentError: lengths that do not divide; a padding rule made for this CP size prevents it.

    Example:
        >>> local_token_indices([0, 8, 16], 2, 0).tolist()
        [0, 1, 6, 7, 8, 9, 14, 15]
    """
    offsets, ranges = _ranges(cu_seqlens_padded, cp_size, cp_rank, method)
    return ranges.tokens() + np.repeat(offsets[:-1], ranges.counts().sum(axis=0))


def local_cu_seqlens(
    cu_seqlens_padded: Any, cp_size: int, cp_rank: int, method: str = "zigzag"
) -> npt.NDArray[np.int32]:
    """Return the offsets of the sequences inside the slice of one rank.

    Args:
        cu_seqlens_padded: int32[n + 1], offsets of the whole row.
        cp_size: ranks that share it.
        cp_rank: the rank asked for.
        method: one of `SHARDINGS`.

    Returns:
        int32[n + 1]; under ``"zigzag"`` the same on every rank, ``cu_seqlens_padded // cp_size``.

    Example:
        >>> local_cu_seqlens([0, 8, 16], 2, 1)
        array([0, 4, 8], dtype=int32)
    """
    _, ranges = _ranges(cu_seqlens_padded, cp_size, cp_rank, method)
    return cu_seqlens_from_lengths(ranges.counts().sum(axis=0))


def restore_indices(cu_seqlens_padded: Any, cp_size: int, method: str = "zigzag") -> Int64Array:
    """Return the inverse of slicing: where each slot of the row is in the slices of ranks 0, 1, ... laid end to end.

    Args:
        cu_seqlens_padded: int32[n + 1], offsets of the whole row.
        cp_size: ranks that share it.
        method: one of `SHARDINGS`.

    Returns:
        int64[row length]: ``row == concatenated_slices[restore_indices(...)]``.

    Example:
        >>> row = np.arange(8)
        >>> slices = np.concatenate([row[local_token_indices([0, 8], 2, r)] for r in range(2)])
        >>> slices[restore_indices([0, 8], 2)].tolist()
        [0, 1, 2, 3, 4, 5, 6, 7]
    """
    _check_cp_size(cp_size)
    if check_cu_seqlens("cu_seqlens_padded", cu_seqlens_padded)[-1] == 0:
        return np.zeros(0, np.int64)
    slices = [local_token_indices(cu_seqlens_padded, cp_size, rank, method) for rank in range(cp_size)]
    return np.argsort(np.concatenate(slices), kind="stable")


def _check_cp_size(cp_size: Any) -> int:
    if check_int("cp_size", cp_size, minimum=1) > MAX_CP_SIZE:
        raise ArgumentError(f"cp_size must be at most {MAX_CP_SIZE}, got {cp_size}")
    return int(cp_size)


def _ranges(cu_seqlens_padded: Any, cp_size: int, cp_rank: int, method: str) -> tuple[Int64Array, ShardRanges]:
    sharding = get_sharding(method)
    cp_size = _check_cp_size(cp_size)
    check_int("cp_rank", cp_rank, minimum=0, maximum=cp_size - 1)
    offsets = check_cu_seqlens("cu_seqlens_padded", cu_seqlens_padded)
    lengths = np.diff(offsets)
    divisor = int(sharding.divisor(np.array(cp_size)))
    divided = offsets[-1:] if sharding.divides_rows else lengths
    if bad := np.flatnonzero(divided % divisor).tolist():
        what = "row" if sharding.divides_rows else "sequence"
        listed = list_offenders([f"{what} {i} has {divided[i]} padded tokens" for i in bad])
        raise ArgumentError(f"sharding {method!r} over {cp_size} ranks needs multiples of {divisor}: {listed}")
    full = [np.full_like(lengths, number) for number in (offsets[-1], cp_size, cp_rank)]
    return offsets, sharding.ranges(offsets[:-1], lengths, *full)
