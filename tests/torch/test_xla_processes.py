"""The torch-xla back end over real processes, as on a TPU host; its devices are played by a group of Gloo.

What needs torch_xla itself is in ``tests/xla``, which has an environment and a command of its own.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import shared_bodies
import xla_bodies
from torch_ranks import require_contract

from dcpack.comm import run_ranks
from dcpack.comm.watchdog import EXIT_STATUS


def results(outcomes: list[Any]) -> list[Any]:
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes), [outcome.stderr for outcome in outcomes]
    return [outcome.result for outcome in outcomes]


@pytest.mark.parametrize("size", [2, 3])
def test_contract(launch: Callable[..., Any], size: int):
    require_contract(launch(size, xla_bodies.contract))


def test_a_step_is_the_same_as_on_the_fake_back_end(launch: Callable[..., Any]):
    assert results(launch(3, xla_bodies.step)) == run_ranks(3, shared_bodies.step)


def test_few_shapes_reach_the_devices(launch: Callable[..., Any]):
    for seen, num_sizes in results(launch(2, xla_bodies.shapes, 100)):
        # Rows of 1, 2, ... 16 KiB, and larger messages in rounds of 16.
        assert seen == {("all_to_all", (2, 256 << k)) for k in range(5)}
        assert num_sizes > 50  # of which each would have been one


def test_groups_stay_off_the_devices(launch: Callable[..., Any]):
    assert results(launch(3, xla_bodies.groups_stay_off_the_devices)) == [[0, 0, 3]] * 3


def test_a_device_that_does_not_come_back_ends_the_process(launch: Callable[..., Any]):
    outcomes = launch(3, xla_bodies.lose_a_device, 60.0)
    assert outcomes.pop(1).exit_code == -signal.SIGKILL
    for outcome in outcomes:
        assert outcome.exit_code == EXIT_STATUS
        assert "PeerError: rank 1 did not arrive in all_gather (call 0) within 60 s" in outcome.stderr, outcome.stderr


def test_a_rank_that_makes_no_call_is_named(launch: Callable[..., Any]):
    texts = results(launch(3, xla_bodies.stay_away, 2.0))
    assert texts == ["rank 1 did not arrive in all_gather (call 0) within 2 s", "", texts[0]]


def test_a_rank_that_makes_no_world_is_named(launch: Callable[..., Any]):
    texts = results(launch(3, xla_bodies.come_not))
    assert texts == ["rank 1 did not start within 1.5 s", "", texts[0]]
