"""Random datasets: over Gloo with 2 and 4 ranks, and in one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import rl_bodies
import torch
from dcpack_torch.random_data import (
    RandomTokens,
    get_random_dataset_fsdp_tp,
    get_random_varlen_dataset_fsdp_tp,
)
from torch_ranks import results

from dcpack.errors import ArgumentError


@pytest.mark.parametrize("broadcast", [False, True])
def test_random_data_is_sharded_over_dp_only(launch: Callable[..., Any], broadcast: bool):
    found = results(launch(4, rl_bodies.random_data, 2, broadcast))
    for each in found:
        assert each["kind"] == ("TPBroadcastDataLoader" if broadcast else "DataLoader")
        assert (each["length"], each["replicas"]) == (16, 2)
    # TP peers see the same, DP peers different samples, and all of them together every sample once.
    assert found[0]["epochs"] == found[1]["epochs"]
    assert found[2]["epochs"] == found[3]["epochs"]
    for epoch in range(2):
        assert sorted(found[0]["epochs"][epoch] + found[2]["epochs"][epoch]) == list(range(128))
    assert found[0]["epochs"][0] != found[0]["epochs"][1]


def test_varlen_data_with_tp_over_all_ranks(launch: Callable[..., Any]):
    one, other = results(launch(2, rl_bodies.random_varlen))
    assert one == other
    replicas, batches = one
    assert replicas == 1
    assert sum(len(lengths) for _, lengths in batches) == 6


def test_a_tp_group_of_some_ranks_needs_a_dp_group(launch: Callable[..., Any]):
    texts = set(results(launch(4, rl_bodies.random_data_without_dp_group)))
    assert texts == {
        "tp_group has 2 of 4 ranks, so it needs a dp_group: without one the ranks of a TP group would read different "
        "samples"
    }


# In one process.


def test_without_a_distributed_run_the_loader_shuffles():
    parts = get_random_dataset_fsdp_tp(4, 100, 6, broadcast_within_tp=True)
    assert parts["sampler"] is None
    loader = parts["dataloader"]
    assert not loader.persistent_workers
    numbers = {tuple(sample.tolist()): i for i, sample in enumerate(parts["dataset"])}
    first, second = ([numbers[tuple(sample.tolist())] for batch in loader for sample in batch] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(128))
    assert first != second
    assert first != sorted(first)
    again = get_random_dataset_fsdp_tp(4, 100, 6)["dataloader"]
    assert [numbers[tuple(sample.tolist())] for batch in again for sample in batch] == first


# JAX, which other tests load, warns of every fork. The worker that is forked here uses torch alone.
@pytest.mark.filterwarnings("ignore:os.fork")
def test_workers_persist():
    loader = get_random_dataset_fsdp_tp(64, 100, 6, num_workers=1)["dataloader"]
    assert loader.persistent_workers
    assert [batch.shape for batch in loader] == [(64, 7)] * 2


def test_a_last_batch_that_is_not_full():
    lengths = [len(get_random_dataset_fsdp_tp(5, 9, 3, drop_last=drop)["dataloader"]) for drop in (True, False)]
    assert lengths == [25, 26]


@pytest.mark.parametrize("name", ["lognormal", "uniform", "bimodal"])
def test_length_distributions_keep_their_bounds(name: str):
    options: dict[str, Any] = {"min_length": 3, "length_distribution": name, "num_sequences": 400}
    lengths = get_random_varlen_dataset_fsdp_tp(4, 100, 80, **options)["dataset"].lengths
    assert (lengths.min() >= 3, lengths.max() <= 80, len(lengths)) == (True, True, 400)
    assert np.unique(lengths).size > 10
    short = (lengths <= 10).mean()
    assert {"lognormal": 0.3 < short < 0.7, "uniform": short < 0.2, "bimodal": short > 0.8}[name]


def test_a_length_distribution_of_the_user():
    parts = get_random_varlen_dataset_fsdp_tp(
        2, 100, 9, num_sequences=4, length_distribution=lambda rng, n: np.arange(n) + 2, drop_last=False
    )
    assert [len(sample) for sample in parts["dataset"]] == [2, 3, 4, 5]
    for batch in parts["dataloader"]:
        for row, length in zip(batch["input_ids"], batch["input_lengths"], strict=True):
            assert not row[length:].any()
    assert torch.equal(parts["dataset"][3], RandomTokens(100, [2, 3, 4, 5], seed=1337)[3])


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"length_distribution": lambda rng, n: [1] * n}, r"from 2 to 9: lengths\[0\] = 1"),
        ({"length_distribution": lambda rng, n: [3]}, "must give 128 lengths, got 1"),
        ({"length_distribution": "zipf"}, "must be one of 'lognormal', 'uniform', 'bimodal', got 'zipf'"),
        ({"min_length": 10}, "min_length must be from 1 to 9, got 10"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
        ({"vocab_size": 0}, "vocab_size must be at least 1, got 0"),
        ({"num_workers": -1}, "num_workers must be at least 0, got -1"),
        ({"batch_size": 129}, "would drop all 128 of the 128 sequences that this rank reads, as batch_size is 129"),
    ],
)
def test_misuse_names_the_numbers(options: dict[str, Any], text: str):
    with pytest.raises(ArgumentError, match=text):
        get_random_varlen_dataset_fsdp_tp(
            **{"batch_size": 2, "vocab_size": 5, "max_length": 9, "min_length": 2, **options}
        )
