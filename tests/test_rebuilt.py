from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import dcpack
from dcpack.loader import DistributedDatasetConfig, PackingConstraints, SampleMetadata

COPIES: list[Callable[[Any], Any]] = [copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))]


@pytest.mark.parametrize("again", COPIES, ids=["copy", "deepcopy", "pickle"])
def test_a_copy_of_a_plan_is_that_plan_and_cannot_be_changed(again: Callable[[Any], Any]) -> None:
    plan = dcpack.plan([50, 30, 90, 20], num_ranks=2, capacity=100, padding=dcpack.PaddingRule(tp=2))
    copied = again(plan)
    copied.validate([50, 30, 90, 20])
    assert copied.digest() == plan.digest()
    assert copied.bounds == plan.bounds
    for name in ("cp_size", "sequence_ids", "lengths"):
        assert not getattr(copied, name).flags.writeable
    with pytest.raises(TypeError, match="mappingproxy"):
        copied.bounds["work"] = 0.0


@pytest.mark.parametrize("again", COPIES, ids=["copy", "deepcopy", "pickle"])
@pytest.mark.parametrize(
    "value",
    [
        SampleMetadata(pack_tokens=3, cost=2.0, sample_id="a", features={"images": [1]}, packing_costs={"images": 1}),
        PackingConstraints(seq_len=8, packing_budgets={"images": 4}),
        DistributedDatasetConfig(seq_len=8, local_batch_size=1, packing_budgets={"images": 4}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_the_loader_takes_is_copied_whole(value: Any, again: Callable[[Any], Any]) -> None:
    copied = again(value)
    assert copied == value
    assert type(copied) is type(value)


def test_a_pickle_of_a_damaged_plan_is_refused() -> None:
    kind, (plan, values) = dcpack.plan([5, 3], num_ranks=1, capacity=8).__reduce__()
    with pytest.raises(dcpack.PlanError, match="offsets"):
        kind(plan, {**values, "offsets": values["offsets"][:1] + 1})
