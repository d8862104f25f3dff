"""Callbacks for `DistributedDataLoader.on_step` that hand the numbers of each step to a logger that you made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from dcpack._checks import check_int
from dcpack.errors import ArgumentError
from dcpack.loader.step_metrics import StepRecord

__all__ = ["log_to_tensorboard", "log_to_wandb"]


class _ScalarWriter(Protocol):
    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


class _Run(Protocol):
    def log(self, data: Mapping[str, float], *, step: int) -> Any: ...


def log_to_tensorboard(writer: _ScalarWriter, *, first_step: int = 0) -> Callable[[StepRecord], None]:
    """Return a callback that writes each step's metrics to a TensorBoard `SummaryWriter`. Nothing is imported.

    Args:
        writer: with ``add_scalar(tag, value, step)``.
        first_step: number of the loader's first step, where a run was resumed.

    Raises:
        ArgumentError: an object without that method, or a number below 0.

    Example:
        >>> class Writer:
        ...     def add_scalar(self, tag, value, step):
        ...         print(step, tag, value)
        >>> callback = log_to_tensorboard(Writer())  # loader.on_step(callback)
    """
    first_step = check_int("first_step", first_step, minimum=0)
    if not callable(getattr(writer, "add_scalar", None)):
        raise ArgumentError(f"writer must have add_scalar(tag, value, step), got {type(writer).__name__}")

    def log(record: StepRecord) -> None:
        for name, value in record.metrics().items():
            writer.add_scalar(name, value, first_step + record.number)

    return log


def log_to_wandb(run: _Run, *, first_step: int = 0) -> Callable[[StepRecord], None]:
    """Return a callback that logs each step's metrics to a wandb run (``wandb.init(...)``). Nothing is imported.

    Args:
        run: with ``log(values, step=...)``.
        first_step: number of the loader's first step, where a run was resumed.

    Raises:
        ArgumentError: an object without that method, or a number below 0.

    Example:
        >>> class Run:
        ...     def log(self, values, step):
        ...         print(step, len(values))
        >>> callback = log_to_wandb(Run())  # loader.on_step(callback)
    """
    first_step = check_int("first_step", first_step, minimum=0)
    if not callable(getattr(run, "log", None)):
        raise ArgumentError(f"run must have log(values, step=...), got {type(run).__name__}")

    def log(record: StepRecord) -> None:
        run.log(record.metrics(), step=first_step + record.number)

    return log
