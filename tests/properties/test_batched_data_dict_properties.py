"""Random ragged batches: nothing is lost or doubled by sharding and gathering, and every limit holds."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack import BatchedDataDict, QuadraticCost, SlicedDataDict, run_ranks
from dcpack.batched_data_dict import PackedColumn
from dcpack.packing import PACKERS

LIBRARIES = {"numpy": np.array, "torch": torch.tensor, "jax": jax.device_put}
CAPACITY = 24


@st.composite
def batches(draw: Any, rows: Any) -> BatchedDataDict:
    """Rows of 0 to 12 tokens; every value tells its row, so that a mixed-up one is seen."""
    count = draw(rows)
    make = LIBRARIES[draw(st.sampled_from(sorted(LIBRARIES)))]
    lengths = np.array(draw(st.lists(st.integers(0, 12), min_size=count, max_size=count)), np.int32)
    images = np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), np.int64)
    ids = np.where(np.arange(12) < lengths[:, None], np.arange(count, dtype=np.int32)[:, None] + 1, 0)
    return BatchedDataDict(
        ids=make(ids.astype(np.int32)),
        n=make(lengths),
        row=[f"row {i}" for i in range(count)],
        images=PackedColumn(make(np.repeat(np.arange(count, dtype=np.int32), images)), np.cumsum([0, *images])),
    )


def content(batch: BatchedDataDict) -> list[Any]:
    """The rows one by one, types included."""
    ids, lengths, images = batch["ids"], batch["n"], batch["images"]
    return [
        (type(ids), np.asarray(ids[i]).tolist(), int(lengths[i]), batch["row"][i], np.asarray(images[i]).tolist())
        for i in range(batch.size)
    ]


def ungathered(shards: list[SlicedDataDict], order: list[int]) -> list[Any]:
    """The rows after each shard went to a rank, was gathered, and put in order again."""
    gathered = run_ranks(len(shards), lambda c: BatchedDataDict(shards[c.rank]).all_gather(c))
    for batch in gathered:
        batch.reorder_data(order)
    assert all(content(batch) == content(gathered[0]) for batch in gathered)
    return content(gathered[0])


def microbatches(shard: SlicedDataDict) -> list[list[list[int]]]:
    """Lengths of the rows of each micro-batch of each chunk."""
    parts = [shard.get_batch(i) for i in range(len(shard.elem_counts_per_gb or []))]
    return [
        [np.asarray(mb["n"]).tolist() for mb in part.make_microbatch_iterator_for_packable_sequences()]
        for part in parts
    ]


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 3), st.integers(1, 3))
def test_dynamic_batching(data: Any, shards: int, per_shard: int, num_chunks: int):
    batch = data.draw(batches(st.just(shards * per_shard * num_chunks)))
    multiple = data.draw(st.sampled_from([1, 4, 16]))
    options = {
        "max_tokens_per_microbatch": CAPACITY,
        "sequence_length_round": multiple,
        "input_key": "ids",
        "input_lengths_key": "n",
    }
    parts, order = batch.shard_by_batch_size(shards, shards * per_shard, dynamic_batching_cfg=options)
    assert ungathered(parts, order) == content(batch)
    assert all(part.micro_batch_indices == parts[0].micro_batch_indices for part in parts)
    for part in parts:
        for chunk, widths in zip(microbatches(part), part.micro_batch_lengths or [], strict=True):
            for lengths, width in zip(chunk, widths, strict=True):
                assert len(lengths) * width <= CAPACITY
                assert max(lengths) <= width <= 12
        for i in range(num_chunks):
            for microbatch in part.get_batch(i).make_microbatch_iterator_with_dynamic_shapes():
                # no token is cut off: as many are left as the lengths say
                assert int((np.asarray(microbatch["ids"]) > 0).sum()) == int(np.asarray(microbatch["n"]).sum())


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 4), st.integers(1, 3))
def test_sequence_packing(data: Any, shards: int, per_shard: int, num_chunks: int):
    batch = data.draw(batches(st.just(shards * per_shard * num_chunks)))
    multiple = data.draw(st.sampled_from([1, 4]))
    options = {
        "max_tokens_per_microbatch": CAPACITY,
        "input_lengths_key": "n",
        "algorithm": data.draw(st.sampled_from(sorted(PACKERS))),
        "sequence_length_pad_multiple": multiple,
        "cost": data.draw(st.sampled_from([None, QuadraticCost()])),
    }
    parts, order = batch.shard_by_batch_size(shards, shards * per_shard, sequence_packing_cfg=options)
    assert ungathered(parts, order) == content(batch)
    found = [microbatches(part) for part in parts]
    assert len({tuple(len(chunk) for chunk in chunks) for chunks in found}) == 1
    for part, chunks in zip(parts, found, strict=True):
        for chunk, totals in zip(chunks, part.micro_batch_lengths or [], strict=True):
            assert [sum(-(-max(n, 1) // multiple) * multiple for n in lengths) for lengths in chunk] == totals
            assert max(totals) <= CAPACITY
            assert all(chunk)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 3), st.sampled_from(["microbatch", "shard"]), st.booleans())
def test_groups_stay_together(data: Any, shards: int, level: str, has_cost: bool):
    batch = data.draw(batches(st.integers(2 * shards, 12)))
    # Groups of one or two rows, in any order. All fit in one micro-batch, so there are groups enough for each shard.
    count = batch.size
    names = data.draw(st.permutations([i // 2 for i in range(count)]))
    batch["group"] = list(names)
    options = {
        "max_tokens_per_microbatch": 12 * 12,
        "input_lengths_key": "n",
        "group_key": "group",
        "keep_groups": level,
        "cost": QuadraticCost() if has_cost else None,
    }
    parts, order = batch.shard_by_batch_size(shards, None, True, sequence_packing_cfg=options)
    assert sorted(order) == list(range(count))
    places = {}
    for shard, part in enumerate(parts):
        for number, mb in enumerate(part.get_batch(0).make_microbatch_iterator_for_packable_sequences()):
            for name in mb["group"]:
                places.setdefault(name, set()).add((shard, number) if level == "microbatch" else shard)
    assert all(len(found) == 1 for found in places.values())


@settings(max_examples=60, deadline=None)
@given(batches(st.integers(0, 9)), st.data())
def test_uneven_shards_and_rows(batch: BatchedDataDict, data: Any):
    shards = data.draw(st.integers(1, 4))
    parts = batch.shard_by_batch_size(shards, allow_uneven_shards=True)
    sizes = [part.size for part in parts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1
    assert [row for part in parts for row in content(part)] == content(batch)
    order = data.draw(st.permutations(range(batch.size)))
    moved = batch.select_indices(order)
    assert content(moved) == [content(batch)[i] for i in order]
    moved.reorder_data(order)
    assert content(moved) == content(batch)
