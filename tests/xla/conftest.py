"""Ranks as threads on the CPU devices of torch_xla, as many as CPU_NUM_DEVICES says."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dcpack_xla.backend import XlaBackend
from dcpack_xla.runtime import Runtime, load_runtime

from dcpack.comm import Communicator

# What the processes and threads of all back ends do in tests.
_TESTS = str(Path(__file__).parents[1])
if _TESTS not in sys.path:
    sys.path.insert(0, _TESTS)

NUM_DEVICES = int(os.environ["CPU_NUM_DEVICES"])


@pytest.fixture
def runtime() -> Runtime:
    return load_runtime()


@pytest.fixture
def run() -> Callable[..., list[Any]]:
    """Run ``fn(world)`` on a fresh world of all devices; return the results by rank."""

    def on_all(fn: Callable[[Communicator], Any], **options: Any) -> list[Any]:
        def body(world: Communicator) -> Any:
            with world:
                return fn(world)

        results = XlaBackend(**{"deadline_s": 60.0, **options}).run(body)
        assert len(results) == NUM_DEVICES
        return results

    return on_all
