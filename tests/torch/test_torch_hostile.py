"""Tensors of odd kinds through all that takes arrays: the right values, or an error of ours that says where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import hostile_tensors
import numpy as np
import pytest
import torch
import torch_ranks
from hostile_tensors import KINDS, NO_HOST_ARRAYS, values_of

import dcpack
from dcpack import BatchedDataDict, TPBroadcastDataLoader, exchange, layout, megatron
from dcpack.batched_data_dict import PackedColumn
from dcpack.comm import Communicator, FakeBackend, all_gather_trees, broadcast_tree, decode_tree, encode_tree
from dcpack.errors import DcpackError, PeerError

NO_ROWS = {"0-d", "sparse", "sparse rows", "quantised", "nested", "jagged"}


def on_ranks(fn: Callable[[Communicator, Any], Any]) -> Callable[[Any], Any]:
    """Call `fn` on two ranks, the tensor on the first; what both returned, which must be the same."""

    def call(tensor: Any) -> Any:
        found = dcpack.run_ranks(2, lambda c: fn(c, tensor if c.rank == 0 else torch.arange(6)), deadline_s=60.0)
        assert str(found[0]) == str(found[1])
        return found[0]

    return call


def exchanged(tensor: Any) -> Any:
    """The tensor as a field of a sample of rank 0, as rank 1 receives it."""

    def fn(communicator: Communicator) -> Any:
        samples = [{"input_ids": np.arange(6)}, {"input_ids": np.arange(6), "x": tensor}]
        gathered = exchange.gather_samples(communicator, samples if communicator.rank == 0 else [])
        plan = dcpack.plan(gathered.table.lengths, num_ranks=2, capacity=6, scheduler="in_order")
        (batch,) = exchange.exchange_samples(communicator, gathered, plan)[communicator.rank]
        return batch.tokens["x"] if "x" in batch.tokens else batch.sample_fields[0]["x"]

    return dcpack.run_ranks(2, lambda c: fn(c) if c.rank else (fn(c), None)[1], deadline_s=60.0)[1]


def world() -> Communicator:
    return FakeBackend(deadline_s=60.0).world()


def rerouted(tensor: Any) -> Any:
    """The tensor as a field of a sample that is rerouted to this rank, and packed."""
    given = {"tokens": np.arange(6), "original_seq_len": np.array([6]), "padded_seq_len": np.array([6]), "x": tensor}
    plan = dcpack.plan([6], num_ranks=1, capacity=6)
    samples = megatron.reroute_samples(world(), [given], [0], plan)
    return samples[0]["x"]


def in_row(tensor: Any) -> Any:
    """The tensor as a field of a packed row."""
    lengths = {"original_seq_len": np.array([6]), "padded_seq_len": np.array([6])}
    row = megatron.pack_sequences([{"tokens": np.arange(6), **lengths, "x": tensor}])
    return row["x"] if "x" in row else row["sample_fields"][0]["x"]


def rows(name: str, *args: Any) -> Callable[[Any], Any]:
    """Call a method of a batch that keeps all rows."""

    def call(tensor: Any) -> Any:
        made = getattr(BatchedDataDict(x=tensor), name)(*args)
        return (made[0] if isinstance(made, list) else made)["x"]

    return call


# What each call makes of a tensor, and which kinds it refuses; all others come back with their values.
CALLS: dict[str, tuple[Callable[[Any], Any], set[str]]] = {
    "encode_tree": (lambda x: decode_tree(world(), encode_tree(world(), {"x": x}))["x"], NO_HOST_ARRAYS),
    "broadcast_tree": (on_ranks(lambda c, x: broadcast_tree(c, {"x": x}, 0)["x"]), NO_HOST_ARRAYS),
    "all_gather_trees": (on_ranks(lambda c, x: all_gather_trees(c, {"x": x})[0]["x"]), NO_HOST_ARRAYS),
    "broadcast": (on_ranks(lambda c, x: c.broadcast(x if c.rank == 0 else None, 0)), NO_HOST_ARRAYS),
    "all_gather": (on_ranks(lambda c, x: c.all_gather(x)[0]), NO_HOST_ARRAYS),
    "exchange_samples": (exchanged, NO_HOST_ARRAYS),
    "broadcast_tensor": (
        on_ranks(lambda c, x: megatron.broadcast_tensor(c, x if c.rank == 0 else None, 0)),
        NO_HOST_ARRAYS,
    ),
    "unpack_samples": (
        lambda x: megatron.unpack_samples([{"tokens": np.arange(6), "padded_seq_len": 6, "x": x}]).samples[0]["x"],
        NO_HOST_ARRAYS,
    ),
    "reroute_samples": (rerouted, NO_HOST_ARRAYS),
    "pack_sequences": (in_row, NO_HOST_ARRAYS),
    "scatter_real": (lambda x: layout.scatter_real(x, np.arange(6), 6, 0), NO_HOST_ARRAYS | {"0-d"}),
    "BatchedDataDict.select_indices": (rows("select_indices", [0, 1, 2, 3, 4, 5]), NO_ROWS),
    "BatchedDataDict.slice": (rows("slice", 0, 6), NO_ROWS),
    "BatchedDataDict.repeat_interleave": (rows("repeat_interleave", 1), NO_ROWS),
    "BatchedDataDict.shard_by_batch_size": (rows("shard_by_batch_size", 1), NO_ROWS),
    "BatchedDataDict.from_batches": (lambda x: BatchedDataDict.from_batches([BatchedDataDict(x=x)])["x"], NO_ROWS),
    "PackedColumn": (lambda x: PackedColumn(x, [0, 6])[0], NO_ROWS),
    "TPBroadcastDataLoader": (
        on_ranks(lambda c, x: next(iter(TPBroadcastDataLoader([{"x": x}] if c.rank == 0 else None, c)))["x"]),
        NO_HOST_ARRAYS,
    ),
}


def outcome(call: Callable[[Any], Any], make: Callable[[], torch.Tensor]) -> Any:
    try:
        return call(make())
    except PeerError as error:
        return "refused" if error.cause == "ArgumentError" else f"PeerError of {error}".splitlines()[0]
    except DcpackError:
        return "refused"
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]


@pytest.mark.parametrize("name", CALLS)
def test_every_kind(name: str) -> None:
    call, refused = CALLS[name]
    wrong = []
    for kind, make in KINDS.items():
        found = outcome(call, make)
        if kind in refused or isinstance(found, str):
            if (kind in refused) != (found == "refused"):
                wrong.append(f"{kind}: {found}")
        elif kind == "meta":  # has no values, and stays one
            if not found.is_meta:
                wrong.append(f"{kind}: {found}")
        elif values_of(found) != values_of(make()):
            wrong.append(f"{kind}: {values_of(found)}")
    assert wrong == []


def test_every_kind_over_gloo(tmp_path: Path) -> None:
    run = torch_ranks.launch_bodies(hostile_tensors, tmp_path)
    assert run(2, "over_gloo") == [[], []]
