"""Fixed shapes, for compilers that want to see few programs: TPU, CUDA graphs, torch.compile.

The shape of a batch is its CP size, the tokens of its rows, its ``max_seqlen``, and the entries of its ``cu_seqlens``
(one number for all). Rows and ``max_seqlen`` go up to the next *bucket*; the bucket of a micro-batch follows from the
plan and is the same on all its ranks. Worked example, ``row_lengths=(50, 100)``, two ranks, CP size 1:

    micro-batch      0         1         2
    tokens a rank    50, 31    51, 12    98, 97
    row              50        100       100
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dcpack._checks import Int64Array, as_lengths, check_int, check_kinds, list_offenders
from dcpack.errors import ArgumentError
from dcpack.layout import MAX_OFFSET
from dcpack.padding import padding_multiple
from dcpack.plans import Plan

__all__ = ["BatchShape", "StaticShapes", "check_static_shapes", "shapes_of_bins"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StaticShapes:
    """Every batch in one of few shapes.

    The slice of each rank is padded to a row of fixed length; the tail has segment 0 and is in no ``cu_seqlens``.
    Repeated tail offsets fill ``cu_seqlens`` up to ``max_sequences + 1``. The largest padded length that really occurs
    is kept beside the static ``max_seqlen``.

    A run sees at most ``num_shapes`` shapes: CP sizes x row lengths x ``max_seqlens``. Plan with `uniform_cp`, so that
    all ranks of a micro-batch have the same one.

    Args:
        max_sequences: sequences of the fixed shape; plan with at most as many in a bin.
        row_lengths: tokens that a row may be padded to, ascending; each micro-batch takes the least that holds the
            rows of all its ranks. None is the capacity of the plan alone.
        max_seqlens: values of ``max_seqlen``, ascending; each micro-batch takes the least that holds all its sequences.
            None is the row length times the CP size, which makes no shapes of its own.

    Raises:
        ArgumentError: a number below 1, or buckets that do not ascend.

    Example:
        >>> shapes = StaticShapes(max_sequences=64, row_lengths=(2048, 4096, 8192))
        >>> shapes.num_shapes(cp_sizes=(1, 2, 4))
        9
    """

    max_sequences: int
    row_lengths: tuple[int, ...] | None = None
    max_seqlens: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        limit = check_int("max_sequences", self.max_sequences, minimum=1, maximum=MAX_OFFSET)
        object.__setattr__(self, "max_sequences", limit)
        for name in ("row_lengths", "max_seqlens"):
            buckets = getattr(self, name)
            if buckets is not None:
                object.__setattr__(self, name, _check_buckets(name, buckets))

    def num_shapes(self, cp_sizes: Sequence[int]) -> int:
        """Return how many shapes a run can see at most, whatever its batches.

        Args:
            cp_sizes: CP sizes that its plans may use (`Plan.cp_sizes`).
        """
        sizes = len(set(as_lengths("cp_sizes", cp_sizes, minimum=1).tolist()))
        return sizes * len(self.row_lengths or (0,)) * len(self.max_seqlens or (0,))


def _check_buckets(name: str, buckets: object) -> tuple[int, ...]:
    values = as_lengths(name, buckets, minimum=1)
    if beyond := [f"{name}[{i}] = {values[i]}" for i in np.flatnonzero(values > MAX_OFFSET)]:
        raise ArgumentError(f"{name} must be at most {MAX_OFFSET}: {list_offenders(beyond)}")
    if values.size == 0:
        raise ArgumentError(f"{name} must hold at least one number, or be None")
    if bad := (np.flatnonzero(np.diff(values) <= 0) + 1).tolist():
        listed = list_offenders([f"{name}[{i}] = {values[i]} after {values[i - 1]}" for i in bad])
        raise ArgumentError(f"{name} must ascend: {listed}")
    return tuple(values.tolist())


@dataclass(frozen=True, order=True, slots=True)
class BatchShape:
    """What a compiled program depends on, beside `StaticShapes.max_sequences`.

    Attributes:
        cp_size: ranks that share the bin.
        row_tokens: tokens of a rank's row.
        max_seqlen: the static ``max_seqlen``.

    Example:
        >>> sorted([BatchShape(2, 4096, 8192), BatchShape(1, 4096, 4096)])[0]
        BatchShape(cp_size=1, row_tokens=4096, max_seqlen=4096)
    """

    cp_size: int
    row_tokens: int
    max_seqlen: int


def shapes_of_bins(plan: Plan, static_shapes: StaticShapes) -> list[BatchShape]:
    """Return the shape of the batches of each bin, in the order of the plan's bins; the same on every rank.

    Args:
        plan: the plan.
        static_shapes: the fixed shapes; see `check_static_shapes`.

    Raises:
        ArgumentError: some bin does not fit; all are named.

    Example:
        >>> import dcpack
        >>> plan = dcpack.plan([50, 31], num_ranks=2, capacity=100, scheduler="in_order")
        >>> shapes_of_bins(plan, StaticShapes(max_sequences=4, row_lengths=(60, 100)))[1]
        BatchShape(cp_size=1, row_tokens=60, max_seqlen=60)
    """
    check_kinds(plan=(plan, Plan), static_shapes=(static_shapes, StaticShapes))
    check_static_shapes(plan, static_shapes)
    rows = _of_microbatches(plan, _row_tokens(plan), static_shapes.row_lengths or (plan.capacity,))
    if static_shapes.max_seqlens is None:
        longest = rows * plan.cp_size
    else:
        longest = _of_microbatches(plan, _longest(plan), static_shapes.max_seqlens)
    columns = (plan.cp_size.tolist(), rows.tolist(), longest.tolist())
    return [BatchShape(*values) for values in zip(*columns, strict=True)]


def _of_microbatches(plan: Plan, values: Int64Array, buckets: Sequence[int]) -> Int64Array:
    """Return int64[b]: for each bin the bucket that holds the values of all bins of its micro-batch."""
    largest = np.zeros(plan.num_microbatches, np.int64)
    np.maximum.at(largest, plan.microbatch, values)
    return np.array(buckets, np.int64)[np.searchsorted(buckets, largest)][plan.microbatch]


def _row_tokens(plan: Plan) -> Int64Array:
    """Return int64[b]: tokens of a rank's row without a static tail; a dummy is one sequence of the shortest length."""
    dummy = np.maximum(padding_multiple(plan.padding, plan.cp_size), plan.cp_size)
    # Whatever the rule pads a row to is no more than the bucket, which is a multiple of the same.
    return np.where(plan.dummy, dummy, plan.bin_padded_tokens) // plan.cp_size


