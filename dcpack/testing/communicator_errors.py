"""Conformance checks of error agreement: one failure is one error on all ranks, and the group can go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from dcpack.comm import Communicator
from dcpack.errors import PeerError
from dcpack.testing.expect import expect_peer_error, require

__all__ = ["ERROR_CHECKS"]


def _require_in_step(communicator: Communicator) -> None:
    """Require that the group still works."""
    gathered = [int(array) for array in communicator.all_gather(np.int32(communicator.rank))]
    require(gathered == list(range(communicator.size)), f"the group is out of step: gathered {gathered}")


def _require_equal_texts(communicator: Communicator, error: PeerError) -> None:
    """Require that all ranks raised the same text."""
    texts = communicator.all_gather(np.frombuffer(str(error).encode(), np.uint8))
    require(len({text.tobytes() for text in texts}) == 1, f"the ranks raised different errors, here: {error}")


def _fails_on(communicator: Communicator, culprit: int, fn: Callable[[bool], Any], cause: str, *fragments: str) -> None:
    """Require that ``fn(am_i_the_culprit)`` raises the same PeerError everywhere, with the cause on `culprit`."""
    mine = communicator.rank == culprit
    error = expect_peer_error(lambda: fn(mine), f"rank {communicator.ranks[culprit]}", *fragments)
    require(error.rank == communicator.ranks[culprit], f"error.rank is {error.rank}, the culprit {culprit}")
    require(error.cause == cause, f"error.cause is {error.cause!r}, expected {cause!r}")
    chained = type(error.__cause__).__name__ if error.__cause__ else ""
    require(chained == (cause if mine else ""), f"the error is chained to {chained!r} where culprit is {mine}")
    _require_equal_texts(communicator, error)
    _require_in_step(communicator)


def _last(communicator: Communicator) -> int:
    return communicator.size - 1


def agree_all_well(communicator: Communicator) -> None:
    """Without an error all go on."""
    for _ in range(3):
        communicator.agree()
    communicator.agree(None)
    _require_in_step(communicator)


def agree_one_error(communicator: Communicator) -> None:
    """Each rank in turn brings an error."""
    for culprit in range(communicator.size):

        def fail(mine: bool) -> None:
            communicator.agree(KeyError("missing-field") if mine else None)

        _fails_on(communicator, culprit, fail, "KeyError", "missing-field", "agree", "Traceback")


def agree_many_errors(communicator: Communicator) -> None:
    """Every rank brings an error: the lowest global rank is the first cause, the others are named."""
    mine = ValueError(f"trouble {communicator.rank}")
    error = expect_peer_error(lambda: communicator.agree(mine))
    first = min(communicator.ranks)
    require(error.rank == first, f"error.rank is {error.rank}, expected {first}")
    require(error.__cause__ is mine, "the error is not chained to what this rank brought")
    for rank in range(communicator.size):
        require(f"trouble {rank}" in str(error), f"the error does not say what rank {rank} brought: {error}")
    _require_equal_texts(communicator, error)
    _require_in_step(communicator)


def agree_unicode(communicator: Communicator) -> None:
    """Any text of an error arrives, and a very long one in part."""
    expect_peer_error(lambda: communicator.agree(ValueError("\u00e4\u6f22\ud800")), "\u6f22")
    error = expect_peer_error(lambda: communicator.agree(ValueError("x" * 10**6)), "xxxx")
    require(len(str(error)) < 10**5, f"the error has {len(str(error))} characters")
    _require_in_step(communicator)


def guard(communicator: Communicator) -> None:
    """The body of a guard fails on one rank; without a failure it lets all through."""
    with communicator.guard():
        done = True
    require(done, "the body of the guard did not run")

    def fail(mine: bool) -> None:
        with communicator.guard():
            if mine:
                raise OSError("no-such-file")

    _fails_on(communicator, _last(communicator), fail, "OSError", "no-such-file")


def bad_dtype(communicator: Communicator) -> None:
    """What cannot travel as bytes is refused by all: objects, texts, dates, records, too many dims."""
    for bad in (
        np.array([None]),
        np.array(["a"]),
        np.array(["2026-01-01"], "datetime64[D]"),
        np.zeros(1, [("a", "i4")]),
        np.zeros((1,) * 9),
    ):
        for verb in (communicator.all_gather, lambda array: communicator.broadcast(array, _last(communicator))):
            good = np.zeros(1)

            def send(mine: bool, verb: Callable[[Any], Any] = verb, bad: Any = bad, good: Any = good) -> Any:
                return verb(bad if mine else good)

            _fails_on(communicator, _last(communicator), send, "ArgumentError", "cannot be sent")


def bad_counts(communicator: Communicator) -> None:
    """Counts that cannot be right on one rank alone."""
    size = communicator.size
    good = [1] * size
    buffer = np.zeros(size)
    cases: tuple[tuple[Any, Any, Any, str], ...] = (
        (buffer, [-1, *good[1:]], good, "send_counts[0] = -1"),
        (buffer, good, [*good[1:], -3], f"recv_counts[{size - 1}] = -3"),
        (buffer, [*good, 1], good, "send_counts"),
        (buffer, good, good[1:], "recv_counts"),
        (buffer, [2, *good[1:]], good, "add up to"),
        (buffer, np.ones(size), good, "integers"),
        (buffer[None], good, good, "one-dimensional"),
        (np.float64(1), good, good, "one-dimensional"),
    )
    for *arguments, fragment in cases:

        def exchange(mine: bool, arguments: list[Any] = arguments) -> Any:
            return communicator.all_to_all(*(arguments if mine else (buffer, good, good)))

        _fails_on(communicator, 0, exchange, "ArgumentError", fragment)


def bad_root(communicator: Communicator) -> None:
    """A root that is no member, or that brings no array."""
    for root in (communicator.size, -1, 0.5):

        def send(mine: bool, root: Any = root) -> Any:
            return communicator.broadcast(np.zeros(1), root if mine else 0)

        _fails_on(communicator, _last(communicator), send, "ArgumentError", "root must be")
    _fails_on(communicator, 0, lambda mine: communicator.broadcast(None, 0), "ArgumentError", "needs an array")


def bad_partition(communicator: Communicator) -> None:
    """Partitions that do not hold each member exactly once."""
    size = communicator.size
    members = list(range(size))
    for bad, fragment in (
        ([members, [0]], "0 occurs 2 times"),
        ([members[1:]] if size > 1 else [], "0 is missing"),
        ([[*members, size]], f"{size} is out of range"),
        ([members, []], "is empty"),
    ):

        def split(mine: bool, bad: Any = bad) -> Any:
            return communicator.split(bad if mine else [members])

        _fails_on(communicator, _last(communicator), split, "ArgumentError", fragment)


def _differ(communicator: Communicator, fn: Callable[[bool], Any], *fragments: str) -> None:
    """Require that ``fn(is_this_the_last_rank)`` raises the same PeerError on all of two or more ranks."""
    if communicator.size == 1:
        fn(True)  # nobody to differ from
    else:
        error = expect_peer_error(lambda: fn(communicator.rank == _last(communicator)), "differ", *fragments)
        require(error.rank is None, f"error.rank is {error.rank}, though no single rank is at fault")
        _require_equal_texts(communicator, error)
    _require_in_step(communicator)


def different_verbs(communicator: Communicator) -> None:
    """One rank calls something else."""
    _differ(
        communicator,
        lambda last: communicator.barrier() if last else communicator.all_gather(np.zeros(2)),
        "barrier",
        "all_gather",
        f"rank {communicator.ranks[-1]}",
    )


def error_among_different_verbs(communicator: Communicator) -> None:
    """One rank fails in a call that the others do not make: its failure is the first cause."""
    size = communicator.size

    def fail(mine: bool) -> None:
        if mine:
            communicator.all_to_all(np.zeros(size), [1] * size, [-1] * size)
        else:
            communicator.barrier()

    _fails_on(communicator, _last(communicator), fail, "ArgumentError", "all_to_all", "recv_counts[0] = -1")


def different_dtypes(communicator: Communicator) -> None:
    """One rank sends another dtype, of the same size and of another."""
    size = communicator.size
    counts = [1] * size
    for other in (np.int64, np.uint8):
        dtype = np.dtype(other).name
        _differ(
            communicator,
            lambda last, other=other: communicator.all_gather(np.zeros(2, other if last else np.float64)),
            *("float64", dtype, f"rank {communicator.ranks[-1]}"),
        )
        _differ(
            communicator,
            lambda last, other=other: communicator.all_to_all(
                np.zeros(size, other if last else np.float64), counts, counts
            ),
            *("float64", dtype),
        )


def different_dims(communicator: Communicator) -> None:
    """One rank's rows have another shape, or its array has another number of dims."""
    for shape, text in (((2, 4), "(*, 4)"), ((2, 3, 1), "(*, 3, 1)"), ((6,), "(*)"), ((), "()")):
        _differ(
            communicator,
            lambda last, shape=shape: communicator.all_gather(np.zeros(shape if last else (2, 3))),
            *("(*, 3)", text),
        )


