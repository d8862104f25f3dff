"""Random token datasets for FSDP with tensor parallelism: sharded over DP only, read once in each TP group if asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

from dcpack import TPBroadcastDataLoader
from dcpack._checks import as_lengths, check_choice, check_int, list_offenders
from dcpack.errors import ArgumentError, BackendError
from dcpack_torch.backend import TorchGlooBackend

__all__ = [
    "LENGTH_DISTRIBUTIONS",
    "RandomTokens",
    "collate_padded",
    "get_random_dataset_fsdp_tp",
    "get_random_varlen_dataset_fsdp_tp",
]

DrawLengths = Callable[[np.random.Generator, int], Any]

_NUM_SEQUENCES = 128


def _lognormal(rng: np.random.Generator, shortest: int, longest: int, count: int) -> Any:
    """Most are short: the median is an eighth of the longest, sigma 1."""
    return np.clip(np.rint(rng.lognormal(np.log(max(longest / 8, 1)), 1.0, count)), shortest, longest)


def _uniform(rng: np.random.Generator, shortest: int, longest: int, count: int) -> Any:
    """All lengths are equally likely."""
    return rng.integers(shortest, longest + 1, count)


def _bimodal(rng: np.random.Generator, shortest: int, longest: int, count: int) -> Any:
    """Nine of ten are at most an eighth of the longest, the others at least a half of it."""
    short = rng.integers(shortest, max(shortest, longest // 8) + 1, count)
    long = rng.integers(max(shortest, longest // 2), longest + 1, count)
    return np.where(rng.random(count) < 0.9, short, long)


LENGTH_DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, int, int, int], Any]] = {
    "lognormal": _lognormal,
    "uniform": _uniform,
    "bimodal": _bimodal,
}
"""Distributions of lengths by name."""


class RandomTokens(Dataset[torch.Tensor]):
    """Sequences of random tokens, the same in every process: int64[length] each.

    Args:
        vocab_size: tokens are from 0 to one less.
        lengths: int[n], tokens of each sequence.
        seed: of the tokens.

    Example:
        >>> data = RandomTokens(10, [3, 5], seed=1)
        >>> len(data), data[1].shape, torch.equal(data[1], RandomTokens(10, [3, 5], seed=1)[1])
        (2, torch.Size([5]), True)
    """

    def __init__(self, vocab_size: int, lengths: Any, *, seed: int) -> None:
        vocab_size = check_int("vocab_size", vocab_size, minimum=1)
        self.lengths = as_lengths("lengths", lengths, minimum=1)
        generator = torch.Generator().manual_seed(check_int("seed", seed, minimum=0))
        tokens = torch.randint(vocab_size, (int(self.lengths.sum()),), generator=generator)
        self._sequences = torch.split(tokens, self.lengths.tolist())

    def __len__(self) -> int:
        return len(self._sequences)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self._sequences[index]


def collate_padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return sequences as the columns of a batch: tokens padded with 0, and lengths.

    Args:
        samples: of a dataset of this module, at least one.

    Example:
        >>> collate_padded([torch.tensor([1, 2]), torch.tensor([3])])
        {'input_ids': tensor([[1, 2],
                [3, 0]]), 'input_lengths': tensor([2, 1])}
    """
    padded = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return {"input_ids": padded, "input_lengths": torch.tensor([len(sample) for sample in samples])}


