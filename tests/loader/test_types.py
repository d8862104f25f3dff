from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack import PackingConstraints, SampleMetadata, TensorFieldSpec, WorkloadCost
from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.loader import SampleKey


def test_arguments_have_an_order() -> None:
    # That of the published interface, so that code which gives them by place keeps its meaning.
    assert SampleMetadata(5, WorkloadCost(1, 2, 3, 4), "a").cost == WorkloadCost(io=1, transform=2, encoder=3, llm=4)
    assert TensorFieldSpec((1,), "int64") == TensorFieldSpec(shape=(1,), dtype="int64")
    assert PackingConstraints(8, "single", {"x": 1}).packing_budgets == {"x": 1.0}


def test_costs_add_up_part_by_part() -> None:
    cost = WorkloadCost(io=1, llm=2) + WorkloadCost(llm=3, memory=4)
    assert cost == WorkloadCost(io=1, llm=5, memory=4)
    assert (cost.dominant, cost.total) == (5, 10)


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), True, "1"])
def test_costs_are_finite_and_not_negative(value: Any) -> None:
    with pytest.raises(ArgumentError, match="encoder must be a finite number of at least 0"):
        WorkloadCost(encoder=value)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"pack_tokens": 0}, "pack_tokens must be from 1 to"),
        ({"pack_tokens": True}, "pack_tokens must be an integer, got True"),
        ({"cost": -1}, "cost must be a finite number"),
        ({"sample_id": ""}, "sample_id must not be empty"),
        ({"sample_id": -1}, "sample_id must be at least 0"),
        ({"features": [1]}, "features must be a mapping"),
        ({"features": {"x": float("nan")}}, "features must be nested plain values"),
        ({"features": {"x": np.zeros(2)}}, "features must be nested plain values"),
        ({"packing_costs": {"images": -1}}, "packing_costs['images'] must be a finite number"),
    ],
)
def test_metadata_is_checked(change: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        SampleMetadata(**{"pack_tokens": 5, **change})
    assert text in str(caught.value)


def test_features_with_a_cycle_are_refused() -> None:
    features: dict[str, Any] = {}
    features["self"] = features
    with pytest.raises(ArgumentError, match="features must be nested plain values"):
        SampleMetadata(pack_tokens=1, features=features)


def test_a_key_goes_on_a_copy() -> None:
    shared = SampleMetadata(pack_tokens=5)
    keyed = shared.with_key(SampleKey(position=3))
    assert (shared.key, keyed.key) == (None, SampleKey(position=3))
    assert SampleKey(position=1, part=2) < SampleKey(position=2) < SampleKey(position=2, part=1)


def test_constraints_hold_tokens_and_budgets() -> None:
    constraints = PackingConstraints(seq_len=8, packing_budgets={"images": 2})
    small, image = (SampleMetadata(pack_tokens=4, packing_costs={"images": n}) for n in (0, 2))
    assert constraints.fits([small, small])
    assert constraints.fits([small, image])
    assert not constraints.fits([image, image])
    assert not constraints.fits([small, small, small])
    assert not constraints.fits([])
    assert not constraints.fits([SampleMetadata(pack_tokens=4)])  # every budget must be named, even with 0


def test_oversized_samples_are_alone_or_an_error() -> None:
    long, short = SampleMetadata(pack_tokens=9, sample_id="a"), SampleMetadata(pack_tokens=1)
    single = PackingConstraints(seq_len=8, oversized_policy="single")
    assert single.fits([long])
    assert not single.fits([long, short])
    with pytest.raises(InfeasibleError, match="sample 'a': 9 tokens, more than seq_len 8"):
        PackingConstraints(seq_len=8).validate_samples([short, long])


def test_specs_say_what_fits() -> None:
    spec = TensorFieldSpec(shape=(2, None), dtype=np.dtype(">i4"))
    assert spec.dtype == "int32"
    assert spec.fits("int32", (2, 7))
    assert not spec.fits("int64", (2, 7))
    assert not spec.fits("int32", (3, 7))
    assert not spec.fits("int32", (2,))
    for wrong in ({"shape": (-1,)}, {"shape": (True,)}, {"shape": "ab"}, {"dtype": object}, {"dtype": "int7"}):
        with pytest.raises(ArgumentError):
            TensorFieldSpec(**{"shape": (1,), "dtype": "int64", **wrong})
