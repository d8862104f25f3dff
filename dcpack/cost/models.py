"""Dimensions of transformers, what they cost in FLOPs and bytes, and those of well-known models.

Letters of the formulas: H hidden, L layers, n heads, g key/value heads, d head dim, I intermediate, V vocab. A matrix
multiplication of [1, a] by [a, b] counts 2ab FLOPs. Norms, rotary embeddings, softmax and biases are left out, as
usual: they are bound by memory and small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from dcpack._checks import as_real, check_flag, check_int
from dcpack.errors import ArgumentError

__all__ = ["MODELS", "TransformerModel", "get_model"]

_MLA_FIELDS = ("q_lora_rank", "qk_nope", "qk_rope", "v_head")
_MOE_FIELDS = ("top_k", "shared_experts", "moe_intermediate", "dense_layers")
_AT_LEAST_ONE = ("hidden", "layers", "heads", "dtype_bytes")


@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerModel:
    """Dimensions of a decoder or encoder: dense or mixture of experts, with MHA, GQA or MLA.

    0 leaves a field out, or derives it where that is said.

    Args:
        hidden: H, width of the residual stream.
        layers: L, layers. For one stage of a pipeline, its layers.
        heads: n, query heads.
        kv_heads: g, key/value heads; 0 takes `heads` (MHA). Not for MLA.
        head_dim: d, width of a head; 0 takes ``hidden / heads``. Not for MLA.
        intermediate: I, width of the dense MLP; needed unless every layer is a mixture of experts.
        vocab: V, rows of the output head; 0 counts no head.
        gated: the MLP has three matrices (SwiGLU and the like), not two.
        q_lora_rank: MLA, rank of the compressed queries; 0 projects them directly.
        kv_lora_rank: MLA, rank of the compressed keys and values; above 0 makes the model MLA.
        qk_nope: MLA, width of a query/key head without rotary embedding.
        qk_rope: MLA, width of its rotary part, which all heads share on the key side.
        v_head: MLA, width of a value head.
        experts: routed experts of a layer; above 0 makes the model a mixture of experts.
        top_k: routed experts that a token visits.
        shared_experts: experts of `moe_intermediate` that every token visits.
        moe_intermediate: width of one expert.
        dense_layers: how many of the `layers` keep the dense MLP in a mixture of experts.
        dtype_bytes: bytes of one activation value, 2 for bf16.

    Raises:
        ArgumentError: a field out of range, or fields that contradict each other; all are named.

    Example:
        >>> model = TransformerModel(hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14336, vocab=128256)
        >>> model.head_dim, model.linear_flops_per_token / 2e9  # a MAC is 2 FLOPs: 7.5e9 weights beside the embedding
        (128, 7.504658432)
        >>> model.attention_flops_per_pair, model.kv_bytes_per_token
        (524288, 131072)
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    intermediate: int = 0
    vocab: int = 0
    gated: bool = True
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    qk_nope: int = 0
    qk_rope: int = 0
    v_head: int = 0
    experts: int = 0
    top_k: int = 0
    shared_experts: int = 0
    moe_intermediate: int = 0
    dense_layers: int = 0
    dtype_bytes: int = 2

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            if name != "gated":
                value = check_int(name, getattr(self, name), minimum=1 if name in _AT_LEAST_ONE else 0)
                object.__setattr__(self, name, value)
        object.__setattr__(self, "gated", check_flag("gated", self.gated))
        faults = [*self._mla_faults(), *self._head_faults(), *self._mlp_faults()]
        if faults:
            raise ArgumentError(f"no such model: {'; '.join(faults)}")
        if not self.is_mla:
            object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
            object.__setattr__(self, "head_dim", self.head_dim or self.hidden // self.heads)

    def _mla_faults(self) -> list[str]:
        if self.is_mla:
            faults = [
                f"{name} is not for MLA (kv_lora_rank > 0)" for name in ("kv_heads", "head_dim") if self._has(name)
            ]
            faults += ["MLA needs v_head of at least 1"] if not self.v_head else []
            return faults + (["MLA needs qk_nope or qk_rope"] if not self.qk_nope + self.qk_rope else [])
        return [f"{name} is {getattr(self, name)}, but kv_lora_rank is 0" for name in _MLA_FIELDS if self._has(name)]

    def _head_faults(self) -> list[str]:
        faults = []
        if self.kv_heads and self.heads % self.kv_heads:
            faults.append(f"kv_heads must divide heads, got {self.kv_heads} and {self.heads}")
        if not self.is_mla and not self.head_dim and self.hidden % self.heads:
            faults.append(f"heads must divide hidden where head_dim is 0, got {self.heads} and {self.hidden}")
        return faults

    def _mlp_faults(self) -> list[str]:
        if not self.experts:
            faults = [f"{name} is {getattr(self, name)}, but experts is 0" for name in _MOE_FIELDS if self._has(name)]
        else:
            faults = [
                f"experts need {name} of at least 1" for name in ("top_k", "moe_intermediate") if not self._has(name)
            ]
            faults += [f"top_k must be at most experts, {self.experts}, got {self.top_k}"] * (self.top_k > self.experts)
            if self.dense_layers > self.layers:
                faults.append(f"dense_layers must be at most layers, {self.layers}, got {self.dense_layers}")
        if self.num_dense_layers > 0 and not self.intermediate:
            faults.append("layers with a dense MLP need intermediate of at least 1")
        return faults

    def _has(self, name: str) -> bool:
        return getattr(self, name) > 0

    @property
    def is_mla(self) -> bool:
        """Whether keys and values are compressed (multi-head latent attention)."""
        return self.kv_lora_rank > 0

    @property
    def num_dense_layers(self) -> int:
        """Layers with a dense MLP; the others are mixtures of experts."""
        return self.dense_layers if self.experts else self.layers

    @property
    def qk_dim(self) -> int:
        """Width of a query or key head."""
        return self.qk_nope + self.qk_rope if self.is_mla else self.head_dim

    @property
    def v_dim(self) -> int:
        """Width of a value head."""
        return self.v_head if self.is_mla else self.head_dim

    @property
    def projection_weights(self) -> int:
        """Weights of the attention projections of one layer.

        MHA and GQA: ``H*n*d + 2*H*g*d + n*d*H``. MLA (DeepSeek-V2, arXiv 2405.04434, 2.1): the queries ``H*n*qk``, or
        ``H*r_q + r_q*n*qk`` with their own rank; ``H*(r_kv + rope)`` down, ``r_kv*n*(nope + v)`` up; ``n*v*H`` out.
        """
        if not self.is_mla:
            return 2 * self.hidden * self.head_dim * (self.heads + self.kv_heads)
        query_width = self.heads * self.qk_dim
        rank = self.q_lora_rank
        query = rank * (self.hidden + query_width) if rank else self.hidden * query_width
        down = self.hidden * (self.kv_lora_rank + self.qk_rope)
        up = self.kv_lora_rank * self.heads * (self.qk_nope + self.v_head)
        return query + down + up + self.heads * self.v_head * self.hidden

    @property
    def layer_weights(self) -> int:
        """Weights of the largest layer, all of its experts included."""
        matrices = 3 if self.gated else 2
        dense = matrices * self.hidden * self.intermediate if self.num_dense_layers else 0
        each = matrices * self.hidden * self.moe_intermediate
        sparse = each * (self.experts + self.shared_experts) + self.hidden * self.experts
        return self.projection_weights + max(dense, sparse)

    @property
    def num_weights(self) -> int:
        """Weights of the whole model: those that a token meets, the experts that it does not visit, the embedding.

        Embedding and output head count apart, also where a model ties them.

        Example:
            >>> f"{get_model('llama3-8b').num_weights:,}"
            '8,029,995,008'
        """
        matrices = 3 if self.gated else 2
        idle = max(self.experts - self.top_k, 0) * matrices * self.hidden * self.moe_intermediate
        idle *= self.layers - self.num_dense_layers
        return self.linear_flops_per_token // 2 + idle + self.hidden * self.vocab

    @property
    def linear_flops_per_token(self) -> int:
        """Forward FLOPs of one token in all that is linear in the length: two for each weight that it meets.

        ``2 * (L*proj + L_dense*m*H*I + L_moe*(m*H*I_moe*(top_k + shared) + H*experts) + H*V)``, m = 3 matrices where
        the MLP is gated, else 2. The embedding is looked up and costs nothing.

        Example:
            >>> TransformerModel(hidden=8, layers=2, heads=2, intermediate=16, vocab=10).linear_flops_per_token
            2720
        """
        matrices = 3 if self.gated else 2
        dense = matrices * self.hidden * self.intermediate
        routed = matrices * self.hidden * self.moe_intermediate * (self.top_k + self.shared_experts)
        sparse = routed + self.hidden * self.experts
        num_sparse = self.layers - self.num_dense_layers
        weights = self.layers * self.projection_weights + self.num_dense_layers * dense + num_sparse * sparse
        return 2 * (weights + self.hidden * self.vocab)

    @property
    def attention_flops_per_pair(self) -> int:
        """Forward FLOPs of one (query, key) pair over all layers and heads: ``2 * L * n * (qk + v)``.

        Example:
            >>> TransformerModel(hidden=8, layers=2, heads=2, intermediate=16).attention_flops_per_pair
            64
        """
        return 2 * self.layers * self.heads * (self.qk_dim + self.v_dim)

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of one token's keys and values over all layers, as ring attention passes them on.

        GQA passes g heads. MLA passes all n heads, expanded, as Megatron-Core does: ``L * n * (qk + v)`` values.
        """
        heads = self.heads if self.is_mla else self.kv_heads
        return self.layers * heads * (self.qk_dim + self.v_dim) * self.dtype_bytes

    @property
    def latent_bytes_per_token(self) -> int:
        """MLA: bytes of one token's compressed keys and values over all layers, ``L * (r_kv + rope)`` values."""
        return self.layers * (self.kv_lora_rank + self.qk_rope) * self.dtype_bytes

    def forward_flops(self, *, tokens: float, pairs: float) -> float:
        """Return the FLOPs of a forward pass.

        Args:
            tokens: tokens of all sequences.
            pairs: (query, key) pairs of all sequences, by the attention pattern.

        Example:
            >>> model = TransformerModel(hidden=8, layers=2, heads=2, intermediate=16)
            >>> model.forward_flops(tokens=4, pairs=10)  # causal: 4 * 5 / 2 pairs
            10880
        """
        as_real("tokens", tokens)
        as_real("pairs", pairs)
        return self.linear_flops_per_token * tokens + self.attention_flops_per_pair * pairs

    def training_flops(self, *, tokens: float, pairs: float) -> float:
        """Return the FLOPs of a forward and a backward pass: three forward passes, nothing recomputed.

        The backward pass multiplies for the gradients of the inputs and of the weights: twice the forward pass.

        Args:
            tokens: tokens of all sequences.
            pairs: (query, key) pairs of all sequences, by the attention pattern.

        Example:
            >>> model = TransformerModel(hidden=8, layers=2, heads=2, intermediate=16)
            >>> model.training_flops(tokens=4, pairs=10)
            32640
        """
        return 3 * self.forward_flops(tokens=tokens, pairs=pairs)


MODELS: Mapping[str, TransformerModel] = MappingProxyType(
    {
        # Llama 2, arXiv 2307.09288 (2023), and the published configurations.
        "llama2-7b": TransformerModel(hidden=4096, layers=32, heads=32, intermediate=11008, vocab=32000),
        "llama2-13b": TransformerModel(hidden=5120, layers=40, heads=40, intermediate=13824, vocab=32000),
        "llama2-70b": TransformerModel(hidden=8192, layers=80, heads=64, kv_heads=8, intermediate=28672, vocab=32000),
        # Llama 3, arXiv 2407.21783 (2024), table 3.
        "llama3-8b": TransformerModel(hidden=4096, layers=32, heads=32, kv_heads=8, intermediate=14336, vocab=128256),
        "llama3-70b": TransformerModel(hidden=8192, layers=80, heads=64, kv_heads=8, intermediate=28672, vocab=128256),
        "llama3-405b": TransformerModel(
            hidden=16384, layers=126, heads=128, kv_heads=8, intermediate=53248, vocab=128256
        ),
        # Qwen3 technical report, arXiv 2505.09388 (2025), tables 1 and 2, and the published configurations.
        "qwen3-8b": TransformerModel(
            hidden=4096, layers=36, heads=32, kv_heads=8, head_dim=128, intermediate=12288, vocab=151936
        ),
        "qwen3-32b": TransformerModel(
            hidden=5120, layers=64, heads=64, kv_heads=8, head_dim=128, intermediate=25600, vocab=151936
        ),
        "qwen3-30b-a3b": TransformerModel(
            hidden=2048,
            layers=48,
            heads=32,
            kv_heads=4,
            head_dim=128,
            vocab=151936,
            experts=128,
            top_k=8,
            moe_intermediate=768,
        ),
        "qwen3-235b-a22b": TransformerModel(
            hidden=4096,
            layers=94,
            heads=64,
            kv_heads=4,
            head_dim=128,
            vocab=151936,
            experts=128,
            top_k=8,
            moe_intermediate=1536,
        ),
        # Mixtral of Experts, arXiv 2401.04088 (2024), table 1.
        "mixtral-8x7b": TransformerModel(
            hidden=4096, layers=32, heads=32, kv_heads=8, vocab=32000, experts=8, top_k=2, moe_intermediate=14336
        ),
        # DeepSeek-V3 technical report, arXiv 2412.19437 (2024), 4.2. Without the multi-token prediction module.
        "deepseek-v3": TransformerModel(
            hidden=7168,
            layers=61,
            heads=128,
            intermediate=18432,
            vocab=129280,
            q_lora_rank=1536,
            kv_lora_rank=512,
            qk_nope=128,
            qk_rope=64,
            v_head=128,
            experts=256,
            top_k=8,
            shared_experts=1,
            moe_intermediate=2048,
            dense_layers=3,
        ),
        # Language Models are Few-Shot Learners, arXiv 2005.14165 (2020), table 2.1; all layers counted as dense.
        "gpt3-175b": TransformerModel(hidden=12288, layers=96, heads=96, intermediate=49152, vocab=50257, gated=False),
    }
)
"""Dimensions of well-known models by name, from their papers and published configurations."""


def get_model(name: str) -> TransformerModel:
    """Return the model behind a name.

    Args:
        name: one of `MODELS`.

    Raises:
        ArgumentError: an unknown name; lists the known ones.

    Example:
        >>> get_model("llama3-8b").kv_heads
        8
    """
    if not isinstance(name, str) or name not in MODELS:
        raise ArgumentError(f"unknown model {name!r}; known are {', '.join(MODELS)}")
    return MODELS[name]
