"""What every cost model offers to planners and simulations."""

from __future__ import annotations

from typing import Protocol

from dcpack._checks import BoolArray, Float64Array, Int64Array

__all__ = ["CostModel"]


class CostModel(Protocol):
    """How long the ranks of a bin work on it.

    A model first turns each sequence into a few numbers that add up over a bin (`columns`), then the sums of a bin into
    a time (`bin_time`). Both work on whole arrays.

    Attributes:
        node_size: consecutive ranks that share a node, or None where crossing nodes costs nothing extra.
        unit: unit of the times, for example ``"s"``, or ``"cost"`` where they are only comparable with each other.

    Example:
        >>> import numpy as np
        >>> from dcpack.cost import QuadraticCost
        >>> cost: CostModel = QuadraticCost()
        >>> sums = cost.columns(np.array([3, 4])).sum(axis=0, keepdims=True)           # one bin of both
        >>> cost.bin_time(sums, np.array([2]), np.array([False])).tolist()             # on two ranks
        [12.5]
    """

    @property
    def node_size(self) -> int | None:
        """Consecutive ranks that share a node, or None."""
        ...

    @property
    def unit(self) -> str:
        """Unit of the times."""
        ...

    def columns(self, padded_lengths: Int64Array) -> Float64Array:
        """Return float64[n, k]: the additive columns of n sequences of `padded_lengths` (int64[n], tokens)."""
        ...

    def bin_time(self, column_sums: Float64Array, cp_size: Int64Array, crosses_node: BoolArray) -> Float64Array:
        """Return float64[b]: the time that each rank of each bin works.

        Args:
            column_sums: float64[b, k], the columns summed over the sequences of each bin.
            cp_size: int64[b], ranks that share each bin.
            crosses_node: bool[b], whether those ranks lie on more than one node.
        """
        ...
