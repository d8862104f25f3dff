"""A data set that says who it is and counts its reads, and loaders over it."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import dcpack
from dcpack import DistributedDataLoader, DistributedDatasetConfig, GlobalBatchSampler, SampleMetadata, Topology
from dcpack.comm import Communicator

LENGTHS = np.random.default_rng(7).integers(1, 30, 53)


class Numbered:
    """Sample i is ``lengths[i]`` tokens that are all i; reads are counted."""

    def __init__(self, lengths: Sequence[int] | np.ndarray = LENGTHS) -> None:
        self.sizes = [int(length) for length in lengths]
        self.reads: Counter[int] = Counter()

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        self.reads[index] += 1
        tokens = np.full(self.sizes[index], index, np.int64)
        return {"input_ids": tokens, "labels": tokens.copy()}


class Texts(Numbered):
    """The same as text records of one sequence each."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample: dict[str, Any] = super().__getitem__(index)
        return {**sample, "cu_seq_lens": [0, len(sample["input_ids"])]}


def describe(sample: dict[str, np.ndarray]) -> SampleMetadata:
    return SampleMetadata(pack_tokens=len(sample["input_ids"]))


def config(**options: Any) -> DistributedDatasetConfig:
    values = {"seq_len": 64, "local_batch_size": 1, "communication_backend": "fake", **options}
    return DistributedDatasetConfig(**values)


def by_index(mode: str) -> bool:
    """Whether a mode knows lengths by index."""
    return mode in ("metadata", "planned_cp_metadata")


def plans_cp(mode: str) -> bool:
    """Whether a mode plans CP."""
    return mode in ("planned_cp", "planned_cp_metadata")


def domain(num_ranks: int) -> Topology:
    return Topology.of_domain(num_ranks)


def mesh(**sizes: int) -> Topology:
    return Topology(axes=tuple(sizes), sizes=tuple(sizes.values()))


def rows_of(batch: Any) -> list[list[int]]:
    """The samples of a batch of whole samples, by what is in them."""
    return [sorted({int(token) for token in row["input_ids"]}) for row in batch.data]


def by_step(outputs: Iterable[Iterable[Any]]) -> dict[int, Counter[int]]:
    """The multiset of sample ids of each step, over the ranks whose batches these are."""
    steps: dict[int, Counter[int]] = {}
    for batches in outputs:
        for batch in batches:
            steps.setdefault(batch.step, Counter()).update(i for i in batch.sample_ids.tolist() if i >= 0)
    return steps


def plain_steps(num_samples: int, *, epoch: int = 0, **options: Any) -> list[Counter[int]]:
    """What a plain sampler over one rank gives, step by step."""
    size = options["global_batch_size"]
    sampler = GlobalBatchSampler(num_samples, **options, micro_batch_size=size, dp_rank=0, dp_world_size=1)
    sampler.set_epoch(epoch)
    return [Counter(batch) for batch in sampler]


def on_ranks(num_ranks: int, fn: Callable[[Communicator], Any]) -> list[Any]:
    return dcpack.run_ranks(num_ranks, fn)


def sampler(size: int = 12, num_samples: int = len(LENGTHS), **options: Any) -> GlobalBatchSampler:
    return GlobalBatchSampler(num_samples, **{"global_batch_size": size, "seed": 5, **options})


def settings(mode: str, local: int, backend: Any, **options: Any) -> DistributedDatasetConfig:
    """The configuration of a mode: windows of two micro-batches, but under planned CP."""
    window = {} if plans_cp(mode) else {"balance_window_size": 2}
    repack = {"repack_sequences": True, "pad_token_id": 0} if mode == "repack" else {}
    values = {"local_batch_size": local, "metadata_mode": by_index(mode), **window, **repack, **options}
    return config(communication_backend=backend, **values)


def one_epoch(on: Any, chosen: DistributedDatasetConfig, **arguments: Any) -> tuple[Any, ...]:
    """The batches of an epoch on this rank, its reads, the state after it, and how many samples were dropped."""
    data = Texts() if chosen.repack_sequences else Numbered()
    with dcpack.build_distributed_dataloader(data, on, chosen, batch_sampler=sampler(), **arguments) as loader:
        batches = [facts(batch) for batch in loader]
        return batches, dict(data.reads), loader.state_dict(), loader.num_dropped


def digest(value: Any) -> str:
    """A hash of a batch, of types and bytes."""
    found = hashlib.sha256()

    def feed(inner: Any) -> None:
        found.update(type(inner).__name__.encode())
        if isinstance(inner, dict):
            for key in inner:
                found.update(key.encode())
                feed(inner[key])
        elif isinstance(inner, list | tuple):
            for part in inner:
                feed(part)
        elif isinstance(inner, np.ndarray):
            found.update(f"{inner.dtype}{inner.shape}".encode() + inner.tobytes())
        else:
            found.update(repr(inner).encode())

    feed(value)
    return found.hexdigest()


def facts(batch: Any) -> dict[str, Any]:
    names = ("epoch", "step", "microbatch", "num_microbatches", "num_valid_tokens", "global_valid_tokens", "cp_size")
    return {
        **{name: getattr(batch, name) for name in (*names, "cp_rank", "cp_ranks")},
        "ids": batch.sample_ids.tolist(),
        "digest": digest(batch.data),
    }


def threads_of_loaders() -> list[threading.Thread]:
    """The threads of loaders that are alive, whoever's they are."""
    return [thread for thread in threading.enumerate() if thread.name == "dcpack-loader"]


def plans_ahead_and_taken(loader: DistributedDataLoader, data: Numbered) -> tuple[list[str], list[str], int]:
    """Digests of the plans of an epoch planned ahead and of those that were carried out, and the reads in between."""
    ahead = [plan.digest() for planned in loader.plan_epoch() for plan in planned.plans]
    reads = sum(data.reads.values())
    taken = []
    for batch in loader:
        if batch.is_last:
            assert loader.last_planned is not None
            taken += [plan.digest() for plan in loader.last_planned.plans]
    return ahead, taken, reads
