"""One-to-all within a tensor-parallel or pipeline group, each as one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dcpack._checks import check_int, check_kinds, list_offenders
from dcpack.comm import Communicator, broadcast_tree
from dcpack.errors import ArgumentError
from dcpack.megatron.pack import MicroBatch, metadata_of

__all__ = ["broadcast_metadata", "broadcast_scalars", "broadcast_tensor"]


def broadcast_tensor(communicator: Communicator, tensor: Any, root: int = 0) -> Any:
    """Return the root's array on all members; None where the root has None. Collective.

    Args:
        communicator: the group.
        tensor: on the root an array of any shape and dtype, None, or what else `broadcast_tree` sends; ignored
            elsewhere.
        root: group-local number of the member that sends.

    Raises:
        PeerError: some rank failed, or the root's value cannot be sent; on every rank.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> run_ranks(2, lambda c: broadcast_tensor(c, None if c.rank else np.array([7, 8])).tolist())
        [[7, 8], [7, 8]]
        >>> run_ranks(2, lambda c: broadcast_tensor(c, None))
        [None, None]
    """
    return broadcast_tree(communicator, tensor, root)


def broadcast_scalars(
    communicator: Communicator, values: Sequence[Any] | np.ndarray | None, root: int = 0
) -> list[Any]:
    """Return the root's numbers on all members, exactly. Collective.

    Integers of any size stay what they are: sums of tokens and of squared lengths soon leave what a float holds.

    Args:
        communicator: the group.
        values: on the root a sequence of int, float, bool or None; ignored elsewhere.
        root: group-local number of the member that sends.

    Raises:
        PeerError: some rank failed, or a value is no number; on every rank.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> run_ranks(2, lambda c: broadcast_scalars(c, [2**53 + 1, 0.1, None] if c.rank == 0 else None))[1]
        [9007199254740993, 0.1, None]
    """
    check_kinds(communicator=(communicator, Communicator))
    with communicator.guard():
        root = check_int("root", root, minimum=0, maximum=communicator.size - 1)
        numbers = _check_numbers(values) if communicator.rank == root else None
    return broadcast_tree(communicator, numbers, root)


def _check_numbers(values: Any) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
        raise ArgumentError(f"values must be a sequence of numbers on the root, got {values!r}")
    if isinstance(values, np.ndarray) and values.ndim != 1:
        raise ArgumentError(f"values must be one-dimensional, got shape {values.shape}")
    numbers = [value.item() if isinstance(value, np.generic) else value for value in values]
    if wrong := [f"{v!r} at {i}" for i, v in enumerate(numbers) if v is not None and not isinstance(v, int | float)]:
        raise ArgumentError(f"values must be int, float, bool or None: {list_offenders(wrong)}")
    return numbers


def broadcast_metadata(
    communicator: Communicator, rows: Sequence[Mapping[str, Any]] | None, totals: Mapping[str, Any] | None
) -> tuple[list[MicroBatch], dict[str, Any]]:
    """Return the first stage's totals of the step, and where sequences lie in its micro-batches, on all stages.

    One message holds the number of micro-batches, the totals, and of each micro-batch ``cu_seqlens``,
    ``cu_seqlens_padded``, ``max_seqlen``, ``local_cp_size`` and what else `METADATA_KEYS` names, and no field of the
    data. Collective over all stages: one that has its own rows receives as well, and can compare.

    Args:
        communicator: the pipeline; its member 0 is the first stage.
        rows: on the first stage its micro-batches; ignored elsewhere.
        totals: on the first stage plain numbers and texts by name; ignored elsewhere.

    Raises:
        PeerError: some stage failed; on every stage.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> row = {"tokens": np.arange(3), "cu_seqlens": np.array([0, 3], np.int32), "max_seqlen": 3}
        >>> def fn(communicator):
        ...     first = communicator.rank == 0
        ...     return broadcast_metadata(communicator, [row] if first else None, {"num_tokens": 3} if first else None)
        >>> run_ranks(3, fn)[1]
        ([{'cu_seqlens': array([0, 3], dtype=int32), 'max_seqlen': 3}], {'num_tokens': 3})
    """
    message = None
    check_kinds(communicator=(communicator, Communicator))
    with communicator.guard():
        if communicator.rank == 0:
            if rows is None or totals is None:
                raise ArgumentError("the first stage must bring its micro-batches and totals, got None")
            check_kinds(rows=(rows, list | tuple), totals=(totals, Mapping))
            message = {"num_microbatches": len(rows), "totals": totals, "rows": [metadata_of(row) for row in rows]}
    message = broadcast_tree(communicator, message, 0)
    return message["rows"], message["totals"]
