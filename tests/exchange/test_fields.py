from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dcpack.errors import ArgumentError
from dcpack.exchange import NEUTRAL_VALUES, PER_TOKEN_FIELDS, SPELLINGS, prepare_samples


@pytest.mark.parametrize(("spelling", "name"), [*SPELLINGS.items(), *((name, name) for name in PER_TOKEN_FIELDS)])
def test_every_spelling_becomes_the_standard_name(spelling: str, name: str) -> None:
    sample = {"tokens": [5, 6, 7]} if name != "input_ids" else {}
    (prepared,) = prepare_samples([{**sample, spelling: [1, 2, 3]}])
    assert prepared.fields[name].tolist() == [1, 2, 3]
    assert set(prepared.fields) == {"input_ids", "labels", name}


def test_spellings_of_the_frameworks() -> None:
    # Megatron, torchtitan, Grain, seqio/T5X: a lost spelling would make a standard field an opaque one.
    megatron = {"tokens", "labels", "loss_mask", "position_ids"}
    grain = {"inputs", "targets", "inputs_positions"}
    seqio = {"decoder_input_tokens", "decoder_target_tokens", "decoder_loss_weights", "decoder_positions"}
    known = {*SPELLINGS, *PER_TOKEN_FIELDS}
    assert megatron | grain | seqio | {"input"} <= known


def test_labels_are_shifted_once_before_anything_else() -> None:
    shifted, given = prepare_samples([{"tokens": [10, 11, 12]}, {"tokens": [10, 11, 12], "targets": [11, 12, 13]}])
    assert shifted.fields["labels"].tolist() == [11, 12, -100]
    assert (shifted.length, shifted.num_valid) == (3, 2)
    assert given.fields["labels"].tolist() == [11, 12, 13]
    assert given.num_valid == 3


@pytest.mark.parametrize(
    ("tokens", "labels"),
    [("int8", "int8"), ("int16", "int16"), ("int32", "int32"), ("uint8", "int64"), ("uint16", "int64")],
)
def test_labels_can_hold_the_ignored_value(tokens: str, labels: str) -> None:
    (prepared,) = prepare_samples([{"tokens": np.array([3, 4], tokens)}])
    assert prepared.fields["labels"].tolist() == [4, -100]
    assert prepared.fields["labels"].dtype == labels
    assert prepared.fields["input_ids"].dtype == tokens


def test_given_unsigned_labels_can_hold_the_ignored_value() -> None:
    # Token files of uint16 give inputs and targets of uint16; padding will need -100 among the labels.
    (prepared,) = prepare_samples([{"inputs": np.array([3, 4], np.uint16), "targets": np.array([4, 5], np.uint16)}])
    assert prepared.fields["labels"].tolist() == [4, 5]
    assert prepared.fields["labels"].dtype.kind == "i"


@pytest.mark.parametrize("length", [0, 1])
def test_sequences_too_short_to_predict_anything(length: int) -> None:
    (prepared,) = prepare_samples([{"tokens": np.arange(length)}])
    assert prepared.fields["labels"].tolist() == [-100] * length
    assert (prepared.length, prepared.num_valid) == (length, 0)


@pytest.mark.parametrize(
    ("loss_mask", "num_valid"), [([1, 1, 1, 1], 2), ([0, 1, 1, 1], 1), ([0.0, 0.5, 1, 1], 1), ([False] * 4, 0)]
)
def test_what_counts_in_the_loss(loss_mask: list[Any], num_valid: int) -> None:
    # Labels 7, 8, -100, -100: a token counts by its label and its mask.
    sample = {"tokens": [1, 2, 3, 4], "labels": [7, 8, -100, -100], "loss_mask": np.array(loss_mask)}
    (prepared,) = prepare_samples([sample])
    assert prepared.num_valid == num_valid
    assert prepared.fields["loss_mask"].dtype == np.array(loss_mask).dtype


def test_other_fields_keep_shape_dtype_and_name() -> None:
    sample = {
        "tokens": [1, 2],
        "pixel_values": np.ones((5, 3, 2), np.float16),
        "score": 0.5,
        "one": np.array([7], np.int8),
    }
    (prepared,) = prepare_samples([sample])
    assert prepared.fields["pixel_values"].shape == (5, 3, 2)
    assert prepared.fields["score"].shape == ()
    assert prepared.fields["one"].shape == (1,)
    assert [prepared.fields[name].dtype for name in ("pixel_values", "score", "one")] == ["float16", "float64", "int8"]


