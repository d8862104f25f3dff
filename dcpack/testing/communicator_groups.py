"""Conformance checks of groups: who is in them, and that groups do not disturb each other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dcpack.comm import Communicator
from dcpack.errors import DcpackError
from dcpack.testing.expect import expect_peer_error, require

__all__ = ["GROUP_CHECKS"]


def _gather(communicator: Communicator, value: int) -> list[int]:
    return [int(array) for array in communicator.all_gather(np.int64(value))]


def _require_group(parent: Communicator, child: Communicator, block: Sequence[int]) -> None:
    """Require that `child` is the group of `block` of `parent`, in that order, and that all its verbs work."""
    ranks = tuple(parent.ranks[member] for member in block)
    require(child.ranks == ranks, f"the members are {child.ranks}, expected {ranks}")
    require(child.size == len(block), f"the size is {child.size}, expected {len(block)}")
    require(child.rank == list(block).index(parent.rank), f"member {parent.rank} of {block} became {child.rank}")
    require(child.deadline_s == parent.deadline_s, f"the deadline became {child.deadline_s}")
    gathered = _gather(child, parent.rank)
    require(gathered == list(block), f"all_gather in the group gave {gathered}, expected {block}")
    size = child.size
    received = child.all_to_all(np.arange(size) + 100 * child.rank, [1] * size, [1] * size).tolist()
    expected = [100 * sender + child.rank for sender in range(size)]
    require(received == expected, f"all_to_all in the group gave {received}, expected {expected}")
    for root in range(size):
        value = int(child.broadcast(np.array(parent.rank), root))
        require(value == block[root], f"broadcast from {root} in the group gave {value}, expected {block[root]}")


def members(communicator: Communicator) -> None:
    """A member's own number, the size, and the global numbers."""
    size, rank = communicator.size, communicator.rank
    require(len(communicator.ranks) == size, f"{len(communicator.ranks)} global numbers for {size} members")
    require(len(set(communicator.ranks)) == size, f"global numbers occur twice: {communicator.ranks}")
    require(0 <= rank < size, f"rank {rank} of {size}")
    gathered = _gather(communicator, communicator.ranks[rank])
    require(gathered == list(communicator.ranks), f"the ranks say {gathered}, here they are {communicator.ranks}")
    require(communicator.deadline_s > 0, f"the deadline is {communicator.deadline_s}")


def barrier(communicator: Communicator) -> None:
    """Many in a row."""
    for _ in range(20):
        communicator.barrier()
    require(communicator.counters.calls["barrier"] == 20, f"calls are {communicator.counters.calls}")


def _split_and_check(communicator: Communicator, partition: list[list[int]]) -> None:
    with communicator.split(partition) as child:
        block = next(block for block in partition if communicator.rank in block)
        _require_group(communicator, child, block)


def split_halves(communicator: Communicator) -> None:
    """Two blocks of neighbours, or one if there is one member."""
    everyone = list(range(communicator.size))
    half = (communicator.size + 1) // 2
    _split_and_check(communicator, [block for block in (everyone[:half], everyone[half:]) if block])


def split_uneven(communicator: Communicator) -> None:
    """One member alone, the others together."""
    everyone = list(range(communicator.size))
    _split_and_check(communicator, [block for block in (everyone[:1], everyone[1:]) if block])


def split_singles(communicator: Communicator) -> None:
    """Everyone alone."""
    _split_and_check(communicator, [[member] for member in range(communicator.size)])


def split_reordered(communicator: Communicator) -> None:
    """The members of a block have the order of the block, not of the parent; so have interleaved blocks."""
    everyone = list(range(communicator.size))
    _split_and_check(communicator, [everyone[::-1]])
    _split_and_check(communicator, [block[::-1] for block in (everyone[1::2], everyone[::2]) if block])


def split_again(communicator: Communicator) -> None:
    """A group of a group of a group: numbers are local at each level, global in `ranks`."""
    everyone = list(range(communicator.size))
    first = [block for block in (everyone[::2][::-1], everyone[1::2]) if block]
    child = communicator.split(first)
    _require_group(communicator, child, next(block for block in first if communicator.rank in block))
    local = list(range(child.size))
    second = [block for block in (local[1:], local[:1]) if block]
    grandchild = child.split(second)
    _require_group(child, grandchild, next(block for block in second if child.rank in block))
    expected = tuple(child.ranks[member] for member in next(block for block in second if child.rank in block))
    require(grandchild.ranks == expected, f"the grandchild holds {grandchild.ranks}, expected {expected}")
    child.close()
    require(_gather(grandchild, 1) == [1] * grandchild.size, "a group stopped with its parent")
    require(_gather(communicator, communicator.rank) == everyone, "a group stopped with its child")


