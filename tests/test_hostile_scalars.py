"""Numbers, names and flags that are none: an error of ours, or the answer for what was meant."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack import bounds, cost, layout, loss, metrics, packing, padding, sharding, topology
from dcpack.balancing import get_balancer
from dcpack.errors import DcpackError
from dcpack.report import Cluster, summarise_lengths, timeline_of

LENGTHS = [3, 1, 4, 1, 5, 2]
PLAN = dcpack.plan(LENGTHS, num_ranks=2, capacity=8)
COST = dcpack.QuadraticCost()

NOT_INTEGERS: dict[str, Any] = {
    "a text": "3",
    "a whole float": 3.0,
    "NaN": math.nan,
    "infinity": math.inf,
    "True": True,
    "NumPy's True": np.True_,
    "a complex": 3 + 0j,
    "a list": [3],
    "an array": np.array([3]),
    "0-d": np.array(3),
    "bytes": b"3",
    "an object": object(),
    "a huge float": 1e30,
    "negative": -1,
    "very negative": -(2**80),
}
HUGE = (2**31, 2**53 + 1, 2**63 - 1, 2**63, 2**64, 2**80)


def _plan(**options: Any) -> Any:
    return dcpack.plan(LENGTHS, **{"num_ranks": 2, "capacity": 8, "on_empty": "dummy", **options})


def _affordable(value: Any) -> Any:
    """A size that is legal and would only fill the memory is made small."""
    return min(value, 9) if type(value) is int else value


# A call with one integer in it, and whether None has a meaning there.
INTEGERS: dict[str, tuple[Callable[[Any], Any], bool]] = {
    "pack capacity": (lambda x: dcpack.pack(LENGTHS, capacity=x), False),
    "pack max_sequences": (lambda x: dcpack.pack(LENGTHS, capacity=8, max_sequences=x), True),
    "plan num_ranks": (lambda x: _plan(num_ranks=x), False),
    "plan capacity": (lambda x: _plan(capacity=x), False),
    "plan min_cp_size": (lambda x: _plan(min_cp_size=x), False),
    "plan max_cp_size": (lambda x: _plan(max_cp_size=x), True),
    "plan microbatch_multiple": (lambda x: _plan(microbatch_multiple=x), False),
    "plan max_sequences": (lambda x: _plan(max_sequences=x), True),
    "balance num_parts": (lambda x: dcpack.balance(LENGTHS, num_parts=x), False),
    "Plan.simulate pipeline_stages": (lambda x: PLAN.simulate(COST, pipeline_stages=x), False),
    "Plan.bins_of_rank": (PLAN.bins_of_rank, False),
    "Plan.describe_bin": (PLAN.describe_bin, False),
    "PaddingRule tp": (lambda x: dcpack.PaddingRule(tp=x), False),
    "PaddingRule block": (lambda x: dcpack.PaddingRule(block=x), False),
    "padding.check_capacity": (lambda x: padding.check_capacity(x, None), False),
    "padding.longest_fitting_length": (lambda x: padding.longest_fitting_length(x, 2), False),
    "Topology sizes": (lambda x: dcpack.Topology(axes=("dp",), sizes=(x,)), False),
    "Topology node_size": (lambda x: dcpack.Topology(axes=("dp",), sizes=(2,), node_size=x), True),
    "Topology.coordinates": (dcpack.Topology(axes=("dp",), sizes=(8,)).coordinates, False),
    "Topology.plan_ranks": (dcpack.Topology(axes=("dp",), sizes=(8,)).plan_ranks, False),
    "topology.legal_cp_sizes": (topology.legal_cp_sizes, False),
    "topology.place_blocks node_size": (lambda x: topology.place_blocks([4, 2, 1, 1], x), True),
    "packing.next_fit": (lambda x: packing.next_fit(LENGTHS, x), False),
    "packing.first_fit": (lambda x: packing.first_fit(LENGTHS, x), False),
    "packing.first_fit_decreasing": (lambda x: packing.first_fit_decreasing(LENGTHS, x), False),
    "packing.best_fit_decreasing": (lambda x: packing.best_fit_decreasing(LENGTHS, x), False),
    "packing.coarse_lengths": (lambda x: packing.coarse_lengths(LENGTHS, x), False),
    "packing.concat_then_split": (lambda x: packing.concat_then_split(LENGTHS, x), False),
    "packing.concat_then_split multiple": (lambda x: packing.concat_then_split(LENGTHS, 8, multiple=x), False),
    "packing.apply_overlong": (lambda x: packing.apply_overlong(LENGTHS, x, "split"), False),
    "packing.merge_groups": (lambda x: packing.merge_groups(LENGTHS, [0, 0, 1, 1, 2, 2], x), False),
    "balancing.karmarkar_karp": (lambda x: get_balancer("karmarkar_karp")(LENGTHS, x), False),
    "balancing.lpt": (lambda x: get_balancer("lpt")(LENGTHS, x), False),
    "bounds.packing_lower_bound": (lambda x: bounds.packing_lower_bound(LENGTHS, x), False),
    "bounds.packing_lower_bound max": (lambda x: bounds.packing_lower_bound(LENGTHS, 8, max_sequences=x), True),
    "bounds.balance_lower_bound": (lambda x: bounds.balance_lower_bound(LENGTHS, x), False),
    "layout.fixed_shape_cu_seqlens": (lambda x: layout.fixed_shape_cu_seqlens([0, 4], _affordable(x)), False),
    "layout.scatter_real": (lambda x: layout.scatter_real([7], np.array([0]), _affordable(x), 0), False),
    "sharding cp_size": (lambda x: sharding.local_token_indices([0, 8, 16], x, 0), False),
    "sharding cp_rank": (lambda x: sharding.local_token_indices([0, 8, 16], 2, x), False),
    "sharding.local_cu_seqlens": (lambda x: sharding.local_cu_seqlens([0, 8, 16], x, 0), False),
    "sharding.restore_indices": (lambda x: sharding.restore_indices([0, 8, 16], x), False),
    "loss.averaging_factor": (loss.averaging_factor, False),
    "loss.token_weights": (lambda x: loss.token_weights([1, 2], global_valid_tokens=x), False),
    "cost.RingCost node_size": (lambda x: cost.RingCost(node_size=x), True),
    "cost.SlidingWindow": (cost.SlidingWindow, False),
    "cost.Chunked": (cost.Chunked, False),
    "cost.TransformerModel": (lambda x: cost.TransformerModel(hidden=x, layers=1, heads=1, intermediate=1), False),
    "report.summarise_lengths": (lambda x: summarise_lengths(np.array(LENGTHS), capacities=[x]), False),
    "run_ranks": (lambda x: dcpack.run_ranks(_affordable(x), lambda communicator: communicator.rank), False),
}

REALS: dict[str, Callable[[Any], Any]] = {
    **{
        f"cost.RingCost {name}": lambda x, name=name: cost.RingCost(**{name: x})
        for name in ("linear", "quadratic", "ring_intra", "ring_inter")
    },
    "cost.TransformerCost passes": lambda x: cost.TransformerCost(
        model=cost.get_model("llama3-8b"), device=cost.get_device("h100"), passes=x
    ),
    "cost.TransformerCost fixed": lambda x: cost.TransformerCost(
        model=cost.get_model("llama3-8b"), device=cost.get_device("h100"), fixed=x
    ),
}

NAMES: dict[str, Callable[[Any], Any]] = {
    "pack method": lambda x: dcpack.pack(LENGTHS, capacity=8, method=x),
    "pack overlong": lambda x: dcpack.pack(LENGTHS, capacity=8, overlong=x),
    "pack effort": lambda x: dcpack.pack(LENGTHS, capacity=8, effort=x),
    "balance method": lambda x: dcpack.balance(LENGTHS, num_parts=2, method=x),
    "balance effort": lambda x: dcpack.balance(LENGTHS, num_parts=2, effort=x),
    "plan scheduler": lambda x: _plan(scheduler=x),
    "plan sync": lambda x: _plan(sync=x),
    "plan on_empty": lambda x: _plan(on_empty=x),
    "plan overlong": lambda x: _plan(overlong=x),
    "plan cp_sizes": lambda x: _plan(cp_sizes=x),
    "Plan.simulate sync": lambda x: PLAN.simulate(COST, sync=x),
    "metrics.plan_metrics sync": lambda x: metrics.plan_metrics(PLAN, COST, sync=x),
    "report.timeline_of sync": lambda x: timeline_of(PLAN, COST, sync=x),
    "sharding method": lambda x: sharding.local_token_indices([0, 8], 2, 0, x),
    "sharding.get_sharding": sharding.get_sharding,
    "packing.get_packer": packing.get_packer,
    "balancing.get_balancer": get_balancer,
    "loss normaliser": lambda x: loss.token_weights([1], normaliser=x, global_valid_tokens=1),
    "cost.get_cost": cost.get_cost,
    "cost.get_model": cost.get_model,
    "cost.get_device": cost.get_device,
    "cost.get_attention": cost.get_attention,
    "Topology axes": lambda x: dcpack.Topology(axes=(x,), sizes=(2,)),
    "get_backend": dcpack.get_backend,
}

NOT_NAMES: dict[str, Any] = {
    "empty": "",
    "unknown": "no such thing",
    "a number": 3,
    "a float": 0.5,
    "bytes": b"lpt",
    "a list": ["lpt"],
    "a mapping": {"lpt": 1},
    "an array of texts": np.array(["lpt"]),
    "True": True,
    "a lone surrogate": "\udcff",
}


def refusals(call: Callable[[Any], Any], values: dict[str, Any]) -> list[str]:
    """What was not refused by an error of ours."""
    wrong = []
    for what, value in values.items():
        try:
            result = call(value)
        except DcpackError as error:
            if not str(error):
                wrong.append(f"{what}: an error without a word")
        except Exception as error:
            wrong.append(f"{what}: {type(error).__name__}: {error}")
        else:
            wrong.append(f"{what}: taken, gave {result!r}"[:150])
    return wrong


@pytest.mark.parametrize("name", INTEGERS)
def test_what_is_no_integer_is_refused(name: str) -> None:
    call, is_optional = INTEGERS[name]
    assert refusals(call, NOT_INTEGERS if is_optional else {**NOT_INTEGERS, "None": None}) == []
    if is_optional:
        call(None)


@pytest.mark.parametrize("name", INTEGERS)
def test_huge_integers_are_answered_or_refused(name: str) -> None:
    call, _ = INTEGERS[name]
    wrong = []
    for value in HUGE:
        try:
            call(value)
        except DcpackError:
            continue
        except Exception as error:
            wrong.append(f"{value}: {type(error).__name__}: {error}")
    assert wrong == []


@pytest.mark.parametrize("name", INTEGERS)
def test_numpy_integers_are_integers(name: str) -> None:
    call, _ = INTEGERS[name]
    small = 1 if name in ("sharding cp_rank", "Plan.describe_bin", "Plan.bins_of_rank", "Topology.coordinates") else 2
    small = 8 if "capacity" in name or (name.startswith(("packing.", "bounds.pack")) and "mult" not in name) else small
    answers = [repr(call(kind(small))) for kind in (int, np.int8, np.uint16, np.int64)]
    if not is_dataclass(call(small)):
        assert len(set(answers)) == 1


@pytest.mark.parametrize("name", REALS)
def test_what_is_no_number_is_refused(name: str) -> None:
    wrong = {key: NOT_INTEGERS[key] for key in ("a text", "NaN", "infinity", "True", "a complex", "a list", "negative")}
    assert refusals(REALS[name], {**wrong, "None": None}) == []


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_name_is_refused(name: str) -> None:
    values = dict(NOT_NAMES) if name == "plan scheduler" else {**NOT_NAMES, "None": None}
    assert refusals(NAMES[name], values) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda x: dcpack.pack(LENGTHS, capacity=8, padding=x),
        lambda x: _plan(padding=x),
        lambda x: _plan(cost=x),
        lambda x: dcpack.PaddingRule(sequence_parallel=x),
        lambda x: dcpack.balance(LENGTHS, num_parts=2, equal_size=x),
        lambda x: Cluster(num_ranks=2, capacity=8, padding=x, cost=COST).plan(LENGTHS),
    ],
)
@pytest.mark.parametrize("value", [3, "tp", [1], {"tp": 2}, math.nan])
def test_objects_of_another_kind_are_refused(call: Callable[[Any], Any], value: Any) -> None:
    with pytest.raises(DcpackError):
        call(value)
