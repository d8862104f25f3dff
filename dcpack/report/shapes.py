"""How many shapes of a batch a run can see, and how many its plans do need."""

from __future__ import annotations

import numpy as np

from dcpack._checks import check_kinds
from dcpack.errors import ArgumentError
from dcpack.exchange import BatchShape, StaticShapes, shapes_of_bins
from dcpack.plans import Plan

__all__ = ["ShapeCount"]


class ShapeCount:
    """Counts the shapes of the batches of many plans against the bound that is known beforehand.

    Args:
        row_lengths: buckets of row lengths, or None; see `dcpack.exchange.StaticShapes`.
        max_seqlens: buckets of ``max_seqlen``, or None.

    Attributes:
        seen: the shapes so far.
        cp_sizes: CP sizes that the plans so far may use, ascending.
        failure: why some plan fits no fixed shape, or None.

    Raises:
        ArgumentError: buckets that are none.

    Example:
        >>> import dcpack
        >>> count = ShapeCount(row_lengths=(60, 100))
        >>> for lengths in ([50, 31], [90, 20]):
        ...     count.add(dcpack.plan(lengths, num_ranks=2, capacity=100, scheduler="in_order"))
        >>> count.bound, len(count.seen)
        (2, 2)
        >>> count.describe()
        'at most 2 shapes of a batch (1 CP size x 2 row lengths), 2 seen'
    """

    def __init__(
        self, *, row_lengths: tuple[int, ...] | None = None, max_seqlens: tuple[int, ...] | None = None
    ) -> None:
        self.buckets = StaticShapes(max_sequences=1, row_lengths=row_lengths, max_seqlens=max_seqlens)
        self.seen: set[BatchShape] = set()
        self.cp_sizes: tuple[int, ...] = ()
        self.failure: str | None = None

    @property
    def bound(self) -> int:
        """How many shapes there can be at most."""
        return self.buckets.num_shapes(self.cp_sizes)

    def add(self, plan: Plan) -> None:
        """Count the shapes of one plan."""
        check_kinds(plan=(plan, Plan))
        self.cp_sizes = tuple(sorted({*self.cp_sizes, *plan.cp_sizes}))
        most = int(np.diff(plan.offsets).max(initial=1))  # one number for all: it makes no shapes
        shapes = StaticShapes(
            max_sequences=most, row_lengths=self.buckets.row_lengths, max_seqlens=self.buckets.max_seqlens
        )
        try:
            self.seen.update(shapes_of_bins(plan, shapes))
        except ArgumentError as error:
            self.failure = self.failure or str(error)

    def describe(self) -> str:
        """Return one line for people."""
        if self.failure is not None:
            return f"no fixed shape for all batches: {self.failure}"
        factors = [(len(self.cp_sizes), "CP size"), (len(self.buckets.row_lengths or (0,)), "row length")]
        if self.buckets.max_seqlens is not None:
            factors.append((len(self.buckets.max_seqlens), "max_seqlen"))
        product = " x ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in factors)
        return f"at most {self.bound} shapes of a batch ({product}), {len(self.seen)} seen"
