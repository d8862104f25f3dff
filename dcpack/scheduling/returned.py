"""What a scheduler says and returns, checked before anything is made of it: one of a user's may return anything."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, as_lengths, shorten
from dcpack._texts import MAX_LISTED, list_offenders
from dcpack.errors import ArgumentError, PlanError
from dcpack.scheduling.base import OPTIONS, Group, MicroBatch, Problem, Scheduler

__all__ = ["check_microbatches", "name_of", "taken_options", "usable_sizes"]


def name_of(scheduler: Scheduler) -> str:
    """Return what errors call a scheduler: its name, or that of its class.

    Example:
        >>> from dcpack.scheduling import InOrder
        >>> name_of(InOrder())
        "scheduler 'in_order'"
    """
    return f"scheduler {getattr(scheduler, 'name', type(scheduler).__name__)!r}"


def taken_options(scheduler: Scheduler) -> frozenset[str]:
    """Return which of `OPTIONS` a scheduler takes.

    Raises:
        ArgumentError: its attribute ``options`` is no set of them.
    """
    given = getattr(scheduler, "options", frozenset())
    if not isinstance(given, set | frozenset | tuple | list) or not all(name in OPTIONS for name in given):
        raise ArgumentError(f"options of {name_of(scheduler)} must be a set out of {OPTIONS}, got {shorten(given)}")
    return frozenset(given)


def usable_sizes(scheduler: Scheduler, legal: tuple[int, ...]) -> tuple[int, ...]:
    """Return which of the legal CP sizes a scheduler assigns.

    Raises:
        ArgumentError: it names none, others than the legal ones, or not in ascending order.
    """
    what = f"usable_cp_sizes() of {name_of(scheduler)}"
    sizes = tuple(as_lengths(what, scheduler.usable_cp_sizes(legal), minimum=1).tolist())
    if not sizes or list(sizes) != sorted(set(sizes) & set(legal)):
        raise ArgumentError(f"{what} must return some of the legal {legal} in ascending order, got {sizes}")
    return sizes


def check_microbatches(scheduler: Scheduler, problem: Problem, returned: Any) -> list[MicroBatch]:
    """Return what `scheduler` returned, if it is micro-batches of groups of items that there are.

    Whether they are a plan, each item in it once, is for `Plan.validate` and `option_faults`.

    Raises:
        PlanError: something else, numbers that are no whole numbers, items that are unknown, illegal CP sizes, rows
            without a group, or dummies where ``on_empty="error"`` forbids them. All are named.

    Example:
        >>> import dcpack
        >>> class Odd:
        ...     name = "odd"
        ...     def usable_cp_sizes(self, legal):
        ...         return legal
        ...     def schedule(self, problem):
        ...         return [[Group(1, [0, 7])]]
        >>> dcpack.plan([5, 5], num_ranks=1, capacity=10, scheduler=Odd())
        Traceback (most recent call last):
        ...
        dcpack.errors.PlanError: scheduler 'odd' must place items from 0 to 1, got item 7 in micro-batch 0, group 0
    """
    name = name_of(scheduler)
    is_list = isinstance(returned, list | tuple)
    if not is_list or not all(isinstance(groups, list | tuple) for groups in returned):
        listed = shorten(returned) if not is_list else list_offenders([*map(shorten, returned)])
        raise PlanError(f"{name} must return a list of micro-batches, each a list of Group, got {listed}")
    places = [(m, g) for m, groups in enumerate(returned) for g in range(len(groups))]
    flat: list[Any] = [group for groups in returned for group in groups]
    if strange := [k for k, group in enumerate(flat) if not isinstance(group, Group)]:
        listed = _listed(places, {k: shorten(flat[k]) for k in strange})
        raise PlanError(f"{name} must return a list of micro-batches, each a list of Group, got {listed}")
    rows = _numbers(name, "row", [group.row for group in flat], 0)
    sizes = _numbers(name, "cp_size", [group.cp_size for group in flat], 1)
    illegal = ~np.isin(sizes, problem.cp_sizes)
    if illegal.any():
        listed = _listed(places, {k: f"CP size {sizes[k]}" for k in np.flatnonzero(illegal).tolist()})
        raise PlanError(f"{name} must assign CP sizes out of {problem.cp_sizes}, got {listed}")
    _check_rows(name, len(returned), {(m, row) for (m, _), row in zip(places, rows.tolist(), strict=True)})
    _check_items(name, problem, places, flat)
    return list(map(list, returned))


def _numbers(name: str, field: str, values: list[Any], minimum: int) -> Int64Array:
    try:
        return as_lengths(f"{field} of the groups of {name}", values, minimum=minimum)
    except ArgumentError as error:  # of the scheduler, not of who called
        raise PlanError(str(error)) from error


def _check_rows(name: str, num_microbatches: int, filled: set[tuple[int, int]]) -> None:
    """Raise unless there is a group in each row of each micro-batch; `filled` has those where there is one."""
    num_rows = 1 + max((row for _, row in filled), default=0)
    num_missing = num_microbatches * num_rows - len(filled)
    if num_missing:  # perhaps 2**62; only the first are looked for
        slots = ((m, row) for m in range(num_microbatches) for row in range(num_rows))
        first = itertools.islice((slot for slot in slots if slot not in filled), min(num_missing, MAX_LISTED))
        listed = list_offenders([f"row {row} of micro-batch {m}" for m, row in first], num_missing)
        raise PlanError(
            f"{name} must return a group for each row of each micro-batch (rows are numbered from 0), got none for "
            f"{listed}"
        )


def _check_items(name: str, problem: Problem, places: list[tuple[int, int]], groups: list[Group]) -> None:
    if strange := [k for k, group in enumerate(groups) if not _is_list(group.items)]:
        listed = _listed(places, {k: shorten(groups[k].items) for k in strange})
        raise PlanError(f"{name} must return groups whose items are lists of numbers, got {listed}")
    counts = np.array([len(group.items) for group in groups], np.int64)
    items = _numbers(name, "items", [item for group in groups for item in group.items], -(2**63))
    unknown = (items < 0) | (items >= problem.lengths.size)
    if unknown.any():
        of_item = np.repeat(np.arange(len(groups)), counts)
        texts = [f"item {items[i]}{_place(places, of_item[i])}" for i in np.flatnonzero(unknown).tolist()]
        raise PlanError(f"{name} must place items from 0 to {problem.lengths.size - 1}, got {list_offenders(texts)}")
    if problem.on_empty == "error" and not counts.all():
        listed = _listed(places, dict.fromkeys(np.flatnonzero(counts == 0).tolist(), "none"))
        raise PlanError(f"{name} must give each group items where on_empty='error', got {listed}")


def _is_list(items: Any) -> bool:
    if isinstance(items, np.ndarray):
        return items.ndim == 1
    return isinstance(items, Sequence) and not isinstance(items, str | bytes)


def _place(places: list[tuple[int, int]], k: int) -> str:
    return f" in micro-batch {places[k][0]}, group {places[k][1]}"


def _listed(places: list[tuple[int, int]], texts: dict[int, str]) -> str:
    return list_offenders([text + _place(places, k) for k, text in texts.items()])
