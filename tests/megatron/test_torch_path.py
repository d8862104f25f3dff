"""The path through torch's process groups, and Megatron-Core's own classes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from dcpack_torch.backend import TorchGlooBackend
from dcpack_torch.megatron import (
    CPGroups,
    MegatronPath,
    groups_of,
    make_packed_seq_params,
    options_from_config,
    to_host,
)
from torch.nn.attention.varlen import varlen_attn

import dcpack
from dcpack.errors import ArgumentError, PeerError
from dcpack.export import packed_seq_params, torch_varlen
from dcpack.layout import packed_offsets
from dcpack.megatron import ParallelGroups, StepOptions

jobs: Any = importlib.import_module("megatron_jobs")

Launch = Callable[..., list[Any]]


def test_the_token_sum_holds_over_process_groups(launch: Launch) -> None:
    case = jobs.Case((1, 1, 1, 4), "dynamic_cp", 1)
    expected = 4 * sum(1000 * (s + 1) * n + n * (n - 1) // 2 for s, n in enumerate(jobs.lengths_of(case)))
    seen = launch(4, "torch_path")
    for each in seen:
        assert each["weighted"] == each["rows"] == expected
    assert {size for each in seen for size in each["sizes"]} >= {1, 4}  # the proof saw several sizes


def test_ranks_that_hold_different_numbers_of_cp_groups_make_further_ones(launch: Launch) -> None:
    seen = launch(4, "uneven_cp_groups", deadline_s=60.0)
    everyone = [0, 1, 2, 3]
    first = [[([0, 1], 0, 11)], [([0, 1], 1, 11)], [], [([3], 0, 1000)]]
    last = [([0], 0, 1), ([1, 2], 0, 110), ([1, 2], 1, 110), ([3], 0, 1000)]
    for rank, each in enumerate(seen):
        pair = ([0, 1], rank, 11) if rank < 2 else ([2, 3], rank - 2, 1100)
        assert each == [*first[rank], (everyone, rank, 1111), pair, last[rank]]


def test_a_member_that_does_not_come_is_an_error_in_time(launch: Launch) -> None:
    text, _ = launch(2, "absent_member", deadline_s=40.0)
    assert "the CP group of ranks 0, 1 could not be made within 1 s" in text


def test_cp_groups_that_were_destroyed_are_made_anew_and_never_of_ranks_that_are_none(launch: Launch) -> None:
    first, second = launch(2, "destroyed_cp_groups", deadline_s=60.0)
    assert first == second


@pytest.mark.parametrize("value", [-1, 0, float("inf"), "x"])
def test_wrong_seconds_are_named_as_the_caller_does(value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^timeout_s must be a finite number of seconds above 0"):
        CPGroups(timeout_s=value)
    with pytest.raises(ArgumentError, match=r"^cp_timeout_s must be a finite number of seconds above 0"):
        MegatronPath(alone(), StepOptions(capacity=8), cp_timeout_s=value)


def test_cp_groups_are_not_split_off_a_default_group_that_is_bound(launch: Launch) -> None:
    assert launch(2, "bound_to_a_device") == [("[None]", "cuda:3")] * 2


def test_run_has_megatrons_arguments_and_results(launch: Launch) -> None:
    for each in launch(4, "scheduler_run"):
        stage = each["place"]["pp"]
        for step in each["steps"]:
            num_microbatches, padded, squared = step["totals"]
            assert num_microbatches % 2 == 0
            assert type(padded) is type(squared) is int
            everything = ["labels", "loss_mask", "position_ids", "tokens"]
            # The last virtual stage of the last rank has MTP layers.
            assert step["fields"] == ([["position_ids", "tokens"], []] if stage == 0 else [[], everything])


def test_with_the_release_of_megatron_core(launch: Launch) -> None:
    results = launch(2, "megatron_core")
    groups = results[0]["groups"]
    assert [each["groups"] for each in results] == [groups] * 2
    tokens = {0: range(20), 1: range(10, 13), 2: range(20, 25), 3: range(100, 104), 4: range(110, 119)}
    for rank, each in enumerate(results):
        wanted = {number for ranks in groups for number in ranks[rank]}
        assert each["samples"] == {number: list(tokens[number]) for number in wanted}
        assert each["labels"] == {number: [token + 1 for token in tokens[number]] for number in wanted}
        assert each["is_theirs"]
        assert each["params"][0] == "thd"
        assert each["params"][3] == 1
    assert {number for ranks in groups for ids in ranks for number in ids} == set(range(5))
    assert any(len([ids for ids in ranks if 0 in ids]) == 2 for ranks in groups)  # 20 tokens need both ranks
    theirs, ours = results[0]["signatures"]["__init__"]
    assert ours[: len(theirs)] == theirs
    theirs, ours = results[0]["signatures"]["get_groups_and_subsamples"]
    assert ours == theirs


# ---- tensors, options, params ----------------------------------------------------------------------------------------


def test_tensors_of_any_dtype_come_to_the_host() -> None:
    tensor = torch.tensor([1.5, -2.0], dtype=torch.bfloat16)
    array = to_host(tensor)
    assert (array.dtype, array.astype(float).tolist()) == (ml_dtypes.bfloat16, [1.5, -2.0])
    ints = torch.arange(6).reshape(2, 3)
    assert to_host(ints.T).tolist() == ints.T.tolist()
    assert np.shares_memory(to_host(ints), ints.numpy())
    assert to_host([1, 2]).tolist() == [1, 2]


def alone() -> ParallelGroups:
    world = TorchGlooBackend().world()
    return ParallelGroups(tp=world, pp=world, dp=world, dp_cp=world)


def test_options_of_a_configuration() -> None:
    config = SimpleNamespace(
        max_seqlen_per_dp_cp_rank=4096,
        sequence_packing_scheduler="default_dynamic_cp",
        virtual_pipeline_model_parallel_size=2,
        microbatch_group_size_per_vp_stage=3,
        min_dynamic_context_parallel_size=1,
        thd_max_num_seqs=7,
    )
    made = options_from_config(config, alone(), padding=dcpack.PaddingRule(block=16))
    assert made == StepOptions(
        capacity=4096,
        scheduler="packing_aware",
        vpp_size=2,
        microbatch_group_size=3,
        max_sequences=7,
        padding=dcpack.PaddingRule(block=16),
    )
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=64, microbatch_group_size_per_vp_stage=4)
    assert options_from_config(config, alone()) == StepOptions(capacity=64)  # no virtual stages, no multiple


@pytest.mark.parametrize("config", [SimpleNamespace(), SimpleNamespace(max_seqlen_per_dp_cp_rank=None)])
def test_a_configuration_must_have_a_capacity(config: Any) -> None:
    with pytest.raises(ArgumentError, match="config must have max_seqlen_per_dp_cp_rank"):
        options_from_config(config, alone())


def test_a_collection_must_have_its_groups() -> None:
    with pytest.raises(ArgumentError, match="must have the groups tp, pp, dp, dp_cp; no pp, dp_cp"):
        groups_of(SimpleNamespace(tp=1, dp=2, pp=None))


def test_groups_that_were_made_before_one_failed_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    worlds: list[Any] = []

    class Backend:
        def __init__(self, *, group: str, deadline_s: float) -> None:
            self.group = group

        def world(self) -> Any:
            if self.group == "dp":
                raise PeerError("rank 3 did not start within 600 s", rank=3)
            worlds.append(TorchGlooBackend().world())
            return worlds[-1]

    monkeypatch.setattr("dcpack_torch.megatron.TorchGlooBackend", Backend)
    with pytest.raises(PeerError, match="rank 3 did not start"):
        groups_of(SimpleNamespace(tp="tp", pp="pp", dp="dp", dp_cp="dp_cp"))
    assert [world._closed for world in worlds] == [True, True]


@dataclass
class Old:
    qkv_format: str
    cu_seqlens_q: Any
    cu_seqlens_kv: Any
    cu_seqlens_q_padded: Any
    cu_seqlens_kv_padded: Any
    max_seqlen_q: int
    max_seqlen_kv: int


def test_a_class_without_newer_fields_is_filled_if_nothing_is_lost() -> None:
    fields = packed_seq_params(packed_offsets([3, 2], [4, 4]))
    made = make_packed_seq_params(fields, Old)
    assert made.cu_seqlens_q is fields["cu_seqlens_q"]
    dynamic = packed_seq_params(packed_offsets([3, 2], [4, 4]), local_cp_size=2, cp_group="group")
    with pytest.raises(ArgumentError, match="Old of this release has no field for cp_group, local_cp_size"):
        make_packed_seq_params(dynamic, Old)


def test_names_of_torchs_varlen_attention() -> None:
    exported = torch_varlen(packed_offsets([3, 2], [4, 4]), seqused=True)
    assert exported.keys() <= inspect.signature(varlen_attn).parameters.keys()
