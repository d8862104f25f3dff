"""The loader on real processes over torch-gloo: modes and layouts, resumes, uneven ends, killed and failing ranks."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import loader_bodies
import pytest
from loader_bodies import loader_helpers

LAYOUTS: dict[str, dict[str, int]] = {
    "dp4": {"dp": 4},
    "dp2xtp2": {"dp": 2, "tp": 2},
    "dp2xcp2": {"dp": 2, "cp": 2},
    "dp2xpp2": {"pp": 2, "dp": 2},
}


def by_step(batches: list[dict[str, Any]]) -> dict[int, Counter[int]]:
    steps: dict[int, Counter[int]] = {}
    for batch in batches:
        if batch["cp_rank"] == 0:
            steps.setdefault(batch["step"], Counter()).update(i for i in batch["ids"] if i >= 0)
    return steps


def results_of(outcomes: list[Any]) -> list[Any]:
    assert [outcome.error for outcome in outcomes] == [""] * len(outcomes), outcomes[0].stderr
    return [outcome.result for outcome in outcomes]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_modes_and_layouts(launch: Callable[..., Any], layout: str):
    axes = LAYOUTS[layout]
    results = results_of(launch(4, loader_bodies.modes_on_a_mesh, axes))
    topology = loader_helpers.mesh(**axes)
    wanted = loader_helpers.plain_steps(53, global_batch_size=12, seed=5)
    for mode in loader_bodies.MODES:
        data_axes = ("dp", "cp") if loader_helpers.plans_cp(mode) else ("dp",)
        lanes = topology.groups([axis for axis in axes if axis not in data_axes])
        builders = [lane[0] for lane in lanes]
        batches = [batch for rank in builders for batch in results[rank][mode][0]]
        assert by_step(batches) == dict(enumerate(wanted))
        reads = Counter[int]()
        for rank in range(4):
            reads.update(results[rank][mode][1])
            assert bool(results[rank][mode][1]) is (rank in builders)
        assert reads == sum(wanted, start=Counter())  # each sample once
        for lane in lanes:
            for peer in lane[1:]:
                mine, theirs = results[lane[0]][mode][0], results[peer][mode][0]
                same = [{**batch, "cp_ranks": None} for batch in mine]
                assert [{**batch, "cp_ranks": None} for batch in theirs] == same
                assert len(mine) > 0
        assert {batch["cp_size"] for batch in batches} >= ({1, 2} if loader_helpers.plans_cp(mode) else {1})
        for rank in range(4):
            assert results[rank][mode][2:] == results[0][mode][2:]
            assert all(batch["cp_ranks"][batch["cp_rank"]] == rank for batch in results[rank][mode][0])
    # From lengths by index the plan is the same, and so are the batches; who reads is not.
    assert all(found["planned_cp_metadata"][0] == found["planned_cp"][0] for found in results)
    assert any(found["planned_cp_metadata"][1] != found["planned_cp"][1] for found in results)


def test_costs_18_and_2_become_10_and_10(launch: Callable[..., Any]):
    results = results_of(launch(4, loader_bodies.level_costs))
    assert [sum(costs) for costs in results] == [10] * 4
    assert results[0] == results[1]
    assert results[2] == results[3]


def test_a_save_at_every_step_resumes_in_fresh_processes(launch: Callable[..., Any]):
    first = results_of(launch(4, loader_bodies.save_every_step))
    states = {mode: first[0][mode][1] for mode in loader_bodies.EVERY_STEP}
    assert all(first[rank][mode][1] == states[mode] for rank in range(4) for mode in states)
    assert all(len(texts) == 13 for texts in states.values())
    resumed = results_of(launch(4, loader_bodies.resume_every_state, states, 3))
    for mode, texts in states.items():
        for rank in range(4):
            whole = first[rank][mode][0]
            for step in range(len(texts)):
                # The same batches, byte for byte: the digests are of their data.
                assert resumed[rank][mode][step] == [batch for batch in whole if step <= batch["step"] < step + 3]


def test_resumes_on_4_2_3_and_4_ranks(launch: Callable[..., Any]):
    wanted = loader_helpers.plain_steps(loader_bodies.STEPS_SAMPLES, global_batch_size=12, seed=5)
    states: dict[str, str] = {}
    found: dict[str, dict[int, Counter[int]]] = {mode: {} for mode in loader_bodies.MODES}
    for num_ranks in (4, 2, 3, 4):
        results = results_of(launch(num_ranks, loader_bodies.take_steps, states, 3))
        for mode in loader_bodies.MODES:
            steps = by_step([batch for result in results for batch in result[mode][0]])
            assert not set(steps) & set(found[mode])
            found[mode] |= steps
            states[mode] = results[0][mode][1]
            assert all(result[mode][1] == states[mode] for result in results)
    for mode in loader_bodies.MODES:
        assert found[mode] == dict(enumerate(wanted))
        assert len(found[mode]) == 12


def test_two_resumes_and_a_pending_sample(launch: Callable[..., Any]):
    """Stop after 30 steps, resume, stop after 10, resume: on at 40. Saved after the first bin: the second comes."""
    wanted = loader_helpers.plain_steps(loader_bodies.LONG_SAMPLES, global_batch_size=loader_bodies.LONG_SIZE, seed=5)
    states: dict[str, str] = {}
    found: dict[str, dict[int, Counter[int]]] = {mode: {} for mode in loader_bodies.MODES}
    pending: list[list[dict[str, Any]]] = []
    external: list[list[str]] = [[], []]  # digests of the batches of each rank
    for done, num_steps in ((0, 30), (30, 10), (40, 10)):
        results = results_of(launch(2, loader_bodies.state_cases, states, num_steps))
        for mode in loader_bodies.MODES:
            steps = by_step([batch for modes, _ in results for batch in modes[mode][0]])
            assert list(steps) == list(range(done, done + num_steps))
            found[mode] |= steps
        for rank, (modes, _) in enumerate(results):
            numbers = [(batch["step"], batch["microbatch"]) for batch in modes["external"][0]]
            assert numbers == [(step, m) for step in range(done, done + num_steps) for m in range(2)], rank
            external[rank] += [batch["digest"] for batch in modes["external"][0]]
        states = {mode: state for mode, (_, state) in results[0][0].items()} | {"pending": results[0][1][1]}
        assert all(modes[mode][1] == states[mode] for modes, _ in results for mode in loader_bodies.MODES)
        mine, theirs = ([{**batch, "cp_ranks": None} for batch in bins] for _, (bins, _) in results)
        assert mine == theirs
        assert results[0][1][1] == results[1][1][1]
        pending.append(results[0][1][0])
    assert all(steps == dict(enumerate(wanted)) for steps in found.values())
    for digests in external:  # every row of every step has other tokens
        assert len(set(digests)) == len(digests) == 100
    first, replayed, nothing = pending
    assert [(batch["microbatch"], batch["num_microbatches"]) for batch in replayed] == [(0, 2), (1, 2)]
    assert first == replayed[:1]
    assert sorted(i for batch in replayed for i in batch["ids"]) == [0, 1]
    assert nothing == []


def test_a_killed_run_goes_on_from_its_last_state(launch: Callable[..., Any], tmp_path: Path):
    outcomes = launch(4, loader_bodies.train_until_killed, str(tmp_path), 5)
    assert outcomes[2].exit_code == -signal.SIGKILL
    assert all(outcome.exit_code == 1 for rank, outcome in enumerate(outcomes) if rank != 2)
    assert all(outcome.error.startswith("PeerError") for rank, outcome in enumerate(outcomes) if rank != 2)
    results_of(launch(4, loader_bodies.train_until_killed, str(tmp_path), -1))
    texts = [(tmp_path / f"done-{rank}.jsonl").read_text() for rank in range(4)]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    wanted = loader_helpers.plain_steps(loader_bodies.STEPS_SAMPLES, global_batch_size=12, seed=5)
    assert by_step(lines) == dict(enumerate(wanted))


def test_uneven_ends(launch: Callable[..., Any]):
    results = results_of(launch(4, loader_bodies.external_steps))
    for rank, (batches, dropped) in enumerate(results):
        assert [batch["step"] for batch in batches] == [step for step in range(87) for _ in range(2)]
        assert dropped == (2 if rank == 1 else 0)
    for texts in results_of(launch(2, loader_bodies.uneven_datasets)):
        assert texts == "ArgumentError: dataset_size must be the same on all ranks: rank 0 has 87, rank 1 has 89"


def test_a_lone_stop_is_no_success(launch: Callable[..., Any]):
    outcomes = launch(2, loader_bodies.stop_alone)
    assert outcomes[1].exit_code == 0
    assert outcomes[0].exit_code == 1
    assert outcomes[0].error.startswith("PeerError")
    assert "rank 1" in outcomes[0].error


def test_a_dataset_that_fails_is_an_error_on_all(launch: Callable[..., Any]):
    assert results_of(launch(4, loader_bodies.dataset_fails)) == ["2 KeyError"] * 4


def test_tensors_read_by_workers(launch: Callable[..., Any]):
    results = results_of(launch(2, loader_bodies.workers_and_tensors))
    assert sorted(i for ids, _ in results for i in ids) == list(range(8))
    assert [kinds for _, kinds in results] == [["Tensor"]] * 2
