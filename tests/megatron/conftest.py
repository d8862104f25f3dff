"""Makes the helpers of this folder, and the launcher of real processes, importable here and in the processes."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_HERE = Path(__file__).parent
for _folder in (_HERE, _HERE.parent, _HERE.parent / "torch"):
    if str(_folder) not in sys.path:
        sys.path.append(str(_folder))


@pytest.fixture(scope="module")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., list[Any]]:
    """Run a function of `megatron_bodies` on real processes and return what each returned."""
    bodies = importlib.import_module("megatron_bodies")
    return importlib.import_module("torch_ranks").launch_bodies(bodies, tmp_path_factory.mktemp("processes"))
