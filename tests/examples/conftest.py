"""Makes the modules of the example, and the launcher of real processes, importable here and in the processes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]
_EXAMPLES = _ROOT / "docs" / "examples"
for _folder in (
    Path(__file__).parent,
    _ROOT / "tests",
    _ROOT / "tests" / "torch",
    _ROOT / "tests" / "jax_backend",
    _EXAMPLES / "torch_exactness",
    _EXAMPLES / "own_parts",
    _EXAMPLES / "training_loop",
    _EXAMPLES / "huggingface_trainer",
):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Any]]:
    """Run a function of `exactness_bodies` on real processes and return what each returned."""
    bodies = importlib.import_module("exactness_bodies")
    return importlib.import_module("torch_ranks").launch_bodies(bodies, tmp_path_factory.mktemp("processes"))
