from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.errors import InfeasibleError
from dcpack.padding import PaddingRule


def dealt_slowly(lengths: list[int], dp: int, capacity: int, multiple: int) -> list[list[list[int]]] | None:
    """Megatron's dp_balanced in plain Python: next fit, then last sequences of last bins until the number divides."""
    bins: list[list[int]] = []
    room = 0
    for i, length in enumerate(lengths):
        if length == 0:
            continue
        if length > room:
            bins.append([])
            room = capacity
        bins[-1].append(i)
        room -= length
    while len(bins) % (dp * multiple):
        donor = next((members for members in reversed(bins) if len(members) > 1), None)
        if donor is None:
            return None
        bins.append([donor.pop()])
    return [bins[start : start + dp] for start in range(0, len(bins), dp)]


@settings(deadline=None, max_examples=150)
@given(
    lengths=st.lists(st.integers(0, 30), max_size=60),
    dp=st.integers(1, 9),
    multiple=st.integers(1, 3),
    cp=st.sampled_from([1, 2]),
)
def test_equals_the_plain_form(lengths: list[int], dp: int, multiple: int, cp: int) -> None:
    options: dict[str, Any] = {"num_ranks": dp * cp, "capacity": 30, "cp_sizes": (cp,)}
    expected = dealt_slowly(lengths, dp, 30 * cp, multiple)
    if expected is None:
        with pytest.raises(InfeasibleError, match=f"sequences cannot give each of {dp * cp} ranks work"):
            dcpack.plan(lengths, scheduler="in_order", microbatch_multiple=multiple, **options)
        return
    plan = dcpack.plan(lengths, scheduler="in_order", microbatch_multiple=multiple, **options)
    groups = plan.to_sample_id_groups()
    assert [microbatch[::cp] for microbatch in groups] == expected
    assert all(microbatch[r] == microbatch[r - r % cp] for microbatch in groups for r in range(dp * cp))


def test_bins_are_dealt_in_order_of_arrival() -> None:
    # next fit: [0 1] [2 3] [4] [5]; two ranks, two micro-batches
    plan = dcpack.plan([50, 40, 60, 30, 80, 90], num_ranks=2, capacity=100, scheduler="in_order")
    assert plan.to_sample_id_groups() == [[[0, 1], [2, 3]], [[4], [5]]]


def test_the_tail_is_split_from_the_end() -> None:
    # next fit: [0 1] [2 3 4]; four ranks want two bins more: 4 leaves, then 3
    plan = dcpack.plan([50, 50, 50, 10, 10], num_ranks=4, capacity=100, scheduler="in_order")
    assert plan.to_sample_id_groups() == [[[0, 1], [2], [4], [3]]]


def test_the_first_bin_gives_too() -> None:
    plan = dcpack.plan([30, 30, 30], num_ranks=3, capacity=100, scheduler="in_order")
    assert plan.to_sample_id_groups() == [[[0], [2], [1]]]


def test_padding_and_caps_count() -> None:
    rule = PaddingRule(block=64)  # every sequence fills 64 of 128
    plan = dcpack.plan([1] * 4, num_ranks=2, capacity=128, scheduler="in_order", padding=rule)
    assert plan.to_sample_id_groups() == [[[0, 1], [2, 3]]]
    plan = dcpack.plan([1] * 6, num_ranks=2, capacity=128, scheduler="in_order", max_sequences=3)
    assert plan.to_sample_id_groups() == [[[0, 1, 2], [3, 4, 5]]]


def test_a_static_cp_size_shares_every_bin() -> None:
    plan = dcpack.plan([150, 60, 120], num_ranks=4, capacity=100, scheduler="in_order", min_cp_size=2)
    assert plan.to_sample_id_groups() == [[[0], [0], [1, 2], [1, 2]]]
    with pytest.raises(InfeasibleError, match="needs a CP size that divides the ranks: 6 ranks, CP size 4"):
        dcpack.plan([5] * 9, num_ranks=6, capacity=100, scheduler="in_order", min_cp_size=3)


def test_dummies_stand_where_sequences_run_out() -> None:
    plan = dcpack.plan([90, 90, 90], num_ranks=2, capacity=100, scheduler="in_order", on_empty="dummy")
    assert plan.to_sample_id_groups() == [[[0], [1]], [[2], []]]
    assert plan.dummy.tolist() == [False, False, False, True]
