"""Megatron-Core's own estimate: attention alone, without communication."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcpack._checks import BoolArray, Float64Array, Int64Array
from dcpack.cost.checks import as_token_counts

__all__ = ["QuadraticCost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class QuadraticCost:
    """``L * L / cp`` a sequence (Megatron-Core, ``dcp_get_total_workload``).

    Without a price on communication full CP everywhere wins trivially, so plans must not be compared on this model
    alone: look at the mean CP size beside it.

    Example:
        >>> cost = QuadraticCost()
        >>> cost.bin_time(cost.columns(np.array([4])), np.array([2]), np.array([False])).tolist()
        [8.0]
    """

    @property
    def node_size(self) -> int | None:
        """None: crossing nodes costs nothing in this model."""
        return None

    @property
    def unit(self) -> str:
        """``"cost"``: only comparable with each other."""
        return "cost"

    def columns(self, padded_lengths: Int64Array) -> Float64Array:
        """Return float64[n, 1]: the squared padded lengths.

        Example:
            >>> QuadraticCost().columns(np.array([3, 4])).tolist()
            [[9.0], [16.0]]
        """
        lengths = as_token_counts("padded_lengths", padded_lengths).astype(np.float64)
        return np.square(lengths)[:, np.newaxis]

    def bin_time(self, column_sums: Float64Array, cp_size: Int64Array, crosses_node: BoolArray) -> Float64Array:
        """Return float64[b]: the squares shared evenly by the ranks of the bin.

        Example:
            >>> QuadraticCost().bin_time(np.array([[16.0]]), np.array([4]), np.array([True])).tolist()
            [4.0]
        """
        del crosses_node  # nothing is communicated in this model
        return column_sums[:, 0] / cp_size
