from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import ArgumentError, DcpackError, PeerError
from dcpack.exchange import FieldKind, GatheredSamples, SampleTable, gather_samples

Fail = Callable[..., list[tuple[type[DcpackError], str]]]


def gather(samples: Sequence[Sequence[Any]], ids: Sequence[Any] | None = None, **options: Any) -> list[GatheredSamples]:
    """What every rank gets; rank r brings ``samples[r]``."""

    def fn(communicator: dcpack.Communicator) -> GatheredSamples:
        mine = None if ids is None else ids[communicator.rank]
        return gather_samples(communicator, samples[communicator.rank], ids=mine, **options)

    return dcpack.run_ranks(len(samples), fn)


def assert_same_table(found: SampleTable, wanted: SampleTable) -> None:
    for field in fields(SampleTable):
        mine, theirs = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(theirs, np.ndarray):
            assert mine.dtype == theirs.dtype, field.name
            assert mine.tolist() == theirs.tolist(), field.name
        else:
            assert mine == theirs, field.name


def text(*lengths: int) -> list[dict[str, Any]]:
    return [{"tokens": np.arange(length)} for length in lengths]


def test_samples_are_ordered_by_process_and_place() -> None:
    for gathered in gather([text(3, 1), text(), text(5)]):
        table = gathered.table
        assert table.lengths.tolist() == [3, 1, 5]
        assert table.ids.tolist() == [0, 1, 2]
        assert table.num_valid.tolist() == [2, 0, 4]
        assert table.global_valid_tokens == 6
        assert table.holder_offsets.tolist() == [0, 1, 2, 3]
        assert table.holders.tolist() == [0, 0, 2]
        assert table.holder_places.tolist() == [0, 1, 0]


def test_fields_by_hand() -> None:
    samples = [
        [{"tokens": np.arange(2, dtype=np.int32), "image": np.ones((4, 3, 2), np.float16)}],
        [{"tokens": np.arange(3, dtype=np.int32), "score": np.float32(1)}, {"tokens": np.arange(1)}],
    ]
    table = gather(samples)[0].table
    image = FieldKind(name="image", dtype="float16", dims=(3, 2), is_scalar=False, per_token=False)
    score = FieldKind(name="score", dtype="float32", dims=(), is_scalar=True, per_token=False)
    tokens = [
        FieldKind(name=n, dtype=d, dims=(), is_scalar=False, per_token=True)
        for n in ("input_ids", "labels")
        for d in ("int32", "int64")
    ]
    assert table.field_names == ("image", "input_ids", "labels", "score")
    assert table.kinds == (image, *tokens, score)
    assert table.kind_of.tolist() == [[0, 1, 3, -1], [-1, 1, 3, 5], [-1, 2, 4, -1]]
    assert table.rows.tolist() == [[4, 2, 2, 0], [0, 3, 3, 1], [0, 1, 1, 0]]
    assert [kind.row_bytes for kind in table.kinds] == [12, 4, 8, 4, 8, 4]
    assert table.has_field("image").tolist() == [True, False, False]
    assert table.has_field("unheard of").tolist() == [False] * 3


def test_row_bytes_of_small_floats() -> None:
    kind = FieldKind(name="x", dtype="bfloat16", dims=(3,), is_scalar=False, per_token=True)
    assert kind.row_bytes == 6


def test_every_process_has_the_same_table_and_its_own_samples(table_of: Callable[..., SampleTable]) -> None:
    samples = [
        [{"tokens": np.arange(4), "emb": np.ones((4, 2))}],
        [{"tokens": np.arange(2), 'ünïcode "name"': np.zeros(3, np.int8)}, {"tokens": np.arange(0), "score": 1.0}],
        [],
        [{"tokens": np.arange(1, dtype=np.uint8), "emb": np.ones((1, 2), np.float32)}],
    ]
    gathered = gather(samples, per_token=["emb"])
    flat = [sample for mine in samples for sample in mine]
    wanted = table_of(flat, [[0], [1], [1], [3]], ["emb"])
    for rank, one in enumerate(gathered):
        assert_same_table(one.table, wanted)
        assert [sample.length for sample in one.local] == [len(s["tokens"]) for s in samples[rank]]


def test_copies_are_one_sample_with_several_holders() -> None:
    # Ids 9, 4 and 7; processes 0 and 1 are CP siblings, process 2 holds two of the three in another order.
    nine, four, seven = text(3, 1, 2)
    gathered = gather([[nine, four], [nine, four], [seven, four]], ids=[[9, 4], [9, 4], [7, 4]])
    for one in gathered:
        table = one.table
        assert table.ids.tolist() == [9, 4, 7]
        assert table.lengths.tolist() == [3, 1, 2]
        assert table.holder_offsets.tolist() == [0, 2, 5, 6]
        assert table.holders.tolist() == [0, 1, 0, 1, 2, 2]
        assert table.holder_places.tolist() == [0, 0, 1, 1, 1, 0]
        assert table.global_valid_tokens == 3  # each sample counts once


def test_without_ids_equal_samples_are_different_ones() -> None:
    table = gather([text(3), text(3)])[0].table
    assert table.lengths.tolist() == [3, 3]
    assert table.ids.tolist() == [0, 1]


def test_a_process_without_samples_need_not_give_ids() -> None:
    table = gather([[], text(3), text(3)], ids=[None, [5], np.array([5], np.uint8)])[0].table
    assert table.ids.tolist() == [5]
    assert table.holders.tolist() == [1, 2]


