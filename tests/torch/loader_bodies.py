"""What the processes of the loader's tests do; functions of a module, so that a process can be told of them by name."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from dcpack_torch.backend import TorchGlooBackend
from torch.distributed.device_mesh import init_device_mesh

import dcpack
from dcpack import DistributedDataLoader, SampleMetadata, Topology, build_distributed_dataloader
from dcpack.comm import Communicator

_ROOT = str(Path(__file__).parents[2])
if _ROOT not in sys.path:
    sys.path.insert(0, _ROOT)

from tests.loader import loader_helpers  # noqa: E402 - found through the lines above
from tests.loader.loader_helpers import facts  # noqa: E402

BACKEND = {"name": "torch-gloo", "deadline_s": 60.0}
MODES: dict[str, dict[str, Any]] = {
    "online": {"metadata_fn": loader_helpers.describe},
    "metadata": {"metadata": loader_helpers.LENGTHS},
    "repack": {},
    "planned_cp": {"scheduler": "dynamic_cp"},
    "planned_cp_metadata": {"scheduler": "dynamic_cp", "metadata": loader_helpers.LENGTHS},
}
STEPS_SIZE, STEPS_SAMPLES = 12, 150  # 12 steps, and 6 samples that no epoch hands out
LONG_SIZE, LONG_SAMPLES = 4, 200  # 50 steps
EVERY_STEP = ("online", "metadata", "planned_cp")  # saved at every step; the other modes have the state of these


def settings(mode: str, local: int, **options: Any) -> Any:
    return loader_helpers.settings(mode, local, BACKEND, **options)


def modes_on_a_mesh(rank: int, size: int, axes: dict[str, int]) -> dict[str, Any]:
    """One epoch of each mode that needs a batch sampler, on a `DeviceMesh`."""
    mesh = init_device_mesh("cpu", tuple(axes.values()), mesh_dim_names=tuple(axes))
    found: dict[str, Any] = {}
    for mode, arguments in MODES.items():
        builders = 1
        for axis, length in axes.items():
            builders *= length if axis == "dp" or (axis == "cp" and loader_helpers.plans_cp(mode)) else 1
        moves = mock.patch.object(Communicator, "all_to_all", _forbidden)
        with moves if mode == "metadata" else contextlib.nullcontext():
            # Samples have up to 29 tokens: with planned CP some must be shared.
            capacity = {"seq_len": 20} if loader_helpers.plans_cp(mode) else {}
            found[mode] = loader_helpers.one_epoch(mesh, settings(mode, 4 // builders, **capacity), **arguments)
    return found


def _forbidden(self: Communicator, *args: Any) -> Any:
    raise AssertionError("metadata mode moves no sample")


def level_costs(rank: int, size: int) -> list[int]:
    """The costs of the samples on this rank, of a window of 9, 9 | 1, 1, on dp2 x tp2."""
    costs = [9, 9, 1, 1]
    loader = build_distributed_dataloader(
        loader_helpers.Numbered([5] * 4),
        Topology(axes=("dp", "tp"), sizes=(2, 2)),
        settings("online", 2),
        batch_sampler=loader_helpers.sampler(4, 4, shuffle=False),
        metadata_fn=lambda sample: SampleMetadata(pack_tokens=5, cost=costs[int(sample["input_ids"][0])]),
    )
    (batch,) = loader
    return [costs[i] for i in batch.sample_ids.tolist()]


def build_steps(
    mode: str, num_ranks: int, step_size: int = STEPS_SIZE, num_samples: int = STEPS_SAMPLES
) -> DistributedDataLoader:
    """A loader of 12 steps, or of more, on any number of ranks that divides a global batch."""
    lengths = np.random.default_rng(3).integers(1, 40, num_samples)
    arguments = {**MODES[mode], **({"metadata": lengths} if loader_helpers.by_index(mode) else {})}
    return build_distributed_dataloader(
        (loader_helpers.Texts if mode == "repack" else loader_helpers.Numbered)(lengths),
        Topology.of_domain(num_ranks),
        settings(mode, 1),
        batch_sampler=loader_helpers.sampler(step_size, num_samples),
        **arguments,
    )


def save_every_step(rank: int, size: int) -> dict[str, tuple[list[dict[str, Any]], list[str]]]:
    """A whole run of some modes, and the states before it and after each step."""
    found = {}
    for mode in EVERY_STEP:
        loader = build_steps(mode, size)
        batches, states = [], [json.dumps(loader.state_dict())]
        for batch in loader:
            batches.append(facts(batch))
            if batch.is_last:
                states.append(json.dumps(loader.state_dict()))
        loader.close()
        found[mode] = (batches, states)
    return found


def resume_every_state(
    rank: int, size: int, states: dict[str, list[str]], num_steps: int
) -> dict[str, list[list[dict[str, Any]]]]:
    """The next so many steps from each of the states, or all that are left."""
    found: dict[str, list[list[dict[str, Any]]]] = {}
    for mode, texts in states.items():
        found[mode] = []
        for text in texts:
            with build_steps(mode, size) as loader:
                loader.load_state_dict(json.loads(text))
                steps = range(loader.step, loader.step + num_steps)
                found[mode].append([facts(b) for b in itertools.takewhile(lambda b, s=steps: b.step in s, loader)])
    return found


def take_steps(
    rank: int, size: int, states: dict[str, str], num_steps: int, *sizes: int
) -> dict[str, tuple[list[Any], str]]:
    """So many steps of each mode from a state, and the state after them."""
    found = {}
    for mode in MODES:
        with build_steps(mode, size, *sizes) as loader:
            if mode in states:
                loader.load_state_dict(json.loads(states[mode]))
            batches: list[Any] = []
            while sum(batch.is_last for batch in batches) < num_steps:
                batches.append(next(loader))
            found[mode] = ([facts(batch) for batch in batches], json.dumps(loader.state_dict()))
    return found


def state_cases(
    rank: int, size: int, states: dict[str, str], num_steps: int
) -> tuple[dict[str, tuple[list[Any], str]], tuple[list[Any], str]]:
    """So many steps of 50 of each mode from a state; and the two bins of a step, of which the first launch takes one.

    Two samples of 6 fill two bins of 10: the ranks share each batch, so that one bin comes after the other.
    """
    found = take_steps(rank, size, states, num_steps, LONG_SIZE, LONG_SAMPLES)
    with build_external(size, 50) as loader:
        if "external" in states:
            loader.load_state_dict(json.loads(states["external"]))
        batches = list(itertools.islice(loader, 2 * num_steps))
        found["external"] = ([facts(batch) for batch in batches], json.dumps(loader.state_dict()))
    with build_distributed_dataloader(
        loader_helpers.Numbered([6, 6]),
        Topology(axes=("dp", "tp"), sizes=(1, size)),
        settings("planned_cp", 1, seq_len=10),
        batch_sampler=loader_helpers.sampler(2, 2, shuffle=False),
        scheduler="dynamic_cp",
    ) as loader:
        if "pending" in states:
            loader.load_state_dict(json.loads(states["pending"]))
            batches = list(loader)
        else:
            batches = [next(loader)]
        return found, ([facts(batch) for batch in batches], json.dumps(loader.state_dict()))


def train_until_killed(rank: int, size: int, folder: str, kill_at: int) -> list[Any]:
    """Train on whole steps and save after each; rank 2 is killed in the middle of step `kill_at` (-1: never)."""
    training = TorchGlooBackend(deadline_s=60.0).world()
    state_file, done_file = Path(folder) / f"state-{rank}.json", Path(folder) / f"done-{rank}.jsonl"
    loader = build_steps("online", size)
    if state_file.exists():
        loader.load_state_dict(json.loads(state_file.read_text()))
    trained: list[Any] = []
    for batch in loader:
        trained.append(facts(batch))
        if batch.step == kill_at and batch.microbatch == 1 and rank == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        training.barrier()  # the gradients are summed over all ranks
        if batch.is_last:  # the optimizer update, and then the save
            with done_file.open("a") as file:
                file.writelines(json.dumps(part) + "\n" for part in trained)
            trained = []
            new = state_file.with_suffix(".new")
            new.write_text(json.dumps(loader.state_dict()))
            new.rename(state_file)
    return trained


class Steps:
    """An external source of so many steps of two samples; it can be resumed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.step = 0

    def __iter__(self) -> Iterator[Any]:
        while self.step < self.count:
            self.step += 1
            yield [[{"input_ids": np.array([self.step] * 2)}], [{"input_ids": np.array([self.step])}]]

    def state_dict(self) -> dict[str, int]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.step = state["step"]


