"""The example of the Trainer, with the real Trainer, on one process and on two that torchrun starts."""

# pyright: reportMissingImports=false

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "huggingface_trainer"
sys.path.insert(0, str(EXAMPLE))

import trainer as example  # noqa: E402 - found through the line above
from packed_rows import flatten  # noqa: E402

Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Run jobs.py on real processes; return what each wrote, by rank."""

    def start(size: int, *options: str, folder: Path | None = None) -> list[dict[str, Any]]:
        folder = folder or tmp_path_factory.mktemp("run")
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(size)] if size > 1 else []
        command = [sys.executable, *launcher, str(Path(__file__).with_name("jobs.py")), str(folder), *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
        assert done.returncode == 0, done.stderr[-4000:]
        return [json.loads((folder / f"rank{rank}.json").read_text()) for rank in range(size)]

    return start


@pytest.fixture(scope="module")
def alone(run: Run) -> dict[str, Any]:
    return run(1, "--accumulate", "2")[0]


@pytest.fixture(scope="module")
def both(run: Run) -> list[dict[str, Any]]:
    return run(2)


def epochs_of(processes: list[dict[str, Any]]) -> list[list[list[int]]]:
    """Rows of each epoch in the order of training: row i is of process i % size."""
    rows = [row for rows in zip(*(process["rows"] for process in processes), strict=True) for row in rows]
    count = processes[0]["num_rows"]
    return [rows[start : start + count] for start in range(0, len(rows), count)]


def test_every_sample_once_an_epoch_in_another_order(both: list[dict[str, Any]]) -> None:
    epochs = epochs_of(both)
    assert len(epochs) == 3
    for rows in epochs:
        assert sorted(sample for row in rows for sample in row) == list(range(96))
    assert len({json.dumps(rows) for rows in epochs}) == 3
    lengths = example.Documents().lengths
    assert max(sum(lengths[row]) for row in epochs[0]) <= example.CAPACITY
    assert max(map(len, epochs[0])) > 1, "nothing was packed"


def test_two_processes_train_as_one_does(alone: dict[str, Any], both: list[dict[str, Any]]) -> None:
    assert epochs_of([alone]) == epochs_of(both)
    assert both[0]["losses"] == pytest.approx(alone["losses"], rel=2e-3)
    for process in both:
        np.testing.assert_allclose(process["weights"], alone["weights"], rtol=0.02, atol=1e-3)
    assert alone["losses"][-1] < alone["losses"][0] / 2


@pytest.mark.parametrize("size", [1, 2])
def test_training_resumes_in_the_middle_of_an_epoch(size: int, run: Run, tmp_path: Path) -> None:
    accumulate = ("--accumulate", str(2 // size))
    whole = run(size, *accumulate, "--save_steps", "41", folder=tmp_path)
    checkpoint = tmp_path / "output" / "checkpoint-41"
    rest = run(size, *accumulate, "--resume", str(checkpoint))
    for before, after in zip(whole, rest, strict=True):
        rows_done = 41 * 2 // size
        assert rows_done % before["num_rows"] != 0, "the checkpoint is at the end of an epoch"
        assert rows_done > before["num_rows"] // size, "the checkpoint is in the first epoch"
        assert after["rows"] == before["rows"][rows_done:]
        np.testing.assert_allclose(after["weights"], before["weights"], rtol=1e-4, atol=1e-5)


def test_without_the_callback_a_resume_on_two_processes_would_go_wrong(run: Run, tmp_path: Path) -> None:
    # The reason for the callback: accelerate's wrappers do not hand the epoch on. When this fails, it can go.
    whole = run(2, "--save_steps", "41", folder=tmp_path)
    rest = run(2, "--forget_epoch", "--resume", str(tmp_path / "output" / "checkpoint-41"))
    assert rest[0]["rows"] != whole[0]["rows"][41:]


def test_a_row_gives_the_loss_and_gradients_of_its_samples_alone(tmp_path: Path) -> None:
    trainer = example.build(str(tmp_path), use_cpu=True)
    rows, data, model = list(trainer.rows), trainer.train_dataset, trainer.model
    row = max(rows, key=len)
    assert len(row) > 2

    def gradients(samples_of_each: list[list[int]]) -> tuple[float, torch.Tensor]:
        model.zero_grad()
        total = 0.0
        for samples in samples_of_each:
            batch = flatten([data[sample] for sample in samples])
            loss = model(**batch, num_items_in_batch=1, use_cache=False).loss  # the sum over the targets
            loss.backward()
            total += float(loss.detach())
        return total, torch.cat([p.grad.flatten().clone() for p in model.parameters()])

    packed, one_by_one = gradients([row, []]), gradients([[sample] for sample in row])  # an empty row adds nothing
    assert packed[0] == pytest.approx(one_by_one[0], rel=1e-5)
    torch.testing.assert_close(packed[1], one_by_one[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("option", [{"split_batches": True}, {"dispatch_batches": True}])
def test_options_that_cut_rows_are_refused(option: dict[str, bool], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cut rows"):
        example.build(str(tmp_path), use_cpu=True, accelerator_config=option)