def test_no_samples_anywhere() -> None:
    for gathered in gather([[], []]):
        table = gathered.table
        assert (table.num_samples, table.global_valid_tokens, table.field_names, table.kinds) == (0, 0, (), ())
        assert table.kind_of.shape == (0, 0)
        assert table.holder_offsets.tolist() == [0]
        assert table.has_field("image").shape == (0,)


def test_one_gather_and_no_other_payload() -> None:
    def fn(communicator: dcpack.Communicator) -> dict[str, int]:
        gather_samples(communicator, text(3))
        return {verb: count for verb, count in communicator.counters.calls.items() if count}

    assert dcpack.run_ranks(2, fn) == [{"agree": 1, "all_gather": 1}] * 2


def test_tables_cannot_be_changed() -> None:
    table = gather([text(3, 2)])[0].table
    arrays = [getattr(table, field.name) for field in fields(table)]
    assert [array.flags.writeable for array in arrays if isinstance(array, np.ndarray)] == [False] * 8


def test_holders_are_group_local_and_messages_name_global_ranks(fail_everywhere: Fail) -> None:
    def fn(communicator: dcpack.Communicator) -> list[int]:
        child = communicator.split([[2, 0], [1]])
        return gather_samples(child, text(communicator.rank + 1)).table.lengths.tolist()

    assert dcpack.run_ranks(3, fn) == [[3, 1], [2], [3, 1]]

    def half(communicator: dcpack.Communicator) -> None:
        child = communicator.split([[2, 0], [1]])
        gather_samples(child, text(1), ids=[0] if child.rank else None)
        if communicator.rank == 1:
            raise ArgumentError("rank 1 is in a group of its own")

    errors = fail_everywhere(3, half)
    assert errors[0] == errors[2] == (ArgumentError, "ids must be given on all ranks or on none; missing on rank 2")


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"tokens": np.arange(4)}, "length"),
        ({"tokens": np.arange(3), "score": 1.0}, "an additional field"),
        ({"tokens": np.arange(3, dtype=np.int32)}, "dtype"),
        ({"tokens": np.arange(3), "labels": [1, -100, -100]}, "valid tokens"),
    ],
)
def test_copies_must_agree(other: dict[str, Any], why: str, fail_everywhere: Fail) -> None:
    def fn(communicator: dcpack.Communicator) -> None:
        mine = [text(2, 3), text(3), [other]][communicator.rank]
        gather_samples(communicator, mine, ids=[[1, 8], [8], [8]][communicator.rank])

    message = "copies of a sample must agree in length and fields: id 8 on rank 2 against rank 0"
    assert fail_everywhere(3, fn) == [(ArgumentError, message)] * 3, why


def test_all_differing_copies_are_named(fail_everywhere: Fail) -> None:
    def fn(communicator: dcpack.Communicator) -> None:
        gather_samples(communicator, text(1, 2) if communicator.rank == 0 else text(2, 1), ids=[6, 5])

    assert fail_everywhere(2, fn)[0][1].endswith("id 6 on rank 1 against rank 0, id 5 on rank 1 against rank 0")


def test_copies_with_rows_that_differ(fail_everywhere: Fail) -> None:
    def fn(communicator: dcpack.Communicator) -> None:
        sample = {"tokens": [1], "image": np.ones((communicator.rank + 1, 2))}
        gather_samples(communicator, [sample], ids=[3])

    assert "id 3 on rank 1 against rank 0" in fail_everywhere(2, fn)[0][1]


def test_ids_on_some_ranks_only(fail_everywhere: Fail) -> None:
    def fn(communicator: dcpack.Communicator) -> None:
        gather_samples(communicator, text(1), ids=[communicator.rank] if communicator.rank == 1 else None)

    message = "ids must be given on all ranks or on none; missing on rank 0, rank 2"
    assert fail_everywhere(3, fn) == [(ArgumentError, message)] * 3


def test_per_token_must_be_the_same_on_all_ranks(fail_everywhere: Fail) -> None:
    def fn(communicator: dcpack.Communicator) -> None:
        gather_samples(communicator, [], per_token=["emb"] if communicator.rank else [])

    for kind, message in fail_everywhere(2, fn):
        assert kind is ArgumentError
        assert message.startswith("per_token must be the same on all ranks: rank 0 has ['input_ids', ")
        assert "rank 1 has ['emb', 'input_ids', " in message


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([1], "ids must name each sample: 1 ids, 2 samples"),
        ([4, 4], "ids must be different on one process: 4"),
        ([-1, 4], "ids must be at least 0: ids[0] = -1"),
        ([0.5, 1.5], "ids must hold integers, got dtype float64: ids[0] = 0.5, ids[1] = 1.5"),
    ],
)
def test_wrong_ids_of_one_rank_are_everybodys_error(ids: list[Any], message: str, fail_everywhere: Fail) -> None:
    def fn(communicator: dcpack.Communicator) -> None:
        gather_samples(communicator, text(1, 2), ids=ids if communicator.rank == 1 else [0, 1])

    for kind, found in fail_everywhere(3, fn):
        assert kind is PeerError
        first_line = found.splitlines()[0]
        assert "rank 1 failed" in first_line
        assert first_line.endswith(message)


def test_a_wrong_sample_of_one_rank_is_everybodys_error(fail_everywhere: Fail) -> None:
    def fn(communicator: dcpack.Communicator) -> None:
        gather_samples(communicator, [{"tokens": [1]}, {"tokens": [1], "name": "x"}] if communicator.rank == 2 else [])

    for kind, message in fail_everywhere(3, fn):
        assert kind is PeerError
        assert "rank 2 failed" in message.splitlines()[0]
        assert "samples[1]['name']: dtype <U1 cannot be sent" in message.splitlines()[0]
