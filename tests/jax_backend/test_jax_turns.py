"""Whose turn it is at the devices, and the thread that runs what has it: no second process needed."""

from __future__ import annotations

import threading

import pytest
from dcpack_jax.turns import Runner, Turns


def test_who_asked_more_often_goes_first_whoever_came_first() -> None:
    for order in (("a", "b"), ("b", "a")):
        turns = Turns()
        turns.ask("holder", 9)
        for uid in order:
            turns.ask(uid, 0)
        turns.leave("holder")
        assert not turns.ask("a", 0)  # of equals the same one on all processes: the last by name
        assert turns.ask("b", 0)
        turns.give_up("b")
        assert turns.ask("a", 1)  # it has waited longer now
        assert not turns.ask("b", 1)
        turns.leave("a")
        assert turns.ask("b", 2)


def test_only_the_holder_can_give_up() -> None:
    turns = Turns()
    assert turns.ask("a", 0)
    turns.give_up("b")
    turns.leave("c")
    assert not turns.ask("b", 5)
    assert turns.ask("a", 0)


def test_a_runner_hands_out_results_errors_and_time_outs_in_order() -> None:
    runner, gate = Runner(), threading.Event()
    seen: list[str] = []

    def blocked() -> str:
        gate.wait(100)
        seen.append("first")
        return "done"

    first = runner.start(blocked)
    second = runner.start(lambda: seen.append("second"))
    failing = runner.start(lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        first(0.01)
    gate.set()
    with pytest.raises(ZeroDivisionError):
        failing(30.0)
    second(30.0)
    assert seen == ["first", "second"]
    assert first(30.0) == "done"  # nobody took its answer when time was up
