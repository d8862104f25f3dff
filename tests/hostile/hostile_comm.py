"""`dcpack.comm`: each public callable, and arguments that it takes."""

from __future__ import annotations

from typing import Any

import numpy as np
from hostile_calls import Call

import dcpack
from dcpack import comm

WORLD = comm.FakeBackend().world()
BACKEND = comm.FakeBackend()
MESSAGE = comm.encode_tree(WORLD, {"a": np.arange(3)})


def method(name: str, **given: Any) -> Call:
    return Call(
        lambda own, **values: getattr(own, name)(**values),
        lambda own: {"own": own, **given},
        skips=("own",),
    )


CALLS = {
    "Communicator.all_gather": method("all_gather", array=np.arange(3)),
    "Communicator.all_to_all": method("all_to_all", buffer=np.arange(3), send_counts=[3], recv_counts=[3]),
    "Communicator.broadcast": method("broadcast", array=np.arange(3), root=0),
    "Communicator.agree": method("agree", error=None),
    "Communicator.split": method("split", partition=[[0]]),
    "Communicator.to_wire": method("to_wire", array=np.arange(3)),
    "Communicator.wire_size": method("wire_size", array=np.arange(3)),
    "Communicator.wire_itemsize": method("wire_itemsize", dtype="int64"),
    "FakeBackend": Call(
        comm.FakeBackend,
        lambda: {"num_ranks": 2, "deadline_s": 1.0, "max_message_bytes": 99, "faults": ()},
    ),
    "Backend.run": Call(super(comm.FakeBackend, BACKEND).run, lambda: {"fn": lambda own: own.rank}),
    "FakeBackend.run": Call(BACKEND.run, lambda: {"fn": lambda own: own.rank}),
    "Fault": Call(
        comm.Fault,
        lambda: {"rank": 0, "call": 1, "action": "delay", "verb": "agree", "seconds": 0.5, "offset": 0},
    ),
    "Backend.from_mesh": Call(BACKEND.from_mesh, lambda: {"mesh": dcpack.Topology.of_domain(1), "axes": ("dp",)}),
    "Backend.describe_mesh": Call(BACKEND.describe_mesh, lambda: {"mesh": dcpack.Topology.of_domain(1)}),
    "Backend.make_reader": Call(BACKEND.make_reader, lambda: {"dataset": [1, 2], "indices": [0, 1], "num_workers": 0}),
    "Backend.open_reader": Call(BACKEND.open_reader, lambda: {"dataset": [1, 2], "num_workers": 0}),
    "all_gather_trees": Call(comm.all_gather_trees, lambda own: {"communicator": own, "tree": {"a": np.arange(3)}}),
    "broadcast_tree": Call(comm.broadcast_tree, lambda own: {"communicator": own, "tree": [1], "root": 0}),
    "encode_tree": Call(comm.encode_tree, lambda own: {"communicator": own, "tree": [1]}),
    "encoded_size": Call(comm.encoded_size, lambda own: {"communicator": own, "tree": [1]}),
    "decode_tree": Call(comm.decode_tree, lambda own: {"communicator": own, "message": MESSAGE}),
    "get_backend": Call(comm.get_backend, lambda: {"name": "fake"}),
    "run_ranks": Call(
        comm.run_ranks,
        lambda: {
            "num_ranks": 1,
            "fn": lambda own: own.rank,
            "deadline_s": 5.0,
            "max_message_bytes": 99,
            "faults": (),
        },
    ),
}

LEFT_OUT = {
    "Backend.to_device": "hands on what it gets",
    "Backend.begin_copy": "hands on what it gets",
    "Backend.copies_in_threads": "looks at nothing",
    "FakeBackend.copies_in_threads": "looks at nothing",
    "BackendStatus": "a result of backend_statuses",
    "Communicator": "made by back ends",
    "Communicator.from_wire": "what back ends write, of bytes that came by the wire",
    "Counters": "a result of a communicator",
}

