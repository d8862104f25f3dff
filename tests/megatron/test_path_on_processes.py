"""The whole path on every mesh of the table, on real processes over Gloo."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest

jobs: Any = importlib.import_module("megatron_jobs")


@pytest.fixture(scope="module")
def seen(launch: Callable[..., list[Any]]) -> dict[Any, list[dict[str, Any]]]:
    """What each rank of each case saw, of one launch: to start processes takes longer than to run a case."""
    by_rank = launch(4, "all_cases", deadline_s=110.0)
    return dict(zip(jobs.PROCESS_CASES, map(list, zip(*by_rank, strict=True)), strict=True))


@pytest.mark.parametrize("case", jobs.PROCESS_CASES, ids=str)
def test_every_mesh_and_virtual_stages(case: Any, seen: dict[Any, list[dict[str, Any]]]) -> None:
    jobs.check_case(case, seen[case])
