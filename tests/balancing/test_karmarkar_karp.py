from __future__ import annotations

import heapq

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcpack.balancing import karmarkar_karp


def plain_karmarkar_karp(costs: list[int], num_parts: int, equal_size: bool) -> list[int]:
    """Part sums by the textbook method: a heap of full tuples, the older of two equal spreads first."""
    values = sorted(costs, reverse=True)
    if equal_size:
        values += [0] * (-len(values) % num_parts)
        starts = [tuple(values[i : i + num_parts]) for i in range(0, len(values), num_parts)]
    else:
        starts = [(value,) + (0,) * (num_parts - 1) for value in values]
    heap = [(row[-1] - row[0], age, row) for age, row in enumerate(starts)]
    heapq.heapify(heap)
    age = len(heap)
    while len(heap) > 1:
        (_, _, ahead), (_, _, behind) = heapq.heappop(heap), heapq.heappop(heap)
        row = tuple(sorted((a + b for a, b in zip(ahead, reversed(behind), strict=True)), reverse=True))
        heapq.heappush(heap, (row[-1] - row[0], age, row))
        age += 1
    return list(heap[0][2])


def part_sums(costs: list[int], num_parts: int, equal_size: bool = False) -> list[int]:
    sums = [0] * num_parts
    for part, cost in zip(karmarkar_karp(costs, num_parts, equal_size=equal_size).tolist(), costs, strict=True):
        sums[part] += cost
    return sums


def test_two_parts_by_hand() -> None:
    # 8 7 | 6 5 | 4: differences 1 and 1 beside 4; 4 against 8-7 gives 11 8; against 6-5 gives 16 14
    assert part_sums([8, 7, 6, 5, 4], 2) == [16, 14]
    assert karmarkar_karp([8, 7, 6, 5, 4], 2).tolist() == [1, 0, 1, 0, 0]


def test_three_parts_by_hand() -> None:
    # [5 . .] and [4 . .] make [5 4 .], spread 5, the largest; [3 . .] fills its last place: [5 4 3], spread 2.
    # [2 . .] has spread 2 too and is older, so it goes ahead: 2+3 | 4 | 5, and equal sums keep their places: 5 5 4.
    assert part_sums([5, 4, 3, 2], 3) == [5, 5, 4]
    assert karmarkar_karp([5, 4, 3, 2], 3).tolist() == [1, 2, 0, 0]


def test_balanced_blocks_by_hand() -> None:
    # blocks [9 5] (spread 4), [4 2] (2), [1 0]: 9+2 | 5+4 = [11 9] (2); then with the last: 11+0 | 9+1
    assert part_sums([9, 5, 4, 2, 1], 2, equal_size=True) == [11, 10]
    assert karmarkar_karp([9, 5, 4, 2, 1], 2, equal_size=True).tolist() == [0, 1, 1, 0, 1]


@pytest.mark.parametrize("equal_size", [False, True])
@given(
    costs=st.lists(st.integers(0, 50) | st.integers(0, 10**9), min_size=1, max_size=60), num_parts=st.integers(1, 12)
)
def test_part_sums_equal_the_textbook(equal_size: bool, costs: list[int], num_parts: int) -> None:
    assert part_sums(costs, num_parts, equal_size) == plain_karmarkar_karp(costs, num_parts, equal_size)


@pytest.mark.parametrize("num_parts", [2, 255, 256, 300])  # orders are kept in one byte up to 255 parts
def test_many_parts_equal_the_textbook(num_parts: int) -> None:
    costs = np.random.default_rng(12).integers(1, 10**6, 900).tolist()
    assert part_sums(costs, num_parts) == plain_karmarkar_karp(costs, num_parts, False)


def test_sums_beyond_int32() -> None:
    assert part_sums([2**60, 2**60, 2**60], 2) == [2**61, 2**60]
