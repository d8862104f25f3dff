"""The whole path on every mesh of the table, on ranks that are threads."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

import dcpack

jobs: Any = importlib.import_module("megatron_jobs")
Case: Any = jobs.Case


def run(case: Any) -> list[dict[str, Any]]:
    return [found for (found,) in dcpack.run_ranks(case.mesh.num_ranks, lambda world: jobs.run_cases(world, [case]))]


# Virtual stages on every mesh: the same on real processes, in test_path_on_processes.py.
@pytest.mark.parametrize("case", [case for case in jobs.ALL_CASES if case.vpp_size == 1], ids=str)
def test_every_mesh(case: Any) -> None:
    jobs.check_case(case, run(case))


@pytest.mark.parametrize(
    "case",
    [
        Case((2, 2, 1, 2), "dynamic_cp", 2, axes=("dp", "tp", "pp", "cp")),
        Case((2, 1, 2, 2), "packing_aware", 1, axes=("tp", "cp", "dp", "pp")),
        Case((2, 2, 2, 1), "in_order", 1, axes=("cp", "pp", "tp", "dp")),
        Case((1, 3, 1, 3), "dynamic_cp", 1, axes=("dp", "pp")),
    ],
    ids=str,
)
def test_any_order_of_axes(case: Any) -> None:
    jobs.check_case(case, run(case))


@pytest.mark.parametrize("scheduler", jobs.SCHEDULERS)
@pytest.mark.parametrize("layout", [(1, 1, 2, 2), (1, 2, 2, 1)])
def test_pre_packed_samples(layout: tuple[int, ...], scheduler: str) -> None:
    case = Case(layout, scheduler, 1, is_packed=True)
    jobs.check_case(case, run(case))


@pytest.mark.parametrize("layout", [(1, 1, 1, 4), (2, 1, 2, 1)])
def test_contiguous_slices(layout: tuple[int, ...]) -> None:
    case = Case(layout, "dynamic_cp", 1, sharding="contiguous")
    jobs.check_case(case, run(case))


@pytest.mark.parametrize("vpp_size", [1, 2])
def test_a_middle_stage_with_mtp_gets_all_fields(vpp_size: int) -> None:
    case = Case((1, 3, 1, 2), "dynamic_cp", vpp_size, mtp_rank=1)
    jobs.check_case(case, run(case))
