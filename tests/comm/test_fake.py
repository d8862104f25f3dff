from __future__ import annotations

import threading
from typing import Any

import pytest

from dcpack.comm import Communicator, FakeBackend, Fault, run_ranks
from dcpack.comm.launch import current_communicator
from dcpack.errors import ArgumentError
from dcpack.testing import COMMUNICATOR_CHECKS, check_communicator


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("name", COMMUNICATOR_CHECKS)
def test_contract(name: Any, size: Any):
    check_communicator(run_ranks, sizes=(size,), names=[name])


def test_the_contract_holds_in_a_subgroup_too():
    # Members 3, 1, 4 of a world of 5: local and global numbers differ, and the order is not sorted.
    def fn(communicator: Communicator):
        child = communicator.split([[3, 1, 4], [2, 0]])
        for name, check in COMMUNICATOR_CHECKS.items():
            fresh = child.dup()
            check(fresh)
            fresh.close()
            communicator.agree()
            assert communicator.counters.calls["agree"] >= 1, name
        return child.ranks

    assert run_ranks(5, fn) == [(2, 0), (3, 1, 4), (2, 0), (3, 1, 4), (3, 1, 4)]


def test_world_is_the_communicator_of_this_rank():
    backend = FakeBackend(num_ranks=3)
    worlds = backend.run(lambda communicator: (backend.world() is communicator, FakeBackend().world().size))
    assert worlds == [(True, 3)] * 3
    assert current_communicator() is None


def test_world_outside_of_a_run_has_one_rank():
    with FakeBackend(deadline_s=3, max_message_bytes=5).world() as world:
        assert (world.rank, world.size, world.ranks) == (0, 1, (0,))
        assert (world.deadline_s, world.max_message_bytes) == (3.0, 5)
        assert world.all_gather([1, 2])[0].tolist() == [1, 2]


def test_world_never_pretends():
    with pytest.raises(ArgumentError, match=r"4 ranks exists only inside run_ranks\(num_ranks, fn\)"):
        FakeBackend(num_ranks=4).world()
    with pytest.raises(ArgumentError, match="faults exists only inside run_ranks"):
        FakeBackend(faults=[Fault(0, 0, "raise")]).world()
    two = FakeBackend(num_ranks=2)
    outcomes = []

    def fn(communicator: Communicator):
        with pytest.raises(ArgumentError, match="num_ranks is 2, but this run has 3 ranks"):
            two.world()
        outcomes.append(communicator.rank)

    run_ranks(3, fn)
    assert sorted(outcomes) == [0, 1, 2]


def test_ranks_run_at_the_same_time():
    together = threading.Barrier(4, timeout=100)
    assert sorted(run_ranks(4, lambda communicator: together.wait())) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_ranks": 0}, "num_ranks must be from 1 to 4096, got 0"),
        ({"num_ranks": 2.0}, "num_ranks must be an integer"),
        ({"deadline_s": 0}, "deadline_s must be a finite number of seconds above 0 and at most 1e.09, got 0"),
        ({"deadline_s": float("nan")}, "deadline_s must be"),
        ({"deadline_s": float("inf")}, "deadline_s must be"),
        ({"deadline_s": "1"}, "deadline_s must be"),
        ({"max_message_bytes": 0}, "max_message_bytes must be from 1 to"),
        ({"faults": [Fault(2, 0, "raise"), Fault(5, 0, "raise")], "num_ranks": 2}, "do not exist: ranks 2, 5 of 2"),
        ({"faults": ["raise"]}, "faults must be Fault objects, got 'raise'"),
    ],
)
def test_options(options: Any, message: Any):
    with pytest.raises(ArgumentError, match=message):
        FakeBackend(**options)


def test_available():
    assert FakeBackend.available() == (True, "threads of this process")