def build_external(size: int, count: int) -> DistributedDataLoader:
    return build_distributed_dataloader(
        None,
        Topology.of_domain(size),
        loader_helpers.config(local_batch_size=2, communication_backend=BACKEND),
        external_step_source=Steps(count),
        metadata_fn=loader_helpers.describe,
    )


def external_steps(rank: int, size: int) -> tuple[list[Any], int]:
    """Steps whose ranks are uneven in length: one rank's source has 89, the others' 87."""
    loader = build_external(size, 89 if rank == 1 else 87)
    return [facts(batch) for batch in loader], loader.num_dropped


def stop_alone(rank: int, size: int) -> int:
    """Rank 1 leaves after three steps, the others go on."""
    loader = build_external(size, 20)
    for count, _ in enumerate(loader):
        if rank == 1 and count == 5:
            break
    return rank


def uneven_datasets(rank: int, size: int) -> str:
    count = (87, 89)[rank % 2]
    try:
        build_distributed_dataloader(
            loader_helpers.Numbered([3] * count),
            Topology.of_domain(size),
            settings("online", 1),
            batch_sampler=loader_helpers.sampler(4, count),
            metadata_fn=loader_helpers.describe,
        )
    except dcpack.DcpackError as error:
        return f"{type(error).__name__}: {error}"
    return ""