def groups_in_turn(communicator: Communicator) -> None:
    """Rows and columns of a grid used in turn, by members that are at different places in their own work."""
    size = communicator.size
    width = 2 if size % 2 == 0 else 1
    rows = [list(range(start, start + width)) for start in range(0, size, width)]
    columns = [list(range(start, size, width)) for start in range(width)]
    row, column = communicator.split(rows), communicator.split(columns)
    my_row = next(block for block in rows if communicator.rank in block)
    my_column = next(block for block in columns if communicator.rank in block)
    for turn in range(5):
        require(_gather(row, turn + communicator.rank) == [turn + member for member in my_row], "a row is mixed up")
        for _ in range(my_row[0] // width % 3):  # rows make different numbers of calls of their own
            row.barrier()
        require(_gather(column, turn - communicator.rank) == [turn - member for member in my_column], "a column is")
        require(_gather(communicator, turn) == [turn] * size, "the parent is mixed up")


def group_error_stays_inside(communicator: Communicator) -> None:
    """An error in one group is none of the others' business."""
    everyone = list(range(communicator.size))
    half = (communicator.size + 1) // 2
    child = communicator.split([block for block in (everyone[:half], everyone[half:]) if block])
    if communicator.rank < half:
        culprit = communicator.ranks[0]
        mine = ValueError("inside") if communicator.rank == 0 else None
        error = expect_peer_error(lambda: child.agree(mine), "inside")
        require(error.rank == culprit, f"error.rank is {error.rank}, expected the global number {culprit}")
    else:
        child.agree()
    require(_gather(communicator, communicator.rank) == everyone, "the parent is out of step")
    require(_gather(child, 3) == [3] * child.size, "the group is out of step")


def dup_is_independent(communicator: Communicator) -> None:
    """A duplicate has the same members, and its calls and its end do not touch the original."""
    everyone = list(range(communicator.size))
    duplicate = communicator.dup()
    _require_group(communicator, duplicate, everyone)
    require(_gather(communicator, communicator.rank) == everyone, "the original is out of step")
    before = communicator.counters
    duplicate.barrier()
    require(communicator.counters == before, "a call on the duplicate counted on the original")
    duplicate.close()
    require(_gather(communicator, communicator.rank) == everyone, "the original ended with its duplicate")


def dup_in_a_thread(communicator: Communicator) -> None:
    """A duplicate is used by another thread while this one uses the original."""
    duplicate = communicator.dup()
    everyone = list(range(communicator.size))
    outcome: list[Any] = []

    def work() -> None:
        try:
            outcome.extend(_gather(duplicate, 10 * duplicate.rank + turn) for turn in range(10))
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    own = [_gather(communicator, communicator.rank) for _ in range(10)]
    thread.join(communicator.deadline_s)
    require(not thread.is_alive(), "the other thread did not finish")
    require(own == [everyone] * 10, f"this thread gathered {own}")
    expected = [[10 * member + turn for member in everyone] for turn in range(10)]
    require(outcome == expected, f"the other thread gathered {outcome}")


def one_thread(communicator: Communicator) -> None:
    """A second thread is turned away, and the first goes on."""
    communicator.barrier()
    outcome: list[BaseException | None] = []

    def work() -> None:
        try:
            communicator.barrier()
            outcome.append(None)
        except DcpackError as error:
            outcome.append(error)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(communicator.deadline_s)
    require(outcome and "dup()" in str(outcome[0]), f"the second thread got {outcome}")
    require(_gather(communicator, 1) == [1] * communicator.size, "the group is out of step")


def closed(communicator: Communicator) -> None:
    """After `close`, which may come twice, every verb raises; `with` closes."""
    child = communicator.dup()
    with child as entered:
        require(entered is child, "`with` gave something else")
        child.barrier()
    child.close()
    calls: dict[str, Callable[[], Any]] = {
        "all_gather": lambda: child.all_gather(np.zeros(1)),
        "all_to_all": lambda: child.all_to_all(np.zeros(0), [0] * child.size, [0] * child.size),
        "broadcast": lambda: child.broadcast(np.zeros(1), 0),
        "agree": child.agree,
        "barrier": child.barrier,
        "split": lambda: child.split([list(range(child.size))]),
        "dup": child.dup,
    }
    for verb, call in calls.items():
        try:
            call()
        except DcpackError as error:
            require("closed" in str(error), f"{verb} on a closed communicator says {error}")
        else:
            raise AssertionError(f"{verb} on a closed communicator did not raise")
    require(_gather(communicator, 2) == [2] * communicator.size, "the original ended, too")


GROUP_CHECKS: tuple[Callable[[Communicator], None], ...] = (
    members,
    barrier,
    split_halves,
    split_uneven,
    split_singles,
    split_reordered,
    split_again,
    groups_in_turn,
    group_error_stays_inside,
    dup_is_independent,
    dup_in_a_thread,
    one_thread,
    closed,
)
"""The checks of groups: split, dup, close, counters."""
