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
    sys.path.append(str(SCRIPT.parent))  # where its other files are
    spec = importlib.util.spec_from_file_location("loader_fuzz", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["loader_fuzz"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


FUZZ = load()
SEEDS = range(3000, 3026)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_loader_does_what_the_model_says(seed: int) -> None:
    FUZZ.check_case(FUZZ.draw_case(seed))


def test_the_cases_are_not_empty_ones() -> None:
    cases = [FUZZ.draw_case(seed) for seed in SEEDS]
    modes = {"online", "metadata", "repack", "planned_cp", "planned_cp_metadata", "external"}
    assert {case.mode for case in cases} == modes
    native = [case for case in cases if case.mode != "external"]
    assert sum(len(case.lengths) >= 2 * case.global_batch_size for case in native) >= 8
    assert any(case.places[0] != case.places[1] and case.stop_after for case in native)
    hosted = {case.mode for case in native for place in case.places if place.is_hosted}
    assert len(hosted) == 5
    assert re.search("resumed after [1-9]", FUZZ.check_case(next(c for c in native if c.stop_after > 9)))
    external = [case for case in cases if case.mode == "external"]
    assert any(len(case.groups[0]) > 1 and case.num_steps > 1 and case.stop_after for case in external)
