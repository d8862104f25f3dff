from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest
from problems import problem

from dcpack.scheduling import MicroBatch
from dcpack.scheduling.choice import Choice
from dcpack.scheduling.deals import deals_of
from dcpack.scheduling.timing import GroupTimes


def deals(choice: Choice, *, most: int = 3, looser: int = 1) -> Iterator[list[MicroBatch]]:
    return deals_of(choice.times, choice, most, looser)


def items_of(microbatches: list[MicroBatch]) -> list[int]:
    return sorted(itertools.chain.from_iterable(group.items for groups in microbatches for group in groups))


@pytest.mark.parametrize("num_ranks", [1, 4, 8])
@pytest.mark.parametrize("count", [1, 3, 24, 120])
def test_each_item_once_and_within_the_ranks(count: int, num_ranks: int) -> None:
    lengths = np.random.default_rng(count).integers(1, 100, count).tolist()
    found = list(deals(Choice(GroupTimes(problem(lengths, num_ranks)))))
    assert found
    for microbatches in found:
        assert items_of(microbatches) == list(range(count))
        assert all(sum(group.cp_size for group in groups) <= num_ranks for groups in microbatches)


def tight(**changes: object) -> Choice:
    """32 items that fill four micro-batches of eight ranks to 90% of the tokens, and nothing found so far."""
    return Choice(GroupTimes(problem([90] * 32, 8, **changes)))


def counts(choice: Choice, looser: int) -> list[int]:
    return sorted({len(microbatches) for microbatches in deals(choice, looser=looser)})


def test_more_micro_batches_are_dealt_where_memory_is_tight() -> None:
    assert counts(tight(), 0) == [4]
    assert counts(tight(), 1) == [4, 5]
    assert counts(tight(), 8) == [4, 5]  # a quarter more at most


def test_more_micro_batches_stay_multiples() -> None:
    assert counts(tight(microbatch_multiple=2), 8) == [4]  # 6 are more than a quarter more
    assert counts(Choice(GroupTimes(problem([90] * 64, 8, microbatch_multiple=2))), 8) == [8, 10]


def test_no_more_micro_batches_where_memory_has_room_or_time_is_near_the_bound() -> None:
    assert counts(Choice(GroupTimes(problem([60] * 32, 8))), 1) == [4]  # 60% of the tokens
    choice = tight()
    dealt = []
    for microbatches in deals(choice):
        dealt.append(len(microbatches))
        choice.offer(microbatches)
    assert set(dealt) == {4}
    assert not choice.is_over(1.045)
