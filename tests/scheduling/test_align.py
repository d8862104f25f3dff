from __future__ import annotations

import pytest

import dcpack
from dcpack.errors import InfeasibleError


def test_a_micro_batch_is_cut_between_its_groups_at_half_the_ranks() -> None:
    plan = dcpack.plan([90, 80], num_ranks=2, capacity=100, microbatch_multiple=2)
    assert plan.to_sample_id_groups() == [[[0], [0]], [[1], [1]]]
    # one of four ranks each; two groups are half of the ranks
    plan = dcpack.plan([90, 80, 70, 60], num_ranks=4, capacity=100, microbatch_multiple=2)
    assert plan.to_sample_id_groups() == [[[0], [0], [1], [1]], [[2], [2], [3], [3]]]


def test_a_single_group_is_cut_inside() -> None:
    plan = dcpack.plan([40, 30, 20, 10], num_ranks=1, capacity=100, microbatch_multiple=2)
    assert plan.to_sample_id_groups() == [[[0, 2]], [[1, 3]]]


def test_the_last_micro_batches_are_cut_first() -> None:
    # two full micro-batches and one of a single sequence, which cannot be cut: the second one is
    plan = dcpack.plan([90, 90, 90, 90, 90], num_ranks=2, capacity=100, microbatch_multiple=4)
    assert plan.to_sample_id_groups() == [[[0], [1]], [[2], [2]], [[4], [4]], [[3], [3]]]


def test_as_many_micro_batches_as_sequences_is_the_most() -> None:
    lengths = [90, 80, 70, 60]
    assert dcpack.plan(lengths, num_ranks=8, capacity=100, microbatch_multiple=4).num_microbatches == 4
    with pytest.raises(InfeasibleError, match=r"no plan exists for 4 sequences on 8 ranks .* microbatch_multiple 5: "):
        dcpack.plan(lengths, num_ranks=8, capacity=100, microbatch_multiple=5)


def test_dummies_make_up_the_multiple() -> None:
    plan = dcpack.plan([90], num_ranks=2, capacity=100, microbatch_multiple=3, on_empty="dummy")
    assert plan.num_microbatches == 3
    assert sorted(plan.sequence_ids.tolist()) == [0]
    assert int(plan.dummy.sum()) >= 2


@pytest.mark.parametrize("scheduler", ["in_order", "packing_aware"])
@pytest.mark.parametrize("multiple", [1, 2, 3, 4, 7])
def test_enough_sequences_reach_any_multiple(scheduler: str, multiple: int) -> None:
    lengths = [(37 * i) % 50 + 1 for i in range(120)]
    plan = dcpack.plan(lengths, num_ranks=8, capacity=100, scheduler=scheduler, microbatch_multiple=multiple)
    assert plan.num_microbatches % multiple == 0
    assert not plan.dummy.any()
    assert all(rank for microbatch in plan.to_sample_id_groups() for rank in microbatch)
