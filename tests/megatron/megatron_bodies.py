"""What the processes of the tests do."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import megatron_jobs as jobs
import numpy as np
import pytest
import torch
import torch.distributed as dist
from dcpack_torch import communicator as torch_communicator
from dcpack_torch.backend import TorchGlooBackend
from dcpack_torch.c10d import HashStore
from dcpack_torch.megatron import CPGroups, MegatronPath, groups_of, options_from_config
from dcpack_torch.megatron_schedulers import HybridCPScheduler, PackingScheduler

import dcpack
from dcpack.errors import ArgumentError, PeerError
from dcpack.megatron import StepOptions, build_groups, pack_sequences, wrap_data_iterator


def all_cases(rank: int, size: int, scheduler: str) -> list[dict[str, Any]]:
    """Run the cases of one scheduler, one after the other, with tensors as the result."""
    backend = TorchGlooBackend(deadline_s=60.0)
    moved: set[type] = set()

    def to_device(array: Any) -> Any:
        tensor = backend.to_device(array)
        moved.add(type(tensor))
        return tensor

    cases = [case for case in jobs.PROCESS_CASES if case.scheduler == scheduler]
    results = jobs.run_cases(backend.world(), cases, to_device)
    assert moved == {torch.Tensor}
    return results


def moving_and_failing(rank: int, size: int) -> list[dict[str, Any]]:
    """Take micro-batches with `to_device` on some ranks of a tensor-parallel group only, of which one fails."""
    world = TorchGlooBackend(deadline_s=60.0).world()
    mesh = dcpack.Topology(axes=("dp", "tp"), sizes=(2, size // 2))
    sample = jobs._sample(0, 6)
    return [
        jobs.move_and_fail(build_groups(world, mesh), lambda: pack_sequences([sample]), givers)
        for givers in ((0,), (1,), (0, 1))
    ]


def lose_a_rank(rank: int, size: int, victim: int, moment: str) -> str:
    """Take a step of which one rank disappears; say what the others hear."""
    case = jobs.Case((1, 2, 1, 2), "dynamic_cp", 1)
    # Who is there has so long to say so: a process that is kept from running for a while is not lost.
    setattr(torch_communicator, "grace_of", lambda deadline_s: 3.0)  # noqa: B010 - type checkers see no such assignment
    world = TorchGlooBackend(deadline_s=30.0).world()
    groups = build_groups(world, case.mesh)

    def items() -> Iterator[Any]:
        for item in jobs.items_of(case, groups.dp.rank):
            if rank == victim and moment == "while it reads":
                os._exit(0)
            yield item

    world.barrier()
    if rank == victim and moment == "before the step":
        os._exit(0)
    try:
        wrap_data_iterator(items(), groups, case.options, num_microbatches=jobs.NUM_ITEMS)
    except PeerError as error:
        return str(error).partition("\n")[0]
    return "nothing was raised"


# torch: process groups, tensors, tuples.


@dataclass
class PackedSeqParams:
    """The fields that Megatron-Core documents, with those of its branch dev."""

    qkv_format: str | None = None
    cu_seqlens_q: torch.Tensor | None = None
    cu_seqlens_kv: torch.Tensor | None = None
    cu_seqlens_q_padded: torch.Tensor | None = None
    cu_seqlens_kv_padded: torch.Tensor | None = None
    max_seqlen_q: int | None = None
    max_seqlen_kv: int | None = None
    local_cp_size: int | None = None
    cp_group: Any = None
    pad_between_seqs: bool | None = None


def collection_of(mesh: dcpack.Topology, rank: int) -> Any:
    """The process groups of `mesh`, as a ``ProcessGroupCollection`` holds them."""
    made: dict[str, Any] = {}
    for name, axes in (("tp", ["tp"]), ("pp", ["pp"]), ("cp", ["cp"]), ("dp", ["dp"]), ("dp_cp", ["dp", "cp"])):
        for ranks in mesh.groups(axes):
            group = dist.new_group(list(ranks))
            if rank in ranks:
                made[name] = group
    return SimpleNamespace(**made)


def tensor_items(case: Any, dp_rank: int) -> list[Any]:
    """The items of the job as tensors, with a bfloat16 field beside them."""
    made = []
    for item in jobs.items_of(case, dp_rank):
        samples = [{name: torch.as_tensor(values) for name, values in sample.items()} for sample in item]
        made.append([{**sample, "score": sample["tokens"].to(torch.bfloat16)} for sample in samples])
    return made


def torch_path(rank: int, size: int) -> dict[str, Any]:
    """One step through process groups, with CP groups that really reduce; returns what the parent compares."""
    case = jobs.Case((1, 1, 1, 4), "dynamic_cp", 1)
    collection = collection_of(case.mesh, rank)
    groups = groups_of(collection, deadline_s=60.0)
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=jobs.CAPACITY)
    options = options_from_config(config, groups)
    path = MegatronPath(groups, options, params_class=PackedSeqParams)
    step = path.wrap(iter(tensor_items(case, groups.dp.rank)), jobs.NUM_ITEMS)
    rows = list(step.data_iterator)
    weighted, weighted_rows, sizes = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64), []
    for row in rows:
        assert row["score"].dtype.name == "bfloat16"
        tokens, labels, loss_mask, attention_mask, position_ids, params, padding_mask = path.get_batch(iter([row]))
        assert attention_mask is None
        for tensor, dtype in ((tokens, torch.int64), (labels, torch.int64), (loss_mask, torch.float32)):
            assert isinstance(tensor, torch.Tensor)
            assert (tensor.dtype, tensor.shape) == (dtype, padding_mask.shape)
        assert position_ids.shape == padding_mask.shape
        assert isinstance(params, PackedSeqParams)
        assert params.cu_seqlens_q is not None
        assert params.cu_seqlens_q.dtype == torch.int32
        assert dist.get_process_group_ranks(params.cp_group) == list(
            groups.cp_group(row["cp_rank"], row["local_cp_size"])
        )
        assert dist.get_rank(params.cp_group) == row["cp_rank"]
        total = tokens.sum().reshape(1)
        dist.all_reduce(total, group=params.cp_group)  # the row, out of the slices
        assert int(total) == int(row["tokens"].sum())
        weighted += total * (size // row["local_cp_size"])
        weighted_rows += int(row["tokens"].sum()) * (size // row["local_cp_size"])
        sizes.append(row["local_cp_size"])
    for each in (weighted, weighted_rows):
        dist.all_reduce(each, group=collection.dp_cp)
    again = path.cp_groups.get(groups.cp_group(rows[-1]["cp_rank"], sizes[-1]))
    assert again is path.cp_groups.get(groups.cp_group(rows[-1]["cp_rank"], sizes[-1]))
    batch = path.get_rank_batch(iter(rows[:1]))
    assert batch.fields["score"].dtype == torch.bfloat16
    return {"weighted": int(weighted), "rows": int(weighted_rows), "sizes": sizes}


def uneven_cp_groups(rank: int, size: int) -> list[Any]:
    """Make CP groups in the order of micro-batches that give ranks different numbers of them; add up in each."""
    orders = {0: [(0, 1)], 1: [(0, 1)], 2: [], 3: [(3,)]}
    blocks = [*orders[rank], (0, 1, 2, 3), (0, 1) if rank < 2 else (2, 3), (1, 2) if rank in (1, 2) else (rank,)]
    found: list[Any] = []
    made = CPGroups(timeout_s=60.0)
    for ranks in blocks:
        group = made.get(ranks)
        total = torch.full((1,), 10**rank)
        dist.all_reduce(total, group=group)
        found.append((dist.get_process_group_ranks(group), dist.get_rank(group), int(total)))
        assert made.get(ranks) is group
        assert CPGroups(timeout_s=60.0).get(list(ranks)) is group  # one group a set of ranks, whoever asks
    for wrong in ((3, 2, 1, 0), (0, 0, 1, 2, 3), ((rank + 1) % size,)):
        with pytest.raises(ArgumentError, match=f"ranks must ascend and hold this one, {rank}, got"):
            made.get(wrong)
    default: Any = dist.group.WORLD
    dist.destroy_process_group()
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    assert default is not dist.group.WORLD
    assert dist.get_world_size(made.get((0,))) == 1  # a new job has groups of its own
    return found


def destroyed_cp_groups(rank: int, size: int) -> list[Any]:
    """Make the group of the same ranks again and again; the store keeps what the members of each wrote there."""
    names = []
    for _ in range(4):
        group = CPGroups(timeout_s=60.0).get((0, 1))
        total = torch.full((1,), 10**rank)
        dist.all_reduce(total, group=group)
        assert int(total) == 11
        assert CPGroups(timeout_s=60.0).get((0, 1)) is group
        names.append(group.group_name)
        dist.destroy_process_group(group)
    assert len(set(names)) == 4  # one that was taken again would work or not, as the members come
    with pytest.raises(ArgumentError, match=r"ranks must be below the number of processes, 2, got \[0, 1, 2, 5\]"):
        CPGroups(timeout_s=1e6).get((0, 1, 2, 5))
    return names


def absent_member(rank: int, size: int) -> str:
    """Ask for a CP group whose other member never does."""
    if rank == 1:
        return ""
    try:
        CPGroups(timeout_s=1.0).get((0, 1))
    except PeerError as error:
        return f"{error.cause}: {error}"
    return "nothing was raised"


def bound_to_a_device(rank: int, size: int) -> tuple[str, str]:
    """Make a CP group where the default group is bound to a device, which would make NCCL ask all processes."""
    default: Any = dist.group.WORLD
    default.bound_device_id = torch.device("cuda", 3)
    seen: list[Any] = []
    module: Any = importlib.import_module("torch.distributed.distributed_c10d")
    helper = module._new_process_group_helper

    def watched(*args: Any, **options: Any) -> Any:
        seen.append(default.bound_device_id)
        return helper(*args, **options)

    module._new_process_group_helper = watched
    group = CPGroups(timeout_s=60.0).get((0, 1))
    dist.all_reduce(torch.zeros(1), group=group)  # who leaves now leaves no peer behind that still connects
    return str(seen), str(default.bound_device_id)


def scheduler_run(rank: int, size: int) -> dict[str, Any]:
    """The contract of Megatron's scheduler_map: constructor, keys, groups and run."""
    case = jobs.Case((1, 2, 1, 2), "packing_aware", 2)
    collection = collection_of(case.mesh, rank)
    scheduler = PackingScheduler(jobs.CAPACITY, 1, 2, 2, scheduler="packing_aware")
    config = SimpleNamespace(virtual_pipeline_model_parallel_size=2, mtp_num_layers=1)
    place = case.mesh.coordinates(rank)
    results = []
    for _ in range(2):
        iterators, *totals = scheduler.run(
            [iter(tensor_items(case, place["dp"])), None],
            jobs.NUM_ITEMS,
            collection.dp,
            collection.tp,
            collection.pp,
            collection.dp_cp,
            torch.device("cpu"),
            config,
        )
        stages = [list(iterator) for iterator in iterators]
        for rows in stages:
            for row in rows:
                tensors = {name: value.dtype for name, value in row.items() if isinstance(value, torch.Tensor)}
                assert tensors["cu_seqlens"] == tensors["cu_seqlens_padded"] == torch.int32
                assert type(row["max_seqlen"]) is type(row["local_cp_size"]) is int
                assert tensors.get("labels", torch.int64) == tensors.get("tokens", torch.int64) == torch.int64
        kept = {"tokens", "position_ids", "labels", "loss_mask"}
        results.append({"totals": totals, "fields": [sorted(kept & rows[0].keys()) for rows in stages]})
    ((held, _),) = scheduler._groups.values()  # the communicators of a step serve the next one
    assert held.dp is collection.dp  # while it lives no other group can be taken for it
    return {"place": place, "steps": results}


