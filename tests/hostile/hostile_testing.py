"""`dcpack.testing`: each public callable, and arguments that it takes."""

from __future__ import annotations

from typing import Any

from hostile_calls import Call

import dcpack
from dcpack import testing
from dcpack.errors import DcpackError


def check_communicator(run: Any, sizes: Any, names: Any) -> None:
    try:
        testing.check_communicator(run, sizes, names)
    except AssertionError as error:  # what it is for: a launcher that runs nothing, or cannot run so many
        raise DcpackError(str(error)) from error


CALLS = {
    "check_communicator": Call(
        check_communicator, lambda: {"run": dcpack.run_ranks, "sizes": [1], "names": ["barrier"]}
    ),
    "run_communicator_check": Call(
        testing.run_communicator_check, lambda own: {"name": "barrier", "communicator": own}
    ),
}

LEFT_OUT = {}

# What of the values has a meaning there.
TAKES = {
    "check_communicator.sizes": "set, unsigned",
    "check_communicator.names": "none",
}
