"""The short form of ``benchmarks/loader_fuzz.py``: random loaders against a slow model of what they must do."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "loader_fuzz.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("loader_fuzz", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["loader_fuzz"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


FUZZ = load()


@pytest.mark.parametrize("seed", range(1000, 1016))
def test_a_random_loader_does_what_the_model_says(seed: int) -> None:
    FUZZ.check_case(FUZZ.draw_case(seed))


def test_the_cases_are_not_empty_ones() -> None:
    cases = [FUZZ.draw_case(seed) for seed in range(1000, 1016)]
    assert {case.mode for case in cases} == {"online", "metadata", "repack", "planned_cp"}
    assert sum(len(case.lengths) >= 2 * case.global_batch_size for case in cases) >= 8
    assert any(case.meshes[0] != case.meshes[1] and case.stop_after for case in cases)
    assert re.search("resumed after [1-9]", FUZZ.check_case(next(c for c in cases if c.stop_after > 9)))
