from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from fake_time import Clock

from dcpack.comm import Communicator, FakeBackend, Fault, launch, run_ranks
from dcpack.comm.faults import FaultSchedule
from dcpack.errors import ArgumentError, PeerError


def test_raise_is_agreed_upon_and_the_group_goes_on():
    def fn(communicator: Communicator):
        communicator.barrier()
        with pytest.raises(
            PeerError, match=r"rank 1 failed in all_gather \(call 1\): RuntimeError: fault on rank 1"
        ) as caught:
            communicator.all_gather(np.zeros(1))
        assert (caught.value.rank, caught.value.cause) == (1, "RuntimeError")
        return int(communicator.all_gather(np.int64(7))[1])

    assert run_ranks(3, fn, faults=[Fault(rank=1, call=1, action="raise")]) == [7, 7, 7]


def test_calls_are_counted_over_the_world_and_its_children_by_verb():
    # Of rank 0: barrier 0 on the world, 1 on the child, 2 on the grandchild; the agree between them does not count.
    failed = []

    def fn(communicator: Communicator):
        child = communicator.split([[0, 1]])
        grandchild = child.dup()
        for index, group in enumerate((communicator, child, grandchild, communicator)):
            communicator.agree()
            try:
                group.barrier()
            except PeerError:
                if communicator.rank == 0:
                    failed.append(index)

    run_ranks(2, fn, faults=[Fault(rank=0, call=2, action="raise", verb="barrier")])
    assert failed == [2]
    # Of all verbs: split 0, dup 1, agree 2, barrier 3.
    failed.clear()
    run_ranks(2, fn, faults=[Fault(rank=0, call=3, action="raise")])
    assert failed == [0]


def test_delay_within_the_deadline_only_delays():
    def fn(communicator: Communicator):
        started = time.monotonic()
        communicator.barrier()
        return started, time.monotonic()

    times = run_ranks(3, fn, faults=[Fault(rank=2, call=0, action="delay", seconds=0.2)])
    assert all(ended - times[2][0] >= 0.2 for _, ended in times)  # nobody goes on before it comes


def test_delay_beyond_the_deadline(leaping_clock: Clock):
    with pytest.raises(PeerError, match=r"^rank 2 did not arrive in barrier \(call 0\) within 60 s$") as caught:
        run_ranks(
            3,
            lambda communicator: communicator.barrier(),
            deadline_s=60,
            faults=[Fault(rank=2, call=0, action="delay", seconds=1e9)],
        )
    assert caught.value.rank == 2


