"""Parts of the back end that need no second process: turns, bytes of arrays, groups of meshes."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest
from dcpack_jax.mesh import MeshGroups, topology_of_mesh
from dcpack_jax.turns import Runner, Turns
from dcpack_jax.wire import array_as_wire, check_width, narrowed, wire_as_array

from dcpack.errors import ArgumentError, BackendError

# ---- turns -----------------------------------------------------------------------------------------------------------


def test_who_asked_more_often_goes_first_whoever_came_first() -> None:
    for order in (("a", "b"), ("b", "a")):
        turns = Turns()
        turns.ask("holder", 9)
        for uid in order:
            turns.ask(uid, 0)
        turns.leave("holder")
        assert not turns.ask("a", 0)  # of equals the same one on all processes: the last by name
        assert turns.ask("b", 0)
        turns.give_up("b")
        assert turns.ask("a", 1)  # it has waited longer now
        assert not turns.ask("b", 1)
        turns.leave("a")
        assert turns.ask("b", 2)


def test_only_the_holder_can_give_up() -> None:
    turns = Turns()
    assert turns.ask("a", 0)
    turns.give_up("b")
    turns.leave("c")
    assert not turns.ask("b", 5)
    assert turns.ask("a", 0)


def test_a_runner_hands_out_results_errors_and_time_outs_in_order() -> None:
    runner, gate = Runner(), threading.Event()
    seen: list[str] = []

    def blocked() -> str:
        gate.wait(100)
        seen.append("first")
        return "done"

    first = runner.start(blocked)
    second = runner.start(lambda: seen.append("second"))
    failing = runner.start(lambda: 1 // 0)
    with pytest.raises(TimeoutError):
        first(0.01)
    gate.set()
    with pytest.raises(ZeroDivisionError):
        failing(30.0)
    second(30.0)
    assert seen == ["first", "second"]
    assert first(30.0) == "done"  # nobody took its answer when time was up


# ---- bytes -----------------------------------------------------------------------------------------------------------


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


# ---- meshes ----------------------------------------------------------------------------------------------------------


def mesh_of(processes: list[list[int]], *names: str) -> Any:
    """Stand in for a mesh whose devices are of these processes."""
    devices = np.empty((len(processes), len(processes[0])), object)
    for place in np.ndindex(devices.shape):
        devices[place] = SimpleNamespace(process_index=processes[place[0]][place[1]])
    return SimpleNamespace(axis_names=names, devices=devices)


def test_devices_of_a_process_count_once() -> None:
    # Processes 0 and 1 have two devices each, side by side along the second axis.
    groups = MeshGroups(mesh_of([[0, 0], [1, 1]], "data", "context"))
    assert groups.groups("context") == [(0,), (1,)]
    assert groups.groups("data") == [(0, 1)]
    assert groups.groups(("data", "context")) == [(0, 1)]


def test_groups_that_cut_a_process_are_refused() -> None:
    # Along "data" process 0 would be in (0, 1) and in (0, 2).
    torn = MeshGroups(mesh_of([[0, 0], [1, 2]], "data", "context"))
    with pytest.raises(ArgumentError, match=r"not whole processes: process 0 in \[\(0, 1\), \(0, 2\)\]"):
        torn.groups("data")
    for axes in ("tensor", (), ("data", "data")):
        with pytest.raises(ArgumentError, match="axes must be one or several axes of the mesh"):
            torn.groups(axes)


def test_the_topology_has_our_names_and_a_process_for_each_rank() -> None:
    topology = topology_of_mesh(mesh_of([[0, 0], [1, 1]], "fsdp", "context"), node_size=2)
    assert topology.axes == ("dp_shard", "cp")
    assert topology.process_of_rank.tolist() == [0, 0, 1, 1]
    assert topology.node_size == 2
    with pytest.raises(ArgumentError, match=r"without a name in axes=: \['expert'\]"):
        topology_of_mesh(mesh_of([[0]], "data", "expert"))
    assert topology_of_mesh(mesh_of([[0]], "data", "expert"), axes={"data": "dp", "expert": "tp"}).axes == ("dp", "tp")
