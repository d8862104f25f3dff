"""One rank's slice of one micro-batch."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import ArgumentError, PeerError
from dcpack.megatron import (
    RankBatch,
    StepOptions,
    build_groups,
    get_batch_for_rank,
    pack_sequences,
    slice_for_cp_rank,
)
from dcpack.scheduling import SCHEDULERS, InOrder

jobs: Any = importlib.import_module("megatron_jobs")


def row(cp_size: int = 1, cp_rank: int = 0, num_slots: int = 20) -> dict[str, Any]:
    """[0 1 2 . . . . .] [8 9 10 11 12 13 14 .] and a tail of four slots."""
    names = ("tokens", "labels", "loss_mask", "position_ids", "score")
    samples = []
    for start, length in ((0, 3), (8, 7)):
        fields: dict[str, Any] = {name: np.arange(start, start + 8) for name in names}
        fields["score"] = fields["score"].astype(np.float16)
        samples.append({**fields, "original_seq_len": np.array([length]), "padded_seq_len": np.array([8])})
    return pack_sequences(samples, num_slots=num_slots, local_cp_size=cp_size, cp_rank=cp_rank)


def failing(error: Exception) -> Iterator[Any]:
    raise error
    yield


def batches(axes: tuple[str, ...], sizes: tuple[int, ...], make: Any, **options: Any) -> list[RankBatch]:
    mesh = dcpack.Topology(axes=axes, sizes=sizes)

    def fn(world: dcpack.Communicator) -> RankBatch:
        groups = build_groups(world, mesh)
        rows = [make(groups)] if groups.tp.rank == 0 else None
        before = copy.deepcopy(rows)
        batch = get_batch_for_rank(None if rows is None else iter(rows), groups, **options)
        if rows is not None and before is not None:
            jobs.require_same(rows, before)
        return batch

    return dcpack.run_ranks(mesh.num_ranks, fn)


def test_te_golden_slices() -> None:
    assert slice_for_cp_rank([0, 8, 16], 16, 2, 0).tolist() == [0, 1, 6, 7, 8, 9, 14, 15]
    assert slice_for_cp_rank([0, 8, 16], 16, 2, 1).tolist() == [2, 3, 4, 5, 10, 11, 12, 13]
    assert slice_for_cp_rank([0, 8, 16], 20, 2, 1).tolist() == [2, 3, 4, 5, 10, 11, 12, 13, 18, 19]
    assert slice_for_cp_rank([0, 8, 16], 16, 2, 1, "contiguous").tolist() == list(range(8, 16))
    with pytest.raises(ArgumentError, match="the tail of a row of 19 slots, from 16, must divide by 2 CP ranks"):
        slice_for_cp_rank([0, 8, 16], 19, 2, 0)
    with pytest.raises(ArgumentError, match="num_slots must be from 16 to 2147483647, got 14"):
        slice_for_cp_rank([0, 8, 16], 14, 2, 0)


@pytest.mark.parametrize(
    ("sharding", "slices"),
    [
        ("zigzag", [[0, 1, 0, 0, 8, 9, 14, 0, 0, 0], [2, 0, 0, 0, 10, 11, 12, 13, 0, 0]]),
        ("contiguous", [[0, 1, 2, 0, 0, 0, 0, 0, 0, 0], [8, 9, 10, 11, 12, 13, 14, 0, 0, 0]]),
    ],
)
def test_slices_and_masks_by_hand(sharding: str, slices: list[list[int]]) -> None:
    found = batches(("cp", "tp"), (2, 2), lambda g: row(2, g.dp_cp.rank), sharding=sharding)
    for rank, batch in enumerate(found):
        expected = slices[rank // 2]
        assert batch.fields["tokens"].tolist() == [expected]
        real = np.array(expected) > 0
        real[:1] |= rank // 2 == 0  # token 0 is real
        assert batch.padding_mask.tolist() == [(~real).tolist()]
        assert batch.fields["labels"].tolist() == [np.where(real, expected, -100).tolist()]
        assert (batch.fields["score"].dtype, batch.fields["loss_mask"].dtype) == (np.float16, np.float32)
        assert batch.packed_seq_params["cp_group"] == ((0, 2), (1, 3))[rank % 2]
        assert batch.packed_seq_params["local_cp_size"] == 2
        assert batch.packed_seq_params["cu_seqlens_q_padded"].tolist() == [0, 8, 16, 20]  # the tail is covered
        assert batch.packed_seq_params["cu_seqlens_q"].tolist() == [0, 3, 10, 10]
        assert batch.get("tokens") is batch.fields["tokens"]
        assert batch.get("nothing") is None


def test_the_switch_reaches_the_exporter() -> None:
    (batch,) = batches(("tp",), (1,), lambda g: row(num_slots=16), padded_in_both=True)
    assert batch.packed_seq_params["cu_seqlens_q"].tolist() == [0, 8, 16]
    assert batch.packed_seq_params["pad_between_seqs"] is False


def test_fields_of_sequences_reach_all_peers() -> None:
    sample = {"tokens": np.arange(2), "labels": np.arange(2), "loss_mask": np.ones(2), "position_ids": np.arange(2)}
    lengths = {"original_seq_len": np.array([2]), "padded_seq_len": np.array([2])}

    def make(_: Any) -> dict[str, Any]:
        return pack_sequences([{**sample, **lengths, "image": np.zeros((3, 4))}])

    for batch in batches(("tp",), (2,), make, to_device=lambda array: [array]):
        assert batch.sample_fields[0]["image"][0].shape == (3, 4)
        assert batch.fields["tokens"][0].tolist() == [[0, 1]]
        assert batch.padding_mask[0].tolist() == [[False, False]]
        assert batch.packed_seq_params["cu_seqlens_q"][0].tolist() == [0, 2]
        assert batch.packed_seq_params["max_seqlen_q"] == 2


def test_one_message_to_the_peers() -> None:
    mesh = dcpack.Topology(axes=("tp",), sizes=(2,))

    def fn(world: dcpack.Communicator) -> dict[str, int]:
        groups = build_groups(world, mesh)
        get_batch_for_rank(iter([row()]) if world.rank == 0 else None, groups)
        return dict(groups.tp.counters.calls)

    for calls in dcpack.run_ranks(2, fn):
        assert {verb: count for verb, count in calls.items() if count} == {"agree": 1, "broadcast": 1}


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (lambda: iter([]), "data_iterator has ended: it holds the micro-batches of one step"),
        (lambda: None, "data_iterator must be an iterator on this rank, got NoneType"),
        (lambda: [row()], "data_iterator must be an iterator on this rank, got list"),
        (lambda: iter([{k: v for k, v in row().items() if k != "labels"}]), "the micro-batch lacks labels"),
        (lambda: iter([{k: v for k, v in row().items() if k != "cu_seqlens"}]), "the micro-batch lacks cu_seqlens"),
        (lambda: iter([row(cp_size=3)]), "sharding 'zigzag' over 3 ranks needs multiples of 6"),
        (lambda: failing(PeerError("lost rank 7 of another group", rank=7)), "lost rank 7 of another group"),
        (lambda: failing(KeyError("x")), "KeyError: 'x'"),
    ],
)
def test_a_fault_of_the_first_is_an_error_on_its_peers(source: Any, text: str) -> None:
    mesh = dcpack.Topology(axes=("tp",), sizes=(2,))
    failures = []

    def fn(world: dcpack.Communicator) -> None:
        groups = build_groups(world, mesh)
        try:
            get_batch_for_rank(source() if world.rank == 0 else None, groups)
        except PeerError as error:
            failures.append(str(error))

    dcpack.run_ranks(2, fn)
    assert len(failures) == 2
    assert all(text in failure for failure in failures), failures


def test_peers_must_not_bring_data() -> None:
    mesh = dcpack.Topology(axes=("tp",), sizes=(2,))

    def fn(world: dcpack.Communicator) -> None:
        get_batch_for_rank(iter([row()]), build_groups(world, mesh))

    with pytest.raises(PeerError, match="data_iterator must be None on all but the first rank"):
        dcpack.run_ranks(2, fn)


# ---- groups and options ----------------------------------------------------------------------------------------------


def test_a_mesh_that_does_not_fit_the_world() -> None:
    with pytest.raises(PeerError, match="the mesh has 3 ranks, the world 2"):
        dcpack.run_ranks(2, lambda world: build_groups(world, dcpack.Topology(axes=("dp",), sizes=(3,))))
    shared = dcpack.Topology(axes=("dp",), sizes=(2,), process_of_rank=[0, 0])
    with pytest.raises(PeerError, match="the mesh must have one rank a process"):
        dcpack.run_ranks(2, lambda world: build_groups(world, shared))


@pytest.mark.parametrize("givers", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
def test_whoever_gives_to_device_a_fault_of_one_is_an_error_on_all(givers: tuple[int, ...]) -> None:
    size = 3
    mesh = dcpack.Topology(axes=("tp",), sizes=(size,))

    def fn(world: dcpack.Communicator) -> Any:
        return jobs.move_and_fail(build_groups(world, mesh), row, givers)

    found = dcpack.run_ranks(size, fn)
    assert [each["fault"] for each in found] == [(givers[-1], "MemoryError")] * size
    # Then one succeeds: those that gave it have moved arrays, and all made the same calls.
    assert [each["moved"] for each in found] == [rank in givers for rank in range(size)]
    assert {tuple(each["calls"]) for each in found} == {("agree", 2, "broadcast", 2)}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"sharding": "contiguous"}, "sharding 'contiguous', not 'zigzag'"),
        ({"padded_in_both": True}, "padded_in_both True, not False"),
        ({"has_mtp": True}, "has_mtp True, not False"),
        ({"vpp_stage": 1}, "vpp_stage 1, not 0"),
        ({"vpp_size": 3, "vpp_stage": 2}, "vpp_size 3, not 2, vpp_stage 2, not 0"),
    ],
)
def test_peers_must_ask_for_the_same(options: dict[str, Any], text: str) -> None:
    mesh = dcpack.Topology(axes=("tp",), sizes=(2,))

    def fn(world: dcpack.Communicator) -> str:
        groups = build_groups(world, mesh)
        asked = {"vpp_size": 2, "vpp_stage": 0, **(options if world.rank == 1 else {})}
        with pytest.raises(PeerError) as caught:
            get_batch_for_rank(iter([row()]) if world.rank == 0 else None, groups, **asked)
        return str(caught.value)

    for found in dcpack.run_ranks(2, fn):
        assert f"must ask for the same micro-batch; against the first: {text}\n" in found


class _OneSize:
    """A scheduler of somebody else's that keeps the CP size it is given."""

    def __init__(self, sizes: int) -> None:
        self.sizes = sizes

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        return legal[: self.sizes]

    def schedule(self, problem: Any) -> Any:
        raise AssertionError("nothing is planned here")


