"""Names, dtypes and values of every exporter, by hand and as properties."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.errors import ArgumentError
from dcpack.exchange import StaticShapes, exchange_samples, gather_samples
from dcpack.export import (
    ascend_tnd,
    flash_attn_varlen,
    huggingface_flat,
    megatron_fields,
    packed_seq_params,
    segment_ids,
    seq_idx,
    torch_varlen,
)
from dcpack.layout import PackedOffsets, packed_offsets, position_ids, shift_labels

# Transformer Engine's own example: aaa1 bb22 cccc3 (digits are padding).
GOLDEN = packed_offsets([3, 2, 4], [4, 4, 5])
REAL, PADDED = [0, 3, 5, 9], [0, 4, 8, 13]


def require_int32(array: Any, expected: list[Any]) -> None:
    assert isinstance(array, np.ndarray)
    assert (array.dtype, array.tolist()) == (np.int32, expected)


# ---- Megatron --------------------------------------------------------------------------------------------------------


def test_packed_seq_params_keep_real_and_padded_offsets_apart() -> None:
    params = packed_seq_params(GOLDEN, local_cp_size=2, cp_group="group")
    for name in ("cu_seqlens_q", "cu_seqlens_kv"):
        require_int32(params.pop(name), REAL)
    for name in ("cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
        require_int32(params.pop(name), PADDED)
    assert params == {
        "qkv_format": "thd",
        "max_seqlen_q": 5,
        "max_seqlen_kv": 5,
        "local_cp_size": 2,
        "cp_group": "group",
        "pad_between_seqs": True,
    }
    assert type(params["max_seqlen_q"]) is int


def test_the_switch_puts_the_padded_offsets_in_both_places() -> None:
    params = packed_seq_params(GOLDEN, padded_in_both=True)
    for name in ("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded", "cu_seqlens_kv_padded"):
        require_int32(params[name], PADDED)
    assert params["pad_between_seqs"] is False
    assert params["local_cp_size"] is None


def test_no_padding_between_sequences_is_said() -> None:
    assert packed_seq_params(packed_offsets([3, 2]))["pad_between_seqs"] is False


def test_a_tail_becomes_a_sequence_of_padding() -> None:
    params = packed_seq_params(GOLDEN, num_tokens=20)
    require_int32(params["cu_seqlens_q"], [*REAL, 9])
    require_int32(params["cu_seqlens_q_padded"], [*PADDED, 20])
    assert params["max_seqlen_q"] == 7  # the tail is the longest
    assert packed_seq_params(GOLDEN, num_tokens=13)["cu_seqlens_q"].tolist() == REAL


def test_exports_own_their_memory() -> None:
    params = packed_seq_params(GOLDEN)
    params["cu_seqlens_q"][:] = 7
    assert params["cu_seqlens_kv"].tolist() == REAL
    assert GOLDEN.cu_seqlens.tolist() == REAL
    flash = flash_attn_varlen(GOLDEN)
    flash["cu_seqlens_q"][:] = 7
    assert flash["cu_seqlens_k"].tolist() == GOLDEN.cu_seqlens_padded.tolist() == PADDED


def test_megatron_fields_have_its_names_dtypes_and_batch_dim() -> None:
    given = {
        "input_ids": np.array([5, 6], np.uint16),
        "labels": np.array([6, -100], np.int32),
        "loss_mask": np.array([True, False]),
        "position_ids": np.array([0, 1], np.int8),
        "teacher": np.ones((2, 3), np.float16),
    }
    made = megatron_fields(given)
    kinds = {name: (array.dtype.name, array.shape) for name, array in made.items()}
    assert kinds == {
        "tokens": ("int64", (1, 2)),
        "labels": ("int64", (1, 2)),
        "loss_mask": ("float32", (1, 2)),
        "position_ids": ("int64", (1, 2)),
        "teacher": ("float16", (1, 2, 3)),
    }
    assert made["labels"].tolist() == [[6, -100]]
    assert made["loss_mask"].tolist() == [[1.0, 0.0]]


def test_megatron_fields_refuse_what_does_not_fit() -> None:
    with pytest.raises(ArgumentError, match="'tokens' twice, the second time as 'tokens'"):
        megatron_fields({"input_ids": np.zeros(1, np.int64), "tokens": np.zeros(1, np.int64)})
    with pytest.raises(ArgumentError, match="labels must fit in int64, got float32"):
        megatron_fields({"labels": np.zeros(1, np.float32)})
    with pytest.raises(ArgumentError, match="loss_mask must hold real numbers, got complex64"):
        megatron_fields({"loss_mask": np.zeros(1, np.complex64)})


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float64, np.int64, np.uint8])
def test_a_loss_mask_of_any_real_dtype_becomes_float32(dtype: Any) -> None:
    made = megatron_fields({"loss_mask": np.array([1, 0], dtype)})["loss_mask"]
    assert (made.dtype, made.tolist()) == (np.float32, [[1.0, 0.0]])


# ---- kernels with one set of offsets ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("export", "names"),
    [
        (flash_attn_varlen, ("cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k")),
        (torch_varlen, ("cu_seq_q", "cu_seq_k", "max_q", "max_k")),
    ],
)
def test_varlen_arguments(export: Any, names: tuple[str, ...]) -> None:
    plain = export(GOLDEN)
    assert set(plain) == set(names)
    require_int32(plain[names[0]], PADDED)
    require_int32(plain[names[1]], PADDED)
    assert (plain[names[2]], plain[names[3]]) == (5, 5)
    full = export(GOLDEN, seqused=True, num_tokens=15)
    require_int32(full.pop("seqused_k"), [3, 2, 4, 0])
    require_int32(full[names[0]], [*PADDED, 15])


def test_ascend_takes_ends_as_host_integers() -> None:
    made = ascend_tnd(packed_offsets([3, 2, 4]))
    assert made == {"input_layout": "TND", "actual_seq_qlen": [3, 5, 9], "actual_seq_kvlen": [3, 5, 9]}
    assert all(type(end) is int for end in made["actual_seq_qlen"])
    assert made["actual_seq_qlen"] is not made["actual_seq_kvlen"]
    assert ascend_tnd(GOLDEN, num_tokens=15)["actual_seq_qlen"] == [4, 8, 13, 15]


# ---- one number a token ----------------------------------------------------------------------------------------------


def test_segments_by_hand() -> None:
    require_int32(seq_idx(GOLDEN), [[0] * 4 + [1] * 4 + [2] * 5])
    require_int32(seq_idx(GOLDEN, num_tokens=15), [[0] * 4 + [1] * 4 + [2] * 5 + [3] * 2])
    require_int32(segment_ids(GOLDEN, num_tokens=15), [[1, 1, 1, 0, 2, 2, 0, 0, 3, 3, 3, 3, 0, 0, 0]])


def test_repeated_tail_offsets_are_sequences_of_no_token() -> None:
    fixed = PackedOffsets(
        cu_seqlens=np.array([0, 3, 5, 5, 5], np.int32),
        cu_seqlens_padded=np.array([0, 4, 8, 8, 8], np.int32),
        max_seqlen=64,
    )
    require_int32(segment_ids(fixed), [[1, 1, 1, 0, 2, 2, 0, 0]])
    assert packed_seq_params(fixed)["max_seqlen_q"] == 64
    fields = {"input_ids": np.arange(8), "labels": np.full(8, -100), "position_ids": np.zeros(8, np.int64)}
    assert huggingface_flat(fixed, fields)["labels"].tolist() == [[-100] * 8]


# ---- Hugging Face ----------------------------------------------------------------------------------------------------


def hf_fields(**changes: Any) -> dict[str, Any]:
    """The fields of [10 11 12 .] [20 21 . .] and one more slot of tail."""
    fields = {
        "input_ids": np.array([10, 11, 12, 0, 20, 21, 0, 0, 0]),
        "labels": np.array([11, 12, -100, -100, 21, -100, -100, -100, -100]),
        "position_ids": np.array([0, 1, 2, 0, 0, 1, 0, 0, 0]),
    }
    return {**fields, **changes}


def test_labels_go_back_to_the_token_that_they_predict() -> None:
    made = huggingface_flat(packed_offsets([3, 2], [4, 4]), hf_fields())
    assert made["labels"].tolist() == [[-100, 11, 12, -100, -100, 21, -100, -100, -100]]
    assert made["input_ids"].tolist() == [[10, 11, 12, 0, 20, 21, 0, 0, 0]]
    assert made["position_ids"].tolist() == [[0, 1, 2, 0, 0, 1, 0, 0, 0]]
    require_int32(made["cu_seq_lens_q"], [0, 4, 8, 9])
    require_int32(made["cu_seq_lens_k"], [0, 4, 8, 9])
    assert (made["max_length_q"], made["max_length_k"]) == (4, 4)
    assert {made[name].dtype.name for name in ("input_ids", "position_ids", "labels")} == {"int64"}


def test_a_masked_label_and_a_label_in_padding_are_ignored() -> None:
    mask = np.array([1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    labels = hf_fields()["labels"]
    labels[6] = 99  # in padding
    made = huggingface_flat(packed_offsets([3, 2], [4, 4]), hf_fields(loss_mask=mask, labels=labels))
    assert made["labels"].tolist() == [[-100, 11, -100, -100, -100, 21, -100, -100, -100]]


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"labels": np.array([11, 12, 13, -100, 21, -100, -100, -100, -100])}, "sequence 0 has 13"),
        ({"loss_mask": np.array([0.5] * 9)}, "must be 0 or 1, as labels can say no more: 0.5 at 0, 0.5 at 1, 0.5 at 4"),
        ({"loss_mask": np.ones(3)}, r"loss_mask must have the shape of labels \(9,\), got \(3,\)"),
        ({"labels": np.zeros(5, np.int64)}, r"whole rows of at least 8 tokens, got labels \(5,\)"),
        ({"input_ids": np.arange(9) + 0.5}, "must hold integers that fit in int64, got input_ids float64"),
        ({"input_ids": np.zeros(4), "labels": np.zeros(4), "position_ids": np.zeros(4)}, "at least 8 tokens, got 4"),
    ],
)
def test_hugging_face_refuses(changes: dict[str, Any], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        huggingface_flat(packed_offsets([3, 2], [4, 4]), hf_fields(**changes))


def test_hugging_face_needs_its_fields() -> None:
    with pytest.raises(ArgumentError, match="no labels, position_ids"):
        huggingface_flat(packed_offsets([3]), {"input_ids": np.zeros(3)})


# ---- what all refuse -------------------------------------------------------------------------------------------------

EXPORTS = [packed_seq_params, flash_attn_varlen, torch_varlen, ascend_tnd, seq_idx, segment_ids]


def offsets(real: list[int], padded: list[int], largest: Any) -> Any:
    return SimpleNamespace(cu_seqlens=np.array(real), cu_seqlens_padded=np.array(padded), max_seqlen=largest)


@pytest.mark.parametrize("export", EXPORTS)
@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (offsets([0, 5], [0, 4], 5), r"must leave room for cu_seqlens: \[0, 5\] in \[0, 4\]"),
        (offsets([0, 3], [0, 4, 8], 4), "must leave room"),
        (offsets([0, 3], [0, 4], 3), "max_seqlen must be at least 4, got 3"),
        (offsets([0, 3], [0, 4], np.array([4])), "max_seqlen must be an integer"),
        (offsets([0, 2**31], [0, 2**31], 2**31), "over the 2147483647 that int32"),
        (SimpleNamespace(cu_seqlens=[0, 1]), "no cu_seqlens_padded, max_seqlen"),
    ],
)
def test_wrong_offsets_are_refused(export: Any, packed: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        export(packed)


@pytest.mark.parametrize("export", EXPORTS)
def test_a_row_shorter_than_its_sequences_is_refused(export: Any) -> None:
    with pytest.raises(ArgumentError, match="num_tokens must be from 13 to 2147483647, got 12"):
        export(GOLDEN, num_tokens=12)


# ---- properties ------------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 4)), min_size=1, max_size=8), st.integers(0, 5))
def test_all_exports_say_the_same(row: list[tuple[int, int]], tail: int) -> None:
    lengths, padded = [n for n, _ in row], [n + extra for n, extra in row]
    packed = packed_offsets(lengths, padded)
    total = sum(padded) + tail
    numbers = seq_idx(packed, num_tokens=total)[0]
    segments = segment_ids(packed, num_tokens=total)[0]
    assert np.bincount(numbers).tolist() == padded + [tail] * (tail > 0)
    assert np.bincount(segments, minlength=len(row) + 1)[1:].tolist() == lengths
    assert np.all((segments == 0) | (segments == numbers + 1))
    ends = ascend_tnd(packed, num_tokens=total)["actual_seq_qlen"]
    assert ends == flash_attn_varlen(packed, num_tokens=total)["cu_seqlens_q"][1:].tolist()
    assert ends == torch_varlen(packed, num_tokens=total)["cu_seq_k"][1:].tolist()
    assert ends == packed_seq_params(packed, num_tokens=total)["cu_seqlens_q_padded"][1:].tolist()
    # What a Hugging Face model makes of the unshifted labels is what the shifted ones say.
    tokens = np.arange(1, total + 1)
    shifted = np.where(segments > 0, shift_labels(tokens, np.append(packed.cu_seqlens_padded, total)), -100)
    lasts = packed.cu_seqlens_padded[:-1] + np.array(lengths) - 1
    shifted[lasts] = -100
    places = np.append(position_ids(lengths, padded), np.zeros(tail, np.int64))
    made = huggingface_flat(packed, {"input_ids": tokens, "labels": shifted, "position_ids": places})
    assert np.append(made["labels"][0][1:], -100).tolist() == shifted.tolist()


@pytest.mark.parametrize("static_shapes", [None, StaticShapes(max_sequences=6)])
def test_batches_of_the_exchange_are_exported_as_they_are(static_shapes: StaticShapes | None) -> None:
    def step(communicator: dcpack.Communicator) -> dict[str, Any]:
        mine = [{"input_ids": np.arange(1, 3 + communicator.rank + i)} for i in range(2)]
        gathered = gather_samples(communicator, mine)
        plan = dcpack.plan(
            gathered.table.lengths, num_ranks=2, capacity=32, max_cp_size=1, padding=dcpack.PaddingRule(tp=4)
        )
        (batch,) = exchange_samples(communicator, gathered, plan, static_shapes=static_shapes)[communicator.rank]
        size = batch.num_tokens
        hf = huggingface_flat(batch, batch.tokens)
        assert segment_ids(batch, num_tokens=size)[0].tolist() == batch.tokens["segment_ids"].tolist()
        assert packed_seq_params(batch)["max_seqlen_q"] == batch.max_seqlen
        assert megatron_fields(batch.tokens)["tokens"].shape == (1, size)
        return {"labels": hf["labels"][0], "segments": batch.tokens["segment_ids"], "tokens": hf["input_ids"][0]}

    for result in dcpack.run_ranks(2, step):
        # In an unshifted row each label is the token itself, but for the first of each sequence.
        first = np.diff(result["segments"], prepend=0) != 0
        expected = np.where((result["segments"] == 0) | first, -100, result["tokens"])
        assert result["labels"].tolist() == expected.tolist()
        assert np.count_nonzero(expected != -100) > 0
