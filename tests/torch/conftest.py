"""The launcher of real processes, for all tests of the torch back ends."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# The processes import the helpers of these folders by name; their search path is this process's.
for _folder in (Path(__file__).parent, Path(__file__).parents[1]):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))

import torch_ranks  # noqa: E402 - found through the lines above


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., list[torch_ranks.Outcome]]:
    """Run a function on real processes and return what became of each: see `torch_ranks.launch`."""

    def run(size: int, body: Callable[..., Any], *args: Any, **options: Any) -> list[torch_ranks.Outcome]:
        return torch_ranks.launch(size, body, *args, folder=tmp_path, **options)

    return run