def test_vanish_is_found_by_the_deadline_and_by_nothing_else(leaping_clock: Clock, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(launch, "_JOIN_S", 60.0)
    before = set(threading.enumerate())
    heard = {}
    ended = []

    def fn(communicator: Communicator):
        communicator.barrier()
        started = leaping_clock.monotonic()
        try:
            with communicator:  # what a rank does on its way out must not give it away
                communicator.all_gather(np.zeros(1))
        except PeerError as error:
            heard[communicator.rank] = (str(error), error.rank, leaping_clock.monotonic() - started > 60)
            raise
        finally:
            ended.append(communicator.rank)

    with pytest.raises(PeerError, match=r"^rank 1 did not arrive") as caught:
        run_ranks(3, fn, deadline_s=60, faults=[Fault(rank=1, call=1, action="vanish")])
    assert caught.value.rank == 1
    text = "rank 1 did not arrive in all_gather (call 1) within 60 s"
    assert heard == {0: (text, 1, True), 2: (text, 1, True)}
    assert sorted(ended) == [0, 1, 2]  # its thread does end with the run
    assert set(threading.enumerate()) <= before


def test_vanish_that_nobody_waits_for_is_an_error_still():
    with pytest.raises(PeerError, match=r"^rank 0 vanished in barrier \(call 0\)$"):
        run_ranks(1, lambda communicator: communicator.barrier(), faults=[Fault(rank=0, call=0, action="vanish")])


def _flip(verb: Any, offset: Any, num_ranks: Any = 3, **options: Any):
    """What each rank receives if rank 1 sends 4 zero bytes to each, with one byte flipped."""

    def fn(communicator: Communicator):
        mine = np.zeros(4 if verb != "all_to_all" else 4 * num_ranks, np.uint8)
        if verb == "all_gather":
            return communicator.all_gather(mine)[1].tolist()
        if verb == "broadcast":
            return communicator.broadcast(mine, 1).tolist()
        return communicator.all_to_all(mine, [4] * num_ranks, [4] * num_ranks)[4:8].tolist()

    faults = [Fault(rank=1, call=0, action="flip_byte", offset=offset, verb=verb)]
    return run_ranks(num_ranks, fn, faults=faults, **options)


@pytest.mark.parametrize("verb", ["all_gather", "broadcast", "all_to_all"])
def test_flip_byte_counts_what_leaves_the_rank(verb: Any):
    clean = [0, 0, 0, 0]
    # Rank 1 sends bytes 0 to 3 to rank 0 and 4 to 7 to rank 2; what it keeps is never touched.
    assert _flip(verb, 1) == [[0, 255, 0, 0], clean, clean]
    assert _flip(verb, 4) == [clean, clean, [255, 0, 0, 0]]
    assert _flip(verb, 7) == [clean, clean, [0, 0, 0, 255]]
    with pytest.raises(ArgumentError, match=r"did not come true: Fault\(rank=1, call=0, action='flip_byte'"):
        _flip(verb, 8)


def test_flip_byte_counts_over_rounds():
    # In rounds of 3 bytes: 0 to 2 to rank 0, 3 to 5 to rank 2, then 6 to rank 0 and 7 to rank 2.
    clean = [0, 0, 0, 0]
    assert _flip("all_gather", 6, max_message_bytes=3) == [[0, 0, 0, 255], clean, clean]
    assert _flip("all_to_all", 3, max_message_bytes=3) == [clean, clean, [255, 0, 0, 0]]


def test_flip_byte_leaves_control_messages_alone():
    def fn(communicator: Communicator):
        with pytest.raises(PeerError, match="ValueError: intact"):
            communicator.agree(ValueError("intact"))

    with pytest.raises(ArgumentError, match="did not come true"):
        run_ranks(2, fn, faults=[Fault(rank=0, call=0, action="flip_byte")])


def test_a_fault_that_does_not_come_true_is_an_error():
    fault = Fault(rank=0, call=5, action="raise", verb="barrier")
    with pytest.raises(ArgumentError, match=r"^faults that did not come true: Fault\(rank=0, call=5.*\)$"):
        FakeBackend(num_ranks=2, faults=[fault]).run(lambda communicator: communicator.barrier())


def test_a_fault_that_does_not_come_true_is_not_hidden_by_another_failure():
    # Else a test that expects a PeerError of its fault would pass by a PeerError of something else.
    def fn(communicator: Communicator):
        raise ValueError("earlier")

    with pytest.raises(ArgumentError, match=r"did not come true: .*; the run failed, too: rank 0 failed") as caught:
        run_ranks(1, fn, faults=[Fault(rank=0, call=0, action="raise")])
    assert isinstance(caught.value.__cause__, PeerError)


def test_two_faults_in_one_call():
    faults = [
        Fault(rank=0, call=0, action="flip_byte"),
        Fault(rank=0, call=0, action="flip_byte", offset=1, verb="all_gather"),
    ]
    received = run_ranks(2, lambda c: c.all_gather(np.zeros(2, np.uint8))[0].tolist(), faults=faults)
    assert received == [[0, 0], [255, 255]]


def test_schedule_counts():
    barrier, any_verb = Fault(3, 1, "raise", verb="barrier"), Fault(3, 1, "vanish")
    schedule = FaultSchedule(3, [barrier, any_verb, Fault(2, 0, "raise")])
    assert schedule.due("barrier") == []
    assert schedule.due("agree") == [any_verb]
    assert schedule.due("barrier") == [barrier]
    assert schedule.unfired() == [barrier, any_verb]
    schedule.fire(barrier)
    assert schedule.unfired() == [any_verb]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"rank": -1}, "fault rank must be at least 0, got -1"),
        ({"call": 1.0}, "fault call must be an integer"),
        ({"action": "explode"}, "fault action must be one of 'delay', 'raise', 'vanish', 'flip_byte', got 'explode'"),
        ({"verb": "gather"}, "fault verb must be one of 'all_gather'"),
        ({"action": "delay"}, "seconds must be above 0 for a delay and 0 otherwise, got 0.0"),
        ({"seconds": 1.0}, "seconds must be above 0 for a delay and 0 otherwise, got 1.0"),
        ({"offset": 3}, "offset is for flip_byte only, got 3"),
        ({"action": "flip_byte", "offset": -1}, "fault offset must be at least 0, got -1"),
    ],
)
def test_fields_are_checked(fields: Any, message: Any):
    with pytest.raises(ArgumentError, match=message):
        Fault(**{"rank": 0, "call": 0, "action": "raise", **fields})
