"""The contracts of Megatron-Core for schedulers, in one process."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any

import pytest
from dcpack_torch.megatron_schedulers import HybridCPScheduler, PackingScheduler

from dcpack.errors import ArgumentError, InfeasibleError

jobs: Any = importlib.import_module("megatron_jobs")


@pytest.mark.parametrize("scheduler", jobs.SCHEDULERS)
@pytest.mark.parametrize("multiple", [None, 4])
def test_groups_hold_every_sample_and_leave_no_rank_empty(scheduler: str, multiple: int | None) -> None:
    pairs = [(7 * i + 3, 8 + 8 * (i % 5)) for i in range(30)]
    made = PackingScheduler(64, 2, 4, multiple, scheduler=scheduler)
    groups = made.get_groups_and_subsamples(pairs)
    assert made.is_dynamic_cp == (scheduler != "in_order")
    assert len(groups) % (multiple or 1) == 0
    length_of = dict(pairs)
    found: dict[int, list[int]] = {}
    for ranks in groups:
        assert len(ranks) == 8
        assert all(ranks)
        for number in {number for ids in ranks for number in ids}:
            holders = [rank for rank, ids in enumerate(ranks) if number in ids]
            assert holders == list(range(holders[0], holders[0] + len(holders)))
            found.setdefault(number, []).append(len(holders))
        for ids in ranks:
            sizes = {len([1 for other in ranks if ids[0] in other])}
            assert sum(length_of[i] for i in ids) <= 64 * sizes.pop()
    assert {number: len(times) for number, times in found.items()} == {number: 1 for number, _ in pairs}


def test_most_sequences_of_a_row_and_the_smallest_cp_size() -> None:
    groups = PackingScheduler(64, 1, 2, None, max_num_seqs=2).get_groups_and_subsamples([(i, 8) for i in range(8)])
    assert all(len(ids) <= 2 for ranks in groups for ids in ranks)
    groups = PackingScheduler(64, 1, 4, None, min_cp_size=2).get_groups_and_subsamples([(i, 8) for i in range(8)])
    assert all(ranks[0] == ranks[1] and ranks[2] == ranks[3] for ranks in groups)


def test_required_keys() -> None:
    keys = PackingScheduler(64, 1, 2, None).get_required_sample_keys()
    assert keys == ["tokens", "labels", "loss_mask", "position_ids", "original_seq_len", "padded_seq_len"]
    keys.clear()
    assert PackingScheduler(64, 1, 2, None).get_required_sample_keys()


def test_what_schedulers_refuse() -> None:
    made = PackingScheduler(64, 1, 2, None)
    with pytest.raises(ArgumentError, match=r"sample ids must differ; repeated: 3$"):
        made.get_groups_and_subsamples([(3, 8), (4, 8), (3, 9)])
    wrong: list[Any] = [[(3, 8.5)], [(3.5, 8)], [(3, "8")], [(3, 8, 1)]]
    for pairs in wrong:
        with pytest.raises(ArgumentError, match="sample_id_seqlens must hold pairs of two integers, id and length"):
            made.get_groups_and_subsamples(pairs)
    with pytest.raises(ArgumentError, match="sample lengths must be at least 1; not those of samples 4, 5"):
        made.get_groups_and_subsamples([(3, 8), (4, 0), (5, -1)])
    with pytest.raises(InfeasibleError, match="sequence 0 has 900"):
        made.get_groups_and_subsamples([(3, 900)])
    with pytest.raises(ArgumentError, match="scheduler must be one of"):
        PackingScheduler(64, 1, 2, None, scheduler="dp_balanced")


def test_lengths_go_with_the_ids() -> None:
    made = HybridCPScheduler(16, SimpleNamespace(size=lambda: 2))
    lengths, groups = made.get_groups_and_subsamples([(5, 20), (9, 4), (2, 8)], None)
    length_of = {5: 20, 9: 4, 2: 8}
    assert lengths == [[[length_of[i] for i in ids] for ids in ranks] for ranks in groups]
    assert {i for ranks in groups for ids in ranks for i in ids} == {2, 5, 9}
