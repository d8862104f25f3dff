from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack import SampleMetadata, TensorFieldSpec, build_distributed_dataloader
from dcpack.comm import Communicator

from loader_helpers import Numbered, config, mesh, on_ranks, sampler  # isort: skip


def collate(rows: Any) -> dict[str, Any]:
    """A batch with fixed and open sizes, a static value, a list and a tuple."""
    longest = max(len(row["input_ids"]) for row in rows)
    tokens = np.zeros((len(rows), longest), np.int32)
    for number, row in enumerate(rows):
        tokens[number, : len(row["input_ids"])] = row["input_ids"]
    lengths = np.array([len(row["input_ids"]) for row in rows], np.int64)
    return {"tokens": tokens, "kind": "text", "more": [(lengths, np.float16(longest) * np.ones(()))], "none": None}


SPEC = {
    "tokens": TensorFieldSpec(shape=(2, None), dtype="int32"),
    "kind": "text",
    "more": [(TensorFieldSpec(shape=(2,), dtype="int64"), TensorFieldSpec(shape=(), dtype="float64"))],
    "none": None,
}


def run(spec: Any, *, collate_fn: Any = collate, num_samples: int = 8) -> list[Any]:
    def body(communicator: Communicator) -> tuple[list[Any], Any]:
        loader = build_distributed_dataloader(
            Numbered(range(1, num_samples + 1)),
            mesh(dp=2, tp=2),
            config(local_batch_size=2),
            batch_sampler=sampler(4, num_samples),
            metadata_fn=lambda sample: SampleMetadata(pack_tokens=len(sample["input_ids"])),
            collate_fn=collate_fn,
            model_batch_spec=spec,
        )
        lane = loader._communicators[1]
        before = lane.counters.calls
        batches = list(loader)
        after = lane.counters.calls
        return batches, {name: after[name] - before[name] for name in after if after[name] != before[name]}

    return on_ranks(4, body)


@pytest.mark.parametrize("spec", [None, SPEC])
def test_peers_receive_each_batch_in_one_message(spec: Any) -> None:
    results = run(spec)
    for lane in (results[:2], results[2:]):
        (mine, calls), (theirs, other_calls) = lane
        assert calls == other_calls == {"broadcast": 3}  # two batches and the end
        assert len(mine) == len(theirs) == 2
        for one, other in zip(mine, theirs, strict=True):
            assert list(one.data) == list(other.data)
            assert (other.data["kind"], other.data["none"]) == ("text", None)
            np.testing.assert_array_equal(one.data["tokens"], other.data["tokens"])
            assert other.data["tokens"].dtype == np.int32
            (lengths, longest), (own_lengths, own_longest) = other.data["more"][0], one.data["more"][0]
            np.testing.assert_array_equal(lengths, own_lengths)
            assert (longest.shape, longest.dtype, float(longest)) == ((), np.float64, float(own_longest))
            for name in ("step", "microbatch", "num_valid_tokens", "global_valid_tokens", "epoch", "num_microbatches"):
                assert getattr(one, name) == getattr(other, name)
            assert one.sample_ids.tolist() == other.sample_ids.tolist()


def test_the_spec_may_come_with_the_collate_function() -> None:
    def with_spec(rows: Any) -> Any:
        return collate(rows)

    with_spec.model_batch_spec = SPEC  # type: ignore[attr-defined]
    results = run(None, collate_fn=with_spec)
    np.testing.assert_array_equal(results[0][0][0].data["tokens"], results[1][0][0].data["tokens"])
    with_spec.model_batch_spec = {"tokens": SPEC["tokens"]}  # type: ignore[attr-defined]
    with pytest.raises(dcpack.PeerError, match=r"batch must be a mapping with the keys \['tokens'\] in that order"):
        run(None, collate_fn=with_spec)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tokens": TensorFieldSpec(shape=(2, None), dtype="int64")}, r"batch\['tokens'\] must be int64 \(2, None\)"),
        ({"tokens": TensorFieldSpec(shape=(3, None), dtype="int32")}, r"batch\['tokens'\] must be int32 \(3, None\)"),
        ({"kind": "image"}, r"batch\['kind'\] must be the static value 'image', got 'text'"),
        ({"more": ()}, r"batch\['more'\] must be a tuple of 0, got a list"),
    ],
)
def test_a_batch_that_does_not_fit_is_an_error_on_all(change: Any, text: str) -> None:
    with pytest.raises(dcpack.PeerError, match=text):
        run({**SPEC, **change})


def test_specs_are_compared_across_ranks() -> None:
    def body(communicator: Communicator) -> None:
        spec = SPEC if communicator.rank else {"tokens": SPEC["tokens"]}
        build_distributed_dataloader(
            Numbered(),
            mesh(dp=1, tp=2),
            config(),
            batch_sampler=sampler(),
            metadata_fn=lambda sample: SampleMetadata(pack_tokens=1),
            model_batch_spec=spec,
        )

    with pytest.raises(dcpack.PeerError, match="spec must be the same on all ranks: rank 0 has"):
        on_ranks(2, body)


def test_a_batch_that_cannot_be_sent_is_an_error_on_all() -> None:
    with pytest.raises(dcpack.PeerError, match="is of type object, which cannot be sent"):
        run(None, collate_fn=lambda rows: object())


def test_repacked_text_needs_no_spec_and_no_header() -> None:
    def body(communicator: Communicator) -> tuple[list[Any], int]:
        records = [{"input_ids": [i + 1] * 3, "labels": [i + 1] * 3, "cu_seq_lens": [0, 3]} for i in range(4)]
        loader = build_distributed_dataloader(
            records,
            mesh(dp=1, tp=2),
            config(seq_len=4, local_batch_size=2, repack_sequences=True),
            batch_sampler=sampler(4, 4),
        )
        lane = loader._communicators[1]
        sent = lane.counters.bytes_sent
        batches = list(loader)
        return batches, lane.counters.bytes_sent - sent

    (mine, sent), (theirs, _) = on_ranks(2, body)
    # Two batches: 11 numbers, one open size and 2 ids, 2 x 4 tokens twice, 5 offsets padded to 32 bytes; then the end.
    assert sent == 2 * (8 * 14 + 64 + 64 + 32)
    for one, other in zip(mine, theirs, strict=True):
        assert {name: array.tolist() for name, array in one.data.items()} == {
            name: array.tolist() for name, array in other.data.items()
        }