def different_counts(communicator: Communicator) -> None:
    """The last rank expects one element more of rank 0 than that sends; both are named, on all ranks."""
    size = communicator.size
    if size == 1:
        error = expect_peer_error(lambda: communicator.all_to_all(np.zeros(2), [2], [3]))
        require("sends 2 elements to rank" in str(error), f"the error does not name the counts: {error}")
        _require_in_step(communicator)
        return
    sender, receiver = communicator.ranks[0], communicator.ranks[-1]
    _differ(
        communicator,
        lambda last: communicator.all_to_all(np.zeros(size), [1] * size, [2 if last else 1] + [1] * (size - 1)),
        f"rank {sender} sends 1 elements to rank {receiver}, which expects 2",
    )


def swapped_counts(communicator: Communicator) -> None:
    """Counts whose sums are all right, yet not each other's transpose."""
    size = communicator.size
    if size < 3:
        _require_in_step(communicator)  # with two ranks, right sums leave nothing to swap
        return
    sent = [1, 2, *[1] * (size - 2)]  # everybody sends this to members 0, 1, ...
    expected = [sent[communicator.rank]] * size
    if communicator.rank == 1:
        expected = [1, 3, *expected[2:]]  # as many in all
    first, culprit = communicator.ranks[0], communicator.ranks[1]
    fragment = f"rank {first} sends 2 elements to rank {culprit}, which expects 1"
    error = expect_peer_error(lambda: communicator.all_to_all(np.zeros(size + 1), sent, expected), fragment)
    _require_equal_texts(communicator, error)
    _require_in_step(communicator)


def different_roots(communicator: Communicator) -> None:
    """One rank broadcasts from itself."""
    _differ(
        communicator,
        lambda last: communicator.broadcast(np.zeros(1), communicator.rank if last else 0),
        *("root", f"rank {communicator.ranks[-1]}"),
    )


def different_partitions(communicator: Communicator) -> None:
    """One rank splits in another way."""
    members = list(range(communicator.size))
    one, many = [members], [[member] for member in members]
    _differ(communicator, lambda last: communicator.split(many if last else one).close(), str(one), str(many))


ERROR_CHECKS: tuple[Callable[[Communicator], None], ...] = (
    agree_all_well,
    agree_one_error,
    agree_many_errors,
    agree_unicode,
    guard,
    bad_dtype,
    bad_counts,
    bad_root,
    bad_partition,
    different_verbs,
    error_among_different_verbs,
    different_dtypes,
    different_dims,
    different_counts,
    swapped_counts,
    different_roots,
    different_partitions,
)
"""The checks of errors and agreement."""