# What of the values has a meaning there.
TAKES = {
    "Communicator.all_gather.array": (
        "true, numpy true, zero, minus, nan, inf, half, minus zero, number of an enum, complex, list, minuses, "
        "nans, 0-d, 2-d, floats, whole floats, unsigned, hugest"
    ),
    "Communicator.all_to_all.buffer": "floats",
    "Communicator.broadcast.array": (
        "true, numpy true, zero, minus, nan, inf, half, minus zero, number of an enum, complex, list, minuses, "
        "nans, 0-d, 2-d, floats, whole floats, unsigned, hugest"
    ),
    "Communicator.broadcast.root": "zero",
    "Communicator.agree.error": "none",
    "Communicator.to_wire.array": (
        "true, numpy true, zero, minus, nan, inf, half, minus zero, number of an enum, complex, list, minuses, "
        "nans, 0-d, 2-d, floats, whole floats, unsigned, hugest"
    ),
    "Communicator.wire_size.array": (
        "true, numpy true, zero, minus, nan, inf, half, minus zero, number of an enum, complex, list, minuses, "
        "nans, 0-d, 2-d, floats, whole floats, unsigned, hugest"
    ),
    "FakeBackend.deadline_s": "half, fraction, number of an enum",
    "FakeBackend.faults": "list",
    "Backend.run.fn": "function, type",
    "FakeBackend.run.fn": "function, type",
    "FakeBackend.num_ranks": "number of an enum",
    "FakeBackend.max_message_bytes": "number of an enum",
    "Fault.rank": "zero, huge, number of an enum",
    "Fault.call": "zero, huge, number of an enum",
    "Fault.verb": "none",
    "Fault.seconds": "half, fraction, number of an enum",
    "Fault.offset": "zero",
    "Backend.from_mesh.axes": "list, map",
    "Backend.make_reader.dataset": (
        "numpy true, text, surrogate, bytes, list, map, odd map, minuses, nans, texts, nones, maps, ragged, 0-d, "
        "2-d, objects, floats, whole floats, unsigned, hugest"
    ),
    "Backend.make_reader.indices": (
        "list, set, generator, minuses, nans, texts, nones, maps, ragged, 2-d, objects, floats, whole floats, "
        "unsigned, hugest"
    ),
    "Backend.make_reader.num_workers": "zero, number of an enum",
    "Backend.open_reader.dataset": (
        "numpy true, text, surrogate, bytes, list, map, odd map, minuses, nans, texts, nones, maps, ragged, 0-d, "
        "2-d, objects, floats, whole floats, unsigned, hugest"
    ),
    "Backend.open_reader.num_workers": "zero, number of an enum",
    "all_gather_trees.tree": (
        "none, true, numpy true, zero, minus, huge, nan, inf, half, minus zero, text, surrogate, list, map, "
        "minuses, nans, texts, nones, maps, ragged, 0-d, 2-d, floats, whole floats, unsigned, hugest"
    ),
    "broadcast_tree.tree": (
        "none, true, numpy true, zero, minus, huge, nan, inf, half, minus zero, text, surrogate, list, map, "
        "minuses, nans, texts, nones, maps, ragged, 0-d, 2-d, floats, whole floats, unsigned, hugest"
    ),
    "broadcast_tree.root": "zero",
    "encode_tree.tree": (
        "none, true, numpy true, zero, minus, huge, nan, inf, half, minus zero, text, surrogate, list, map, "
        "minuses, nans, texts, nones, maps, ragged, 0-d, 2-d, floats, whole floats, unsigned, hugest"
    ),
    "encoded_size.tree": (
        "none, true, numpy true, zero, minus, huge, nan, inf, half, minus zero, text, surrogate, list, map, "
        "minuses, nans, texts, nones, maps, ragged, 0-d, 2-d, floats, whole floats, unsigned, hugest"
    ),
    "run_ranks.fn": "function, type",
    "run_ranks.deadline_s": "half, fraction, number of an enum",
    "run_ranks.faults": "list",
    "run_ranks.num_ranks": "number of an enum",
    "run_ranks.max_message_bytes": "number of an enum",
}
