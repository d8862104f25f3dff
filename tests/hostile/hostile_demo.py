"""`dcpack.demo`: each public callable, and arguments that it takes."""

from __future__ import annotations

from typing import Any

from hostile_calls import Call

import dcpack
from dcpack import demo


def options(**given: Any) -> demo.DemoOptions:
    small = {"data": (__file__,), "num_ranks": 2, "num_steps": 1, "global_batch_size": 2, "capacity": 512}
    return demo.DemoOptions(**{**small, **given})


CALLS = {
    "DemoOptions": Call(
        lambda **given: demo.load_documents(options(**given)),
        lambda: {
            "data": (__file__,),
            "num_ranks": 2,
            "num_steps": 1,
            "global_batch_size": 2,
            "capacity": 512,
            "scheduler": "in_order",
            "max_cp_size": 1,
            "overlong": "split",
            "sharding": "zigzag",
            "routing": "whole",
            "seed": 3,
            "deadline_s": 20.0,
        },
    ),
    "load_documents": Call(demo.load_documents, lambda: {"options": options()}),
    "prove": Call(
        demo.prove,
        lambda: {"options": options(), "documents": demo.load_documents(options()), "done": lambda: None},
        few=True,
    ),
    "run_demo": Call(
        demo.run_demo,
        lambda world: {
            "options": options(num_ranks=1),
            "progress": lambda count: lambda: None,
            "communicator": world,
            "topology": dcpack.Topology(axes=("dp",), sizes=(1,)),
        },
        few=True,
    ),
}

LEFT_OUT = {"DemoResult": "a result of run_demo"}

# What of the values has a meaning there.
TAKES = {
    "DemoOptions.data": "list",
    "DemoOptions.num_ranks": "huge, number of an enum",
    "DemoOptions.capacity": "huge, number of an enum",
    "DemoOptions.max_cp_size": "none, huge, number of an enum",
    "DemoOptions.seed": "zero, huge, number of an enum",
    "DemoOptions.deadline_s": "half, fraction, number of an enum",
    "DemoOptions.num_steps": "number of an enum",
    "DemoOptions.global_batch_size": "number of an enum",
    "run_demo.communicator": "none",
    "run_demo.topology": "none",
}
