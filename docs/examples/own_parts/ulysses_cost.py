"""A cost model of one's own: CP that swaps heads for tokens in an all-to-all (Ulysses), not in a ring."""

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class UlyssesCost:
    """Seconds of a rank: linear work, attention split by heads, and two all-to-alls a layer that nothing hides.

    A rank of a bin holds t = tokens / cp tokens. It sends (cp - 1) / cp of them each time, over the slow link where the
    group crosses nodes.
    """

    token_seconds: float = 8e-5
    pair_seconds: float = 3e-9
    token_bytes: float = 1.6e6  # of one token over all layers and passes
    fast: float = 450e9
    slow: float = 50e9
    node_size: int | None = 8
    unit: str = "s"

    def columns(self, padded_lengths: np.ndarray) -> np.ndarray:
        """Tokens and causal pairs of each sequence: what adds up over a bin."""
        s = np.asarray(padded_lengths, np.float64)
        return np.stack([s, s * (s + 1) / 2], axis=1)

    def bin_time(self, column_sums: np.ndarray, cp_size: np.ndarray, crosses_node: np.ndarray) -> np.ndarray:
        """Seconds of each rank of each bin."""
        tokens, pairs = column_sums[:, 0] / cp_size, column_sums[:, 1] / cp_size
        sent = tokens * (cp_size - 1) / cp_size * self.token_bytes
        return (
            self.token_seconds * tokens
            + self.pair_seconds * pairs
            + sent / np.where(crosses_node, self.slow, self.fast)
        )
