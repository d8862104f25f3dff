"""An estimate of the memory that a rank needs: states of the weights, activations of a row, logits.

Letters as in `dcpack.cost.models`: H hidden, n heads, g key/value heads, I intermediate, V vocab; b bytes of a value.
"""

from __future__ import annotations

from dataclasses import dataclass

from dcpack._checks import as_real, check_choice, check_flag, check_int, check_kinds
from dcpack.cost import TransformerModel

__all__ = ["RECOMPUTE", "STATE_SHARDINGS", "MemoryEstimate", "MemoryOptions", "estimate_memory"]

STATE_SHARDINGS = ("none", "optimizer", "full")
"""What is sharded over the ranks: nothing (DDP), the optimizer (ZeRO-1), or weights and gradients too (FSDP)."""

RECOMPUTE = ("none", "full")
"""What the backward pass computes again: nothing, or every layer from its input."""

# Bytes of a weight under mixed precision with Adam: ZeRO, arXiv 1910.02054 (2019), 3.1.
_WEIGHT, _GRADIENT, _OPTIMIZER = 2, 2, 12
_UNITS = 3  # gathered weights of the layer at work and of the next one, and gradients not yet scattered


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryOptions:
    """How a training job holds its memory.

    Args:
        sharding: one of `STATE_SHARDINGS`.
        fused_loss: the loss never holds the logits of a whole row.
        usable: part of the device's memory that may be planned for; the rest is for the framework, communication
            buffers and fragmentation.

    Raises:
        ArgumentError: a field out of range.

    Example:
        >>> MemoryOptions(sharding="optimizer").usable
        0.9
    """

    sharding: str = "full"
    fused_loss: bool = False
    usable: float = 0.9

    def __post_init__(self) -> None:
        check_choice("sharding", self.sharding, STATE_SHARDINGS)
        object.__setattr__(self, "usable", as_real("usable", self.usable, positive=True, maximum=1))
        object.__setattr__(self, "fused_loss", check_flag("fused_loss", self.fused_loss))


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryEstimate:
    """Bytes that one rank needs at its peak.

    Attributes:
        states: weights, gradients and optimizer states that the rank keeps.
        gathered: layers that are gathered while they are at work (`sharding` ``"full"``).
        activations: what the forward pass keeps for the backward pass, of one full row.
        logits: logits of one full row and their gradient.

    Example:
        >>> MemoryEstimate(states=2e9, gathered=3e9, activations=36e9, logits=6e9).total
        47000000000.0
    """

    states: float
    gathered: float
    activations: float
    logits: float

    @property
    def total(self) -> float:
        """Bytes of all together."""
        return self.states + self.gathered + self.activations + self.logits


def estimate_memory(
    model: TransformerModel,
    *,
    num_ranks: int,
    capacity: int,
    tp_size: int = 1,
    recompute: str = "none",
    options: MemoryOptions | None = None,
) -> MemoryEstimate:
    """Return the bytes that one device needs for full rows of `capacity` tokens.

    States are 16 bytes a weight: 2 for it, 2 for its gradient, 12 for Adam in float32 (ZeRO, arXiv 1910.02054, 3.1).
    ``"optimizer"`` divides the 12 by the ranks, ``"full"`` all 16; then three layers (or heads) of 2 bytes a weight are
    gathered at a time. Activations count each tensor that a layer keeps, as in arXiv 2205.05198, 4.1, without dropout
    and with attention that keeps no scores: per token and layer, ``b * (4H + n*qk + g*(qk + v) + n*v + mlp) + 4n``, mlp
    = 3I where gated, else 2I; a mixture of experts keeps ``H + 3I`` for each expert that a token visits. `recompute`
    ``"full"`` keeps ``b*H`` a layer, and one layer in full. Logits count ``b + 4`` bytes a value. Tensor parallelism
    divides all of it, which needs sequence parallelism.

    It does not know pipeline or expert parallelism, offloading, kernels' workspaces, or rows beyond the capacity.

    Args:
        model: dimensions of the model.
        num_ranks: ranks that states are sharded over.
        capacity: padded tokens of one row on one rank.
        tp_size: devices of one rank by tensor parallelism.
        recompute: one of `RECOMPUTE`.
        options: how the job holds its memory.

    Raises:
        ArgumentError: an argument out of range.

    Example:
        >>> from dcpack.cost import get_model
        >>> estimate = estimate_memory(get_model("llama3-8b"), num_ranks=64, capacity=8192)
        >>> [round(part / 1e9, 1) for part in (estimate.states, estimate.gathered, estimate.activations)]
        [2.0, 3.2, 36.5]
    """
    check_kinds(model=(model, TransformerModel), options=(options, MemoryOptions | None))
    num_ranks = check_int("num_ranks", num_ranks, minimum=1)
    capacity = check_int("capacity", capacity, minimum=1)
    tp_size = check_int("tp_size", tp_size, minimum=1)
    check_choice("recompute", recompute, RECOMPUTE)
    options = MemoryOptions() if options is None else options
    kept = _layer_activations(model)
    inputs = model.dtype_bytes * model.hidden
    layers = _activations(model, kept) if recompute == "none" else model.layers * inputs + max(kept)
    logits = 0 if options.fused_loss else model.vocab * (model.dtype_bytes + 4)
    largest = max(model.layer_weights, model.hidden * model.vocab)
    return MemoryEstimate(
        states=model.num_weights * _state_bytes(options.sharding, num_ranks) / tp_size,
        gathered=_UNITS * _WEIGHT * largest / tp_size if options.sharding == "full" else 0.0,
        activations=capacity * layers / tp_size,
        logits=capacity * logits / tp_size,
    )


def _state_bytes(sharding: str, num_ranks: int) -> float:
    """Return the bytes of states that a rank keeps for each weight of the model."""
    if sharding == "full":
        return (_WEIGHT + _GRADIENT + _OPTIMIZER) / num_ranks
    return _WEIGHT + _GRADIENT + (_OPTIMIZER / num_ranks if sharding == "optimizer" else _OPTIMIZER)


def _activations(model: TransformerModel, kept: tuple[int, int]) -> int:
    """Return the bytes of one token over all layers, none of them recomputed."""
    return model.num_dense_layers * kept[0] + (model.layers - model.num_dense_layers) * kept[1]


def _layer_activations(model: TransformerModel) -> tuple[int, int]:
    """Return the bytes of one token that a dense layer and a mixture of experts keep (0 where there is none)."""
    b, matrices = model.dtype_bytes, 3 if model.gated else 2
    kv_heads = model.heads if model.is_mla else model.kv_heads
    latent = model.q_lora_rank + model.kv_lora_rank + model.qk_rope
    heads = model.heads * (model.qk_dim + model.v_dim) + kv_heads * (model.qk_dim + model.v_dim)
    attention = b * (4 * model.hidden + heads + latent) + 4 * model.heads
    routed = model.top_k * (model.hidden + matrices * model.moe_intermediate)
    experts = routed + model.shared_experts * matrices * model.moe_intermediate
    dense = attention + b * matrices * model.intermediate if model.num_dense_layers else 0
    return dense, attention + b * experts if model.experts else 0
