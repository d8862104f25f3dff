"""What a public callable is given in the place of each of its arguments, and what may come of it."""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from dcpack.comm import FakeBackend
from dcpack.errors import DcpackError, PeerError

OURS = {kind.__name__ for kind in DcpackError.__subclasses__()} - {"PeerError"} | {"EndOfData"}


def _generator() -> Iterator[Any]:
    yield 3
    yield None


class Numbers(enum.IntEnum):
    """What is an int, too, and has a text of its own."""

    TWO = 2


# Made anew for every call, so that no call spoils it for the next.
VALUES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "numpy true": lambda: np.True_,
    "zero": lambda: 0,
    "minus": lambda: -1,
    "huge": lambda: 2**80,
    "nan": lambda: float("nan"),
    "inf": lambda: float("inf"),
    "half": lambda: 0.5,
    "fraction": lambda: fractions.Fraction(1, 2),
    "decimal": lambda: decimal.Decimal(3),
    "minus zero": lambda: -0.0,
    "number of an enum": lambda: Numbers.TWO,
    "complex": lambda: 3 + 1j,
    "text": lambda: "no such thing",
    "surrogate": lambda: "\udcff\0",
    "bytes": lambda: b"abc",
    "object": object,
    "date": lambda: datetime.date(2026, 1, 1),
    "function": lambda: lambda *args, **options: object(),
    "type": lambda: Exception,
    "list": list,
    "map": dict,
    "odd map": lambda: {3: object()},
    "set": lambda: {3},
    "generator": _generator,
    "minuses": lambda: [-1, 2],
    "nans": lambda: [float("nan"), 1.0],
    "texts": lambda: ["3", "4"],
    "nones": lambda: [None, None],
    "maps": lambda: [{}, {"a": 1}],
    "ragged": lambda: [[1, 2], [3]],
    "0-d": lambda: np.array(3),
    "2-d": lambda: np.ones((2, 2), np.int64),
    "objects": lambda: np.array([3, None, "x"], object),
    "floats": lambda: np.array([1.5, float("nan"), -1.0]),
    "whole floats": lambda: [3.0, 2.0],
    "unsigned": lambda: np.array([3, 2], np.uint64),
    "hugest": lambda: [2**63 - 1, 2**63 - 1],
}


FEW = ("none", "true", "numpy true", "minus", "huge", "half", "text", "object", "list", "odd map", "generator", "2-d")


@dataclass(frozen=True)
class Call:
    """A public callable, and what makes arguments that it takes: a function of a communicator, or of nothing.

    Each argument in turn, but for `skips`, is replaced by each of `VALUES`, or of `FEW` where a call is slow: an error
    of ours must come of it, or an answer where the table of the room says so.
    """

    fn: Callable[..., Any]
    make: Callable[..., dict[str, Any]]
    skips: tuple[str, ...] = ()
    few: bool = False

    def arguments(self) -> dict[str, Any]:
        wants = any(item.default is item.empty for item in inspect.signature(self.make).parameters.values())
        return self.make(FakeBackend(deadline_s=20.0).world()) if wants else self.make()


def attempt(fn: Callable[[], Any]) -> str:
    """'taken', 'refused' by an error of ours, or what else came of a call."""
    try:
        fn()
    except PeerError as error:
        return "refused" if error.cause in OURS or not error.cause else f"PeerError of {error}".splitlines()[0]
    except DcpackError as error:
        return "refused" if str(error) else "an error without a word"
    except BaseException as error:
        return f"{type(error).__name__}: {error}".splitlines()[0]
    return "taken"


def outcome(call: Call, /, **changed: Any) -> str:
    """What comes of a call with some arguments replaced."""
    given = {**call.arguments(), **changed}
    return attempt(lambda: call.fn(**given))


def findings(call: Call) -> dict[str, dict[str, list[str]]]:
    """Per argument: which values are taken, and which meet neither an answer nor an error of ours."""
    found: dict[str, dict[str, list[str]]] = {}
    for argument in call.arguments():
        if argument in call.skips:
            continue
        names = FEW if call.few else VALUES
        outcomes = {name: outcome(call, **{argument: VALUES[name]()}) for name in names}
        found[argument] = {
            "taken": [name for name, what in outcomes.items() if what == "taken"],
            "wrong": [f"{name}: {what}" for name, what in outcomes.items() if what not in ("taken", "refused")],
        }
    return found


def parameters(fn: Callable[..., Any]) -> list[str]:
    """The names of what a callable takes, but for ``*args`` and ``**options``."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [item.name for item in inspect.signature(fn).parameters.values() if item.kind not in kinds]


def public_callables(room: ModuleType) -> Iterator[str]:
    """Every public function and class of a room, and every method of one, that takes an argument."""
    for name in room.__all__:
        found = getattr(room, name)
        if isinstance(found, type) and not issubclass(found, BaseException):
            if parameters(found) or getattr(found, "_is_protocol", False):
                yield name
            for method, value in vars(found).items():
                bound = value.__func__ if isinstance(value, classmethod | staticmethod) else value
                if not method.startswith("_") and inspect.isfunction(bound) and len(parameters(bound)) > 1:
                    yield f"{name}.{method}"
        elif inspect.isfunction(found) and parameters(found):
            yield name
