"""The whole path on every mesh of the table, on real processes over Gloo."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

jobs: Any = importlib.import_module("megatron_jobs")


@pytest.fixture(scope="module", params=jobs.SCHEDULERS)
def seen(request: pytest.FixtureRequest, launch: Callable[..., list[Any]]) -> dict[Any, list[dict[str, Any]]]:
    """What each rank of each case of one scheduler saw, of one launch: to start takes longer than to run a case."""
    by_rank = launch(4, "all_cases", request.param)
    cases = [case for case in jobs.PROCESS_CASES if case.scheduler == request.param]
    return dict(zip(cases, map(list, zip(*by_rank, strict=True)), strict=True))


def test_every_mesh_and_virtual_stages(seen: dict[Any, list[dict[str, Any]]]) -> None:
    assert len(seen) >= 2 * len(jobs.LAYOUTS)
    for case, by_rank in seen.items():
        jobs.check_case(case, by_rank)


def test_the_table_is_complete() -> None:
    # A guard: cases that are left out would let the test above pass.
    keys = {(case.layout, case.scheduler, case.vpp_size) for case in jobs.PROCESS_CASES}
    wanted = set(itertools.product(jobs.LAYOUTS, jobs.SCHEDULERS, (2, 4)))
    assert len(jobs.LAYOUTS) == 9
    assert wanted <= keys


def test_a_fault_of_one_that_moves_arrays_reaches_peers_that_move_none(launch: Callable[..., list[Any]]) -> None:
    # Two tensor-parallel groups, (0, 1) and (2, 3); in each the last rank that gives `to_device` fails.
    for rank, seen in enumerate(launch(4, "moving_and_failing")):
        first = 2 * (rank // 2)
        assert [each["fault"] for each in seen] == [(first + bad, "MemoryError") for bad in (0, 1, 1)]
        assert [each["moved"] for each in seen] == [rank == first, rank > first, True]


@pytest.mark.parametrize("moment", ["before the step", "while it reads"])
@pytest.mark.parametrize("victim", [1, 3])
def test_a_rank_that_is_lost_is_an_error_on_all_others(victim: int, moment: str, tmp_path: Path) -> None:
    # Two stages of two data-parallel ranks; the victims share no group but the pipeline or the domain with one of them.
    bodies = importlib.import_module("megatron_bodies")
    torch_ranks = importlib.import_module("torch_ranks")
    outcomes = torch_ranks.launch(4, bodies.lose_a_rank, victim, moment, folder=tmp_path, stay=True)
    heard = [outcome.result for rank, outcome in enumerate(outcomes) if rank != victim]
    assert all(f"rank {victim} " in text or f"lost rank {victim}" in text for text in heard), heard
