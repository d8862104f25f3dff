"""Every method of a batch on arrays of NumPy, torch and JAX; values by hand. Sharding has files of its own."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch
from array_libraries import ArrayLibrary

from dcpack import BatchedDataDict, SlicedDataDict
from dcpack.batched_data_dict import PackedColumn
from dcpack.comm import Communicator, run_ranks
from dcpack.errors import ArgumentError, PeerError


@pytest.fixture
def batch(library: ArrayLibrary) -> BatchedDataDict:
    """Four rows: tokens, a number each, three dims, a list, and 1, 0, 2, 1 images."""
    return BatchedDataDict(
        ids=library.array([[1, 2, 3], [4, 5, 0], [6, 0, 0], [7, 8, 9]]),
        reward=library.array([0.5, 1.5, 2.5, 3.5], "float32"),
        top=library.array(np.arange(24).reshape(4, 3, 2)),
        text=["a", "b", "c", "d"],
        images=PackedColumn(library.array([[1, 1], [3, 3], [33, 33], [4, 4]]), [0, 1, 1, 3, 4]),
    )


def seen(batch: BatchedDataDict, library: ArrayLibrary) -> dict[str, Any]:
    """All values as lists, types checked; of `top` the first value of each row only."""
    images = batch["images"]
    assert isinstance(images, PackedColumn)
    return {
        "ids": library.values(batch["ids"]),
        "reward": library.values(batch["reward"]),
        "top": [row[0][0] for row in library.values(batch["top"])],
        "text": batch["text"],
        "images": [[item[0] for item in library.values(images[i])] for i in range(len(images))],
    }


ROWS: list[dict[str, Any]] = [
    {"ids": [1, 2, 3], "reward": 0.5, "top": 0, "text": "a", "images": [1]},
    {"ids": [4, 5, 0], "reward": 1.5, "top": 6, "text": "b", "images": []},
    {"ids": [6, 0, 0], "reward": 2.5, "top": 12, "text": "c", "images": [3, 33]},
    {"ids": [7, 8, 9], "reward": 3.5, "top": 18, "text": "d", "images": [4]},
]


def rows(*numbers: int) -> dict[str, Any]:
    return {key: [ROWS[i][key] for i in numbers] for key in ROWS[0]}


# ---- rows ------------------------------------------------------------------------------------------------------------


def test_size_and_dict(batch: BatchedDataDict, library: ArrayLibrary):
    assert batch.size == 4
    assert batch.get_dict() is batch.data
    assert seen(batch, library) == rows(0, 1, 2, 3)
    assert BatchedDataDict().size == 0


def test_slice(batch: BatchedDataDict, library: ArrayLibrary):
    part = batch.slice(1, 3)
    assert type(part) is SlicedDataDict
    assert seen(part, library) == rows(1, 2)
    assert seen(batch.slice(2, 2), library) == rows()


def test_select_indices(batch: BatchedDataDict, library: ArrayLibrary):
    for indices in ([2, 0, 2, 1], np.array([2, 0, 2, 1]), library.array([2, 0, 2, 1])):
        picked = batch.select_indices(indices)
        assert type(picked) is BatchedDataDict
        assert seen(picked, library) == rows(2, 0, 2, 1)
    assert seen(batch.select_indices([]), library) == rows()


def test_chunk_is_a_copy(library: ArrayLibrary):
    batch = BatchedDataDict(x=[*"AAABBBDDE"], y=library.array(range(9)))
    part = batch.chunk(rank=2, chunks=3)
    assert type(part) is SlicedDataDict
    assert part["x"] == ["D", "D", "E"]
    assert library.values(part["y"]) == [6, 7, 8]
    if library.name != "jax":  # whose arrays nobody can change
        part["y"][0] = 77
        assert library.values(batch["y"]) == list(range(9))


def test_reorder_data(batch: BatchedDataDict, library: ArrayLibrary):
    batch.reorder_data([20, 5, 30, 10])  # sorted: 5, 10, 20, 30
    assert seen(batch, library) == rows(1, 3, 0, 2)
    by_hand = BatchedDataDict(x=library.array([3, 1, 2]))
    by_hand.reorder_data(library.array([2, 0, 1]))
    assert library.values(by_hand["x"]) == [1, 2, 3]


def test_repeat_interleave(batch: BatchedDataDict, library: ArrayLibrary):
    assert seen(batch.repeat_interleave(2), library) == rows(0, 0, 1, 1, 2, 2, 3, 3)
    assert batch.repeat_interleave(0).size == 0
    logs = BatchedDataDict(log=[["q"]]).repeat_interleave(2)["log"]
    logs[0].append("r")
    assert logs == [["q", "r"], ["q"]]


def test_truncate_tensors(batch: BatchedDataDict, library: ArrayLibrary):
    batch.truncate_tensors(dim=1, truncated_len=2)
    assert library.values(batch["ids"]) == [[1, 2], [4, 5], [6, 0], [7, 8]]
    assert batch["top"].shape == (4, 2, 2)
    assert library.values(batch["reward"]) == [0.5, 1.5, 2.5, 3.5]
    assert (len(batch["images"]), batch["text"]) == (4, ["a", "b", "c", "d"])


def test_to(batch: BatchedDataDict, library: ArrayLibrary):
    device: Any = "cpu" if library.name != "jax" else batch["ids"].devices().pop()
    assert batch.to(device) is batch
    assert seen(batch, library) == rows(0, 1, 2, 3)
    if library.name == "torch":
        assert batch.to("meta")["images"].values.device.type == batch["ids"].device.type == "meta"
    if library.name == "numpy":
        with pytest.raises(ArgumentError, match=r"columns 'ids', .*: a NumPy array cannot be moved to device 'cuda'"):
            batch.to("cuda")
        with pytest.raises(ArgumentError, match=r"column 'x': a NumPy array cannot be moved to device 'cuda'"):
            BatchedDataDict(x=np.zeros(2), text=["a", "b"]).to("cuda")
        mixed = BatchedDataDict(t=torch.zeros(1), x=np.zeros(1))
        with pytest.raises(ArgumentError, match="column 'x': a NumPy array"):
            mixed.to("meta")
        assert mixed["t"].device.type == "cpu"  # nothing has moved


def test_microbatches(batch: BatchedDataDict, library: ArrayLibrary):
    assert [seen(part, library) for part in batch.make_microbatch_iterator(2)] == [rows(0, 1), rows(2, 3)]
    assert seen(batch.get_batch(1, 2), library) == rows(2, 3)


# ---- joining ---------------------------------------------------------------------------------------------------------


def test_from_batches(library: ArrayLibrary):
    joined = BatchedDataDict.from_batches(
        [
            {"n": library.array([3, 1]), "ids": library.array([[1, 2, 3], [4, 0, 0]]), "t": ["a", "b"]},
            {"n": library.array([2]), "ids": library.array([[5, 6]]), "t": ["c"]},
        ],
        {"ids": 9, "n": 7, "unknown": 1},
    )
    assert type(joined) is BatchedDataDict
    assert library.values(joined["n"]) == [3, 1, 2]
    assert library.values(joined["ids"]) == [[1, 2, 3], [4, 0, 0], [5, 6, 9]]
    assert joined["t"] == ["a", "b", "c"]
    assert type(SlicedDataDict.from_batches([{"t": [1]}])) is SlicedDataDict


def test_from_batches_pads_with_zero_along_dim_one(library: ArrayLibrary):
    joined = BatchedDataDict.from_batches(
        [{"x": library.array(np.ones((1, 1, 2)))}, {"x": library.array(np.full((1, 3, 2), 2))}]
    )
    assert library.values(joined["x"]) == [[[1, 1], [0, 0], [0, 0]], [[2, 2]] * 3]


def test_empty_input_gives_an_empty_dict():
    assert BatchedDataDict.from_batches([]) == {}
    assert BatchedDataDict.from_batches([{}, {}]) == {}


def test_batches_without_rows_need_no_keys_and_fix_no_dtype(library: ArrayLibrary):
    empty = library.array(np.zeros((0, 5)), "float32")
    full = {"x": library.array([[1]]), "y": ["a"]}
    joined = BatchedDataDict.from_batches([{}, {"x": empty}, full])
    assert library.values(joined["x"]) == [[1]]
    assert joined["y"] == ["a"]
    assert BatchedDataDict.from_batches([{"x": empty}, {}, {"x": empty}])["x"].shape == (0, 5)


def test_a_column_without_rows_takes_the_kind_of_the_others(library: ArrayLibrary):
    values = library.array([1, 2])
    images = PackedColumn.from_rows([library.array([[1, 2]]), None])
    full = {"x": values, "y": ["a", "b"], "images": images}
    empty = {"x": [], "y": library.array([]), "images": []}
    for order in ([empty, full], [full, empty], [empty, full, empty]):
        joined = BatchedDataDict.from_batches(order)
        assert library.values(joined["x"]) == [1, 2]
        assert joined["y"] == ["a", "b"]
        assert joined["images"].counts.tolist() == [1, 0]
    # Where nobody has rows, an array says more than a list.
    for order in ([{"x": []}, {"x": values[:0]}], [{"x": values[:0]}, {"x": []}]):
        assert library.values(BatchedDataDict.from_batches(order)["x"]) == []
    assert BatchedDataDict.from_batches([{"x": []}, {"x": []}])["x"] == []
    with pytest.raises(ArgumentError, match=r"key 'x' must be of one kind in all: list in batch 1, .* in batch 2"):
        BatchedDataDict.from_batches([{"x": []}, {"x": [1, 2]}, {"x": values}])


def test_all_gather_of_a_rank_without_rows_takes_the_kind_of_the_others(library: ArrayLibrary):
    def fn(communicator: Communicator) -> BatchedDataDict:
        column = [[], library.array([[1]]), library.array([[2, 3]])][communicator.rank]
        return BatchedDataDict(x=column).all_gather(communicator)

    for batch in run_ranks(3, fn):
        assert library.values(batch["x"]) == [[1, 0], [2, 3]]


def test_a_packed_column_may_be_missing_anywhere(library: ArrayLibrary):
    with_images = {"t": ["b"], "images": PackedColumn.from_rows([library.array([[1, 2]])])}
    for order, counts in (([{"t": ["a"]}, with_images], [0, 1]), ([with_images, {"t": ["a"]}], [1, 0])):
        joined = BatchedDataDict.from_batches(order)
        assert joined["images"].counts.tolist() == counts
        assert library.values(joined["images"].values) == [[1, 2]]


# ---- gathering -------------------------------------------------------------------------------------------------------


def gathered_by(num_ranks: int, make: Any) -> list[BatchedDataDict]:
    return run_ranks(num_ranks, lambda communicator: make(communicator.rank).all_gather(communicator))


def test_all_gather(library: ArrayLibrary):
    def make(rank: int) -> BatchedDataDict:
        # rank r has r rows of r tokens: rank 0 has none
        return SlicedDataDict(
            ids=library.array(np.full((rank, rank), rank)),
            n=library.array([rank] * rank),
            log=[{"role": "user", "turns": [rank, None, 0.5]}] * rank,
            images=PackedColumn(library.array(np.full((2 * rank, 1), rank)), range(0, 2 * rank + 1, 2)),
        )

    for batch in gathered_by(3, make):
        assert type(batch) is SlicedDataDict
        assert library.values(batch["ids"]) == [[1, 0], [2, 2], [2, 2]]
        assert library.values(batch["n"]) == [1, 2, 2]
        assert [entry["turns"][0] for entry in batch["log"]] == [1, 2, 2]
        assert library.values(batch["images"].values) == [[1]] * 2 + [[2]] * 4
        assert batch["images"].counts.tolist() == [2, 2, 2]


def test_all_gather_takes_one_message(batch: BatchedDataDict):
    def fn(communicator: Communicator) -> dict[str, int]:
        batch.all_gather(communicator)
        return {verb: count for verb, count in communicator.counters.calls.items() if count}

    assert run_ranks(2, fn) == [{"all_gather": 1}] * 2


def test_all_gather_pads_and_takes_ranks_without_columns(library: ArrayLibrary):
    def fn(communicator: Communicator) -> BatchedDataDict:
        columns = [{}, {"x": library.array([[1]])}, {"x": library.array([[2, 3]])}, {}][communicator.rank]
        return BatchedDataDict(columns).all_gather(communicator, {"x": -1})

    for batch in run_ranks(4, fn):
        assert library.values(batch["x"]) == [[1, -1], [2, 3]]
    assert run_ranks(2, lambda c: BatchedDataDict().all_gather(c)) == [{}, {}]


def test_all_gather_of_a_wrong_batch_is_an_error_on_all_ranks(library: ArrayLibrary):
    def fn(communicator: Communicator) -> None:
        wrong = (
            {"x": [1, 2], "y": library.array([1])} if communicator.rank == 1 else {"x": [1], "y": library.array([1])}
        )
        with pytest.raises(PeerError, match=r"rank 1 failed .*equally many rows: 'x' has 2, 'y' has 1"):
            BatchedDataDict(wrong).all_gather(communicator)
        bad = {"x": [{1, 2}]} if communicator.rank == 1 else {"x": [1]}
        with pytest.raises(PeerError, match=r"rank 1 failed .*is of type set, which cannot be sent"):
            BatchedDataDict(bad).all_gather(communicator)
        missing = {"x": [1], "y": [2]} if communicator.rank == 1 else {"x": [1]}
        with pytest.raises(ArgumentError, match="key 'y' is missing from rank 0, which has 1 row, rank 2, which has 1"):
            BatchedDataDict(missing).all_gather(communicator)
        communicator.barrier()

    run_ranks(3, fn)


def test_all_gather_needs_a_communicator():
    group: Any = object()
    with pytest.raises(ArgumentError, match=r"group must be a dcpack Communicator, got object; .*torch-gloo"):
        BatchedDataDict(x=[1]).all_gather(group)


# ---- misuse ----------------------------------------------------------------------------------------------------------

UNEQUAL = BatchedDataDict(x=[1, 2], y=np.zeros(3))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda b: UNEQUAL.size, "equally many rows: 'x' has 2, 'y' has 3"),
        (lambda b: UNEQUAL.shard_by_batch_size(1), "equally many rows: 'x' has 2, 'y' has 3"),
        (lambda b: BatchedDataDict(x=(1, 2)).size, "column 'x' is of type tuple: it must be"),
        (lambda b: BatchedDataDict(x=np.float32(1)).size, "column 'x' is of type float32"),
        (lambda b: BatchedDataDict(x=np.array(1)).size, r"column 'x' of the batch: .* no rows: int64 of shape \(\)"),
        (lambda b: b.slice(0, 5), "end must be from 0 to 4, got 5"),
        (lambda b: b.slice(3, 2), "start must be from 0 to 2, got 3"),
        (lambda b: b.slice(-1, 2), "start must be from 0 to 2, got -1"),
        (lambda b: b.select_indices([0, 4, 9]), r"below the 4 rows: indices\[1\] = 4, indices\[2\] = 9"),
        (lambda b: b.select_indices([-1]), r"indices\[0\] = -1"),
        (lambda b: b.select_indices([True]), "indices must hold numbers, got bools"),
        (lambda b: b.chunk(0, 3), "4 rows does not divide into 3 chunks"),
        (lambda b: b.chunk(2, 2), "rank must be from 0 to 1, got 2"),
        (lambda b: BatchedDataDict(x=[]).chunk(0, 1), "0 rows does not divide into 1 chunks of at least one row"),
        (lambda b: b.reorder_data([0, 1]), "one number for each of 4 rows, got 2"),
        (lambda b: b.reorder_data([0, 1, 1, 0]), "all different, repeated: 0, 1"),
        (lambda b: b.repeat_interleave(-1), "num_repeats must be from 0 to [0-9]+, got -1"),
        (lambda b: b.truncate_tensors(1, 4), r"dim 1 cannot be cut to 4: 'ids' has shape \(4, 3\), 'top'"),
        (lambda b: b.truncate_tensors(0, 1), "dim must be at least 1, got 0"),
        (lambda b: b.make_microbatch_iterator(3), "4 rows is not a multiple of microbatch_size 3"),
        (lambda b: b.make_microbatch_iterator_with_dynamic_shapes(), "no micro-batches: shard with"),
        (lambda b: b.get_microbatch_iterator_for_packable_sequences_len(), "no micro-batches: shard with"),
        (lambda b: b.get_batch(0), "get_batch needs a batch_size"),
        (lambda b: b.get_batch(2, 2), "batch_idx must be from 0 to 1, got 2"),
        (lambda b: b.get_batch(0, 3), "batch_size must divide the 4 rows, got 3: 1 would be in no chunk"),
        (lambda b: b.slice(0, 0).get_batch(0, 5), "0 rows has no chunk of 5 rows"),
    ],
)
def test_misuse_names_the_numbers(batch: BatchedDataDict, call: Any, text: str):
    with pytest.raises(ArgumentError, match=text):
        call(batch)


def test_columns_that_do_not_fit(library: ArrayLibrary):
    a, f = library.array([[1]]), library.array([[1]], "float32")
    for batches, text in (
        ([{"x": a, "y": [1]}, {"x": a}], "key 'y' is missing from batch 1, which has 1 row"),
        ([{"x": a}, {"x": [1]}], f"key 'x' must be of one kind in all: {library.kind.__name__}|list"),
        ([{"x": a}, {"x": f}], r"key 'x' of batch 0, 1: .*int32.*float32"),
        ([{"x": a}, {"x": library.array([1])}], r"numbers of dims.*\(1, 1\).*\(1,\)"),
        ([{"x": library.array([[[1]]])}, {"x": library.array([[[1, 2]]])}], "dims from 2 on"),
        ([{"x": PackedColumn(a, [0, 1])}, {"x": PackedColumn(f, [0, 1])}], "packed values must be equal: .*float32"),
        ([[1]], "batches must be mappings: batch 0 is list"),
    ):
        with pytest.raises(ArgumentError, match=text):
            BatchedDataDict.from_batches(batches)  # pyright: ignore[reportArgumentType]
    pads: Any = 5
    with pytest.raises(ArgumentError, match="pad_value_dict must be a mapping, got 5"):
        BatchedDataDict.from_batches([{"x": a}], pads)


@pytest.mark.parametrize("value", [0.5, 2**40, "pad", None])
def test_a_pad_value_that_would_change_is_refused(library: ArrayLibrary, value: Any):
    batches = [{"x": library.array([[1]])}, {"x": library.array([[1, 2]])}]
    with pytest.raises(ArgumentError, match="pad value"):
        BatchedDataDict.from_batches(batches, {"x": value})
    assert BatchedDataDict.from_batches(batches[:1] * 2, {"x": value})["x"].shape == (2, 1)  # nothing is padded
    floats = [{"x": library.array([[1]], "float32")}, {"x": library.array([[1, 2]], "float32")}]
    assert library.values(BatchedDataDict.from_batches(floats, {"x": 0.5})["x"]) == [[1.0, 0.5], [1.0, 2.0]]


@pytest.mark.parametrize(("dtype", "value"), [("float64", 1j), ("float64", 10**400), ("object", 1)])
def test_a_pad_value_that_the_dtype_cannot_take_is_refused(dtype: str, value: Any):
    batches = [{"x": np.zeros((1, width), dtype)} for width in (1, 2)]
    with pytest.raises(ArgumentError, match=f"the pad value {value!r} cannot be held by dtype {dtype}"):
        BatchedDataDict.from_batches(batches, {"x": value})


def test_all_gather_with_pad_values_that_differ_is_an_error_on_all_ranks():
    def fn(communicator: Communicator) -> None:
        batch = BatchedDataDict(x=np.zeros((1, communicator.rank + 1), np.int64))
        pads = {"x": 0.5} if communicator.rank else {"x": 1}
        with pytest.raises(ArgumentError, match=r"on all ranks: rank 0 has \{'x': 1\}, rank 1 has \{'x': 0.5\}"):
            batch.all_gather(communicator, pads)
        wrong: Any = 5 if communicator.rank else None
        with pytest.raises(PeerError, match=r"rank 1 failed .*pad_value_dict must be a mapping, got 5"):
            batch.all_gather(communicator, wrong)
        assert batch.all_gather(communicator, {"x": 7})["x"].tolist() == [[0, 7], [0, 0]]

    run_ranks(2, fn)


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_framework_that_must_not_be_imported_is_not_loaded(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, name, None)
    assert BatchedDataDict(x=np.zeros(3)).size == 3
    with pytest.raises(ArgumentError, match="column 'x' is of type tuple"):
        _ = BatchedDataDict(x=(1, 2)).size
