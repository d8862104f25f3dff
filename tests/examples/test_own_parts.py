"""The back end, the scheduler and the cost model of the how-to pages work as they are printed."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.comm import Communicator
from dcpack.errors import InfeasibleError, PeerError
from dcpack.padding import PaddingRule
from dcpack.testing import check_communicator

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "examples" / "own_parts"
FolderBackend: Any = importlib.import_module("folder_backend").FolderBackend
FolderCommunicator: Any = importlib.import_module("folder_backend").FolderCommunicator
OneEach: Any = importlib.import_module("one_each").OneEach
UlyssesCost: Any = importlib.import_module("ulysses_cost").UlyssesCost

# What each process of the back end runs: one step, from samples to packed batches.
BODY = """
import json, sys
sys.path.insert(0, sys.argv[1])
import dcpack
from dcpack.exchange import exchange_samples, gather_samples
from folder_backend import FolderBackend
world = FolderBackend().world()
samples = [{"input_ids": list(range(5 + 20 * world.rank))}]
gathered = gather_samples(world, samples)
plan = dcpack.plan(gathered.table.lengths, num_ranks=2, capacity=64, padding=dcpack.PaddingRule(), cp_sizes=(1,))
(batch,) = exchange_samples(world, gathered, plan)[world.rank]
print(json.dumps([plan.digest(), batch.tokens["input_ids"].shape[0]]))
"""


def test_every_example_is_short() -> None:
    for file in FOLDER.glob("*.py"):
        code = [line for line in file.read_text().splitlines() if line.strip()]
        assert len(code) < 60, file


@pytest.fixture
def run(tmp_path: Path) -> Callable[[int, Callable[[Communicator], Any]], list[Any]]:
    """Run a function on ranks that are threads and meet in a fresh folder."""
    count = iter(range(10**6))

    def on(size: int, fn: Callable[[Communicator], Any], deadline_s: float = 30.0) -> list[Any]:
        folder, results = tmp_path / str(next(count)), [None] * size
        errors: dict[int, Exception] = {}

        def body(rank: int) -> None:
            try:
                results[rank] = fn(FolderCommunicator(folder, rank, tuple(range(size)), deadline_s))
            except Exception as error:
                errors[rank] = error

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        for rank in sorted(errors):
            raise errors[rank]
        return results

    return on


def test_the_back_end_keeps_the_contract(run: Any) -> None:
    check_communicator(run, sizes=(1, 2))


def test_a_member_that_does_not_come_is_named(run: Any) -> None:
    def fn(communicator: Communicator) -> None:
        if communicator.rank != 1:
            communicator.barrier()

    with pytest.raises(PeerError, match=r"rank 1 did not arrive in barrier \(call 0\) within 0\.2 s"):
        run(2, fn, deadline_s=0.2)


def test_the_back_end_carries_a_step_over_real_processes(tmp_path: Path) -> None:
    environment = {**os.environ, "WORLD_SIZE": "2", "MEETING_FOLDER": str(tmp_path / "meeting place")}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BODY, str(FOLDER)],
            stdout=subprocess.PIPE,
            text=True,
            env={**environment, "RANK": str(rank)},
        )
        for rank in range(2)
    ]
    answers = [json.loads(process.communicate(timeout=90)[0]) for process in processes]
    assert len({digest for digest, _ in answers}) == 1
    assert sorted(count for _, count in answers) == [5, 25]
    assert FolderBackend.available() == (True, "a shared folder")


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 400), max_size=30),
    num_ranks=st.integers(1, 9),
    multiple=st.integers(1, 3),
)
def test_the_scheduler_gives_valid_plans(lengths: list[int], num_ranks: int, multiple: int) -> None:
    options: dict[str, Any] = {
        "num_ranks": num_ranks,
        "capacity": 450,
        "scheduler": OneEach(),
        "padding": PaddingRule(),
        "on_empty": "dummy",
        "microbatch_multiple": multiple,
    }
    plan = dcpack.plan(lengths, **options)
    plan.validate(lengths)
    assert np.all(np.diff(plan.offsets) <= 1)
    assert plan.num_microbatches % multiple == 0


def test_the_scheduler_says_what_it_cannot() -> None:
    with pytest.raises(InfeasibleError, match="2 of 3 ranks have no sequence"):
        dcpack.plan([5], num_ranks=3, capacity=8, scheduler=OneEach())
    with pytest.raises(InfeasibleError, match="needs CP size 1"):
        dcpack.plan([5], num_ranks=2, capacity=8, scheduler=OneEach(), min_cp_size=2)


def test_the_cost_model_by_hand() -> None:
    cost = UlyssesCost(token_seconds=1.0, pair_seconds=1.0, token_bytes=4.0, fast=2.0, slow=1.0)
    sums = np.tile(cost.columns(np.array([8])), (3, 1))
    times = cost.bin_time(sums, np.array([1, 2, 2]), np.array([False, False, True]))
    # 8 tokens and 36 pairs; over two ranks 4 and 18, and half of 4 tokens is sent: 8 bytes.
    assert times.tolist() == [44.0, 26.0, 30.0]


def test_the_cost_model_changes_the_plan() -> None:
    lengths = [30000, *[500] * 40]
    plans = [dcpack.plan(lengths, num_ranks=8, capacity=16384, cost=cost) for cost in (UlyssesCost(), None)]
    assert plans[0].simulate(UlyssesCost()) <= plans[1].simulate(UlyssesCost())


def test_pages_show_the_tested_files() -> None:
    # Formatters take such a line for Python and rewrite it; then the page shows the line and not the file.
    shown = []
    for page in (ROOT / "docs").glob("*.md"):
        text = page.read_text()
        found = re.findall(r'^--8<-- "(.*)"$', text, re.MULTILINE)
        assert text.replace(" ", "").count("--8<--") == len(found), page
        shown += found
    assert [file for file in shown if not (ROOT / "docs" / "examples" / file).exists()] == []
    names = ("folder_backend", "one_each", "ulysses_cost")
    assert {f"own_parts/{name}.py" for name in names} <= set(shown)
