"""Grain's datasets as sources of the loader, and the loader as one of Grain's; ranks are threads over `fake`."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import grain
import jax_bodies
import numpy as np
import pytest
from dcpack_jax.grain import GrainSteps, LoaderDataset
from jax_bodies import loader_helpers

import dcpack
from dcpack import DistributedDataLoader, PeerError
from dcpack.comm import Communicator
from dcpack.errors import ArgumentError


def numbered() -> grain.MapDataset[Any]:
    """The samples of `Numbered`, made by Grain."""
    lengths = [int(length) for length in loader_helpers.LENGTHS]
    return grain.MapDataset.range(len(lengths)).map(
        lambda i: {"input_ids": np.full(lengths[i], i, np.int64), "labels": np.full(lengths[i], i, np.int64)}
    )


# Grain's datasets as sources.


@pytest.mark.parametrize("mode", jax_bodies.LOADER_MODES)
def test_a_map_dataset_is_a_dataset(mode: str):
    def load(communicator: Communicator, data: Any) -> list[Any]:
        loader = build(2, mode, data=data, dataloader_kwargs={"num_workers": 2})
        return [loader_helpers.facts(batch) for batch in loader]

    plain = loader_helpers.on_ranks(2, lambda communicator: load(communicator, loader_helpers.Numbered()))
    assert loader_helpers.on_ranks(2, lambda communicator: load(communicator, numbered())) == plain
    assert len(plain[0]) >= 8


@pytest.mark.parametrize("mode", jax_bodies.LOADER_MODES)
def test_what_a_filter_left_out_of_a_map_dataset_is_no_sample(mode: str):
    data = numbered().filter(lambda sample: sample["input_ids"][0] % 10 != 7)
    with pytest.raises(PeerError, match=r"dataset must have a sample at every index, but dataset\[\d*7\].* None"):
        list(build(1, mode, data=data))


def external(rank: int) -> tuple[GrainSteps, DistributedDataLoader]:
    """Steps of 4 samples on each of 2 ranks, out of an `IterDataset` that filters and shuffles."""
    shard = numbered()[rank::2].seed(3).shuffle().to_iter_dataset()
    source = GrainSteps(shard.filter(lambda sample: len(sample["input_ids"]) > 3), local_batch_size=4)
    loader = dcpack.build_distributed_dataloader(
        None,
        loader_helpers.domain(2),
        loader_helpers.config(local_batch_size=4),
        metadata_fn=loader_helpers.describe,
        external_step_source=source,
    )
    return source, loader


def samples_of(batch: Any) -> list[int]:
    return [int(sample["input_ids"][0]) for row in batch.data for sample in row]


def test_an_iter_dataset_is_a_step_source():
    def load(communicator: Communicator) -> tuple[Any, ...]:
        source, loader = external(communicator.rank)
        with loader:
            batches, states, ends = [], [json.dumps(loader.state_dict())], [0]
            for batch in loader:
                batches.append((batch.step, samples_of(batch)))
                if batch.is_last:
                    states.append(json.dumps(loader.state_dict()))
                    ends.append(len(batches))
            again = [(batch.step, samples_of(batch)) for batch in loader]
            dropped = loader.num_dropped, source.num_dropped
        assert again == batches, "the next epoch starts from the start"
        for state, end in zip(states, ends, strict=True):
            with external(communicator.rank)[1] as resumed:
                resumed.load_state_dict(json.loads(state))
                assert [(batch.step, samples_of(batch)) for batch in resumed] == batches[end:]
        return [i for _, samples in batches for i in samples], dropped

    (mine, my_dropped), (theirs, their_dropped) = loader_helpers.on_ranks(2, load)
    kept = [[i for i in range(rank, 53, 2) if loader_helpers.LENGTHS[i] > 3] for rank in range(2)]
    assert set(Counter(mine + theirs).values()) == {1}
    assert set(mine + theirs) <= {*kept[0], *kept[1]}
    # In each of two epochs rank 1 ends with a step that is not full, when rank 0 has taken one more.
    assert len(mine + theirs) == 40
    assert my_dropped == (2 * 4, 0)
    assert their_dropped == (0, 2 * (len(kept[1]) - 20))


# The loader as a dataset of Grain.


def build(num_ranks: int, mode: str, data: Any = None, **arguments: Any) -> DistributedDataLoader:
    return dcpack.build_distributed_dataloader(
        loader_helpers.Numbered() if data is None else data,
        loader_helpers.domain(num_ranks),
        loader_helpers.settings(mode, 4 // num_ranks, "fake", seq_len=20 if mode == "planned_cp" else 64),
        batch_sampler=loader_helpers.sampler(),
        **jax_bodies.LOADER_MODES[mode],
        **arguments,
    )


def dataset_of(num_ranks: int, mode: str) -> grain.IterDataset[Any]:
    return LoaderDataset(lambda: build(num_ranks, mode), num_epochs=2).map(loader_helpers.facts)


@pytest.mark.parametrize("mode", ["online", "planned_cp"])
def test_a_state_after_any_element_goes_on_with_the_next_one(mode: str):
    def load(communicator: Communicator) -> int:
        iterator = iter(dataset_of(2, mode))
        states, elements = [json.dumps(iterator.get_state())], []
        for element in iterator:
            elements.append(element)
            states.append(json.dumps(iterator.get_state()))
        iterator.close()
        assert [element["epoch"] for element in elements] == sorted(element["epoch"] for element in elements)
        assert {element["epoch"] for element in elements} == {0, 1}
        resumed = iter(dataset_of(2, mode))
        for number in (*range(0, len(states), 3), len(states) - 1, 1):  # forth, and back again
            resumed.set_state(json.loads(states[number]))
            rest = [] if number == len(elements) else [next(resumed)]
            assert rest == elements[number : number + 1]
        assert list(resumed) == elements[2:]
        resumed.close()
        return len(elements)

    counts = loader_helpers.on_ranks(2, load)
    assert counts[0] == counts[1] >= 16


def test_a_state_between_steps_fits_other_ranks_and_one_inside_a_step_is_refused():
    iterator = iter(dataset_of(1, "online"))
    first = next(iterator)
    inside = iterator.get_state()
    for _ in range(first["num_microbatches"] - 1):
        next(iterator)
    between = iterator.get_state()
    wanted = Counter(
        i for element in iterator if element["step"] == 1 and element["epoch"] == 0 for i in element["ids"]
    )

    def load(communicator: Communicator) -> tuple[list[int], str]:
        resumed = iter(dataset_of(2, "online"))
        resumed.set_state(between)
        ids: list[int] = []
        while (element := next(resumed))["step"] == 1:
            ids += element["ids"]
        try:
            resumed.set_state(inside)
        except (ArgumentError, PeerError) as error:
            return ids, str(error)
        return ids, ""

    (mine, text), (theirs, other_text) = loader_helpers.on_ranks(2, load)
    assert Counter(mine + theirs) == wanted
    for found in (text, other_text):
        assert "the state was saved inside step 0, whose micro-batch 0 had samples" in found


def test_misuse_is_told():
    with pytest.raises(ArgumentError, match="dataset must be an IterDataset or MapDataset of Grain, got list"):
        GrainSteps([1, 2], local_batch_size=1)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match=r"state must be one of GrainSteps\.state_dict\(\)"):
        GrainSteps(numbered(), local_batch_size=1).load_state_dict({"next_index": 1})
    with pytest.raises(ArgumentError, match="build must be a function that makes a loader, got 3"):
        LoaderDataset(3)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="num_epochs must be at least 1, got 0"):
        LoaderDataset(lambda: build(1, "online"), num_epochs=0)
    iterator = iter(LoaderDataset(lambda: build(1, "online")))
    with pytest.raises(ArgumentError, match=r"with \['delivered', 'loader'\], got"):
        iterator.set_state({"next_index": 1})
    iterator.close()
    with pytest.raises(ValueError, match="closed iterator"):
        next(iterator)


def test_an_epoch_without_steps_ends_at_once():
    def empty() -> DistributedDataLoader:
        return dcpack.build_distributed_dataloader(
            loader_helpers.Numbered([3] * 5),
            loader_helpers.domain(1),
            loader_helpers.config(local_batch_size=4),
            batch_sampler=loader_helpers.sampler(12, 5),
            metadata_fn=loader_helpers.describe,
        )

    assert list(LoaderDataset(empty, num_epochs=None)) == []
