"""The contract of communicators over torch_xla's CPU devices: each check on a world of its own."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from dcpack_xla.runtime import Runtime

from dcpack.testing import COMMUNICATOR_CHECKS, check_communicator

NUM_DEVICES = int(os.environ["CPU_NUM_DEVICES"])


@pytest.mark.parametrize("name", COMMUNICATOR_CHECKS)
def test_contract(run: Callable[..., list[Any]], name: str) -> None:
    check_communicator(lambda size, fn: run(fn), sizes=(NUM_DEVICES,), names=[name])


def test_it_went_over_the_devices(run: Callable[..., list[Any]], runtime: Runtime) -> None:
    for name in ("all_gather_uneven", "all_to_all_uneven", "broadcast_roots"):
        before = runtime.count_executions()
        check_communicator(lambda size, fn: run(fn), sizes=(NUM_DEVICES,), names=[name])
        assert (runtime.count_executions() > before) == (NUM_DEVICES > 1)
