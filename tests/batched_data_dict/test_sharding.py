"""Sharding by batch size, plain and with dynamic batching; values by hand, for NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from array_libraries import ArrayLibrary

from dcpack import BatchedDataDict, SlicedDataDict
from dcpack.batched_data_dict import DynamicBatching, PackedColumn
from dcpack.errors import ArgumentError, InfeasibleError


def texts(shards: list[SlicedDataDict]) -> list[str]:
    return ["".join(shard["t"]) for shard in shards]


def test_parts_of_equal_place_are_joined(library: ArrayLibrary):
    batch = BatchedDataDict(t=[*"AABBCCDD"], x=library.array(range(8)))
    shards = batch.shard_by_batch_size(shards=2, batch_size=2)
    assert [type(shard) for shard in shards] == [SlicedDataDict] * 2
    assert texts(shards) == ["ABCD", "ABCD"]
    assert [library.values(shard["x"]) for shard in shards] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert shards[0].micro_batch_indices is None
    assert texts(batch.shard_by_batch_size(2)) == ["AABB", "CCDD"]
    assert texts(batch.shard_by_batch_size(1, batch_size=2)) == ["AABBCCDD"]


def test_problem_ids(library: ArrayLibrary):
    batch = BatchedDataDict(problem_id=library.array([0, 0, 1, 1, 2, 2, 3, 3]))
    shards = batch.shard_by_batch_size(2, batch_size=4)
    assert [library.values(shard["problem_id"]) for shard in shards] == [[0, 0, 2, 2], [1, 1, 3, 3]]


@pytest.mark.parametrize(
    ("rows", "shards", "sizes"),
    [(5, 2, [3, 2]), (9, 4, [3, 2, 2, 2]), (4, 2, [2, 2]), (2, 3, [1, 1, 0]), (0, 2, [0, 0])],
)
def test_uneven_shards(library: ArrayLibrary, rows: int, shards: int, sizes: list[int]):
    batch = BatchedDataDict(x=library.array(range(rows)), i=PackedColumn(library.array([]), [0] * (rows + 1)))
    parts = batch.shard_by_batch_size(shards, allow_uneven_shards=True)
    assert [part.size for part in parts] == sizes
    assert [value for part in parts for value in library.values(part["x"])] == list(range(rows))


def test_shards_share_no_memory_with_the_batch(library: ArrayLibrary):
    if library.name == "jax":
        return  # whose arrays nobody can change
    batch = BatchedDataDict(x=library.array([1, 2]))
    batch.shard_by_batch_size(2)[0]["x"][0] = 77
    assert library.values(batch["x"]) == [1, 2]


# ---- dynamic batching ------------------------------------------------------------------------------------------------

LENGTHS = [4, 9, 1, 2, 3, 8, 6, 5]


def ragged(library: ArrayLibrary, lengths: list[int], width: int = 10) -> BatchedDataDict:
    """Token j of row i is 100 * i + j; what is beyond the length is 0."""
    places = np.arange(width)
    ids = np.where(places < np.array(lengths)[:, None], 100 * np.arange(len(lengths))[:, None] + places, 0)
    return BatchedDataDict(ids=library.array(ids), n=library.array(lengths), t=[*"abcdefghij"[: len(lengths)]])


def cfg(**changes: Any) -> dict[str, Any]:
    return {
        "max_tokens_per_microbatch": 20,
        "sequence_length_round": 4,
        "input_key": "ids",
        "input_lengths_key": "n",
        **changes,
    }


def test_dynamic_batching_by_hand(library: ArrayLibrary):
    # Ascending: c1 d2 e3 a4 h5 g6 f8 b9; in turn to two shards: c e h f and d a g b.
    # Longest of each place: 2, 4, 6, 9, rounded to 4: 4, 4, 8, 10 (clamped to the width).
    # Rows x longest: 1x4, 2x4, 3x8 = 24 > 20, so a new one: 1x8, 2x10 = 20.
    shards, order = ragged(library, LENGTHS).shard_by_batch_size(2, dynamic_batching_cfg=cfg())
    assert texts(shards) == ["cehf", "dagb"]
    assert order == [2, 4, 7, 5, 3, 0, 6, 1]
    for shard in shards:
        assert shard.micro_batch_indices == [[[0, 2], [2, 4]]]
        assert shard.micro_batch_lengths == [[4, 10]]
        assert shard.elem_counts_per_gb == [4]
        assert shard.get_microbatch_iterator_dynamic_shapes_len() == 2
    first, second = shards[1].make_microbatch_iterator_with_dynamic_shapes()
    assert (first["t"], library.values(first["ids"])) == (["d", "a"], [[300, 301, 0, 0], [0, 1, 2, 3]])
    assert (second["t"], second["ids"].shape) == (["g", "b"], (2, 10))


def test_dynamic_batching_in_chunks(library: ArrayLibrary):
    batch = ragged(library, LENGTHS)
    shards, order = batch.shard_by_batch_size(
        2, 4, dynamic_batching_cfg=DynamicBatching(**cfg(max_tokens_per_microbatch=18))
    )
    # Chunks abcd and efgh; ascending c1 d2 a4 b9, and e3 h5 g6 f8. 2x10 is over 18, 2x8 is not.
    assert texts(shards) == ["caeg", "dbhf"]
    assert order == [2, 0, 4, 6, 3, 1, 7, 5]
    assert shards[0].micro_batch_indices == [[[0, 1], [1, 2]], [[0, 2]]]
    assert shards[0].micro_batch_lengths == [[4, 10], [8]]
    with pytest.raises(ArgumentError, match="2 chunks: take one with get_batch first"):
        shards[0].make_microbatch_iterator_with_dynamic_shapes()
    for chunk in (shards[0].get_batch(1), shards[0].get_batch(1, 2)):
        assert chunk["t"] == ["e", "g"]
        assert (chunk.micro_batch_indices, chunk.micro_batch_lengths) == ([[[0, 2]]], [[8]])
        (part,) = chunk.make_microbatch_iterator_with_dynamic_shapes()
        assert library.values(part["ids"])[0] == [400, 401, 402, 0, 0, 0, 0, 0]
    with pytest.raises(ArgumentError, match="batch_size must be the 2 rows of a chunk on this shard, got 4"):
        shards[0].get_batch(0, 4)
    restored = BatchedDataDict.from_batches(shards)
    restored.reorder_data(order)
    assert library.values(restored["ids"]) == library.values(batch["ids"])
    assert restored["t"] == batch["t"]


def test_reordering_drops_bounds(library: ArrayLibrary):
    (shard,), order = ragged(library, LENGTHS).shard_by_batch_size(1, dynamic_batching_cfg=cfg())
    shard.reorder_data(order)
    assert shard.micro_batch_indices is shard.micro_batch_lengths is shard.elem_counts_per_gb is None


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"shards": 3}, ArgumentError, "the batch of 8 rows is not a multiple of 3 shards"),
        ({"shards": 0}, ArgumentError, "shards must be at least 1, got 0"),
        ({"batch_size": 3}, ArgumentError, "8 rows is not a multiple of batch_size 3"),
        ({"batch_size": 4, "shards": 3}, ArgumentError, "batch_size 4 is not a multiple of 3 shards"),
        ({"batch_size": 4, "allow_uneven_shards": True}, ArgumentError, "excludes a batch_size, got 4"),
        ({"allow_uneven_shards": "no"}, ArgumentError, "allow_uneven_shards must be True or False, got 'no'"),
        ({"allow_uneven_shards": 1}, ArgumentError, "allow_uneven_shards must be True or False, got 1"),
        (
            {"dynamic_batching_cfg": cfg(), "allow_uneven_shards": True},
            ArgumentError,
            "allow_uneven_shards=True excludes dynamic_batching_cfg",
        ),
        (
            {
                "dynamic_batching_cfg": cfg(),
                "sequence_packing_cfg": {"max_tokens_per_microbatch": 9, "input_lengths_key": "n"},
            },
            ArgumentError,
            "exclude each other",
        ),
        ({"dynamic_batching_cfg": 5}, ArgumentError, "must be a mapping or a DynamicBatching, got int"),
        ({"dynamic_batching_cfg": {"input_key": "ids"}}, ArgumentError, "lacks 'max_tokens_per_microbatch', 'seq"),
        ({"dynamic_batching_cfg": cfg(extra=1)}, ArgumentError, "has unknown 'extra'; known are"),
        ({"dynamic_batching_cfg": cfg(sequence_length_round=0)}, ArgumentError, "sequence_length_round must be"),
        ({"dynamic_batching_cfg": cfg(input_key=3)}, ArgumentError, "input_key must be the name of a column, got 3"),
        ({"dynamic_batching_cfg": cfg(input_key="x")}, ArgumentError, "input_key 'x' is no column .* 'ids', 'n', 't'"),
        ({"dynamic_batching_cfg": cfg(input_lengths_key="x")}, ArgumentError, "input_lengths_key 'x' is no column"),
        ({"dynamic_batching_cfg": cfg(input_lengths_key="t")}, ArgumentError, "column 't' must hold integers"),
        ({"dynamic_batching_cfg": cfg(input_lengths_key="ids")}, ArgumentError, "'ids' must be one-dimensional"),
        ({"dynamic_batching_cfg": cfg(input_key="n")}, ArgumentError, r"at least two dims, got shape \(8,\)"),
        ({"dynamic_batching_cfg": cfg(input_key="t")}, ArgumentError, "at least two dims, got a list"),
        (
            {"dynamic_batching_cfg": cfg(max_tokens_per_microbatch=7)},
            InfeasibleError,
            r"4 of 8 rows .* 7: row 1 of 9 tokens has 10, row 5 of 8 tokens has 8, row 6 of 6 tokens has 8",
        ),
    ],
)
def test_misuse_names_the_numbers(library: ArrayLibrary, options: dict[str, Any], error: type[Exception], text: str):
    with pytest.raises(error, match=text):
        ragged(library, LENGTHS).shard_by_batch_size(**{"shards": 2, **options})


def test_lengths_beyond_the_width_are_refused(library: ArrayLibrary):
    batch = ragged(library, LENGTHS)
    batch["n"] = library.array([4, 11, 1, 2, 3, 12, 6, 5])
    with pytest.raises(ArgumentError, match="width 10 of 'ids': row 1 has 11, row 5 has 12"):
        batch.shard_by_batch_size(2, dynamic_batching_cfg=cfg())


@pytest.mark.parametrize("multiple", [1, 4])
def test_lengths_near_the_end_of_int64_are_refused(multiple: int):
    # Rounded up they would leave int64, and come out negative: small enough for any micro-batch.
    batch = BatchedDataDict(n=[2**63 - 1, 3, 2**63 - 5, 2**31 - 1])
    packing = {"max_tokens_per_microbatch": 2**31 - 1, "sequence_length_pad_multiple": multiple}
    text = "'n' must be at most 2147483647: row 0 has 9223372036854775807, row 2 has 9223372036854775803"
    with pytest.raises(ArgumentError, match=text):
        batch.shard_by_batch_size(1, sequence_packing_cfg={**packing, "input_lengths_key": "n"})


def test_no_rows_make_no_microbatches(library: ArrayLibrary):
    with pytest.raises(InfeasibleError, match="a batch without rows gives none of 2 shards a micro-batch"):
        ragged(library, []).shard_by_batch_size(2, dynamic_batching_cfg=cfg())
