"""Comparing what the ranks of a group say they do: pure functions of their records, so that all conclude the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, as_lengths, check_int, check_items, list_offenders
from dcpack.comm.failures import name_ranks
from dcpack.errors import ArgumentError, PeerError

__all__ = ["check_counts", "check_partition", "describe_sides", "require_same", "untransposed_counts"]


def describe_sides(values: Sequence[str], ranks: Sequence[int]) -> str:
    """Say which ranks hold which value.

    Example:
        >>> describe_sides(["int8", "int64", "int64"], [0, 1, 2])
        'rank 0: int8; ranks 1, 2: int64'
    """
    sides: dict[str, list[int]] = {}
    for value, rank in zip(values, ranks, strict=True):
        sides.setdefault(value, []).append(rank)
    listed = [f"{name_ranks(members)}: {value}" for value, members in sides.items()]
    return "; ".join(listed[:8]) + (f"; and {len(listed) - 8} more" if len(listed) > 8 else "")


def require_same(what: str, where: str, values: Sequence[str], ranks: Sequence[int]) -> None:
    """Raise the same PeerError on all ranks unless all of them hold the same value.

    Args:
        what: what differs, in the plural.
        where: the call.
        values: one for each member.
        ranks: the members' global numbers.

    Example:
        >>> require_same("dtypes", "all_gather (call 2)", ["int8", "int64"], [0, 1])
        Traceback (most recent call last):
        ...
        dcpack.errors.PeerError: dtypes differ in all_gather (call 2): rank 0: int8; rank 1: int64
    """
    if len(set(values)) > 1:
        raise PeerError(f"{what} differ in {where}: {describe_sides(values, ranks)}")


def untransposed_counts(sent: Int64Array, expected: Int64Array, ranks: Sequence[int]) -> list[str]:
    """Name the pairs of ranks where one sends another number of elements than the other expects.

    Args:
        sent: int64[n, n], row i: what member i sends to each.
        expected: int64[n, n], row j: what member j expects of each.
        ranks: the members' global numbers.

    Example:
        >>> untransposed_counts(np.array([[0, 5], [1, 0]]), np.array([[0, 1], [4, 0]]), [0, 2])
        ['rank 0 sends 5 elements to rank 2, which expects 4']
    """
    pairs = np.argwhere(sent != expected.T).tolist()
    return [
        f"rank {ranks[i]} sends {sent[i, j]} elements to rank {ranks[j]}, which expects {expected[j, i]}"
        for i, j in pairs
    ]


def check_partition(partition: Iterable[Iterable[int]], size: int) -> tuple[tuple[int, ...], ...]:
    """Return `partition` as tuples of ints; each group-local number below `size` must occur exactly once.

    Raises:
        ArgumentError: an empty block, or numbers that are missing, repeated or out of range (all are named).

    Example:
        >>> check_partition([[0, 2], [1]], 3)
        ((0, 2), (1,))
        >>> check_partition([[0], [0, 3]], 3)
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: partition must hold each member 0 to 2 exactly once: 0 occurs 2 times, \
1 is missing, 2 is missing, 3 is out of range
    """
    blocks = tuple(
        tuple(check_int(name, member, minimum=0) for member in check_items(name, block))
        for name, block in ((f"partition[{i}]", block) for i, block in enumerate(check_items("partition", partition)))
    )
    if empty := [f"partition[{index}]" for index, block in enumerate(blocks) if not block]:
        raise ArgumentError(f"a block of a partition must hold a member: {list_offenders(empty)} is empty")
    occurrences = dict.fromkeys(range(size), 0)
    for block in blocks:
        for member in block:
            occurrences[member] = occurrences.get(member, 0) + 1
    offenders = [
        f"{member} is out of range"
        if member >= size
        else f"{member} is missing"
        if count == 0
        else f"{member} occurs {count} times"
        for member, count in occurrences.items()
        if count != 1 or member >= size
    ]
    if offenders:
        bounds = f"each member 0 to {size - 1}"
        raise ArgumentError(f"partition must hold {bounds} exactly once: {list_offenders(offenders)}")
    return blocks


def check_counts(
    shape: tuple[int, ...], send_counts: Any, recv_counts: Any, size: int
) -> tuple[Int64Array, Int64Array]:
    """Return the counts of an all-to-all as int64[size] each, if they fit a buffer of `shape` and the group.

    Example:
        >>> check_counts((3,), [1, 2], [0, 4], 2)
        (array([1, 2]), array([0, 4]))
    """
    if len(shape) != 1:
        raise ArgumentError(f"the buffer of all_to_all must be one-dimensional, got shape {shape}")
    sent, expected = as_lengths("send_counts", send_counts), as_lengths("recv_counts", recv_counts)
    for name, counts in (("send_counts", sent), ("recv_counts", expected)):
        if len(counts) != size:
            raise ArgumentError(f"{name} must hold one count for each of {size} members, got {len(counts)}")
    if sent.sum() != shape[0]:
        total = int(sent.sum())
        raise ArgumentError(f"send_counts must add up to the {shape[0]} elements of the buffer, got {total}")
    return sent, expected
