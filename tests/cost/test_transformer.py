from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.cost import DEVICES, CostModel, Device, RingCost, TransformerCost, TransformerModel, get_cost, get_device
from dcpack.errors import ArgumentError

# Linear 3 * 2560 FLOPs a token, attention 3 * 64 a pair, 3 * 64 bytes a token: round numbers by the speeds below.
MODEL = TransformerModel(hidden=8, layers=2, heads=4, intermediate=16)
DEVICE = Device(
    peak_flops=768.0,
    matmul_fraction=1.0,
    attention_fraction=0.5,
    intra_node_bandwidth=96.0,
    inter_node_bandwidth=1.5,
    latency=0.125,
    node_size=8,
    memory_bytes=1.0,
)
COST = TransformerCost(model=MODEL, device=DEVICE, attention="full")


def time_of(cost: CostModel, lengths: list[int], cp: int, crosses: bool = False) -> float:
    sums = cost.columns(np.array(lengths, np.int64)).sum(axis=0, keepdims=True)
    return float(cost.bin_time(sums, np.array([cp]), np.array([crosses]))[0])


def test_rates_by_hand() -> None:
    assert COST.token_seconds == 3 * 2560 / 768 == 10
    assert COST.pair_seconds == 3 * 64 / 384 == 0.5
    assert COST.ring_bytes_per_token == 3 * 64
    assert COST.round_latency == 3 * 2 * 0.125
    assert (COST.unit, COST.node_size) == ("s", 8)


def test_every_term_by_hand() -> None:
    # lengths 8 and 4: 12 tokens, 80 pairs worth 40; 2 s a token inside a node, 128 between
    assert time_of(COST, [8, 4], 1) == time_of(COST, [8, 4], 1, crosses=True) == 120 + 40
    # cp 2: 6 tokens, a round is 10 s, a transfer 12
    assert time_of(COST, [8, 4], 2) == 60 + 10 + (12 + 0.75)
    assert time_of(COST, [8, 4], 2, crosses=True) == 60 + 10 + (6 * 128 + 0.75)
    # length 32: 1024 pairs worth 512; cp 4: 8 tokens, a round is 32 s, a transfer 16: hidden, but for the latency
    assert time_of(COST, [32], 4) == 80 + 4 * 32 + 3 * 0.75
    assert time_of(replace(COST, fixed=7.0), [8, 4], 2) == time_of(COST, [8, 4], 2) + 7
    assert time_of(replace(COST, passes=1.0), [8, 4], 2) == pytest.approx(time_of(COST, [8, 4], 2) / 3)


def test_causal_is_the_default() -> None:
    cost = TransformerCost(model=MODEL, device=DEVICE)
    assert cost.columns(np.array([0, 3, 4])).tolist() == [[0, 0], [3, 6], [4, 10]]
    assert time_of(cost, [4], 1) == 40 + 0.5 * 10


def test_any_function_may_be_the_attention() -> None:
    cost = TransformerCost(model=MODEL, device=DEVICE, attention=lambda s: s * 2.0)
    assert cost.columns(np.array([3])).tolist() == [[3, 6]]
    assert TransformerCost(model=MODEL, device=DEVICE, attention="full") == COST


def test_it_is_ring_cost_up_to_scale() -> None:
    """Constants chosen so that linear : quadratic : ring is 24576 : 1 : 1024 or 2304, which is RingCost's default."""
    model = TransformerModel(hidden=4096, layers=32, heads=32, intermediate=16384, gated=False)
    speed = 5e14
    # A layer moves 2 * 4096 values of 2 bytes a token and computes 4 * 4096 FLOPs a pair: as many bytes as FLOPs.
    device = Device(
        peak_flops=speed,
        matmul_fraction=1.0,
        attention_fraction=1.0,
        intra_node_bandwidth=speed / 1024,
        inter_node_bandwidth=speed / 2304,
        latency=0.0,
        node_size=8,
        memory_bytes=1.0,
    )
    cost, ring = TransformerCost(model=model, device=device, attention="full"), RingCost()
    rng = np.random.default_rng(0)
    lengths = np.concatenate([rng.integers(1, 2000, 100), rng.integers(1, 500_000, 100)])
    cp, crosses = 2 ** rng.integers(0, 7, 200), rng.random(200) < 0.5
    seconds = cost.bin_time(cost.columns(lengths), cp, crosses)
    units = ring.bin_time(ring.columns(lengths), cp, crosses)
    np.testing.assert_allclose(seconds, units * cost.pair_seconds, rtol=1e-12)


