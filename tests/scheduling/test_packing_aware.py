from __future__ import annotations

from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.plans import Plan


def rule(lengths: list[int], **options: Any) -> Plan:
    return dcpack.plan(lengths, scheduler="packing_aware", **options)


Placed = list[list[tuple[int, int, list[int]]]]  # [micro-batch][group] -> first rank, CP size, ids in order


def placed(plan: Plan) -> Placed:
    table: Placed = [[] for _ in range(plan.num_microbatches)]
    for b in range(plan.num_bins):
        ids = plan.sequence_ids[plan.offsets[b] : plan.offsets[b + 1]].tolist()
        table[plan.microbatch[b]].append((int(plan.first_rank[b]), int(plan.cp_size[b]), ids))
    return [sorted(groups) for groups in table]


def plan_slowly(lengths: list[int], num_ranks: int, capacity: int, max_sequences: int | None = None) -> Placed:
    """The rules of `PackingAware`, one sequence and one candidate at a time, for ranks that are a power of two."""
    sizes = [2**k for k in range(num_ranks.bit_length()) if 2**k <= num_ranks]
    waiting = sorted((i for i in range(len(lengths)) if lengths[i]), key=lambda i: -lengths[i])
    result: Placed = []
    while waiting:
        tallest = lengths[waiting[0]]
        limit = tallest * capacity * 1.05
        groups: list[dict[str, Any]] = []
        left = []

        def rank_work(group: dict[str, Any]) -> float:
            return sum(lengths[i] ** 2 / group["size"] for i in group["ids"])

        def maximum_after(changed: dict[str, Any], others: list[dict[str, Any]]) -> float:
            return max([rank_work(changed), *(rank_work(group) for group in others)])

        for i in waiting:
            free = num_ranks - sum(group["size"] for group in groups)
            if not groups:
                size = next(size for size in sizes if lengths[i] <= capacity * size)
                groups.append({"size": size, "ids": [i]})
                continue
            best: tuple[float, dict[str, Any] | None, dict[str, Any]] | None = None
            for size in sizes:
                candidates: list[tuple[dict[str, Any] | None, dict[str, Any]]] = []
                for group in groups:
                    full = max_sequences is not None and len(group["ids"]) >= max_sequences
                    tokens = sum(lengths[j] for j in group["ids"]) + lengths[i]
                    if group["size"] == size and not full and tokens <= capacity * size:
                        candidates.append((group, {"size": size, "ids": [*group["ids"], i]}))
                if size <= free and lengths[i] <= capacity * size:
                    candidates.append((None, {"size": size, "ids": [i]}))
                for old, new in candidates:
                    projected = maximum_after(new, [group for group in groups if group is not old])
                    if projected <= limit and (best is None or projected < best[0]):
                        best = (projected, old, new)
            if best is None:
                left.append(i)
            elif best[1] is None:
                groups.append(best[2])
            else:
                best[1]["ids"] = best[2]["ids"]
        while sum(group["size"] for group in groups) < num_ranks:
            min(groups, key=lambda group: group["size"])["size"] *= 2  # min takes the oldest of equals
        first, table = 0, []
        for group in sorted(groups, key=lambda group: -group["size"]):  # stable: of equals the older first
            table.append((first, group["size"], group["ids"]))
            first += group["size"]
        result.append(table)
        waiting = left
    return result


@settings(deadline=None, max_examples=300)
@given(
    lengths=st.lists(st.integers(0, 100) | st.integers(0, 1600), max_size=40),
    num_ranks=st.sampled_from([1, 2, 4, 8, 16]),
    capacity=st.sampled_from([100, 130]),
    max_sequences=st.none() | st.integers(1, 4),
)
def test_equals_the_plain_form(lengths: list[int], num_ranks: int, capacity: int, max_sequences: int | None) -> None:
    lengths = [length % (num_ranks * capacity + 1) for length in lengths]
    plan = rule(lengths, num_ranks=num_ranks, capacity=capacity, max_sequences=max_sequences)
    expected = plan_slowly(lengths, num_ranks, capacity, max_sequences)
    event(f"{min(len(expected), 3)} micro-batches, mixed sizes {len(set(plan.cp_size.tolist())) > 1}")
    assert placed(plan) == expected


