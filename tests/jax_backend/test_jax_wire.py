"""Bytes of arrays on the wire, bit by bit: no second process needed."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from dcpack_jax.wire import array_as_wire, check_width, narrowed, wire_as_array

from dcpack.errors import ArgumentError, BackendError


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int32", "float16", "bfloat16", "float32", "complex64"])
def test_arrays_come_back_bit_by_bit(dtype: str) -> None:
    array = jax.numpy.array([[0, 1, 2], [3, 4, 5]]).astype(dtype).T
    data, name, shape = array_as_wire(array)
    assert (name, shape) == (f"jax.{dtype}", (3, 2))
    back = wire_as_array(data, name, shape, jax.devices()[0])
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(np.asarray(back), np.asarray(array))


def test_keys_do_not_travel() -> None:
    with pytest.raises(ArgumentError, match=r"jax\.random\.key_data of it can"):
        array_as_wire(jax.random.key(0))


def test_no_value_is_cut_to_32_bits() -> None:
    assert not jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue] - made at run time
    edges = np.array([-(2**31), 2**31 - 1])
    assert narrowed(edges).dtype == np.int32
    assert narrowed(edges).tolist() == edges.tolist()
    for beyond in (np.array([2**31]), np.array([-(2**31) - 1])):
        with pytest.raises(ArgumentError, match="do not fit in int32"):
            narrowed(beyond)
    assert narrowed(np.array([2**32 - 1], np.uint64)).tolist() == [2**32 - 1]
    with pytest.raises(ArgumentError, match="would lose bits: convert to float32"):
        narrowed(np.array([0.5]))
    small = np.array([1, 2], np.int16)
    assert narrowed(small) is small
    assert narrowed(np.zeros(0, np.int64)).dtype == np.int32
    for wide in ("int64", "uint64", "float64", "complex128"):
        with pytest.raises(BackendError, match="needs jax_enable_x64"):
            check_width(wide)
