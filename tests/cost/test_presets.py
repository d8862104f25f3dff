from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.cost import (
    DEVICES,
    MODELS,
    CostModel,
    MeasuredCost,
    QuadraticCost,
    RingCost,
    TransformerCost,
    cost_to_json,
    get_cost,
    get_device,
    get_model,
)
from dcpack.errors import ArgumentError


@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("device", sorted(DEVICES))
def test_every_pair_of_names_is_a_cost(model: str, device: str) -> None:
    cost = get_cost(f"{model}@{device}")
    assert cost == TransformerCost(model=get_model(model), device=get_device(device))
    plan = dcpack.plan([300, 900, 50, 70], num_ranks=4, capacity=512, cost=cost)
    assert plan.simulate(cost) >= plan.bounds["step_time"] > 0


def test_plain_names() -> None:
    assert get_cost("ring") == RingCost()
    assert get_cost("quadratic") == QuadraticCost()


COSTS: list[CostModel] = [
    RingCost(linear=3.0, node_size=None),
    QuadraticCost(),
    MeasuredCost(linear=1e-5, quadratic=1e-9, ring_intra=1e-6, ring_inter=1e-5, overlap=False, attention="chunked:64"),
    TransformerCost(model=get_model("llama3-8b"), device=get_device("a100"), attention="sliding_window:4096"),
    TransformerCost(
        model=get_model("deepseek-v3"), device=get_device("tpu-v5p"), tp_size=8, passes=4, latent_ring=True, fixed=0.01
    ),
]


@pytest.mark.parametrize("cost", COSTS, ids=lambda cost: type(cost).__name__)
def test_files_round_trip(cost: CostModel, tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    path.write_text(cost_to_json(cost))
    for spec in (path, str(path), json.loads(path.read_text())):
        back = get_cost(spec)
        assert back == cost
        sums = cost.columns(np.array([1000, 5000]))
        where = np.array([4, 16]), np.array([False, True])
        assert back.bin_time(sums, *where).tolist() == cost.bin_time(sums, *where).tolist()


def test_a_file_may_mix_names_and_dimensions(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    model = {"hidden": 64, "layers": 2, "heads": 4, "intermediate": 128}
    path.write_text(json.dumps({"model": model, "device": "h100", "attention": "full"}))
    cost = get_cost(path)
    assert isinstance(cost, TransformerCost)
    assert (cost.model.head_dim, cost.device, cost.attention) == (16, DEVICES["h100"], "full")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("llama", "unknown cost 'llama'; known are 'ring', 'quadratic', 'MODEL@DEVICE' (models llama2-7b, "),
        ("llama3-8b@b9", "unknown device 'b9'; known are h100, h200, a100, ascend-910b, tpu-v5e, tpu-v5p"),
        ("llama9@h100", "unknown model 'llama9'; known are llama2-7b, "),
        ("a@b@c", "unknown cost 'a@b@c'"),
        (3, "unknown cost 3"),
        ({}, "cost needs 'model' and 'device', or one of 'ring', 'quadratic', 'measured'"),
        ({"model": "llama3-8b"}, "cost needs 'device'"),
        ({"model": "llama3-8b", "device": "h100", "color": 1}, "cost has unknown keys 'color'; known are 'model', "),
        ({"model": {"hidden": 8, "wide": 1}, "device": "h100"}, "model has unknown keys 'wide'; known are 'hidden', "),
        ({"model": {"hidden": 8}, "device": "h100"}, "'layers' and 'heads'"),
        ({"model": 3, "device": "h100"}, "model must be a mapping, got 3 (int)"),
        ({"model": "llama3-8b", "device": {"latency": 0}}, "device: "),
        ({"ring": {"linear": 1, "cubic": 2}}, "ring has unknown keys 'cubic'; known are 'linear', 'quadratic', "),
        ({"ring": {"linear": -1}}, "linear must be a finite number of at least 0, got -1"),
        ({"ring": {}, "model": "llama3-8b"}, "cost has unknown keys 'model'; known are 'ring'"),
        ({"quadratic": {"linear": 1}}, "quadratic has unknown keys 'linear'"),
        ({"measured": {"linear": 1}}, "measured needs 'quadratic', 'ring_intra', 'ring_inter'"),
    ],
)
def test_what_is_wrong_is_named(spec: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        get_cost(spec)


def test_a_bad_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"none\.json: cannot be read: No such file"):
        get_cost(tmp_path / "none.json")
    path = tmp_path / "bad.json"
    for text, message in [
        ("{", "Expecting"),
        ("[1]", "a cost must be a mapping"),
        ('{"ring": {"x": 1}}', "unknown keys"),
    ]:
        path.write_text(text)
        with pytest.raises(ArgumentError, match=rf"bad\.json: .*{message}"):
            get_cost(str(path))


def test_what_no_file_can_hold_is_refused() -> None:
    own = TransformerCost(model=get_model("llama3-8b"), device=get_device("h100"), attention=lambda s: s * 1.0)
    with pytest.raises(ArgumentError, match=r"attention .* is a function of your own"):
        cost_to_json(own)

    class Flat:
        """A cost model of the user's own: every bin takes one second."""

        node_size = None
        unit = "s"

        def columns(self, padded_lengths: Any) -> Any:
            return np.zeros((len(padded_lengths), 1))

        def bin_time(self, column_sums: Any, cp_size: Any, crosses_node: Any) -> Any:
            return np.ones(len(column_sums))

    with pytest.raises(ArgumentError, match="is a cost model of your own and cannot be written to a file"):
        cost_to_json(Flat())
