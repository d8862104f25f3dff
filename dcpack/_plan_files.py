"""Plans as JSON and as ``.npz`` files. What is read back is proven whole: its digest must be the one written."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpack._checks import as_lengths, check_int, check_kinds, check_path
from dcpack.errors import PlanError
from dcpack.padding import PaddingRule

if TYPE_CHECKING:
    from dcpack.plans import Plan

__all__ = ["FORMAT", "check_wanted", "read_json", "read_npz", "restore", "write_npz"]

FORMAT = 1
"""The version of what is written; `restore` reads this one alone."""

_UNREADABLE = (
    *(OSError, EOFError, RuntimeError, LookupError, TypeError, ValueError, AttributeError),
    *(zipfile.BadZipFile, zlib.error),
)  # what reading a damaged .npz raises

Content = tuple[Any, dict[str, np.ndarray]]  # the header and the arrays, unproven


def read_json(text: str | bytes, names: Sequence[str]) -> Content:
    """Return the header and the arrays called `names` in a JSON object."""
    try:
        values = json.loads(text)
        arrays = {name: np.array(values[name]) for name in names}
    except (LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise PlanError(f"not a plan in JSON: {type(error).__name__}: {error}") from error
    return values, arrays


def write_npz(path: str | Path, header: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
    """Write the header, as JSON, and the arrays to `path`, under that very name."""
    place = check_path("path", path)
    packed = np.frombuffer(json.dumps(header).encode(), np.uint8)
    with place.open("wb") as file:
        np.savez(file, header=packed, **arrays)


def read_npz(path: str | Path, names: Sequence[str]) -> Content:
    """Return the header and the arrays called `names` in a file of `write_npz`."""
    place = check_path("path", path)
    try:
        with place.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            header = json.loads(archive["header"].tobytes())
            arrays = {name: archive[name] for name in names}
    except _UNREADABLE as error:
        raise PlanError(f"{path}: not a readable plan: {type(error).__name__}: {error}") from error
    return header, arrays


def check_wanted(capacity: Any, padding: Any, cp_sizes: Any) -> dict[str, Any]:
    """Return what a plan that is read must have been made for, by name; None takes any."""
    check_kinds(padding=(padding, PaddingRule | None))
    return {
        "capacity": None if capacity is None else check_int("capacity", capacity, minimum=1),
        "padding": padding,
        "cp_sizes": None if cp_sizes is None else tuple(as_lengths("cp_sizes", cp_sizes, minimum=1).tolist()),
    }


def restore(source: str, make: Callable[..., Plan], content: Content, scalars: Sequence[str]) -> Plan:
    """Return the plan that `make` makes of `content`, if it is whole; `source` is named in errors."""
    header, arrays = content
    try:
        if header["format"] != FORMAT:
            raise PlanError(f"format {header['format']}, this dcpack reads {FORMAT}")
        padding = None if header["padding"] is None else PaddingRule(**header["padding"])
        options = {name: header[name] for name in scalars}
        plan = make(**arrays, **options, padding=padding, cp_sizes=tuple(header["cp_sizes"]), bounds=header["bounds"])
        digest = header["digest"]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PlanError(f"{source}: not a readable plan: {type(error).__name__}: {error}") from error
    if plan.digest() != digest:
        raise PlanError(f"{source}: corrupt plan: its digest is {plan.digest()}, the header says {digest}")
    return plan
