"""Linear work, attention, and the part of ring communication that attention cannot hide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcpack._checks import BoolArray, Float64Array, Int64Array, as_real, check_int
from dcpack.cost.checks import as_token_counts

__all__ = ["RingCost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RingCost:
    """Time of ring attention over a CP group, in units of one attention pair.

    A rank of a bin holds ``t = sum(L) / cp`` tokens and ``q = quadratic * sum(L * L) / cp`` of attention. It works

        linear * t + q                                                at cp = 1,
        linear * t + q / cp + (cp - 1) * max(q / cp, ring * t)        above:

    cp rounds of attention, each but the first hiding the transfer of the next keys and values, or waiting for it.
    `ring` is `ring_intra` where the group lies inside a node and `ring_inter` where it crosses nodes.

    Args:
        linear: work of one token in all that is linear in the length. 24576 stands for a 7B-class model.
        quadratic: work of one attention pair.
        ring_intra: time to pass one token's keys and values on inside a node.
        ring_inter: the same between nodes.
        node_size: consecutive ranks of a node; None puts all ranks on one node.

    Example:
        >>> cost = RingCost(linear=10.0, ring_intra=1.0, ring_inter=100.0)
        >>> sums = cost.columns(np.array([8]))
        >>> [float(cost.bin_time(sums, np.array([cp]), np.array([cross]))[0]) for cp, cross in [(1, 0), (2, 0), (2, 1)]]
        [144.0, 72.0, 456.0]
    """

    linear: float = 24576.0
    quadratic: float = 1.0
    ring_intra: float = 1024.0
    ring_inter: float = 2304.0
    node_size: int | None = 8

    def __post_init__(self) -> None:
        for name in ("linear", "quadratic", "ring_intra", "ring_inter"):
            object.__setattr__(self, name, as_real(name, getattr(self, name)))
        if self.node_size is not None:
            check_int("node_size", self.node_size, minimum=1)

    @property
    def unit(self) -> str:
        """``"cost"``: units of one attention pair."""
        return "cost"

    def columns(self, padded_lengths: Int64Array) -> Float64Array:
        """Return float64[n, 2]: tokens, and squared tokens.

        Example:
            >>> RingCost().columns(np.array([3])).tolist()
            [[3.0, 9.0]]
        """
        lengths = as_token_counts("padded_lengths", padded_lengths).astype(np.float64)
        return np.stack([lengths, np.square(lengths)], axis=1)

    def bin_time(self, column_sums: Float64Array, cp_size: Int64Array, crosses_node: BoolArray) -> Float64Array:
        """Return float64[b]: the time of each rank of each bin, by the formula above.

        Example:
            >>> RingCost(linear=0).bin_time(np.array([[4.0, 16.0]]), np.array([1]), np.array([False])).tolist()
            [16.0]
        """
        cp = np.asarray(cp_size, np.float64)
        tokens = column_sums[:, 0] / cp
        round_work = self.quadratic * column_sums[:, 1] / (cp * cp)
        transfer = np.where(crosses_node, self.ring_inter, self.ring_intra) * tokens
        return self.linear * tokens + round_work + (cp - 1) * np.maximum(round_work, transfer)
