"""Seconds of a step from the dimensions of a model and the figures of a device."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dcpack._checks import BoolArray, Float64Array, Int64Array, as_real, check_flag, check_int
from dcpack.cost.attention import AttentionPattern, count_pairs, get_attention, named_if_known
from dcpack.cost.devices import Device
from dcpack.cost.models import TransformerModel
from dcpack.errors import ArgumentError

__all__ = ["TransformerCost"]


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerCost:
    """Seconds that a rank works on a bin: linear layers, attention, and the part of the ring that nothing hides.

    A rank of a bin holds ``t = tokens / cp`` tokens. Ring attention has cp rounds; each computes ``a = pair_seconds *
    pairs / cp**2`` of attention, and each but the first waits for the keys and values of the next rank, ``ring_seconds
    * t``, where attention takes less than their transfer:

        token_seconds * t + a + (cp - 1) * (max(a, ring_seconds * t) + round_latency) + fixed.

    All rounds count alike: right for causal attention in zigzag order and for full attention, and an approximation for
    windows and chunks, where rounds differ. What is left out: data-parallel and expert-parallel communication, the
    optimizer, memory, kernels that are slow on short sequences.

    Args:
        model: dimensions of the model (of one pipeline stage, where there are several).
        device: speed of the device and its links.
        attention: ``"causal"``, ``"full"``, ``"sliding_window:N"``, ``"chunked:N"``, or a function from lengths
            (int64[n]) to (query, key) pairs (float64[n]).
        tp_size: devices that share one plan rank by tensor parallelism. Work and bytes are divided by it, a node holds
            fewer plan ranks; its own communication is not modelled.
        passes: forward passes that a step is worth: 3 for training (the backward pass is two), 4 where everything is
            recomputed, 1 for the forward pass alone. Ring transfers go along: keys and values forward, they and their
            gradients backward.
        latent_ring: MLA only, pass compressed keys and values round the ring and expand them on arrival.
        fixed: seconds of a bin that do not depend on what is in it.

    Raises:
        ArgumentError: an argument out of range, or `tp_size` that does not divide the heads or a node.

    Example:
        >>> from dcpack.cost import get_device, get_model
        >>> cost = TransformerCost(model=get_model("llama3-8b"), device=get_device("h100"))
        >>> sums = cost.columns(np.array([65536]))
        >>> crosses = np.array([False, False, True])
        >>> times = cost.bin_time(np.repeat(sums, 3, axis=0), np.array([1, 8, 64]), crosses)
        >>> [f"{seconds:.3f}" for seconds in times]
        ['11.799', '1.482', '0.647']
    """

    model: TransformerModel
    device: Device
    attention: str | AttentionPattern = "causal"
    tp_size: int = 1
    passes: float = 3.0
    latent_ring: bool = False
    fixed: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.model, TransformerModel):
            raise ArgumentError(f"model must be a TransformerModel, got {self.model!r}")
        if not isinstance(self.device, Device):
            raise ArgumentError(f"device must be a Device, got {self.device!r}")
        object.__setattr__(self, "attention", named_if_known(get_attention(self.attention)))
        object.__setattr__(self, "tp_size", check_int("tp_size", self.tp_size, minimum=1))
        object.__setattr__(self, "passes", as_real("passes", self.passes, positive=True))
        object.__setattr__(self, "fixed", as_real("fixed", self.fixed))
        object.__setattr__(self, "latent_ring", check_flag("latent_ring", self.latent_ring))
        if self.latent_ring and not self.model.is_mla:
            raise ArgumentError("latent_ring needs a model with compressed keys and values (kv_lora_rank > 0)")
        if self.model.heads % self.tp_size:
            raise ArgumentError(f"tp_size must divide the {self.model.heads} heads, got {self.tp_size}")
        node = self.device.node_size
        if node is not None and node % self.tp_size and self.tp_size % node:
            raise ArgumentError(f"tp_size must divide node_size, {node}, or be a multiple of it, got {self.tp_size}")

    @property
    def unit(self) -> str:
        """``"s"``."""
        return "s"

    @property
    def node_size(self) -> int | None:
        """Consecutive plan ranks of a node: its devices over `tp_size`, at least 1; None where all share it."""
        node = self.device.node_size
        return None if node is None else max(1, node // self.tp_size)

    @property
    def token_seconds(self) -> float:
        """Seconds of one token in the linear layers."""
        return self.passes * self.model.linear_flops_per_token / (self.device.matmul_flops * self.tp_size)

    @property
    def pair_seconds(self) -> float:
        """Seconds of one (query, key) pair in attention."""
        return self.passes * self.model.attention_flops_per_pair / (self.device.attention_flops * self.tp_size)

    @property
    def ring_bytes_per_token(self) -> float:
        """Bytes that a device passes on for each token of its rank, in each round, over all passes."""
        if self.latent_ring:
            return self.passes * self.model.latent_bytes_per_token  # every device of a TP group needs all of it
        heads = self.model.heads if self.model.is_mla else self.model.kv_heads
        on_device = -(-heads // self.tp_size)  # with fewer key/value heads than devices each keeps one
        return self.passes * self.model.kv_bytes_per_token * on_device / heads

    @property
    def round_latency(self) -> float:
        """Seconds of one round that nothing hides: a message for each layer and pass."""
        return self.passes * self.model.layers * self.device.latency

    def columns(self, padded_lengths: Int64Array) -> Float64Array:
        """Return float64[n, 2]: tokens, and (query, key) pairs.

        Example:
            >>> from dcpack.cost import get_cost
            >>> get_cost("llama3-8b@h100").columns(np.array([3, 4])).tolist()
            [[3.0, 6.0], [4.0, 10.0]]
        """
        pairs = count_pairs(get_attention(self.attention), padded_lengths)
        return np.stack([np.asarray(padded_lengths, np.float64), pairs], axis=1)

    def bin_time(self, column_sums: Float64Array, cp_size: Int64Array, crosses_node: BoolArray) -> Float64Array:
        """Return float64[b]: the seconds of each rank of each bin, by the formula above.

        Example:
            >>> from dcpack.cost import get_cost
            >>> get_cost("llama3-8b@h100").bin_time(np.zeros((1, 2)), np.array([1]), np.array([False])).tolist()
            [0.0]
        """
        cp = np.asarray(cp_size, np.float64)
        tokens = column_sums[:, 0] / cp
        attention = self.pair_seconds * column_sums[:, 1] / (cp * cp)
        bandwidth = np.where(crosses_node, self.device.inter_node_bandwidth, self.device.intra_node_bandwidth)
        transfer = self.ring_bytes_per_token * tokens / bandwidth
        rounds = (cp - 1) * (np.maximum(attention, transfer) + self.round_latency)
        return self.token_seconds * tokens + attention + rounds + self.fixed
