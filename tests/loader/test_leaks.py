"""The short form of `benchmarks/loader_leaks.py`, and that its check can fail."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

_FILE = Path(__file__).parents[2] / "benchmarks" / "loader_leaks.py"


@pytest.fixture(scope="module")
def script() -> Any:
    spec = importlib.util.spec_from_file_location("loader_leaks", _FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["loader_leaks"] = module  # its dataclass looks itself up
    spec.loader.exec_module(module)
    return module


def test_nothing_leaks_over_two_epochs_and_a_half(script: Any) -> None:
    before, warm, end = script.measure(125)
    assert script.faults_of(before, warm, end) == []
    assert warm.threads > before.threads  # it was measured while the loader was at work


def test_the_check_sees_leaks(script: Any) -> None:
    before = script.Usage(resident=100, descriptors=5, threads=1)
    end = script.Usage(resident=105, descriptors=6, threads=3)
    assert script.faults_of(before, before, end) == [
        "resident memory grew by 5.0%",
        "1 file descriptors are left",
        "2 threads are left",
    ]
