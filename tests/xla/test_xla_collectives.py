"""The collectives of the devices on rows of words: every bit in its place, and one program a shape on all ranks."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
from dcpack_xla.collectives import Collectives
from dcpack_xla.runtime import Runtime

from dcpack.comm import Communicator

SIZE = int(os.environ["CPU_NUM_DEVICES"])
Run = Callable[..., list[Any]]


def words_of(rank: int) -> Any:
    """Words whose bits a signed or floating number would not keep."""
    return np.array([rank, 2**32 - 1 - rank, 2**31 + rank, 0x7F800001], np.uint32)


def test_words_arrive_in_the_order_of_the_ranks_bit_by_bit(run: Run, runtime: Runtime) -> None:
    def body(world: Communicator) -> list[Any]:
        collectives = Collectives(runtime, runtime.device)
        mine = words_of(world.rank)
        rows = np.arange(SIZE * 2, dtype=np.uint32).reshape(SIZE, 2) + np.uint32(2**32 - 100 * (world.rank + 1))
        kept = mine.copy(), rows.copy()
        found = [collectives.all_gather(mine), collectives.all_to_all(rows), collectives.sum(mine)]
        assert np.array_equal(mine, kept[0])
        assert np.array_equal(rows, kept[1])
        assert {each.dtype for each in found} == {np.dtype(np.uint32)}
        return [each.tolist() for each in found]

    everyone = [words_of(rank).tolist() for rank in range(SIZE)]
    # The sum is modulo 2**32: of 0x7F800001 four times, say, 0xFE000004.
    total = [sum(column) % 2**32 for column in zip(*everyone, strict=True)]
    for rank, (gathered, exchanged, summed) in enumerate(run(body)):
        assert gathered == everyone
        # Row i came from rank i: its row for this rank.
        assert exchanged == [[2**32 - 100 * (i + 1) + 2 * rank + k for k in (0, 1)] for i in range(SIZE)]
        assert summed == total


def test_a_shape_is_one_program_on_all_ranks(run: Run, runtime: Runtime) -> None:
    def body(world: Communicator) -> None:
        collectives = Collectives(runtime, runtime.device)
        for turn in range(3):
            for width in (7, 9):  # of no other test
                words = np.full(width, 10 * world.rank + turn, np.uint32)
                collectives.all_gather(words)
                collectives.all_to_all(np.tile(words, (SIZE, 1)))
                collectives.sum(words)

    before = runtime.count_compilations()
    run(body)
    assert runtime.count_compilations() - before == 3 * 2