# The release of Megatron-Core on PyPI.


def megatron_core(rank: int, size: int) -> dict[str, Any]:
    """Our scheduler inside Megatron's own loader wrapper; its collection and its PackedSeqParams with our path."""
    schedule: Any = importlib.import_module("megatron.core.datasets.data_schedule")
    configs: Any = importlib.import_module("megatron.core.process_groups_config")
    packed: Any = importlib.import_module("megatron.core.packed_seq_params")
    torch.Tensor.cuda = lambda self, *args, **kwargs: self  # the wrapper moves lengths to a GPU, whatever there is
    torch.cuda.current_device = lambda: "cpu"
    mesh = dcpack.Topology(axes=("pp", "dp", "cp", "tp"), sizes=(1, size, 1, 1))
    made = collection_of(mesh, rank)
    collection = configs.ProcessGroupCollection(**vars(made))
    lengths = [[20, 3, 5], [4, 9]]
    numbers = iter(range(100))
    start = 100 * rank
    tokens = torch.cat([torch.arange(length) + start + 10 * next(numbers) for length in lengths[rank]])
    offsets = torch.tensor([0, *np.cumsum(lengths[rank]).tolist()], dtype=torch.int32)
    source = iter([[{"tokens": tokens, "labels": tokens + 1, "cu_seqlens": offsets}]])
    config = SimpleNamespace(max_seqlen_per_dp_cp_rank=16)
    theirs: Any = schedule.BalancedCPScheduler
    wrapper = schedule.HybridCPDataLoaderWrapper(source, config, collection)
    assert isinstance(wrapper.cp_balancing_scheduler, theirs)
    wrapper.cp_balancing_scheduler = HybridCPScheduler(16, collection.dp_cp, scheduler="packing_aware")
    samples, groups = next(wrapper)
    signatures = {
        name: [list(inspect.signature(getattr(each, name)).parameters) for each in (theirs, HybridCPScheduler)]
        for name in ("__init__", "get_groups_and_subsamples")
    }
    path = MegatronPath(groups_of(collection, deadline_s=60.0), StepOptions(capacity=64))
    step = path.wrap(iter([[{"tokens": torch.arange(8 + rank), "padded_seq_len": torch.tensor([8 + rank])}]]), 1)
    *_, params, padding_mask = path.get_batch(step.data_iterator)
    return {
        "groups": groups,
        "samples": {number: sample["tokens"].tolist() for number, sample in samples.items()},
        "labels": {number: sample["labels"].tolist() for number, sample in samples.items()},
        "signatures": signatures,
        "is_theirs": type(params) is packed.PackedSeqParams,
        "params": [params.qkv_format, params.cu_seqlens_q.tolist(), params.max_seqlen_q, params.local_cp_size],
        "mask": padding_mask.tolist(),
    }
