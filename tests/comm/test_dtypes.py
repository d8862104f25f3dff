from __future__ import annotations

import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from dcpack.comm import dtypes
from dcpack.comm.dtypes import NUMPY_DTYPES, as_bytes, dtype_from_name, from_bytes, wire_name
from dcpack.errors import ArgumentError, BackendError


@pytest.mark.parametrize("name", sorted(NUMPY_DTYPES))
def test_numpy_names_round_trip(name: Any):
    assert dtype_from_name(wire_name(np.dtype(name))) == np.dtype(name)
    assert wire_name(np.dtype(name).newbyteorder()) == name


@pytest.mark.parametrize("kind", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
def test_extension_names_round_trip(kind: Any):
    assert dtype_from_name(wire_name(np.dtype(kind))) == np.dtype(kind)


def test_c_names_of_the_same_dtype_are_one():
    assert wire_name(np.dtype(np.longlong)) == wire_name(np.dtype(np.int64)) == "int64"


@pytest.mark.parametrize("bad", [object, "U3", "S3", "M8[ns]", "m8[s]", [("float32", "f4")], "V8", np.longdouble])
def test_what_cannot_travel(bad: Any):
    if np.dtype(bad).name in NUMPY_DTYPES:
        pytest.fail(f"{bad} is an ordinary dtype on this machine: test another")
    with pytest.raises(ArgumentError, match="cannot be sent: bool, integers of 8 to 64 bits"):
        wire_name(np.dtype(bad))


def test_names_that_cannot_be_received(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(BackendError, match=r"'torch.int4' cannot be received as a NumPy array"):
        dtype_from_name("torch.int4")
    old = types.SimpleNamespace(__version__="0.1")
    monkeypatch.setattr(dtypes.importlib, "import_module", lambda name: old)
    with pytest.raises(BackendError, match=r"float8_e9 is unknown to ml_dtypes 0.1: a newer version is needed"):
        dtype_from_name("float8_e9")


def test_as_bytes_is_a_view_where_it_can_be():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert np.shares_memory(as_bytes(array), array)
    assert as_bytes(array.T).view(np.int16).tolist() == [0, 3, 1, 4, 2, 5]
    assert as_bytes(np.array(258, np.int16)).tolist() == as_bytes(np.array(258, ">i2")).tolist()
    assert as_bytes(np.zeros((0, 3), ml_dtypes.bfloat16)).shape == (0,)


def test_from_bytes_is_aligned_and_writable():
    buffer = np.zeros(9, np.uint8)
    assert np.shares_memory(from_bytes(buffer[:8], "float64", (1,)), buffer)
    odd = from_bytes(buffer[1:], "float64", (1,))
    assert odd.flags.aligned
    assert not np.shares_memory(odd, buffer)
    fixed = np.frombuffer(bytes(8), np.uint8)
    assert from_bytes(fixed, "int64", ()).flags.writeable
    assert from_bytes(np.zeros(0, np.uint8), "bfloat16", (0, 4)).shape == (0, 4)
