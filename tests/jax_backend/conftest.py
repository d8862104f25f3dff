"""The launcher of real JAX processes, for the tests of the JAX back end."""

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

import jax_ranks  # noqa: E402 - found through the lines above


@pytest.fixture
def launch(tmp_path: Path) -> Callable[..., list[jax_ranks.Outcome]]:
    """Run a function on real processes and return what became of each: see `jax_ranks.launch`."""

    def run(size: int, body: Callable[..., Any], *args: Any, **options: Any) -> list[jax_ranks.Outcome]:
        return jax_ranks.launch(size, body, *args, folder=tmp_path, **options)

    return run
