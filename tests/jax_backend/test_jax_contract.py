"""The contract of communicators over jax, on real processes: all checks in one launch for each size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax_bodies
import pytest
from jax_ranks import require_contract


@pytest.mark.parametrize("size", [1, 2, 4])
def test_contract_over_the_devices(launch: Callable[..., Any], size: int):
    require_contract(launch(size, jax_bodies.contract, 0, deadline_s=110.0))


def test_contract_over_the_service(launch: Callable[..., Any]):
    require_contract(launch(2, jax_bodies.contract, 1 << 16, deadline_s=110.0))
