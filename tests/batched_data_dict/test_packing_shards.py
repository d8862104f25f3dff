"""Sharding with sequence packing: bins, cost, groups; values by hand, for NumPy, torch and JAX."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from array_libraries import ArrayLibrary

from dcpack import BatchedDataDict, QuadraticCost
from dcpack.batched_data_dict import PackedColumn, SequencePacking, SlicedDataDict
from dcpack.errors import ArgumentError, InfeasibleError


def cfg(capacity: int, **changes: Any) -> dict[str, Any]:
    return {"max_tokens_per_microbatch": capacity, "input_lengths_key": "n", **changes}


def packed(
    batch: BatchedDataDict, shards: int, capacity: int, **changes: Any
) -> tuple[list[SlicedDataDict], list[int]]:
    options = {key: changes.pop(key) for key in ("batch_size", "allow_uneven_shards") if key in changes}
    return batch.shard_by_batch_size(shards, sequence_packing_cfg=cfg(capacity, **changes), **options)


def bins(shard: SlicedDataDict) -> list[list[list[int]]]:
    """The rows of each micro-batch of each chunk, by the column `row`."""
    assert shard.micro_batch_indices is not None
    chunks = (shard.get_batch(i) for i in range(len(shard.micro_batch_indices)))
    return [
        [np.asarray(part["row"]).tolist() for part in chunk.make_microbatch_iterator_for_packable_sequences()]
        for chunk in chunks
    ]


def of_lengths(library: ArrayLibrary, lengths: list[int], **columns: Any) -> BatchedDataDict:
    return BatchedDataDict(n=library.array(lengths), row=library.array(range(len(lengths))), **columns)


def test_packing_by_hand(library: ArrayLibrary):
    # Best fit decreasing in 8: 5+3, 4+3, 2; three bins are no multiple of two, so the fullest is halved.
    shards, order = packed(of_lengths(library, [5, 4, 3, 3, 2]), 2, 8, allow_uneven_shards=True)
    assert [bins(shard) for shard in shards] == [[[[0], [4]]], [[[1, 3], [2]]]]
    assert [shard.micro_batch_lengths for shard in shards] == [[[5, 2]], [[7, 3]]]
    assert [shard.micro_batch_indices for shard in shards] == [[[[0, 1], [1, 2]]], [[[0, 2], [2, 3]]]]
    assert order == [0, 4, 1, 3, 2]
    assert library.values(shards[1]["n"]) == [4, 3, 3]
    assert shards[1].get_microbatch_iterator_for_packable_sequences_len() == (2, 7)


def test_lengths_are_rounded_and_empty_rows_take_one_multiple(library: ArrayLibrary):
    # 3, 0, 5, 4 are 4, 4, 8, 4 in multiples of four.
    shards, _ = packed(of_lengths(library, [3, 0, 5, 4]), 2, 12, sequence_length_pad_multiple=4)
    assert sorted(lengths for shard in shards for lengths in shard.micro_batch_lengths or []) == [[8], [12]]
    assert sorted(row for shard in shards for chunk in bins(shard) for part in chunk for row in part) == [0, 1, 2, 3]


def test_packing_in_chunks(library: ArrayLibrary):
    batch = of_lengths(library, [4, 4, 4, 4, 8, 8, 1, 1])
    shards, order = packed(batch, 2, 9, batch_size=4)
    assert [bins(shard) for shard in shards] == [[[[0, 1]], [[4, 6]]], [[[2, 3]], [[5, 7]]]]
    assert [shard.elem_counts_per_gb for shard in shards] == [[2, 2], [2, 2]]
    assert shards[0].get_batch(1, batch_size=1)["row"].tolist() == [4, 6]  # a batch size means nothing here
    restored = BatchedDataDict.from_batches(shards)
    restored.reorder_data(order)
    assert library.values(restored["row"]) == list(range(8))


def test_every_shard_has_a_multiple_of_microbatches(library: ArrayLibrary):
    shards, _ = packed(of_lengths(library, [1] * 12), 2, 100, microbatch_multiple=3)
    assert [shard.get_microbatch_iterator_for_packable_sequences_len()[0] for shard in shards] == [3, 3]


def test_algorithms(library: ArrayLibrary):
    shards, _ = packed(of_lengths(library, [5, 5, 3, 3]), 1, 8, algorithm="next_fit")
    assert bins(shards[0]) == [[[0], [1, 2], [3]]]
    shards, _ = packed(of_lengths(library, [5, 5, 3, 3]), 1, 8)
    assert bins(shards[0]) == [[[0, 2], [1, 3]]]


@pytest.mark.parametrize("group_key", [None, "prompt"])
def test_cost_balances_the_shards(library: ArrayLibrary, group_key: str | None):
    # Two rows of 8 cost 64 each, and eight of 2 cost 4 each: by tokens alone both long rows could share a shard.
    lengths = [8, 8, *[2] * 8]
    shards, _ = packed(
        of_lengths(library, lengths, prompt=list(range(10))), 2, 8, cost=QuadraticCost(), group_key=group_key
    )
    costs = [sum(value**2 for value in library.values(shard["n"])) for shard in shards]
    assert costs == [80, 80]
    counts = {shard.get_microbatch_iterator_for_packable_sequences_len() for shard in shards}
    assert counts == {(2, 8)}
    # Both long rows are in the same micro-batch step, where the shards wait for one another.
    assert [[len(part) for part in bins(shard)[0]] for shard in shards] == [[1, 4], [1, 4]]


def test_a_cost_may_be_named(library: ArrayLibrary):
    named: Any = "quadratic"
    options = SequencePacking(max_tokens_per_microbatch=8, input_lengths_key="n", cost=named)
    assert options.cost == QuadraticCost()


def groups_by_shard(shards: list[SlicedDataDict]) -> list[set[str]]:
    return [set(shard["prompt"]) for shard in shards]


@pytest.mark.parametrize("kind", ["texts", "numbers"])
def test_groups_share_a_microbatch(library: ArrayLibrary, kind: str):
    # Pairs of 5+3, 4+4, 6+2, each exactly one bin of 8, where plain packing would pair 5 with 3 of another.
    names = ["p", "q", "p", "r", "q", "r"]
    prompt = names if kind == "texts" else library.array([ord(name) for name in names])
    shards, _ = packed(of_lengths(library, [5, 4, 3, 6, 4, 2], prompt=prompt), 3, 8, group_key="prompt")
    assert [bins(shard) for shard in shards] == [[[[0, 2]]], [[[1, 4]]], [[[3, 5]]]]


def test_groups_share_a_shard(library: ArrayLibrary):
    # Groups of 12, 8 and 4 tokens in micro-batches of 4: no group fits in one, all stay on one shard.
    lengths = [4, 4, 4, 4, 4, 2, 2]
    prompt = [*"ppqqprr"]
    shards, order = packed(
        of_lengths(library, lengths, prompt=prompt),
        2,
        4,
        group_key="prompt",
        keep_groups="shard",
        allow_uneven_shards=True,
    )
    assert sorted(groups_by_shard(shards), key=len) == [{"p"}, {"q", "r"}]
    assert {shard.get_microbatch_iterator_for_packable_sequences_len() for shard in shards} == {(3, 4)}
    assert sorted(order) == list(range(7))


def test_side_fields_follow_their_rows(library: ArrayLibrary):
    images = PackedColumn(library.array([0, 0, 2, 3, 3, 3]), [0, 2, 2, 3, 6])
    shards, _ = packed(of_lengths(library, [1, 2, 3, 4], images=images), 2, 5)
    for shard in shards:
        for row in range(shard.size):
            expected = library.values(shard["row"])[row]
            assert library.values(shard["images"][row]) == [expected] * [2, 0, 1, 3][expected]


@pytest.mark.parametrize(
    ("lengths", "options", "error", "text"),
    [
        ([9, 3], {}, InfeasibleError, "1 of 2 rows .* max_tokens_per_microbatch = 8: row 0 of 9 tokens has 9"),
        ([9, 9], {"sequence_length_pad_multiple": 4}, InfeasibleError, "row 0 of 9 tokens has 12, row 1"),
        ([3], {"allow_uneven_shards": True}, InfeasibleError, "rows 0 to 0 cannot be packed onto 2 shards: 1 rows"),
        ([3], {"allow_uneven_shards": True, "cost": QuadraticCost()}, InfeasibleError, "rows 0 to 0 cannot be packed"),
        ([3, 3], {"group_key": "g"}, InfeasibleError, "cannot fill 2 micro-batches: 1 hold one row or group each"),
        ([5, 5], {"group_key": "g"}, InfeasibleError, "1 group does not fit in a bin of 8 tokens"),
        ([3, 3], {"group_key": "g", "keep_groups": "shard"}, InfeasibleError, "1 groups cannot give each of 2 shards"),
        ([3] * 4, {"group_key": "g", "batch_size": 2}, InfeasibleError, "'g' lie in several chunks .* 7 from row 0 to"),
        ([3, 3], {"group_key": "x"}, ArgumentError, "group_key 'x' is no column"),
        ([3, 3], {"group_key": "f"}, ArgumentError, "group_key 'f' must hold an integer or a text .* float32"),
        (
            [3, 3],
            {"keep_groups": "node"},
            ArgumentError,
            "keep_groups must be one of 'microbatch', 'shard', got 'node'",
        ),
        ([3, 3], {"algorithm": "worst_fit"}, ArgumentError, "algorithm must be one of .*'best_fit_decreasing'"),
        ([3, 3], {"group_key": "m"}, ArgumentError, "group_key 'm' must hold integers alone or texts alone, got both"),
        ([3, 3], {"group_key": "r"}, ArgumentError, "group_key 'r' must hold an integer or a text for each row: "),
        ([3, 3], {"cost": "free"}, ArgumentError, "unknown cost 'free'"),
        ([3, 3], {"cost": 5, "group_key": "g", "keep_groups": "shard"}, ArgumentError, "unknown cost 5"),
        ([3, 3], {"sequence_length_pad_multiple": 2**70}, ArgumentError, "pad_multiple must be from 1 to 2147483647"),
        ([3, 3], {"microbatch_multiple": 0}, ArgumentError, "microbatch_multiple must be from 1 to .*, got 0"),
        ([3, -3], {}, ArgumentError, r"column 'n'\[1\] = -3"),
        ([3, 3, 3], {}, ArgumentError, "3 rows is not a multiple of 2 shards"),
    ],
)
def test_misuse_names_the_numbers(
    library: ArrayLibrary, lengths: list[int], options: dict[str, Any], error: type[Exception], text: str
):
    lists = {"g": [7] * len(lengths), "m": [1, "1", 2, 2][: len(lengths)], "r": [[1], [1, 2], [3], [3]][: len(lengths)]}
    batch = of_lengths(library, lengths, **lists, f=library.array([1.0] * len(lengths), "float32"))
    with pytest.raises(error, match=text):
        packed(batch, 2, 8, **options)
