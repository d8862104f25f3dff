"""The three array libraries, so that every test of a batch runs for each."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

# The tests import the helpers of this folder by name.
_HERE = str(Path(__file__).parent)
if _HERE not in sys.path:
    sys.path.insert(0, _HERE)

import array_libraries  # noqa: E402 - found through the line above


@pytest.fixture(params=list(array_libraries.LIBRARIES))
def library(request: pytest.FixtureRequest) -> array_libraries.ArrayLibrary:
    """NumPy, torch and JAX, one after the other."""
    return array_libraries.LIBRARIES[request.param]