def test_the_samples_given_are_not_changed() -> None:
    tokens = np.arange(4)
    tokens.setflags(write=False)
    sample = {"tokens": tokens, "score": 1.5}
    prepare_samples([sample])
    assert list(sample) == ["tokens", "score"]
    assert sample["tokens"] is tokens
    assert tokens.tolist() == [0, 1, 2, 3]


def test_no_samples_are_fine() -> None:
    assert prepare_samples([]) == ()


def test_declared_per_token_fields_may_be_missing() -> None:
    with_it, without = prepare_samples([{"tokens": [1, 2], "emb": np.ones((2, 3))}, {"tokens": [1]}], ["emb"])
    assert with_it.fields["emb"].shape == (2, 3)
    assert "emb" not in without.fields


def test_neutral_values_of_padding() -> None:
    assert {name: NEUTRAL_VALUES.get(name, 0) for name in PER_TOKEN_FIELDS} == {
        "input_ids": 0,
        "labels": -100,
        "loss_mask": 0,
        "position_ids": 0,
    }


GOOD = {"tokens": [1, 2, 3]}


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([1, 2], r"samples\[1\] must be a mapping from field names to arrays, got list"),
        ({"labels": [1]}, r"samples\[1\]: no input_ids under any known spelling among \['labels'\]"),
        ({}, r"samples\[1\]: no input_ids under any known spelling among \[\]"),
        (
            {"tokens": [1], "input_ids": [1]},
            r"samples\[1\]: field 'input_ids' is given twice, the second time as 'input_ids'",
        ),
        ({"labels": [1], "targets": [1]}, r"samples\[1\]: field 'labels' is given twice, .* as 'targets'"),
        ({"tokens": [1], 5: [1]}, r"samples\[1\]: field names must be str, got 5"),
        ({"tokens": [1], "text": "hello"}, r"samples\[1\]\['text'\]: dtype <U5 cannot be sent"),
        ({"tokens": [1], "meta": None}, r"samples\[1\]\['meta'\]: dtype object cannot be sent"),
        ({"tokens": [1], "ragged": [[1], [1, 2]]}, r"samples\[1\]\['ragged'\]: "),
        ({"tokens": [1], "when": np.datetime64("2020-01-01")}, r"samples\[1\]\['when'\]: dtype datetime64\[D\] cannot"),
        ({"tokens": [[1, 2]]}, r"samples\[1\]: input_ids must be an integer array \[length\], got int64 \(1, 2\)"),
        ({"tokens": 7}, r"samples\[1\]: input_ids must be an integer array \[length\], got int64 \(\)"),
        ({"tokens": [1.0]}, r"samples\[1\]: input_ids must be an integer array \[length\], got float64 \(1,\)"),
        ({"tokens": [True]}, r"samples\[1\]: input_ids must be an integer array \[length\], got bool \(1,\)"),
        ({"tokens": []}, r"samples\[1\]: an empty input_ids needs an integer dtype, got float64"),
        (
            {"tokens": [1, 2], "labels": [1], "loss_mask": 1.0, "emb": np.ones((3, 2))},
            r"samples\[1\]: per-token fields must have 2 tokens: labels of shape \(1,\), loss_mask of shape \(\), "
            r"emb of shape \(3, 2\)",
        ),
    ],
)
def test_errors_name_the_sample_and_the_field(bad: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        prepare_samples([GOOD, bad], ["emb"])


@pytest.mark.parametrize("samples", [GOOD, 5, iter([GOOD])])
def test_samples_must_be_a_sequence(samples: Any) -> None:
    with pytest.raises(ArgumentError, match="samples must be a sequence of mappings, got "):
        prepare_samples(samples)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("loss_mask", np.ones((3, 1))),  # would broadcast against the labels and count tokens that do not exist
        ("labels", np.ones((3, 2), np.int64)),
        ("labels", np.ones(3)),  # class numbers are integers
    ],
)
def test_loss_fields_have_one_number_a_token(field: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=rf"samples\[0\].*{field}"):
        prepare_samples([{"tokens": [1, 2, 3], "loss_mask": np.ones(3), field: value}])


def test_per_token_is_a_sequence_of_names() -> None:
    # A lone string would declare its letters, and the field would silently travel whole.
    with pytest.raises(ArgumentError, match="per_token"):
        prepare_samples([{"tokens": [1, 2, 3], "emb": [1, 2, 3]}], "emb")