def get_random_dataset_fsdp_tp(
    batch_size: int,
    vocab_size: int,
    seq_length: int,
    *,
    num_workers: int = 0,
    pin_memory: bool = True,
    dp_group: dist.ProcessGroup | None = None,
    tp_group: dist.ProcessGroup | None = None,
    broadcast_within_tp: bool = False,
    drop_last: bool = True,
    seed: int = 1337,
) -> dict[str, Any]:
    """Return a random dataset of 128 sequences, its sampler and its data loader; all ranks call it together.

    Only the DP group shards the data, so the ranks of a TP group read the same samples, or one of them reads for all.

    Args:
        batch_size: sequences of a batch on one DP rank.
        vocab_size: tokens are from 0 to one less.
        seq_length: a sample has one token more, so that inputs and labels can be shifted.
        num_workers: processes that read; they persist from epoch to epoch.
        pin_memory: pin batches, where there is a CUDA device or an NPU to pin them for.
        dp_group: the ranks that read different samples; None for all ranks, or none if `tp_group` is all ranks.
        tp_group: the ranks that need the same samples; None where there is no tensor parallelism.
        broadcast_within_tp: only the leader of `tp_group` reads, and the batches are sent to the others over Gloo
            (`dcpack.TPBroadcastDataLoader`).
        drop_last: drop a last batch that is not full, and samples that would make shards unequal. Otherwise torch's
            sampler repeats samples to make them equal.
        seed: of the tokens and of the order, which is shuffled anew by seed + epoch after ``sampler.set_epoch(epoch)``.

    Returns:
        ``"dataset"``; ``"sampler"``, None without a distributed run, whose data loader shuffles by itself; and
        ``"dataloader"``, which yields int64[batch_size, seq_length + 1].

    Raises:
        ArgumentError: an argument out of range; `drop_last` with fewer samples on a rank than a batch holds; or a
            `tp_group` of some ranks without a `dp_group`, with which the ranks of a TP group would read different
            samples.
        BackendError: this process is in none of the groups given.

    Example:
        >>> parts = get_random_dataset_fsdp_tp(batch_size=4, vocab_size=10, seq_length=6)
        >>> len(parts["dataset"]), parts["sampler"], len(parts["dataloader"]), next(iter(parts["dataloader"])).shape
        (128, None, 32, torch.Size([4, 7]))
    """
    lengths = np.full(_NUM_SEQUENCES, check_int("seq_length", seq_length, minimum=1) + 1)
    return _parts(
        RandomTokens(vocab_size, lengths, seed=seed),
        None,
        batch_size,
        num_workers=num_workers,
        pin_memory=pin_memory,
        dp_group=dp_group,
        tp_group=tp_group,
        broadcast_within_tp=broadcast_within_tp,
        drop_last=drop_last,
        seed=seed,
    )


def get_random_varlen_dataset_fsdp_tp(
    batch_size: int,
    vocab_size: int,
    max_length: int,
    *,
    min_length: int = 1,
    length_distribution: str | DrawLengths = "lognormal",
    num_sequences: int = _NUM_SEQUENCES,
    num_workers: int = 0,
    pin_memory: bool = True,
    dp_group: dist.ProcessGroup | None = None,
    tp_group: dist.ProcessGroup | None = None,
    broadcast_within_tp: bool = False,
    drop_last: bool = True,
    seed: int = 1337,
) -> dict[str, Any]:
    """Return the same as `get_random_dataset_fsdp_tp`, of sequences of different lengths.

    Args:
        batch_size: sequences of a batch on one DP rank.
        vocab_size: tokens are from 0 to one less.
        max_length: no sequence is longer.
        min_length: no sequence is shorter.
        length_distribution: a key of `LENGTH_DISTRIBUTIONS`, or a function of a NumPy generator and a number that
            returns that many lengths.
        num_sequences: samples of the dataset.
        num_workers: see `get_random_dataset_fsdp_tp`, as for all that follow.
        pin_memory: as there.
        dp_group: as there.
        tp_group: as there.
        broadcast_within_tp: as there.
        drop_last: as there.
        seed: as there; it also draws the lengths.

    Returns:
        ``"dataset"``, ``"sampler"``, and ``"dataloader"``, whose batches are dicts of ``input_ids``, padded with 0 to
        the longest, and ``input_lengths``: columns of a `dcpack.BatchedDataDict`.

    Raises:
        ArgumentError: an argument out of range, lengths out of range (all are named), or groups as there.

    Example:
        >>> parts = get_random_varlen_dataset_fsdp_tp(4, 10, 50, length_distribution="uniform")
        >>> sorted(next(iter(parts["dataloader"]))), int(parts["dataset"].lengths.max()) <= 50
        (['input_ids', 'input_lengths'], True)
    """
    longest = check_int("max_length", max_length, minimum=1)
    shortest = check_int("min_length", min_length, minimum=1, maximum=longest)
    count = check_int("num_sequences", num_sequences, minimum=1)
    rng = np.random.default_rng(check_int("seed", seed, minimum=0))
    if callable(length_distribution):
        lengths = as_lengths("lengths", length_distribution(rng, count))
        if lengths.size != count:
            raise ArgumentError(f"length_distribution must give {count} lengths, got {lengths.size}")
        if over := np.flatnonzero((lengths < shortest) | (lengths > longest)).tolist():
            listed = list_offenders([f"lengths[{i}] = {lengths[i]}" for i in over])
            raise ArgumentError(f"lengths must be from {shortest} to {longest}: {listed}")
    else:
        name = check_choice("length_distribution", length_distribution, LENGTH_DISTRIBUTIONS)
        lengths = np.asarray(LENGTH_DISTRIBUTIONS[name](rng, shortest, longest, count), np.int64)
    return _parts(
        RandomTokens(vocab_size, lengths, seed=seed),
        collate_padded,
        batch_size,
        num_workers=num_workers,
        pin_memory=pin_memory,
        dp_group=dp_group,
        tp_group=tp_group,
        broadcast_within_tp=broadcast_within_tp,
        drop_last=drop_last,
        seed=seed,
    )


