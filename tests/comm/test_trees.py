from __future__ import annotations

import json
from collections import OrderedDict, UserDict, namedtuple
from enum import IntEnum
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.comm import Communicator, FakeBackend, Fault, all_gather_trees, broadcast_tree, dtypes, run_ranks, trees
from dcpack.comm.fake_communicator import FakeCommunicator
from dcpack.errors import ArgumentError, PeerError

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
arrays = st.builds(
    lambda dtype, shape: np.arange(int(np.prod(shape))).astype(dtype).reshape(shape),
    st.sampled_from(["bool", "int8", "uint16", "float32", "complex128"]),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
)
nested = st.recursive(
    plain | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def text_of(tree: Any) -> str:
    """A text that differs where types, values, order or dtypes do; repr of small arrays shows all but these."""
    return repr(tree) + repr(dtypes_of(tree))


def dtypes_of(tree: Any) -> Any:
    if isinstance(tree, np.ndarray):
        return [(tree.dtype.str, tree.shape)]
    values = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else []
    return [found for value in values for found in dtypes_of(value)]


def send(tree: Any) -> list[Any]:
    return run_ranks(2, lambda c: broadcast_tree(c, tree if c.rank == 1 else None, root=1))


@settings(max_examples=100, deadline=None)
@given(nested)
def test_what_arrives_is_what_was_sent(tree: Any):
    assert [text_of(received) for received in send(tree)] == [text_of(tree)] * 2


def test_a_tree_goes_in_rounds():
    tree = {"a": np.arange(100), "b": "text"}
    for received in run_ranks(2, lambda c: broadcast_tree(c, tree if c.rank == 0 else None, 0), max_message_bytes=7):
        assert text_of(received) == text_of(tree)


def test_the_message_by_hand():
    def fn(communicator: Communicator) -> bytes:
        return trees._encode(communicator, [np.array([1, 2], np.int16), np.array([7], np.uint8)]).tobytes()

    (message,) = run_ranks(1, fn)
    header = b'{"list":[{"array":["int16",[2],0,4]},{"array":["uint8",[1],16,17]}]}'
    assert message[:8] == len(header).to_bytes(8, "little")
    assert message[8:] == header.ljust(72, b"\0") + bytes([1, 0, 2, 0, *[0] * 12, 7, *[0] * 15])


nested_plain = st.recursive(
    plain
    | st.floats()
    | st.sampled_from([float("inf"), "\ud800", "\n\u00e9", 2**70, IntEnum("Own", "one").one])
    | arrays,
    lambda inner: (
        st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(), inner)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None)
@given(nested_plain)
def test_lists_of_plain_values_are_written_in_one_go_as_item_by_item(tree: Any):
    def message(writer: type[Any]) -> tuple[str, str]:
        made = writer(FakeBackend().world())
        try:
            return "", made.node(tree, None)
        except ArgumentError as error:
            return "refused", str(error)

    class ItemByItem(trees._Writer):
        def _plain_items(self, tree: Any) -> str | None:
            return None

    assert message(trees._Writer) == message(ItemByItem)


def test_a_list_of_plain_values_is_one_call_of_the_encoder(monkeypatch: pytest.MonkeyPatch):
    calls: list[Any] = []
    encode = trees._JSON.encode

    class Counting:
        def encode(self, tree: Any) -> str:
            calls.append(tree)
            return encode(tree)

    monkeypatch.setattr(trees, "_JSON", Counting())
    ids = list(range(1000))
    assert trees._Writer(FakeBackend().world()).node({"input_ids": ids, "pair": (1, "a")}, None) == (
        f'{{"dict":[["input_ids",{{"list":{json.dumps(ids, separators=(",", ":"))}}}],["pair",{{"tuple":[1,"a"]}}]]}}'
    )
    assert len(calls) == 2


def test_mappings_come_back_as_dicts_on_all_ranks_and_named_tuples_are_refused():
    for mapping in (OrderedDict(b=1, a=[2]), UserDict(b=1, a=[2])):
        for received in send(mapping):
            assert type(received) is dict
            assert list(received.items()) == [("b", 1), ("a", [2])]
    point = namedtuple("Point", "x y")(1, 2)
    with pytest.raises(PeerError, match=r"tree\['p'\] is of type Point, which cannot be sent.*plain tuples"):
        send({"p": point})


def test_numpy_scalars_stay_scalars():
    value = send({"loss": np.float32(1.5)})[0]["loss"]
    assert type(value) is np.float32
    assert value == 1.5


def test_arrays_are_writable_and_aligned():
    for array in send([np.zeros(3, np.int8), np.zeros(2, np.complex128), np.array(5)])[0]:
        assert array.flags.writeable
        assert array.flags.aligned


def test_an_error_on_the_root_keeps_the_group_in_step():
    def fn(communicator: Communicator) -> Any:
        with pytest.raises(PeerError, match=r"rank 0 failed in agree .*tree\[0\] is of type object") as caught:
            broadcast_tree(communicator, [object()] if communicator.rank == 0 else None, 0)
        assert (caught.value.rank, caught.value.cause) == (0, "ArgumentError")
        return broadcast_tree(communicator, "next" if communicator.rank == 0 else None, 0)

    assert run_ranks(3, fn) == ["next"] * 3


def test_a_wrong_root_is_an_error_on_all():
    with pytest.raises(PeerError, match="root must be from 0 to 1, got 2"):
        run_ranks(2, lambda c: broadcast_tree(c, None, root=2))
    with pytest.raises(PeerError, match="roots differ in broadcast"):
        run_ranks(2, lambda c: broadcast_tree(c, 1, root=c.rank))


def test_a_rank_that_fails_meanwhile_is_an_error_on_all():
    with pytest.raises(PeerError, match="rank 1"):
        run_ranks(2, lambda c: broadcast_tree(c, [1], 0), faults=[Fault(rank=1, call=0, action="raise")])


def test_a_dtype_that_one_rank_cannot_hold_is_an_error_on_all(monkeypatch: pytest.MonkeyPatch):
    original = FakeCommunicator.from_wire

    def from_wire(self: Any, buffer: Any, dtype: str, shape: Any) -> Any:
        if self.rank == 1 and dtype not in dtypes.NUMPY_DTYPES:
            raise dtypes.BackendError("dtype bfloat16 needs the package ml_dtypes here")
        return original(self, buffer, dtype, shape)

    monkeypatch.setattr(FakeCommunicator, "from_wire", from_wire)

    def fn(communicator: Communicator) -> Any:
        with pytest.raises(PeerError, match=r"rank 1 failed .*needs the package ml_dtypes"):
            broadcast_tree(communicator, {"x": [np.zeros(2, ml_dtypes.bfloat16)]}, 0)
        with pytest.raises(PeerError, match=r"rank 1 failed .*needs the package ml_dtypes"):
            all_gather_trees(communicator, np.zeros(2, ml_dtypes.bfloat16) if communicator.rank == 0 else None)
        return broadcast_tree(communicator, 1, 0)

    assert run_ranks(2, fn) == [1, 1]
