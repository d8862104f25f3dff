"""Conformance checks of nested structures: everything in one message, to the bit, and errors on all ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack.comm import Communicator, all_gather_trees, broadcast_tree, decode_tree, encode_tree, encoded_size
from dcpack.testing.expect import DTYPE_NAMES, expect_peer_error, pattern, require, require_identical

__all__ = ["TREE_CHECKS"]

_PLAIN: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 2**53 + 1, -(2**70), 1.5, -0.0, float("inf"), "", "text\n\0", "\u00e9\U0001f600"),
    *([], (), {}, [[1], [2, ["three"]]], {"b": 1, "a": {"": None}}),
)


def _tree(seed: int) -> dict[str, Any]:
    """Return arrays of every dtype and several shapes, and plain values, nested."""
    arrays = {dtype: pattern(dtype, (seed % 3 + 1, 3), seed) for dtype in DTYPE_NAMES}
    shapes = [pattern("int16", shape, seed) for shape in ((), (0, 5), (1,), (2, 1, 3))]
    return {"dtypes": arrays, "shapes": shapes, "plain": (seed, *_PLAIN), "scalar": np.float32(seed)}


def _require_same_tree(actual: Any, expected: Any, what: str) -> None:
    if isinstance(expected, np.ndarray):
        require_identical(actual, expected, what)
        return
    require(type(actual) is type(expected), f"{what}: got {type(actual).__name__}, expected {type(expected).__name__}")
    if isinstance(expected, dict):
        require(list(actual) == list(expected), f"{what}: got keys {list(actual)}, expected {list(expected)}")
        for key, value in expected.items():
            _require_same_tree(actual[key], value, f"{what}[{key!r}]")
    elif isinstance(expected, list | tuple):
        require(len(actual) == len(expected), f"{what}: got {len(actual)} values, expected {len(expected)}")
        for index, value in enumerate(expected):
            _require_same_tree(actual[index], value, f"{what}[{index}]")
    else:
        require(repr(actual) == repr(expected), f"{what}: got {actual!r}, expected {expected!r}")


def broadcast_trees(communicator: Communicator) -> None:
    """Every root sends a nested structure, in one broadcast and nothing else."""
    for root in range(communicator.size):
        tree = _tree(root)
        before = communicator.counters.calls["broadcast"]
        received = broadcast_tree(communicator, tree if communicator.rank == root else None, root)
        require(communicator.counters.calls["broadcast"] == before + 1, "a structure took more than one broadcast")
        _require_same_tree(received, tree, f"tree from {root}")
    _require_same_tree(broadcast_tree(communicator, None, 0), None, "a lone None")


def all_gather_different_trees(communicator: Communicator) -> None:
    """Every rank brings another structure; rank 0 brings an empty one."""
    for rank, tree in enumerate(all_gather_trees(communicator, _tree(communicator.rank) if communicator.rank else {})):
        _require_same_tree(tree, _tree(rank) if rank else {}, f"tree of rank {rank}")


def _content(communicator: Communicator, array: Any) -> tuple[type, str, tuple[int, ...], bytes]:
    """Return what an array is: its type, the name of its dtype on the wire, its shape and its bytes."""
    data, name, shape = communicator.to_wire(array)
    return type(array), name, shape, communicator.from_wire(data, "uint8", (len(data),)).tobytes()


def encoded_trees(communicator: Communicator) -> None:
    """Arrays of every kind are encoded in as many bytes as was told, and are decoded as what they were."""
    for name in sorted(communicator.universal_dtypes):
        ones_and_zeros = np.arange(3 * communicator.wire_itemsize(name), dtype=np.uint8) % 2
        array = communicator.from_wire(communicator.to_wire(ones_and_zeros)[0], name, (3,))
        tree = [array] * 16  # so many that one byte too many in the header for each passes the alignment
        told, message = encoded_size(communicator, tree), encode_tree(communicator, tree)
        require(isinstance(message, np.ndarray), f"{name}: the message is a {type(message).__name__}, no NumPy array")
        require(len(message) == told, f"{name}: {told} bytes were told, {len(message)} written")
        expected = _content(communicator, array)
        for decoded in decode_tree(communicator, message):
            actual = _content(communicator, decoded)
            require(actual == expected, f"{name}: encoded and decoded it is {actual}, expected {expected}")


def trees_share_no_memory(communicator: Communicator) -> None:
    """Received arrays are neither the root's nor each other's memory."""
    mine: list[npt.NDArray[Any]] = [np.arange(40), np.arange(40, dtype=np.int8)]
    received = broadcast_tree(communicator, mine, 0)
    for array in mine:
        array[:] = -1
    communicator.barrier()
    for array, kept in zip(received, (np.arange(40), np.arange(40, dtype=np.int8)), strict=True):
        require_identical(array, kept, "an array after the root changed its own")
        array[:] = communicator.rank
    communicator.barrier()
    for array in received:
        require_identical(array, np.full_like(array, communicator.rank), "an array after others wrote to theirs")


def trees_that_cannot_be_sent(communicator: Communicator) -> None:
    """What cannot be sent is one error on all ranks, which names where it lies; the group goes on."""
    last = communicator.size - 1
    for bad, fragments in (
        ({"a": [1, {2}]}, ("tree['a'][1]", "set")),
        ({"a": {1: 2}}, ("tree['a']", "key 1 (int)")),
        ((np.array([object()]),), ("tree[0]", "object")),
    ):
        mine = bad if communicator.rank == last else None
        error = expect_peer_error(lambda mine=mine: broadcast_tree(communicator, mine, last), *fragments)
        require(error.rank == communicator.ranks[last], f"error.rank is {error.rank}")
        require(error.cause == "ArgumentError", f"error.cause is {error.cause!r}")
        expect_peer_error(lambda mine=mine: all_gather_trees(communicator, mine), *fragments)
    _require_same_tree(broadcast_tree(communicator, [communicator.rank], 0), [0], "the next tree")


TREE_CHECKS: tuple[Callable[[Communicator], None], ...] = (
    broadcast_trees,
    all_gather_different_trees,
    encoded_trees,
    trees_share_no_memory,
    trees_that_cannot_be_sent,
)
"""The checks of nested structures."""
