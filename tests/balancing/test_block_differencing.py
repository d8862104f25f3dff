from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dcpack.balancing.block_differencing import MAX_PARTS, deal_blocks
from dcpack.balancing.karmarkar_karp import karmarkar_karp


def plain_parts(costs: list[int], num_parts: int) -> list[int]:
    """The part of each item by the textbook: rows of (sum, items), the younger of equal spreads first."""
    rows = [
        [(cost, [start + at]) for at, cost in enumerate(costs[start : start + num_parts])]
        for start in range(0, len(costs), num_parts)
    ]
    waiting = list(enumerate(rows))
    made = len(rows)
    while len(waiting) > 1:
        waiting.sort(key=lambda entry: (entry[1][0][0] - entry[1][-1][0], entry[0]))
        (_, ahead), (_, behind) = waiting.pop(), waiting.pop()
        places = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(ahead, behind[::-1], strict=True)]
        order = sorted(range(num_parts), key=lambda place: (places[place][0], place), reverse=True)
        waiting.append((made, [places[place] for place in order]))
        made += 1
    parts = [0] * len(costs)
    for part, (_, items) in enumerate(waiting[0][1]):
        for item in items:
            parts[item] = part
    return parts


def test_by_hand() -> None:
    # blocks [9 5] (spread 4), [4 2] (2), [1 0]: 9+2 | 5+4 = [11 9] (2); then with the last: 11+0 | 9+1
    assert deal_blocks(np.array([9, 5, 4, 2, 1, 0]), 2).tolist() == [0, 1, 1, 0, 1, 0]


def test_one_block() -> None:
    assert deal_blocks(np.array([5, 5, 1]), 3).tolist() == [0, 1, 2]


def test_the_largest_sum_that_fits() -> None:
    costs = np.array([2**57 + 3, 2**57 + 1, 2**57 - 2, 2**57 - 3])  # 2**59 - 1 in all
    assert deal_blocks(costs, 2).tolist() == plain_parts(costs.tolist(), 2) == [0, 1, 1, 0]
    # All of it on one part.
    assert deal_blocks(np.array([2**59 - 1, 0, 0, 0]), 2).tolist() == plain_parts([2**59 - 1, 0, 0, 0], 2)


@given(
    costs=st.lists(st.integers(0, 9) | st.integers(0, 10**6), min_size=1, max_size=60),
    num_parts=st.integers(2, MAX_PARTS),
)
def test_parts_equal_the_textbook_item_by_item(costs: list[int], num_parts: int) -> None:
    costs = sorted(costs, reverse=True)
    costs += [0] * (-len(costs) % num_parts)
    assert deal_blocks(np.array(costs), num_parts).tolist() == plain_parts(costs, num_parts)


@given(costs=st.lists(st.integers(0, 9), min_size=60, max_size=60))
def test_one_part_more_than_it_is_for_gives_the_same_rule(costs: list[int]) -> None:
    """`karmarkar_karp` changes to rows of arrays there; both break ties alike."""
    for num_parts in (MAX_PARTS, MAX_PARTS + 1):
        parts = karmarkar_karp(costs, num_parts, equal_size=True, effort="fast")
        order = sorted(range(60), key=lambda item: (-costs[item], item))
        padded = [costs[item] for item in order] + [0] * (-60 % num_parts)
        assert [int(parts[item]) for item in order] == plain_parts(padded, num_parts)[:60]
