"""Sub-groups over torch-gloo: by mesh, of a given process group, used again, bounded, and made in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import shared_bodies
import torch_bodies

from dcpack.comm import run_ranks


def test_device_mesh(launch: Callable[..., Any]):
    outcomes = launch(4, torch_bodies.mesh_groups)
    for rank, outcome in enumerate(outcomes):
        assert outcome.error == ""
        dp, cp = rank // 2, rank % 2
        assert outcome.result["cp"] == outcome.result["topology"] == (2 * dp, 2 * dp + 1)
        assert outcome.result["dp"] == (cp, cp + 2)
        assert outcome.result["dp+cp"] == outcome.result["cp+dp"] == (0, 1, 2, 3)
        assert "axes must be one or several axes of the mesh, each once: 'dp', 'cp'; got 'tp'" in outcome.result["text"]


def test_a_process_group_is_the_world(launch: Callable[..., Any]):
    outcomes = launch(4, torch_bodies.group_as_world)
    assert [outcome.error for outcome in outcomes] == [""] * 4
    members = outcomes[1].result[0]
    assert sorted(members) == [1, 3]
    for rank in (1, 3):
        assert outcomes[rank].result == (members, members.index(rank), list(members))
    for rank in (0, 2):
        (text,) = outcomes[rank].result
        assert text == f"BackendError: this process, rank {rank}, is not in the group of back end 'torch-gloo'"


def test_groups_are_used_again_and_bounded(launch: Callable[..., Any]):
    for outcome in launch(4, torch_bodies.groups_are_used_again):
        assert outcome.error == "", outcome.stderr
        found = outcome.result
        assert found["repeated"] == (2, 1, 2), "60 communicators need 2 groups beside that of the world"
        assert found["different"]
        assert found["agreed"]
        assert found["most"] <= 6
        assert found["num_opened"] == 5  # and the world
        assert "6 communicators of two or more ranks are open, and max_groups is 6" in found["text"]


@pytest.mark.parametrize("store", ["file", "tcp"])
def test_threads_split_at_once(launch: Callable[..., Any], store: str):
    assert [outcome.result for outcome in launch(3, torch_bodies.split_in_threads, store=store)] == [24, 24, 24]


@pytest.mark.parametrize("size", [3, 4])
def test_a_step_is_the_same_as_on_the_fake_back_end(launch: Callable[..., Any], size: int):
    outcomes = launch(size, torch_bodies.whole_step)
    assert [outcome.error for outcome in outcomes] == [""] * size, outcomes[0].stderr
    fake = run_ranks(size, shared_bodies.step)
    assert [outcome.result for outcome in outcomes] == fake
    assert len({digest for digest, _, _ in fake}) == 1
    assert len({digest for _, digests, _ in fake for digest in digests.values()}) == size
    assert all(identical for _, _, identical in fake)