def _longest(plan: Plan) -> Int64Array:
    """Return int64[b]: the largest padded length of each bin."""
    longest = np.where(plan.dummy, np.maximum(padding_multiple(plan.padding, plan.cp_size), plan.cp_size), 0)
    np.maximum.at(longest, plan.entry_bin, plan.entry_padded_lengths)
    return longest


def check_static_shapes(plan: Plan, static_shapes: StaticShapes) -> None:
    """Raise where a bin of the plan does not fit the fixed shapes.

    Raises:
        ArgumentError: names the bins with too many tokens or sequences, or the row lengths that break the padding rule.
    """
    rows, longest = static_shapes.row_lengths or (plan.capacity,), static_shapes.max_seqlens
    multiple = 1 if plan.padding is None or static_shapes.row_lengths is None else plan.padding.row_multiple()
    if odd := [row for row in rows if row % multiple]:
        raise ArgumentError(f"row_lengths must be multiples of {multiple} by {plan.padding}, got {odd}")
    sequences, tokens, limit = np.diff(plan.offsets), _row_tokens(plan), static_shapes.max_sequences
    bad = np.flatnonzero((tokens > rows[-1]) | (sequences > limit)).tolist()
    if bad:
        listed = list_offenders([f"bin {b} has {tokens[b]} tokens and {sequences[b]} sequences" for b in bad])
        raise ArgumentError(f"static shapes hold {rows[-1]} tokens a rank and max_sequences {limit}: {listed}")
    if longest is not None and (bad := np.flatnonzero(_longest(plan) > longest[-1]).tolist()):
        listed = list_offenders([f"bin {b} has one of {_longest(plan)[b]}" for b in bad])
        raise ArgumentError(f"static shapes hold sequences of at most {longest[-1]} padded tokens: {listed}")
