"""What the exchange does about ranks that fail, are late, vanish, or lie about one byte."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import dcpack
from dcpack.comm import Fault
from dcpack.errors import ArgumentError, PeerError
from dcpack.exchange import (
    PackedBatch,
    check_same_plan,
    exchange_samples,
    gather_prepared,
    gather_samples,
    kept_valid_tokens,
    restore,
)

NUM_RANKS = 3
# gather: agree, all_gather; exchange: agree, all_gather of digests, agree, all_to_all, agree;
# restore: agree, all_gather, agree, all_to_all.
NUM_CALLS = 11
NO_SAMPLES: Any = [3]


Step = Callable[[dcpack.Communicator], tuple[list[PackedBatch], list[npt.NDArray[Any] | None]]]
LENGTHS = [[16], [], [8]]


@pytest.fixture
def step(plan_of: Callable[..., dcpack.Plan]) -> Step:
    """A whole step: 16 tokens and an image go from rank 0 to rank 2, 8 tokens and an image from there to 0 and 1."""
    plan = plan_of([16, 8], [(0, 0, 2, [(1, 0, 8)]), (0, 2, 1, [(0, 0, 16)])], num_ranks=NUM_RANKS)

    def fn(communicator: dcpack.Communicator) -> tuple[list[PackedBatch], list[npt.NDArray[Any] | None]]:
        samples = [{"tokens": np.arange(n) + 1000, "image": np.full((2, 4), n)} for n in LENGTHS[communicator.rank]]
        gathered = gather_samples(communicator, samples)
        batches = exchange_samples(communicator, gathered, plan)
        outputs = {rank: [batch.tokens["input_ids"] for batch in mine] for rank, mine in batches.items()}
        return batches[communicator.rank], restore(communicator, gathered, plan, batches, outputs)

    return fn


def arrays(batches: Sequence[PackedBatch]) -> list[npt.NDArray[Any]]:
    tokens = [array for batch in batches for _, array in sorted(batch.tokens.items())]
    return tokens + [array for batch in batches for own in batch.sample_fields for _, array in sorted(own.items())]


def differing_bytes(
    one: list[tuple[list[PackedBatch], Any]], other: list[tuple[list[PackedBatch], Any]], names: Sequence[str]
) -> int:
    found = 0
    for (mine, _), (theirs, _) in zip(one, other, strict=True):
        for a, b in zip(mine, theirs, strict=True):
            pairs = [(a.tokens[name], b.tokens[name]) for name in names if name in a.tokens]
            pairs += [(x["image"], y["image"]) for x, y in zip(a.sample_fields, b.sample_fields, strict=True)]
            for left, right in pairs:
                found += int(np.count_nonzero(left.view(np.uint8) != right.view(np.uint8)))
    return found


def test_the_step_is_what_these_tests_think_it_is(step: Step) -> None:
    def fn(communicator: dcpack.Communicator) -> tuple[int, int]:
        before = communicator.counters.bytes_sent
        step(communicator)
        return sum(communicator.counters.calls.values()), communicator.counters.bytes_sent - before

    results = dcpack.run_ranks(NUM_RANKS, fn)
    assert [calls for calls, _ in results] == [NUM_CALLS] * NUM_RANKS
    assert all(num_bytes for _, num_bytes in results)


def attempt(step: Step, faults: Sequence[Fault], then: bool = False) -> tuple[dict[int, PeerError], list[int]]:
    """Run the step with `faults`; return the errors by rank, of which none is of a deadline, and who came to its end.

    The deadline is longer than that of the test.
    """
    errors: dict[int, PeerError] = {}
    finished: list[int] = []

    def fn(communicator: dcpack.Communicator) -> None:
        try:
            step(communicator)
        except PeerError as error:
            errors[communicator.rank] = error
        finished.append(communicator.rank)
        if then:
            _, restored = step(communicator)
            assert [r.size for r in restored if r is not None] == LENGTHS[communicator.rank]

    try:
        dcpack.run_ranks(NUM_RANKS, fn, faults=faults, deadline_s=1000.0)
    except PeerError as error:
        assert [fault.action for fault in faults] == ["vanish"]
        errors[faults[0].rank] = error
    return errors, finished


@pytest.mark.parametrize("call", range(NUM_CALLS))
def test_a_rank_that_fails_in_any_call(call: int, step: Step) -> None:
    errors, _ = attempt(step, [Fault(rank=1, call=call, action="raise")], then=True)
    assert sorted(errors) == [0, 1, 2]
    assert {(error.rank, error.cause) for error in errors.values()} == {(1, "RuntimeError")}
    assert len({str(error) for error in errors.values()}) == 1


@pytest.mark.parametrize("call", range(NUM_CALLS))
@pytest.mark.usefixtures("leaping_clock")
def test_a_rank_that_vanishes_in_any_call(call: int, step: Step) -> None:
    errors, finished = attempt(step, [Fault(rank=2, call=call, action="vanish")])
    assert sorted(errors) == [0, 1, 2]  # that of rank 2 is the one of the run
    assert {error.rank for error in errors.values()} == {2}
    assert "did not arrive" in str(errors[0])
    assert sorted(finished) == [0, 1]


@pytest.mark.parametrize("verb", ["all_gather", "all_to_all", "agree"])
@pytest.mark.parametrize("rank", range(NUM_RANKS))
def test_a_late_rank_changes_nothing(verb: str, rank: int, step: Step) -> None:
    clean = dcpack.run_ranks(NUM_RANKS, step)
    late = dcpack.run_ranks(NUM_RANKS, step, faults=[Fault(rank, 0, "delay", verb, seconds=0.05)])
    for (mine, _), (theirs, _) in zip(clean, late, strict=True):
        assert [a.tobytes() for a in arrays(mine)] == [b.tobytes() for b in arrays(theirs)]


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize("offset", [0, 5, 40, 63])
def test_one_wrong_byte_is_one_wrong_byte(rank: int, offset: int, step: Step) -> None:
    # The first 64 bytes of a message are the image, without a gap; the tokens follow.
    clean = dcpack.run_ranks(NUM_RANKS, step)
    spoilt = dcpack.run_ranks(NUM_RANKS, step, faults=[Fault(rank, 0, "flip_byte", "all_to_all", offset=offset)])
    assert differing_bytes(clean, spoilt, ["input_ids", "labels"]) == 1


def test_one_wrong_token_shows_after_the_round_trip(step: Step) -> None:
    # Byte 64 of what rank 2 sends is the lowest of the first token that it sends.
    clean = dcpack.run_ranks(NUM_RANKS, step)
    spoilt = dcpack.run_ranks(NUM_RANKS, step, faults=[Fault(2, 0, "flip_byte", "all_to_all", offset=64)])
    assert differing_bytes(clean, spoilt, ["input_ids", "labels"]) == 1
    wrong = [
        (right != left).tolist()
        for (_, mine), (_, theirs) in zip(clean, spoilt, strict=True)
        for right, left in zip(mine, theirs, strict=True)
        if right is not None and left is not None
    ]
    assert sum(sum(tokens) for tokens in wrong) == 1


@pytest.mark.parametrize("offset", [0, 17, 31])
def test_one_wrong_byte_in_a_digest_stops_all(offset: int, step: Step) -> None:
    errors, _ = attempt(step, [Fault(rank=1, call=1, action="flip_byte", verb="all_gather", offset=offset)])
    assert sorted(errors) == [0, 1, 2]


@pytest.mark.parametrize(
    "call",
    [
        lambda communicator, gathered, plan: check_same_plan(communicator, plan),
        kept_valid_tokens,
        exchange_samples,
        lambda communicator, gathered, plan: restore(communicator, gathered, plan, {}, {}),
        lambda communicator, gathered, plan: gather_prepared(communicator, gathered.local if plan else NO_SAMPLES),
    ],
)
def test_what_is_no_plan_on_one_rank_is_told_to_all(
    call: Callable[..., object], fail_everywhere: Callable[..., list[tuple[type[Exception], str]]]
) -> None:
    def fn(communicator: dcpack.Communicator) -> None:
        gathered = gather_samples(communicator, [{"tokens": [1, 2, 3, 4, 5]}])
        plan = dcpack.plan(gathered.table.lengths, num_ranks=2, capacity=2, cp_sizes=(2,), overlong="truncate")
        call(communicator, gathered, plan if communicator.rank else None)

    for kind, text in fail_everywhere(2, fn):
        assert kind is PeerError
        assert "rank 0 failed" in text
        assert ArgumentError.__name__ in text
