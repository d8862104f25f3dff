"""Failures on purpose, found however slow the processes are: called in each of them before it makes its world.

The back ends take a rank for gone that does not answer within a second or so, and rightly. A test knows how many will
answer, and has them waited for.
"""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

from dcpack_torch import backend, roll_call
from dcpack_torch.roll_call import RollCall, assemble
from dcpack_xla import backend as xla_backend
from fake_time import until

__all__ = ["wait_for_notes", "wait_for_starters", "wait_for_verdict"]

_LONG_S = 100.0


def wait_for_notes(present: int) -> None:
    """Have a roll call last until `present` members have left their notes, and no longer."""
    conclude, find_verdict = RollCall.conclude, RollCall._find_verdict

    def patient_conclude(self: RollCall, late: bool, describe: Any, seconds: float) -> Any:
        return conclude(self, late, describe, _LONG_S)

    def patient_find_verdict(self: RollCall, late: bool, describe: Any, seconds: float) -> Any:
        num_notes = lambda: self._store.add("number of notes", 0)  # noqa: E731 short
        clock: Any = SimpleNamespace(
            sleep=time.sleep, monotonic=lambda: 0.0 if num_notes() < present else 2.0 * _LONG_S
        )
        setattr(roll_call, "time", clock)  # noqa: B010 - type checkers see no such assignment
        return find_verdict(self, late, describe, seconds)

    RollCall.conclude, RollCall._find_verdict = patient_conclude, patient_find_verdict


def wait_for_starters(present: int) -> None:
    """Have the time of a start run only when `present` members are there."""

    def patient(store: Any, *args: Any) -> None:
        class Store:
            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

            def wait(self, *args: Any) -> None:
                until(lambda: store.add("number here", 0) >= present)
                store.wait(*args)

        assemble(Store(), *args)

    for module in (backend, xla_backend):
        setattr(module, "assemble", patient)  # noqa: B010 - type checkers see no such assignment


def wait_for_verdict(world: Any) -> None:
    """Return when the others have given up on this rank."""
    until(lambda: world._group.roll_call._store.check(["verdict"]))
