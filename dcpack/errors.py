"""The errors of dcpack: one base class and its few kinds.

Every error that dcpack raises on purpose is a `DcpackError`. Its message names the argument, the value, the bound and
all offenders, so that it can be acted upon without a debugger.
"""

from __future__ import annotations

__all__ = [
    "ArgumentError",
    "BackendError",
    "DcpackError",
    "InfeasibleError",
    "PeerError",
    "PlanError",
]


class DcpackError(Exception):
    """Base class of all errors that dcpack raises on purpose.

    Example:
        >>> issubclass(InfeasibleError, DcpackError)
        True
    """


class ArgumentError(DcpackError, ValueError):
    """An argument, option or sample that cannot be right, whatever the rest of the input.

    Example:
        >>> try:
        ...     raise ArgumentError("capacity must be at least 1, got 0")
        ... except ValueError as error:
        ...     print(error)
        capacity must be at least 1, got 0
    """


class InfeasibleError(DcpackError, ValueError):
    """Each argument is legal, but no plan (or bin) satisfies them together.

    The message names the sequences, their lengths and the limits they break. A scheduler raises it rather than return a
    plan that breaks an invariant.

    Example:
        >>> import dcpack
        >>> dcpack.pack([900], capacity=100)
        Traceback (most recent call last):
        ...
        dcpack.errors.InfeasibleError: 1 sequence is longer than the limit of 100 tokens: sequence 0 has 900
    """


class PlanError(DcpackError, ValueError):
    """A plan, or a file that should hold one, breaks an invariant or does not fit what it is used with.

    Example:
        >>> issubclass(PlanError, ValueError)
        True
    """


class BackendError(DcpackError, RuntimeError):
    """A back end is known but cannot be had here; the message says what is missing and what would bring it.

    Example:
        >>> issubclass(BackendError, RuntimeError)
        True
    """


class PeerError(DcpackError, RuntimeError):
    """Some rank failed, left, or called something else; every member of the group raises this one error.

    Attributes:
        rank: global number of the rank where the first cause lies, or None where no single rank is at fault
            (calls that do not match each other).
        cause: name of the exception type on that rank, for example ``"KeyError"``; empty without one.

    Args:
        message: what happened, on which ranks.
        rank: as the attribute.
        cause: as the attribute.

    Example:
        >>> error = PeerError("rank 2 failed", rank=2, cause="KeyError")
        >>> error.rank, error.cause
        (2, 'KeyError')
    """

    def __init__(self, message: str, *, rank: int | None = None, cause: str = "") -> None:
        super().__init__(message)
        self.rank = rank
        self.cause = cause