@pytest.mark.parametrize("num_made", [0, 1, 2, 3])
def test_groups_that_were_made_before_one_failed_are_closed(num_made: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = dcpack.Topology(axes=("dp", "tp"), sizes=(2, 2))

    def fn(world: dcpack.Communicator) -> list[bool]:
        made: list[dcpack.Communicator] = []
        split = world.split

        def short_of_groups(partition: Any) -> dcpack.Communicator:
            if len(made) == num_made:
                raise PeerError("6 communicators are open, and max_groups is 6")
            made.append(split(partition))
            return made[-1]

        monkeypatch.setattr(world, "split", short_of_groups)
        with pytest.raises(PeerError, match="max_groups"):
            build_groups(world, mesh)
        return [communicator._closed for communicator in made]

    assert dcpack.run_ranks(4, fn) == [[True] * num_made] * 4


def test_whether_the_cp_size_is_static_is_what_the_scheduler_takes() -> None:
    static = [name for name in SCHEDULERS if StepOptions(capacity=8, scheduler=name).is_static]
    assert sorted(static) == ["balanced", "in_order", "local_gain"]
    assert StepOptions(capacity=8, scheduler=_OneSize(1)).is_static  # type: ignore[arg-type]  # it has no name
    assert not StepOptions(capacity=8, scheduler=_OneSize(2)).is_static  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"capacity": 0}, "capacity must be at least 1"),
        ({"vpp_size": 0}, "vpp_size must be from 1 to 65536"),
        ({"pp_size": 4, "vpp_size": 2, "microbatch_group_size": 3}, "microbatch_group_size must be from 4 to 65536"),
        ({"microbatch_group_size": 4}, "microbatch_group_size has no meaning without virtual stages"),
        ({"scheduler": "best"}, "scheduler must be one of 'in_order'"),
        ({"sharding": "halves"}, "sharding must be one of"),
        ({"on_empty": "skip"}, "on_empty must be one of"),
        ({"sync": "never"}, "sync must be one of"),
        ({"max_sequences": 0}, "max_sequences must be at least 1"),
        ({"tp_size": True}, "tp_size must be an integer"),
        ({"min_cp_size": 4, "max_cp_size": 2}, "max_cp_size must be at least 4, got 2"),
        ({"cp_sizes": "some"}, "cp_sizes must be 'powers_of_two'"),
        ({"cp_sizes": (2, 0)}, r"cp_sizes must be at least 1: cp_sizes\[1\] = 0"),
        ({"cost": "guess"}, "unknown cost 'guess'"),
        ({"cost": 3}, "cost must be a cost model, 3 has no columns, bin_time, node_size, unit"),
        ({"cost": dcpack.QuadraticCost}, "cost must be a cost model, .* is a class"),
    ],
)
def test_options_are_checked_when_they_are_made(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        StepOptions(**{"capacity": 64, **options})


def test_what_options_say() -> None:
    assert StepOptions(capacity=64, tp_size=4).rule == dcpack.PaddingRule(tp=4)
    assert StepOptions(capacity=64, pp_size=4).microbatch_multiple == 1
    assert StepOptions(capacity=64, pp_size=4, vpp_size=2).microbatch_multiple == 4
    assert StepOptions(capacity=64, pp_size=4, vpp_size=2, microbatch_group_size=6).microbatch_multiple == 6
    assert StepOptions(capacity=64, scheduler="in_order").is_static
    assert StepOptions(capacity=64, scheduler=InOrder()).is_static
    assert not StepOptions(capacity=64).is_static
