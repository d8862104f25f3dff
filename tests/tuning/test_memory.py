"""The memory estimate against sums by hand and published formulas."""

from __future__ import annotations

from typing import Any

import pytest

from dcpack.cost import MODELS, TransformerModel, get_model
from dcpack.errors import ArgumentError
from dcpack.tuning import RECOMPUTE, STATE_SHARDINGS, MemoryOptions, estimate_memory

SMALL = TransformerModel(hidden=8, layers=3, heads=2, kv_heads=1, intermediate=16, vocab=10)
# One layer: projections 2 * 8 * 4 * (2 + 1) = 192, MLP 3 * 8 * 16 = 384.
LAYER = 192 + 384
WEIGHTS = 3 * LAYER + 2 * 80
# One token in one layer: two inputs of norms and two outputs 32, queries 8, keys and values 8, attention's output 8,
# three of the MLP 48, each of 2 bytes; two float32 softmax statistics.
TOKEN = 2 * (32 + 8 + 8 + 8 + 48) + 4 * 2


@pytest.mark.parametrize(
    ("sharding", "states", "gathered"),
    [
        ("none", 16 * WEIGHTS, 0),
        ("optimizer", 4 * WEIGHTS + 12 * WEIGHTS / 4, 0),
        ("full", 16 * WEIGHTS / 4, 3 * 2 * LAYER),
    ],
)
def test_states_by_hand(sharding: str, states: float, gathered: float) -> None:
    estimate = estimate_memory(SMALL, num_ranks=4, capacity=100, options=MemoryOptions(sharding=sharding))
    assert (estimate.states, estimate.gathered) == (states, gathered)
    assert estimate.activations == 100 * 3 * TOKEN
    assert estimate.logits == 100 * 10 * 6
    assert estimate.total == states + gathered + 100 * 3 * TOKEN + 100 * 10 * 6


def test_recomputing_keeps_the_inputs_and_one_layer() -> None:
    estimate = estimate_memory(SMALL, num_ranks=4, capacity=100, recompute="full")
    assert estimate.activations == 100 * (3 * 2 * 8 + TOKEN)


def test_tensor_parallelism_divides_all() -> None:
    one, two = (estimate_memory(SMALL, num_ranks=4, capacity=100, tp_size=tp) for tp in (1, 2))
    assert [getattr(two, name) * 2 for name in ("states", "gathered", "activations", "logits")] == [
        getattr(one, name) for name in ("states", "gathered", "activations", "logits")
    ]


def test_a_fused_loss_keeps_no_logits() -> None:
    assert estimate_memory(SMALL, num_ranks=1, capacity=9, options=MemoryOptions(fused_loss=True)).logits == 0


def test_gpt3_keeps_what_its_paper_counts() -> None:
    # arXiv 2205.05198: 34 bytes x hidden a layer and token, of which two are dropout masks of one byte a value.
    model = get_model("gpt3-175b")
    estimate = estimate_memory(model, num_ranks=1, capacity=1)
    assert estimate.activations == 96 * (32 * 12288 + 4 * 96)


def test_experts_keep_a_copy_for_each_visit() -> None:
    dense = TransformerModel(hidden=8, layers=2, heads=2, intermediate=16)
    sparse = TransformerModel(hidden=8, layers=2, heads=2, experts=4, top_k=2, shared_experts=1, moe_intermediate=16)
    kept = [estimate_memory(model, num_ranks=1, capacity=1).activations for model in (dense, sparse)]
    # Two visits keep their inputs (2 * 8 values) and three tensors of 16 each; the shared expert stands for the MLP.
    assert kept[1] - kept[0] == 2 * 2 * (2 * (8 + 48))


@pytest.mark.parametrize("name", sorted(MODELS))
def test_every_preset_has_an_estimate_that_grows_with_the_row(name: str) -> None:
    for recompute in RECOMPUTE:
        for sharding in STATE_SHARDINGS:
            options = MemoryOptions(sharding=sharding)
            small, large = (
                estimate_memory(get_model(name), num_ranks=8, capacity=c, recompute=recompute, options=options)
                for c in (1024, 2048)
            )
            assert small.states == large.states > 0
            assert small.activations * 2 == large.activations
            assert small.total < large.total
    kept = [estimate_memory(get_model(name), num_ranks=8, capacity=1, recompute=r).activations for r in RECOMPUTE]
    assert kept[1] < kept[0] / 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_ranks": 0}, "num_ranks must be at least 1, got 0"),
        ({"capacity": 0}, "capacity must be at least 1, got 0"),
        ({"capacity": 1.5}, "capacity must be an integer"),
        ({"tp_size": 0}, "tp_size must be at least 1, got 0"),
        ({"recompute": "half"}, "recompute must be one of 'none', 'full', got 'half'"),
    ],
)
def test_arguments_out_of_range(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        estimate_memory(SMALL, **{"num_ranks": 1, "capacity": 1, **arguments})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sharding": "zero"}, "sharding must be one of"),
        ({"usable": 0.0}, "usable must be"),
        ({"usable": 1.1}, "usable must be"),
        ({"usable": float("nan")}, "usable must be"),
        ({"fused_loss": 1}, "fused_loss must be True or False"),
    ],
)
def test_options_out_of_range(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        MemoryOptions(**arguments)
