from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpack.balancing import karmarkar_karp


def plain_karmarkar_karp(costs: list[int], num_parts: int, equal_size: bool) -> list[int]:
    """Part sums by the textbook method: a heap of full tuples, the younger of two equal spreads first."""
    values = sorted(costs, reverse=True)
    if equal_size:
        values += [0] * (-len(values) % num_parts)
        starts = [tuple(values[i : i + num_parts]) for i in range(0, len(values), num_parts)]
    else:
        starts = [(value,) + (0,) * (num_parts - 1) for value in values]
    heap = [(row[-1] - row[0], -age, row) for age, row in enumerate(starts)]
    heapq.heapify(heap)
    age = len(heap)
    while len(heap) > 1:
        (_, _, ahead), (_, _, behind) = heapq.heappop(heap), heapq.heappop(heap)
        row = tuple(sorted((a + b for a, b in zip(ahead, reversed(behind), strict=True)), reverse=True))
        heapq.heappush(heap, (row[-1] - row[0], -age, row))
        age += 1
    return list(heap[0][2])


def part_sums(costs: list[int], num_parts: int, equal_size: bool = False) -> list[int]:
    sums = [0] * num_parts
    parts = karmarkar_karp(costs, num_parts, equal_size=equal_size, effort="fast")
    for part, cost in zip(parts.tolist(), costs, strict=True):
        sums[part] += cost
    return sums


def test_two_parts_by_hand() -> None:
    # 8 7 | 6 5 | 4: differences 1 and 1 beside 4; 4 against the younger, 6-5, gives 9 6; against 8-7 gives 16 14
    assert part_sums([8, 7, 6, 5, 4], 2) == [16, 14]
    assert karmarkar_karp([8, 7, 6, 5, 4], 2, effort="fast").tolist() == [1, 0, 1, 0, 0]


def test_three_parts_by_hand() -> None:
    # [5 . .] and [4 . .] make [5 4 .], spread 5, the largest; [3 . .] fills its last place: [5 4 3], spread 2.
    # [2 . .] goes to the smallest, 3+2, and of equal sums the one that stood further back comes first: 5 5 4.
    assert part_sums([5, 4, 3, 2], 3) == [5, 5, 4]
    assert karmarkar_karp([5, 4, 3, 2], 3, effort="fast").tolist() == [1, 2, 0, 0]


def test_rows_and_items_by_hand() -> None:
    # [20 11], spread 9, beside 10 10 4: both 10 are larger and start [10 10]; the 4 goes to the 11, [20 15], and that
    # against [10 10] gives 20+10 | 15+10
    assert part_sums([20, 11, 10, 10, 4], 2) == [30, 25]
    # [58 50] 8, [44 28] 16, [26 20] 6, then 13 to the 28: [44 41] 3. Now 10 is above 8, but goes to [58 50], not to
    # that row: [60 58] 2. Then [26 20] with [44 41]: [67 64] 3, and both: 67+58 | 64+60
    assert part_sums([58, 50, 44, 28, 26, 20, 13, 10], 2) == [125, 124]
    # [9 9 1] of spread 8; the others go to it one by one, each to the smallest: 1+1, 2+1
    assert part_sums([9, 9, 1, 1, 1], 3) == [9, 9, 3]
    assert karmarkar_karp([9, 9, 1, 1, 1], 3, effort="fast").tolist() == [1, 0, 2, 2, 2]


def test_balanced_blocks_by_hand() -> None:
    # blocks [9 5] (spread 4), [4 2] (2), [1 0]: 9+2 | 5+4 = [11 9] (2); then with the last: 11+0 | 9+1
    assert part_sums([9, 5, 4, 2, 1], 2, equal_size=True) == [11, 10]
    assert karmarkar_karp([9, 5, 4, 2, 1], 2, equal_size=True, effort="fast").tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize("equal_size", [False, True])
@given(
    costs=st.lists(st.integers(0, 50), min_size=1, max_size=60)
    | st.lists(st.integers(0, 50) | st.integers(0, 10**9), min_size=1, max_size=60),
    num_parts=st.integers(1, 12),
)
def test_part_sums_equal_the_textbook(equal_size: bool, costs: list[int], num_parts: int) -> None:
    assert part_sums(costs, num_parts, equal_size) == plain_karmarkar_karp(costs, num_parts, equal_size)


@pytest.mark.parametrize("num_parts", [2, 255, 256, 300])  # orders are kept in one byte up to 255 parts
def test_many_parts_equal_the_textbook(num_parts: int) -> None:
    rng = np.random.default_rng(12)
    for costs in (rng.integers(1, 10**6, 900).tolist(), np.rint(rng.lognormal(8, 1.5, 900)).astype(np.int64).tolist()):
        assert part_sums(costs, num_parts) == plain_karmarkar_karp(costs, num_parts, False)


def test_sums_beyond_int32() -> None:
    assert part_sums([2**56, 2**56, 2**56], 2) == [2**57, 2**56]
