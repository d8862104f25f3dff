from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

import pytest

from dcpack.cost import MODELS, TransformerModel, get_model
from dcpack.errors import ArgumentError

DENSE: dict[str, Any] = {"hidden": 8, "layers": 2, "heads": 4, "intermediate": 16}
MLA: dict[str, Any] = {**DENSE, "kv_lora_rank": 4, "qk_nope": 2, "qk_rope": 2, "v_head": 3}
MOE: dict[str, Any] = {**DENSE, "experts": 6, "top_k": 2, "moe_intermediate": 5, "dense_layers": 1}


def test_mha_by_hand() -> None:
    model = TransformerModel(**DENSE, vocab=10)
    assert (model.kv_heads, model.head_dim) == (4, 2)
    # q, k, v, o: 4 * 8 * 8; MLP 3 * 8 * 16; head 8 * 10
    assert model.projection_weights == 256
    assert model.linear_flops_per_token == 2 * (2 * (256 + 384) + 80)
    assert model.attention_flops_per_pair == 2 * 2 * 4 * (2 + 2)
    assert model.kv_bytes_per_token == 2 * 4 * (2 + 2) * 2
    assert TransformerModel(**DENSE, gated=False).linear_flops_per_token == 2 * 2 * (256 + 256)


def test_gqa_by_hand() -> None:
    model = TransformerModel(**DENSE, kv_heads=2, head_dim=5, dtype_bytes=4)
    # q and o: 8 * 4 * 5 each; k and v: 8 * 2 * 5 each
    assert model.projection_weights == 2 * 160 + 2 * 80
    assert model.attention_flops_per_pair == 2 * 2 * 4 * (5 + 5)  # all query heads
    assert model.kv_bytes_per_token == 2 * 2 * (5 + 5) * 4  # key/value heads only


def test_mla_by_hand() -> None:
    model = TransformerModel(**MLA)
    query, down, up, out = 8 * 4 * 4, 8 * (4 + 2), 4 * 4 * (2 + 3), 4 * 3 * 8
    assert model.projection_weights == query + down + up + out
    assert TransformerModel(**MLA, q_lora_rank=3).projection_weights == 8 * 3 + 3 * 4 * 4 + down + up + out
    assert model.attention_flops_per_pair == 2 * 2 * 4 * (4 + 3)
    assert model.kv_bytes_per_token == 2 * 4 * (4 + 3) * 2
    assert model.latent_bytes_per_token == 2 * (4 + 2) * 2


def test_moe_by_hand() -> None:
    model = TransformerModel(**MOE, shared_experts=1)
    dense, sparse = 3 * 8 * 16, 3 * 8 * 5 * (2 + 1) + 8 * 6
    assert model.linear_flops_per_token == 2 * (2 * 256 + dense + sparse)
    assert TransformerModel(**{**MOE, "dense_layers": 0, "intermediate": 0}).num_dense_layers == 0


def test_flops_of_passes() -> None:
    model = TransformerModel(**DENSE)
    assert model.forward_flops(tokens=4, pairs=10) == model.linear_flops_per_token * 4 + 64 * 10
    assert model.training_flops(tokens=4, pairs=10) == 3 * model.forward_flops(tokens=4, pairs=10)


# Published numbers of parameters, in billions: total, and those that a token meets (None: all).
PUBLISHED = {
    "llama2-7b": (6.74, None),
    "llama2-13b": (13.0, None),
    "llama2-70b": (69.0, None),
    "llama3-8b": (8.03, None),
    "llama3-70b": (70.6, None),
    "llama3-405b": (405.9, None),
    "qwen3-8b": (8.19, None),
    "qwen3-32b": (32.8, None),
    "qwen3-30b-a3b": (30.5, 3.35),
    "qwen3-235b-a22b": (235.0, 22.2),
    "mixtral-8x7b": (46.7, 12.9),
    "deepseek-v3": (671.0, 37.5),
    "gpt3-175b": (175.2, None),
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_presets_have_the_published_number_of_parameters(name: str) -> None:
    model = get_model(name)
    embedding = model.hidden * model.vocab
    met = model.linear_flops_per_token / 2 + embedding
    total = model.num_weights
    if name == "gpt3-175b":
        total -= embedding  # its output head is the embedding
    billions, active = PUBLISHED[name]
    assert total / 1e9 == pytest.approx(billions, rel=0.01)
    if active is not None:
        assert met / 1e9 == pytest.approx(active, rel=0.01)


@pytest.mark.parametrize(
    ("name", "weights"),
    [
        ("llama3-8b", 2 * 4096 * 128 * 40 + 3 * 4096 * 14336),
        ("mixtral-8x7b", 2 * 4096 * 128 * 40 + 8 * 3 * 4096 * 14336 + 4096 * 8),
        ("gpt3-175b", 12 * 12288**2),
    ],
)
def test_the_weights_of_one_layer(name: str, weights: int) -> None:
    model = get_model(name)
    assert model.layer_weights == weights
    assert model.num_weights == model.layers * weights + 2 * model.hidden * model.vocab


def test_known_models() -> None:
    assert set(PUBLISHED) == set(MODELS)
    for model in MODELS.values():
        assert TransformerModel(**asdict(model)) == model
    with pytest.raises(ArgumentError, match=r"unknown model 'llama9'; known are llama2-7b, .*, gpt3-175b$"):
        get_model("llama9")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**DENSE, "hidden": 0}, "hidden must be at least 1, got 0"),
        ({**DENSE, "layers": True}, "layers must be an integer, got True (bool)"),
        ({**DENSE, "vocab": -1}, "vocab must be at least 0, got -1"),
        ({**DENSE, "gated": 1}, "gated must be True or False, got 1"),
        ({**DENSE, "heads": 3}, "heads must divide hidden where head_dim is 0, got 3 and 8"),
        ({**DENSE, "kv_heads": 3}, "kv_heads must divide heads, got 3 and 4"),
        ({**DENSE, "intermediate": 0}, "layers with a dense MLP need intermediate of at least 1"),
        ({**DENSE, "v_head": 2, "top_k": 1}, "v_head is 2, but kv_lora_rank is 0; top_k is 1, but experts is 0"),
        ({**MLA, "kv_heads": 2}, "kv_heads is not for MLA (kv_lora_rank > 0)"),
        ({**MLA, "v_head": 0}, "MLA needs v_head of at least 1"),
        ({**MLA, "qk_nope": 0, "qk_rope": 0}, "MLA needs qk_nope or qk_rope"),
        ({**MOE, "top_k": 0}, "experts need top_k of at least 1"),
        ({**MOE, "top_k": 7}, "top_k must be at most experts, 6, got 7"),
        ({**MOE, "dense_layers": 3}, "dense_layers must be at most layers, 2, got 3"),
    ],
)
def test_a_model_that_cannot_be_is_named(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        TransformerModel(**fields)