def test_the_plain_form_meets_what_matters() -> None:
    # A guard for the test above: several micro-batches, mixed sizes and shared bins do occur.
    lengths = [150, 101, 100, 60, 40, 30, 30, 20, 900, 5]
    expected = plan_slowly(lengths, 8, 130)
    sizes = {size for groups in expected for _, size, _ in groups}
    assert len(expected) > 1
    assert len(sizes) > 1
    assert any(len(ids) > 1 for groups in expected for *_, ids in groups)


def test_by_hand_long_and_short() -> None:
    # 0 (150) needs 2 ranks: 150 ** 2 / 2 = 11250. 1 (60) alone on a rank is 3600, so the maximum stays 11250; CP 2
    # would leave it there too, but CP 1 is tried first. 2 (30) joins it before a rank is
    # opened: 4500. One rank is free: the smallest group, [1 2], gets it.
    plan = rule([150, 60, 30], num_ranks=4, capacity=100)
    assert placed(plan) == [[(0, 2, [0]), (2, 2, [1, 2])]]


def test_by_hand_a_larger_size_wins_where_it_keeps_the_slowest_fast() -> None:
    # 0 (101) on 2 ranks is 5100.5. 1 (100) fits on one rank for 10000, on two for 5000: two keep the maximum at 5100.5.
    # 2 (40) opens a rank: 1600. 5 of 8 ranks are busy: [2] widens to 2, then the oldest of three twos, [0], to 4.
    plan = rule([101, 100, 40], num_ranks=8, capacity=100)
    assert placed(plan) == [[(0, 4, [0]), (4, 2, [1]), (6, 2, [2])]]


def test_by_hand_a_free_rank_is_opened_before_the_longest_is_slowed_down() -> None:
    # 1 (20) would fit beside 0 (80): 6400 + 400. A rank of its own keeps 6400. 2 (15) fits beside both: beside 1 it
    # changes nothing, beside 0 it makes 6625.
    plan = rule([80, 20, 15], num_ranks=2, capacity=100)
    assert placed(plan) == [[(0, 1, [0]), (1, 1, [1, 2])]]


def test_by_hand_what_does_not_fit_waits() -> None:
    # 90 and 80 take a rank each, 70 and 25 fit beside neither. They make the next micro-batch, a rank each.
    plan = rule([25, 70, 90, 80], num_ranks=2, capacity=100)
    assert placed(plan) == [[(0, 1, [2]), (1, 1, [3])], [(0, 1, [1]), (1, 1, [0])]]


def test_by_hand_equal_lengths_keep_their_order() -> None:
    plan = rule([50] * 6, num_ranks=4, capacity=100)
    # four ranks are opened by 0..3; 4 and 5 then join the oldest groups with the lowest maximum, 5000
    assert placed(plan) == [[(0, 1, [0, 4]), (1, 1, [1, 5]), (2, 1, [2]), (3, 1, [3])]]


@pytest.mark.parametrize(
    ("num_ranks", "expected"),
    [
        (3, [[(0, 2, [0]), (2, 1, [1])]]),
        (5, [[(0, 4, [0]), (4, 1, [1])]]),  # widening stops at 2 and 2; 4 and 1 add up
        (6, [[(0, 4, [0]), (4, 2, [1])]]),
        (7, [[(0, 7, [0, 1])]]),  # no two of 1, 2, 4 add up to 7: the whole domain shares both
        (14, [[(0, 14, [0, 1])]]),
    ],
)
def test_by_hand_ranks_that_are_no_power_of_two(num_ranks: int, expected: Placed) -> None:
    assert placed(rule([50, 50], num_ranks=num_ranks, capacity=100)) == expected


def test_an_oversized_sequence_has_its_micro_batch_alone() -> None:
    plan = rule([40, 500, 30], num_ranks=4, capacity=100, overlong="single")
    assert placed(plan) == [[(0, 4, [1])], [(0, 2, [0]), (2, 2, [2])]]
    assert plan.oversized.tolist() == [True, False, False]
