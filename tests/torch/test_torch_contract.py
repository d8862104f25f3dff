"""The contract of communicators over torch-gloo, on real processes: all checks in one launch for each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch_bodies
from dcpack_torch.wire import TENSOR_DTYPES
from torch_ranks import require_contract


@pytest.mark.parametrize("size", [2, 3, 4])
def test_contract(launch: Callable[..., Any], size: int):
    require_contract(launch(size, torch_bodies.contract))


def test_contract_where_nothing_travels_with_the_control_messages(launch: Callable[..., Any]):
    require_contract(launch(2, torch_bodies.contract, 0))


def test_contract_where_some_messages_do(launch: Callable[..., Any]):
    require_contract(launch(3, torch_bodies.contract, 24))


def test_small_messages_have_no_round_of_their_own(launch: Callable[..., Any]):
    for outcome in launch(3, torch_bodies.messages_about_the_limit):
        assert outcome.error == ""
        assert outcome.result == [1] * 9 + [2] * 3


def test_sizes_are_known_without_the_bytes(launch: Callable[..., Any]):
    (outcome,) = launch(1, torch_bodies.sizes_without_bytes)
    assert (outcome.error, outcome.result) == ("", 3 * len(TENSOR_DTYPES) + 5)


def test_contract_of_one_in_a_default_group(launch: Callable[..., Any]):
    require_contract(launch(1, torch_bodies.contract))


def test_contract_of_one_without_a_launcher(launch: Callable[..., Any]):
    require_contract(launch(1, torch_bodies.world_of_one, store="none"))


@pytest.mark.parametrize("size", [1, 3])
def test_tensors(launch: Callable[..., Any], size: int):
    outcomes = launch(size, torch_bodies.tensors)
    assert [outcome.result for outcome in outcomes] == [2 * len(TENSOR_DTYPES)] * size, outcomes


@pytest.mark.parametrize("size", [1, 3])
def test_trees_of_tensors(launch: Callable[..., Any], size: int):
    outcomes = launch(size, torch_bodies.tensor_trees)
    assert [outcome.result for outcome in outcomes] == [size * len(TENSOR_DTYPES)] * size, outcomes


def test_tensors_share_no_memory(launch: Callable[..., Any]):
    assert [outcome.error for outcome in launch(2, torch_bodies.tensor_memory)] == ["", ""]


def test_ranks_must_not_mix_tensors_and_arrays(launch: Callable[..., Any]):
    texts = {outcome.result for outcome in launch(2, torch_bodies.mixed_kinds)}
    (text,) = texts
    assert "dtypes differ in all_gather (call 0): rank 0: torch.float32; rank 1: float32" in text
    assert (
        "rank 1 failed in all_gather (call 1): dcpack.errors.ArgumentError: a tensor of layout torch.sparse_coo" in text
    )