def test_grouped_and_latent_keys_make_the_ring_cheaper() -> None:
    grouped = TransformerModel(hidden=8, layers=2, heads=4, kv_heads=1, intermediate=16)
    assert replace(COST, model=grouped).ring_bytes_per_token == COST.ring_bytes_per_token / 4
    latent = get_cost({"model": "deepseek-v3", "device": "h100", "latent_ring": True})
    expanded = get_cost({"model": "deepseek-v3", "device": "h100"})
    assert isinstance(latent, TransformerCost)
    assert isinstance(expanded, TransformerCost)
    assert latent.ring_bytes_per_token == 3 * 61 * (512 + 64) * 2
    assert expanded.ring_bytes_per_token == 3 * 61 * 128 * (128 + 64 + 128) * 2


def test_tensor_parallelism_shares_work_and_nodes() -> None:
    shared = replace(COST, tp_size=2)
    assert shared.node_size == 4
    assert shared.token_seconds == COST.token_seconds / 2
    assert shared.pair_seconds == COST.pair_seconds / 2
    assert shared.ring_bytes_per_token == COST.ring_bytes_per_token / 2
    assert replace(COST, tp_size=4, device=replace(DEVICE, node_size=2)).node_size == 1
    assert replace(COST, device=replace(DEVICE, node_size=None)).node_size is None
    # One key/value head cannot be shared: each of 4 devices keeps and passes on the whole of it.
    one_head = TransformerModel(hidden=8, layers=2, heads=4, kv_heads=1, intermediate=16)
    assert (
        replace(COST, model=one_head, tp_size=4).ring_bytes_per_token
        == replace(COST, model=one_head).ring_bytes_per_token
    )


@settings(max_examples=60, deadline=None)
@given(
    length=st.integers(1, 2**20),
    cp=st.sampled_from([2, 3, 8, 64]),
    crosses=st.booleans(),
    name=st.sampled_from(["llama3-8b@h100", "deepseek-v3@ascend-910b", "mixtral-8x7b@tpu-v5e"]),
)
def test_splitting_never_lowers_the_total_work(length: int, cp: int, crosses: bool, name: str) -> None:
    cost = get_cost(name)
    assert time_of(cost, [length], cp, crosses) * cp >= time_of(cost, [length], 1) * (1 - 1e-12)
    assert time_of(cost, [length], cp, True) >= time_of(cost, [length], cp, False)
    assert time_of(cost, [length + 1], cp, crosses) > time_of(cost, [length], cp, crosses)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": "llama3-8b"}, "model must be a TransformerModel, got 'llama3-8b'"),
        ({"device": "h100"}, "device must be a Device, got 'h100'"),
        ({"attention": "diagonal"}, "got 'diagonal'"),
        ({"tp_size": 0}, "tp_size must be at least 1, got 0"),
        ({"tp_size": 3}, "tp_size must divide the 4 heads, got 3"),
        ({"passes": 0}, "passes must be a finite number above 0, got 0"),
        ({"fixed": -1.0}, "fixed must be a finite number of at least 0, got -1.0"),
        ({"latent_ring": 1}, "latent_ring must be True or False, got 1"),
        ({"latent_ring": True}, "latent_ring needs a model with compressed keys and values"),
        ({"device": replace(DEVICE, node_size=3), "tp_size": 2}, "tp_size must divide node_size, 3, or be a multiple"),
    ],
)
def test_what_cannot_be_is_named(changed: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"model": MODEL, "device": DEVICE, **changed}
    with pytest.raises(ArgumentError, match=re.escape(message)):
        TransformerCost(**arguments)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("peak_flops", 0, "peak_flops must be a finite number above 0, got 0"),
        ("peak_flops", float("nan"), "peak_flops must be a finite number above 0, got nan"),
        ("matmul_fraction", 1.5, "matmul_fraction must be a finite number above 0 and at most 1, got 1.5"),
        ("inter_node_bandwidth", True, "inter_node_bandwidth must be a finite number above 0, got True"),
        ("latency", -1e-6, "latency must be a finite number of at least 0, got -1e-06"),
        ("node_size", 0, "node_size must be at least 1, got 0"),
    ],
)
def test_a_device_that_cannot_be_is_named(field: str, value: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        replace(DEVICE, **{field: value})


def test_known_devices() -> None:
    assert set(DEVICES) == {"h100", "h200", "a100", "ascend-910b", "tpu-v5e", "tpu-v5p"}
    assert get_device("h200").memory_bytes > get_device("h100").memory_bytes
    for device in DEVICES.values():
        assert device.intra_node_bandwidth >= device.inter_node_bandwidth
