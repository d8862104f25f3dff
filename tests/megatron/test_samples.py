"""Samples taken apart: what is sliced, what passes, what is refused."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.errors import ArgumentError
from dcpack.megatron import unpack_samples


def packed(**changes: Any) -> dict[str, Any]:
    sample = {
        "tokens": np.arange(10, 19)[np.newaxis],
        "labels": np.arange(11, 20)[np.newaxis],
        "loss_mask": np.ones((1, 9), np.float32),
        "position_ids": np.array([[0, 1, 2, 0, 1, 0, 1, 2, 3]]),
        "teacher": np.arange(18.0).reshape(1, 9, 2),
        "cu_seqlens": np.array([[0, 3, 5, 9]], np.int32),
        "max_seqlen": np.array([4]),
    }
    return {**sample, **changes}


def single(length: int = 4, **changes: Any) -> dict[str, Any]:
    return {"tokens": np.arange(length), "padded_seq_len": np.array([length]), **changes}


def test_pre_packed_samples_are_sliced() -> None:
    found = unpack_samples([packed(), packed()])
    assert (len(found.samples), found.num_empty) == (6, 0)
    second = found.samples[4]
    assert {name: values.tolist() for name, values in second.items()} == {
        "tokens": [13, 14],
        "labels": [14, 15],
        "loss_mask": [1.0, 1.0],
        "position_ids": [0, 1],
        "teacher": [[6.0, 7.0], [8.0, 9.0]],
        "original_seq_len": [2],
        "padded_seq_len": [2],
    }
    assert found.lengths.tolist() == found.padded_lengths.tolist() == [3, 2, 4] * 2


def test_padded_offsets_say_where_sequences_lie() -> None:
    (first, second) = unpack_samples(
        [{"tokens": np.arange(8), "cu_seqlens": np.array([0, 3, 5]), "cu_seqlens_padded": np.array([0, 4, 8])}]
    ).samples
    assert (first["tokens"].tolist(), second["tokens"].tolist()) == ([0, 1, 2, 3], [4, 5, 6, 7])
    assert (first["original_seq_len"].tolist(), first["padded_seq_len"].tolist()) == ([3], [4])
    assert (second["original_seq_len"].tolist(), second["padded_seq_len"].tolist()) == ([2], [4])


def test_empty_sequences_are_dropped_and_counted() -> None:
    found = unpack_samples([packed(cu_seqlens=np.array([0, 0, 3, 3, 9, 9])), packed()])
    assert (found.lengths.tolist(), found.num_empty) == ([3, 6, 3, 2, 4], 3)
    none = {"tokens": np.arange(4), "padded_seq_len": 4, "original_seq_len": 0}
    found = unpack_samples([single(), none])
    assert (found.lengths.tolist(), found.num_empty) == ([4], 1)


def test_one_element_goes_to_every_sequence() -> None:
    found = unpack_samples([packed(source=np.array([7]), weight=np.float32(0.5))])
    assert [sample["source"].tolist() for sample in found.samples] == [[7]] * 3
    assert [float(sample["weight"]) for sample in found.samples] == [0.5] * 3


def test_unpacked_samples_pass_through() -> None:
    image = np.zeros((2, 5))
    given = single(original_seq_len=np.array([3]), labels=np.arange(4), pixels=image)
    (found,) = unpack_samples([given]).samples
    assert set(found) == set(given)
    assert found["original_seq_len"].tolist() == [3]
    assert found["pixels"].shape == (2, 5)
    assert np.shares_memory(found["tokens"], given["tokens"])


def test_the_original_length_defaults_to_the_padded_one() -> None:
    (found,) = unpack_samples([single(padded_seq_len=4)]).samples
    assert (found["original_seq_len"].tolist(), found["padded_seq_len"].tolist()) == ([4], [4])


def test_a_batch_dimension_of_one_is_dropped() -> None:
    (found,) = unpack_samples(
        [
            {
                "tokens": np.arange(4)[np.newaxis],
                "labels": np.arange(4)[np.newaxis],
                "teacher": np.zeros((1, 4, 2)),
                "padded_seq_len": np.array([[4]]),
                "original_seq_len": np.array([3]),
            }
        ]
    ).samples
    shapes = {name: values.shape for name, values in found.items()}
    assert shapes["tokens"] == shapes["labels"] == (4,)
    assert shapes["teacher"] == (4, 2)
    (mixed,) = unpack_samples([single(labels=np.arange(4)[np.newaxis], padded_seq_len=np.array([[4]]))]).samples
    assert mixed["labels"].shape == (4,)
    (one,) = unpack_samples([single(1, teacher=np.zeros((1, 1)))]).samples
    assert one["teacher"].shape == (1, 1)  # one token, one number a token


def test_tensors_are_taken() -> None:
    given = {name: torch.as_tensor(values) for name, values in packed().items()}
    for made, expected in zip(unpack_samples([given]).samples, unpack_samples([packed()]).samples, strict=True):
        assert {name: values.tolist() for name, values in made.items()} == {
            name: values.tolist() for name, values in expected.items()
        }


def test_nothing_is_changed() -> None:
    items = [packed(), packed()]
    before = copy.deepcopy(items)
    unpack_samples(items)
    for item, old in zip(items, before, strict=True):
        assert set(item) == set(old)
        for name in old:
            np.testing.assert_array_equal(item[name], old[name])


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([single(), {"tokens": np.arange(3)}], "either cu_seqlens or padded_seq_len, not both or neither: sample 1$"),
        ([packed(padded_seq_len=9), packed()], "not both or neither: sample 0$"),
        ([packed(), single(), packed(), single()], "other than sample 0: sample 1, sample 3$"),
        ([single(), packed()], "other than sample 0: sample 1$"),
        ([single(), [1]], "samples must be mappings from names to arrays: sample 1 is list"),
        ([{"padded_seq_len": 3}], r"sample 0 must have tokens, got \['padded_seq_len'\]"),
        ([single(), single(tokens=np.zeros((2, 4)))], r"sample 1: tokens must be \[t\] or \[1, t\], got \[2, 4\]"),
        ([single(tokens=np.int64(3))], r"sample 0: tokens must be \[t\] or \[1, t\], got \[\]"),
        (
            [packed(labels=np.zeros((2, 9)))],
            r"sample 0: the leading dimension must be 1 as in tokens: labels \[2, 9\]",
        ),
        ([single(padded_seq_len=np.array([[4], [4]]))], r"the leading dimension must be 1 .*padded_seq_len \[2, 1\]"),
        ([packed(cu_seqlens=np.array([0, 3]))], "sample 0: offsets must cover its 9 tokens: cu_seqlens ends at 3$"),
        ([packed(cu_seqlens=np.array([0, 12]))], "offsets must cover its 9 tokens: cu_seqlens ends at 12"),
        ([packed(cu_seqlens=np.array([0, 5, 3, 9]))], r"sample 0: cu_seqlens must not decrease: cu_seqlens\[2\] = 3"),
        ([packed(cu_seqlens=np.array([1, 9]))], "sample 0: cu_seqlens must start at 0"),
        (
            [packed(cu_seqlens_padded=np.array([0, 2, 5, 9]))],
            "sample 0: offsets must cover its 9 tokens: cu_seqlens ends at 9, cu_seqlens_padded at 9",
        ),
        ([packed(pixels=np.zeros((1, 3)))], r"sample 0: fields without 9 rows cannot be sliced: pixels \[3\]"),
        ([single(padded_seq_len=5)], "sample 0: original_seq_len 5 and padded_seq_len 5 do not fit its 4 tokens"),
        ([single(original_seq_len=5)], "original_seq_len 5 and padded_seq_len 4 do not fit"),
        ([single(original_seq_len=-1)], "original_seq_len -1"),
        ([single(padded_seq_len=4.0)], r"sample 0: padded_seq_len must be one integer, got float64 \[\]"),
        ([single(padded_seq_len=np.array([4, 4]))], r"padded_seq_len must be one integer, got int64 \[2\]"),
    ],
)
def test_what_is_refused(items: list[Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        unpack_samples(items)


def test_a_field_that_is_no_array_names_sample_and_field() -> None:
    bad = torch.zeros(4, dtype=torch.bfloat16)
    with pytest.raises(ArgumentError, match="sample 1: teacher cannot be made an array"):
        unpack_samples([single(), single(teacher=bad)])


def test_no_sample_is_none() -> None:
    found = unpack_samples([])
    assert (found.samples, found.num_empty, found.lengths.shape) == ((), 0, (0,))


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=6), max_size=4))
def test_every_real_token_comes_out_once(layout: list[list[tuple[int, int]]]) -> None:
    items, expected, start, num_empty = [], [], 0, 0
    for sequences in layout:
        real = np.cumsum([0, *(n for n, _ in sequences)])
        padded = np.cumsum([0, *(n + extra for n, extra in sequences)])
        tokens = start + np.arange(padded[-1])
        items.append({"tokens": tokens, "cu_seqlens": real, "cu_seqlens_padded": padded})
        expected += [tokens[p : p + n].tolist() for p, (n, _) in zip(padded, sequences, strict=False) if n]
        num_empty += sum(n == 0 for n, _ in sequences)
        start += int(padded[-1])
    found = unpack_samples(items)
    assert [sample["tokens"][: sample["original_seq_len"][0]].tolist() for sample in found.samples] == expected
    assert found.num_empty == num_empty
