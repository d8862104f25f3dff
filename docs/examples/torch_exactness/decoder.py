"""A small decoder as large ones are built: RMS norms, rotary positions, grouped-query attention, a gated MLP.

The decoder does not know how its tokens are laid out. It is told each token's position, and attention is a function
that the caller passes: over one sequence, over padded rows, or over a packed bin whose tokens lie on several ranks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Attend", "Decoder", "DecoderOptions"]

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""From queries [b, t, heads, d], keys and values [b, t, kv heads, d] to outputs [b, t, heads, d]."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecoderOptions:
    """Sizes of the decoder.

    Attributes:
        vocabulary: bytes, and the end of a document.
        dim: width.
        num_layers: blocks.
        num_heads: query heads.
        num_kv_heads: key and value heads; each serves ``num_heads / num_kv_heads`` query heads.
        hidden: width of the MLP.
        rope_base: base of the rotary frequencies.
        temperature: queries are multiplied by ``1 + temperature * log(1 + position // 8)``, as in Llama 4. Rotary
            positions alone see only differences of positions, so that a model without this term could not tell
            whether positions restart.
    """

    vocabulary: int = 257
    dim: int = 32
    num_layers: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    hidden: int = 64
    rope_base: float = 10000.0
    temperature: float = 0.25

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.num_heads


class Decoder(nn.Module):
    """The decoder.

    Args:
        options: its sizes.

    Example:
        >>> from attention import attend_one_sequence
        >>> decoder = Decoder(DecoderOptions())
        >>> decoder(torch.tensor([[104, 105, 256]]), torch.arange(3)[None], attend_one_sequence).shape
        torch.Size([1, 3, 257])
    """

    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.embedding = nn.Embedding(options.vocabulary, options.dim)
        self.blocks = nn.ModuleList(_Block(options) for _ in range(options.num_layers))
        self.norm = nn.RMSNorm(options.dim)
        self.head = nn.Linear(options.dim, options.vocabulary, bias=False)

    def forward(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return logits.

        Args:
            input_ids: int64[b, t].
            positions: int64[b, t], position of each token in its sequence.
            attend: the attention.

        Returns:
            float[b, t, vocabulary].
        """
        hidden = self.embedding(input_ids)
        for block in self.blocks:
            hidden = block(hidden, positions, attend)
        return self.head(self.norm(hidden))


class _Block(nn.Module):
    def __init__(self, options: DecoderOptions) -> None:
        super().__init__()
        self.options = options
        kv_dim = options.num_kv_heads * options.head_dim
        self.attention_norm = nn.RMSNorm(options.dim)
        self.query = nn.Linear(options.dim, options.dim, bias=False)
        self.key = nn.Linear(options.dim, kv_dim, bias=False)
        self.value = nn.Linear(options.dim, kv_dim, bias=False)
        self.output = nn.Linear(options.dim, options.dim, bias=False)
        self.mlp_norm = nn.RMSNorm(options.dim)
        self.gate = nn.Linear(options.dim, options.hidden, bias=False)
        self.up = nn.Linear(options.dim, options.hidden, bias=False)
        self.down = nn.Linear(options.hidden, options.dim, bias=False)

    def forward(self, hidden: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        options = self.options
        normed = self.attention_norm(hidden)
        query, key, value = (
            layer(normed).unflatten(-1, (-1, options.head_dim)) for layer in (self.query, self.key, self.value)
        )
        query = _rotate(query, positions, options.rope_base) * _temperature(positions, options.temperature, query.dtype)
        attended = attend(query, _rotate(key, positions, options.rope_base), value)
        hidden = hidden + self.output(attended.flatten(-2))
        normed = self.mlp_norm(hidden)
        return hidden + self.down(functional.silu(self.gate(normed)) * self.up(normed))


def _rotate(vectors: Tensor, positions: Tensor, base: float) -> Tensor:
    """Return [b, t, heads, d] with each pair of components turned by an angle that is linear in the position."""
    half = vectors.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float64) / half)
    angles = (positions[..., None].double() * frequencies)[..., None, :]
    cosines, sines = angles.cos().to(vectors.dtype), angles.sin().to(vectors.dtype)
    first, second = vectors[..., :half], vectors[..., half:]
    return torch.cat([first * cosines - second * sines, second * cosines + first * sines], dim=-1)


def _temperature(positions: Tensor, strength: float, dtype: torch.dtype) -> Tensor:
    return (1.0 + strength * torch.log1p((positions // 8).double())).to(dtype)[..., None, None]
