"""What the launcher of the processes left in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from dcpack.errors import BackendError

__all__ = ["Launch", "read_launch", "whole_number"]

_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_LOCAL = "LOCAL_RANK"
# Launchers that start several processes without the variables of torchrun, and where each of them says how many.
_FOREIGN = {"srun": "SLURM_STEP_NUM_TASKS", "mpirun": "OMPI_COMM_WORLD_SIZE", "mpiexec": "PMI_SIZE"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """This process's place among those that were started together.

    Attributes:
        rank: global number.
        world_size: number of processes.
        local_rank: number on this machine; None where the launcher does not say.
    """

    rank: int
    world_size: int
    local_rank: int | None


def read_launch(environment: Mapping[str, str] | None = None) -> Launch | None:
    """Return what torchrun, or whoever sets the same variables, says; None where no launcher was used at all.

    Args:
        environment: the variables; None for those of this process.

    Raises:
        BackendError: some variables are set and others are missing or make no sense; or another launcher started
            several processes and set none of them. All offenders are named.

    Example:
        >>> read_launch({"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"})
        Launch(rank=1, world_size=2, local_rank=None)
        >>> read_launch({}) is None
        True
        >>> read_launch({"RANK": "1", "WORLD_SIZE": "2"})
        Traceback (most recent call last):
        ...
        dcpack.errors.BackendError: the environment of the launcher is incomplete: RANK=1, WORLD_SIZE=2 set, \
MASTER_ADDR, MASTER_PORT missing; start with torchrun, or unset them to run as one process
    """
    variables = os.environ if environment is None else environment
    given = [name for name in (*_NEEDED, _LOCAL) if variables.get(name)]
    if not given:
        _require_alone(variables)
        return None
    if missing := [name for name in _NEEDED if name not in given]:
        shown = ", ".join(f"{name}={variables[name]}" for name in given)
        raise BackendError(
            f"the environment of the launcher is incomplete: {shown} set, {', '.join(missing)} missing; start with "
            "torchrun, or unset them to run as one process"
        )
    numbers: dict[str, int] = {}
    for name, minimum in (("WORLD_SIZE", 1), ("RANK", 0), ("MASTER_PORT", 0), (_LOCAL, 0)):
        if name in given:
            numbers[name] = whole_number(name, variables[name], minimum)
    if numbers["RANK"] >= numbers["WORLD_SIZE"]:
        raise BackendError(f"RANK must be below WORLD_SIZE, got RANK={numbers['RANK']} of {numbers['WORLD_SIZE']}")
    return Launch(rank=numbers["RANK"], world_size=numbers["WORLD_SIZE"], local_rank=numbers.get(_LOCAL))


def whole_number(name: str, text: str, minimum: int) -> int:
    """Return the value of environment variable `name`.

    Raises:
        BackendError: it is no whole number of at least `minimum`.

    Example:
        >>> whole_number("LOCAL_RANK", "3", 0)
        3
    """
    if not text.isascii() or not text.isdigit() or int(text) < minimum:
        raise BackendError(f"environment variable {name} must be a whole number of at least {minimum}, got {text!r}")
    return int(text)


def _require_alone(variables: Mapping[str, str]) -> None:
    """Refuse to be a world of one where another launcher started several processes."""
    for launcher, name in _FOREIGN.items():
        count = variables.get(name, "")
        if count.isdigit() and int(count) > 1:
            raise BackendError(
                f"{launcher} started {count} processes ({name}), but {', '.join(_NEEDED)} are not set, so each would "
                "be alone; set them in each process, or start with torchrun"
            )
