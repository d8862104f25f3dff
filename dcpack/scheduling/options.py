"""Options that tie sequences to bins and micro-batches: what they come to for items, and the proof that they hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dcpack._checks import BoolArray, Int64Array, as_lengths, check_choice, check_int, list_offenders
from dcpack.errors import ArgumentError
from dcpack.packing.overlong import Pieces
from dcpack.scheduling.base import EFFORTS, OPTIONS, MicroBatch, Problem, Scheduler
from dcpack.scheduling.budgets import amounts_of_items, check_budgets
from dcpack.scheduling.returned import name_of, taken_options

__all__ = ["item_options", "option_faults", "refuse_foreign_options"]

_FAR = 1 << 40  # micro-batches


def refuse_foreign_options(scheduler: Scheduler, options: Mapping[str, Any]) -> None:
    """Raise `ArgumentError` that names each of `OPTIONS` that is given and that the scheduler does not take.

    Example:
        >>> from dcpack.scheduling import InOrder
        >>> refuse_foreign_options(InOrder(), {"groups": [0, 0], "effort": None})
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: groups cannot be combined with scheduler 'in_order'; 'dynamic_cp' takes it
    """
    taken = taken_options(scheduler)
    foreign = [name for name in options if name in OPTIONS and name not in taken and not _is_unset(options[name])]
    if foreign:
        raise ArgumentError(
            f"{' and '.join(foreign)} cannot be combined with {name_of(scheduler)}; 'dynamic_cp' takes "
            f"{'it' if len(foreign) == 1 else 'them'}"
        )


def _is_unset(value: Any) -> bool:
    return value is None or (isinstance(value, tuple | list) and not value)


def item_options(
    pieces: Pieces, num_sequences: int, *, budgets: Any, groups: Any, max_displacement: Any, effort: Any
) -> dict[str, Any]:
    """Return the fields of `Problem` that the options come to, `reference` aside.

    Args:
        pieces: the items.
        num_sequences: sequences of the whole batch.
        budgets: as in `dcpack.plan`.
        groups: as in `dcpack.plan`.
        max_displacement: as in `dcpack.plan`.
        effort: as in `dcpack.plan`.

    Raises:
        ArgumentError: an option of the wrong type, length or range, or budgets of sequences that were cut.
        InfeasibleError: a sequence takes more of a budget than a bin holds.
    """
    budgets = check_budgets(budgets)
    fields: dict[str, Any] = {"effort": "balanced" if effort is None else check_choice("effort", effort, EFFORTS)}
    if budgets:
        fields["amounts"] = amounts_of_items(budgets, pieces.sequence_ids, num_sequences)
        fields["amount_limits"] = tuple(budget.limit for budget in budgets)
    if groups is not None:
        numbers = as_lengths("groups", groups)
        if numbers.size != num_sequences:
            raise ArgumentError(f"groups must name one for each of {num_sequences} sequences, got {numbers.size}")
        fields["groups"] = numbers[pieces.sequence_ids]
    if max_displacement is not None:
        # Nothing is farther away than there are items, so larger limits say no more.
        fields["max_displacement"] = min(check_int("max_displacement", max_displacement, minimum=0), _FAR)
    return fields


def option_faults(problem: Problem, microbatches: list[MicroBatch]) -> list[str]:
    """Return what options micro-batches break, one text each; empty where all hold.

    Args:
        problem: the problem.
        microbatches: each item in exactly one group.

    Example:
        >>> import dcpack
        >>> dcpack.plan([5, 5], num_ranks=1, capacity=5, cp_sizes=(1,), groups=[0, 0])
        Traceback (most recent call last):
        ...
        dcpack.errors.InfeasibleError: no plan exists for 2 sequences on 1 ranks with CP sizes (1,), capacity 5, \
groups that share a micro-batch: sequence 0 of 5 tokens, sequence 1 of 5 tokens; on_empty='dummy' would allow ranks \
without work
    """
    items = [item for groups in microbatches for group in groups for item in group.items]
    sizes = [len(group.items) for groups in microbatches for group in groups]
    flat = np.array(items, np.int64)
    faults = []
    if len(microbatches) % problem.microbatch_multiple:
        faults.append(f"{len(microbatches)} micro-batches are no multiple of {problem.microbatch_multiple}")
    if problem.max_sequences is not None and max(sizes, default=0) > problem.max_sequences:
        faults.append(f"a bin of {max(sizes)} sequences, max_sequences is {problem.max_sequences}")
    if problem.amounts is not None:
        of_bin = np.repeat(np.arange(len(sizes)), sizes)
        for d, limit in enumerate(problem.amount_limits):
            held = np.zeros(len(sizes), np.int64)
            np.add.at(held, of_bin, problem.amounts[d, flat])
            if np.any(held > limit):
                faults.append(f"a bin takes {held.max()} of budget {d}, its limit is {limit}")
    if problem.ties_microbatches:
        places = np.zeros(problem.lengths.size, np.int64)
        counts = [sum(len(group.items) for group in groups) for groups in microbatches]
        places[flat] = np.repeat(np.arange(len(microbatches)), counts)
        faults += _tie_faults(problem, places)
    return faults


def _tie_faults(problem: Problem, places: Int64Array) -> list[str]:
    faults = []
    if problem.groups is not None and places.size:
        _, of_item = np.unique(problem.groups, return_inverse=True)
        first = np.full(of_item.max() + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, of_item, places)
        faults += _named(problem, "group in several micro-batches", places != first[of_item])
    if problem.homes is not None:
        far = np.abs(places - problem.homes) > problem.max_displacement
        faults += _named(problem, f"moved by more than {problem.max_displacement} micro-batches", far)
    return faults


def _named(problem: Problem, what: str, wrong: BoolArray) -> list[str]:
    items = np.flatnonzero(wrong).tolist()
    return [f"{what}: {list_offenders(problem.describe(items))}"] if items else []
