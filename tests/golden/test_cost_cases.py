"""Cost cases that other projects got wrong at some time, value by value. Each test says which fault it is."""

from __future__ import annotations

import numpy as np
import pytest

from dcpack.cost import CostModel, QuadraticCost, RingCost, TransformerCost, TransformerModel, get_cost, get_device


def test_transformer_flops() -> None:
    """Fault: the pairs of a prefix pattern priced as causal ones.

    MLA of H 8, n 2, I 16, r_kv 4, nope 2, rope 2, v 4: q = 8*2*4 = 64; proj = 64 + 8*6 + 4*2*6 + 2*4*8 = 224; linear
    2 * (224 + 3*8*16) = 1216 a token; attention 2 * 2 * (4 + 4) = 32 a pair. A prefix of P = 2 tokens that attends to
    itself, counted as P*P/2, and D = 2 dense tokens that attend to all P + D: 10 pairs.
    """
    model = TransformerModel(
        hidden=8, layers=1, heads=2, intermediate=16, kv_lora_rank=4, qk_nope=2, qk_rope=2, v_head=4
    )
    prefix, dense = 2, 2

    def prefix_pairs(lengths: np.ndarray) -> np.ndarray:
        own = lengths - prefix
        return prefix * prefix / 2 + own * (prefix + own)

    cost = TransformerCost(model=model, device=get_device("h100"), attention=prefix_pairs)
    (tokens, pairs), *_ = cost.columns(np.array([prefix + dense])).tolist()
    assert (tokens, pairs) == (4, 10)
    assert model.linear_flops_per_token == 1216
    assert model.attention_flops_per_pair == 32
    assert model.forward_flops(tokens=tokens, pairs=pairs) == 5184
    assert model.training_flops(tokens=tokens, pairs=pairs) == 15552


@pytest.mark.parametrize(
    "cost",
    [
        QuadraticCost(),
        RingCost(),
        get_cost("llama3-8b@h100"),
        get_cost({"model": "llama3-8b", "device": "h100", "attention": "full"}),
    ],
    ids=["quadratic", "ring", "causal", "full"],
)
def test_token_balance_is_not_work_balance(cost: CostModel) -> None:
    """Fault: bins of equal tokens taken for bins of equal work."""
    columns = [cost.columns(np.array(lengths)).sum(axis=0) for lengths in ([1024], [512, 512])]
    one, two = cost.bin_time(np.stack(columns), np.ones(2, np.int64), np.zeros(2, np.bool_)).tolist()
    assert one > two >= one / 2


@pytest.mark.parametrize(("attention", "one", "two"), [("causal", 524800, 262656), ("full", 1048576, 524288)])
def test_the_work_of_token_balanced_bins(attention: str, one: int, two: int) -> None:
    """1024 * 1025 / 2 against 2 * 512 * 513 / 2 pairs, 1024**2 against 2 * 512**2."""
    cost = get_cost({"model": "llama3-8b", "device": "h100", "attention": attention})
    assert cost.columns(np.array([1024])).sum(axis=0).tolist() == [1024, one]
    assert cost.columns(np.array([512, 512])).sum(axis=0).tolist() == [1024, two]
