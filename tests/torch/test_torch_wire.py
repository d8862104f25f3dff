"""Tensors as bytes and back: every dtype, layouts that are no plain runs of memory, and blocks of whole elements."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
import torch
from dcpack_torch.wire import (
    TENSOR_DTYPES,
    array_as_tensor,
    as_elements,
    bytes_as_tensor,
    map_tensors,
    pack_blocks,
    tensor_as_bytes,
    unpack_blocks,
    wire_name_of,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from dcpack.errors import ArgumentError


def bits(tensor: torch.Tensor) -> list[int]:
    return tensor.contiguous().view(torch.uint8).flatten().tolist()


@pytest.mark.parametrize("name", TENSOR_DTYPES)
def test_every_dtype_keeps_its_bits(name: str) -> None:
    dtype = TENSOR_DTYPES[name]
    raw = torch.tensor([0, 1] if dtype is torch.bool else range(6 * dtype.itemsize), dtype=torch.uint8)
    tensor = raw.view(dtype).reshape(2, -1)
    data, sent, shape = tensor_as_bytes(tensor)
    assert (sent, wire_name_of(tensor), shape) == (name, name, tuple(tensor.shape))
    back = bytes_as_tensor(data.clone(), sent, shape)
    assert back.dtype is dtype
    assert bits(back) == bits(tensor) == raw.tolist()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(12).reshape(3, 4).T,
        torch.arange(12)[::3],
        torch.arange(3).expand(2, 3),
        torch.tensor([1 + 2j, 3 - 4j]).conj(),
        torch.tensor([1 + 2j, 3 - 4j]).conj().imag,  # a negative view
        torch.tensor([1.0, 2.0], requires_grad=True),
        torch.tensor(5),
        torch.empty(0, 3),
        torch.arange(6).reshape(1, 6)[:, 3],  # one element, with the stride of a row
    ],
)
def test_views_travel_by_their_values(tensor: torch.Tensor) -> None:
    back = bytes_as_tensor(*tensor_as_bytes(tensor))
    assert back.tolist() == tensor.tolist()
    assert back.shape == tensor.shape


def test_bytes_at_an_odd_place_are_copied() -> None:
    buffer = torch.tensor([9, 1, 0, 2, 0], dtype=torch.uint8)[1:]
    assert bytes_as_tensor(buffer, "torch.int16", (2,)).tolist() == [1, 2]
    assert as_elements(buffer, torch.int32).view(torch.uint8).tolist() == [1, 0, 2, 0]


def test_read_only_memory_is_not_written_through_a_tensor() -> None:
    array = np.arange(3)
    array.flags.writeable = False
    tensor = array_as_tensor(array)
    tensor[0] = 7
    assert array.tolist() == [0, 1, 2]
    own = np.arange(3)
    array_as_tensor(own)[0] = 7  # but memory of the caller's own is shared
    assert own.tolist() == [7, 1, 2]


def test_what_cannot_travel_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"layout torch\.sparse_coo"):
        tensor_as_bytes(torch.eye(2).to_sparse())
    with pytest.raises(ArgumentError, match="on device meta"):
        tensor_as_bytes(torch.empty(2, device="meta"))
    with pytest.raises(ArgumentError, match=r"dtype torch\.float8_e8m0fnu cannot be sent"):
        tensor_as_bytes(torch.zeros(1, dtype=torch.uint8).view(torch.float8_e8m0fnu))
    with pytest.raises(ArgumentError, match="torch has no such dtype"):
        array_as_tensor(np.zeros(1, ml_dtypes.float8_e4m3b11fnuz))


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), max_size=5), name=st.sampled_from(["uint8", "int32", "float32"]))
def test_blocks_come_back_from_whole_elements(sizes: list[int], name: str) -> None:
    dtype = getattr(torch, name)
    data = torch.arange(sum(sizes), dtype=torch.uint8)
    elements, counts = pack_blocks(data, sizes, dtype)
    assert elements.dtype is dtype
    assert counts == [-(-size // dtype.itemsize) for size in sizes]
    assert unpack_blocks(elements, sizes).tolist() == data.tolist()


def test_trees_keep_their_shape_and_what_is_no_array() -> None:
    tree = {"a": [np.array([1]), (torch.tensor([2]), "x", None)], "b": np.int64(3)}
    moved = map_tensors(tree, lambda tensor: tensor + 10, lambda tensor: tensor + 100)
    assert moved["a"][0].tolist() == [101]
    assert moved["a"][1][0].tolist() == [12]
    assert moved["a"][1][1:] == ("x", None)
    assert isinstance(moved["a"][1], tuple)
    assert moved["b"].tolist() == 103