class FailingDataset(loader_helpers.Numbered):
    def __getitem__(self, index: int) -> Any:
        if sum(self.reads.values()) == 2:
            raise KeyError("x")
        return super().__getitem__(index)


def dataset_fails(rank: int, size: int) -> str:
    """Rank 2's dataset fails at its third item; ranks 1 and 3 only receive."""
    data = FailingDataset() if rank == 2 else loader_helpers.Numbered()
    loader = build_distributed_dataloader(
        data,
        Topology(axes=("dp", "tp"), sizes=(2, 2)),
        settings("online", 2),
        batch_sampler=loader_helpers.sampler(),
        metadata_fn=loader_helpers.describe,
    )
    try:
        list(loader)
    except dcpack.PeerError as error:
        return f"{error.rank} {error.cause}"
    return ""


def workers_and_tensors(rank: int, size: int) -> tuple[list[int], list[str]]:
    """Samples that are tensors, read by worker processes, moved between ranks, and put on a device."""
    import multiprocessing

    import torch

    # The launcher's processes are daemons, so that none outlives a test; those may not have children otherwise.
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]

    class Tensors:
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> Any:
            return {"n": torch.full((index + 1,), index, dtype=torch.bfloat16)}

    loader = build_distributed_dataloader(
        Tensors(),
        Topology.of_domain(size),
        settings("online", 2),
        batch_sampler=loader_helpers.sampler(8, 8, shuffle=False),
        metadata_fn=lambda sample: SampleMetadata(pack_tokens=len(sample["n"]), cost=len(sample["n"]) ** 2),
        dataloader_kwargs={"num_workers": 1, "prefetch_factor": 4, "multiprocessing_context": "fork"},
        collate_fn=lambda rows: {
            "n": torch.cat([row["n"] for row in rows]),
            "lengths": np.array([len(row["n"]) for row in rows]),
        },
        device="cpu",
    )
    found, kinds = [], set[str]()
    for batch in loader:
        kinds.add(type(batch.data["n"]).__name__)
        assert batch.data["n"].dtype == torch.bfloat16
        assert isinstance(batch.data["lengths"], torch.Tensor)
        assert len(batch.data["n"]) == sum(i + 1 for i in batch.sample_ids.tolist())
        found += batch.sample_ids.tolist()
    return found, sorted(kinds)