def _parts(
    dataset: RandomTokens,
    collate: Callable[[list[torch.Tensor]], Any] | None,
    batch_size: int,
    *,
    num_workers: int,
    pin_memory: bool,
    dp_group: dist.ProcessGroup | None,
    tp_group: dist.ProcessGroup | None,
    broadcast_within_tp: bool,
    drop_last: bool,
    seed: int,
) -> dict[str, Any]:
    batch_size = check_int("batch_size", batch_size, minimum=1)
    num_workers = check_int("num_workers", num_workers, minimum=0)
    is_distributed = dist.is_available() and dist.is_initialized()
    sampler: DistributedSampler[torch.Tensor] | None = None
    if is_distributed:
        rank, num_replicas = _dp_place(dp_group, tp_group)
        sampler = DistributedSampler(
            dataset, num_replicas=num_replicas, rank=rank, shuffle=True, drop_last=drop_last, seed=seed
        )
    num_samples = len(dataset) if sampler is None else max(len(sampler), 0)
    if drop_last and num_samples < batch_size:
        raise ArgumentError(
            f"drop_last=True would drop all {num_samples} of the {len(dataset)} sequences that this rank reads, as "
            f"batch_size is {batch_size}"
        )
    loader: Any = DataLoader(
        dataset,
        batch_size=batch_size,
        sampler=sampler,
        shuffle=sampler is None,
        generator=torch.Generator().manual_seed(seed) if sampler is None else None,
        num_workers=num_workers,
        collate_fn=collate,
        pin_memory=pin_memory and _has_device(),
        drop_last=drop_last,
        persistent_workers=num_workers > 0,
    )
    if is_distributed and broadcast_within_tp and tp_group is not None:
        loader = TPBroadcastDataLoader(loader, TorchGlooBackend(group=tp_group).world())
    return {"dataset": dataset, "sampler": sampler, "dataloader": loader}


def _dp_place(dp_group: dist.ProcessGroup | None, tp_group: dist.ProcessGroup | None) -> tuple[int, int]:
    """Return this process's rank in the DP group, and its size."""
    for name, group in (("dp_group", dp_group), ("tp_group", tp_group)):
        if group is not None and dist.get_rank(group) < 0:
            raise BackendError(f"this process, rank {dist.get_rank()}, is not in the {name}")
    world_size = dist.get_world_size()
    if dp_group is not None or tp_group is None or (tp_size := dist.get_world_size(tp_group)) == 1:
        return dist.get_rank(dp_group), dist.get_world_size(dp_group)
    if tp_size == world_size:
        return 0, 1
    raise ArgumentError(
        f"tp_group has {tp_size} of {world_size} ranks, so it needs a dp_group: without one the ranks of a TP group "
        "would read different samples"
    )


def _has_device() -> bool:
    """Whether there is a device that pinned memory is good for; without one torch warns."""
    npu = getattr(torch, "npu", None)
    return torch.cuda.is_available() or (npu is not None and npu.is_available())
