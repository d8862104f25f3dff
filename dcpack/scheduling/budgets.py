"""Hard limits of every bin beside its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, as_lengths, check_int, exact_sum, list_offenders
from dcpack.errors import ArgumentError, InfeasibleError

__all__ = ["Budget", "amounts_of_items", "check_budgets", "values_of_items"]

# Amounts of a bin are added up in int64.
_MOST = 2**60


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Budget:
    """A hard limit of every bin beside its tokens, for example on vision tokens.

    Args:
        name: for messages.
        amounts: int64[n], what each sequence takes of it, at least 0, together at most 2**60.
        limit: what a bin holds, at least 0.

    Raises:
        ArgumentError: an argument of the wrong type or range.

    Example:
        >>> Budget(name="images", amounts=[1, 0, 2], limit=2).limit
        2
    """

    name: str
    amounts: Any
    limit: int

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ArgumentError(f"name must be a text that is not empty, got {self.name!r}")
        object.__setattr__(self, "amounts", as_lengths(f"amounts of budget {self.name!r}", self.amounts))
        if (total := exact_sum(self.amounts)) > _MOST:
            raise ArgumentError(f"amounts of budget {self.name!r} must add up to at most {_MOST}, got {total}")
        object.__setattr__(self, "limit", check_int(f"limit of budget {self.name!r}", self.limit, minimum=0))


def check_budgets(budgets: Any) -> tuple[Budget, ...]:
    """Return `budgets` as a tuple, if they are a sequence of budgets.

    Example:
        >>> check_budgets(["images"])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: budgets must hold Budget objects, got 'images'
    """
    if not isinstance(budgets, list | tuple):
        raise ArgumentError(f"budgets must be a sequence of Budget objects, got {budgets!r}")
    if wrong := [repr(budget) for budget in budgets if not isinstance(budget, Budget)]:
        raise ArgumentError(f"budgets must hold Budget objects, got {list_offenders(wrong)}")
    return tuple(budgets)


def values_of_items(name: str, values: Any, sequence_ids: Int64Array, num_sequences: int) -> Any:
    """Return the values, one a sequence, of each item.

    Args:
        name: what errors call the values.
        values: [n], an array.
        sequence_ids: int64[p], the sequence of each item.
        num_sequences: n, sequences of the batch.

    Raises:
        ArgumentError: another number of values, or sequences that were cut into several items.
    """
    if values.size != num_sequences:
        raise ArgumentError(f"{name} must have one value a sequence, {num_sequences}, got {values.size}")
    times = np.bincount(sequence_ids, minlength=num_sequences)
    if cut := np.flatnonzero(times > 1).tolist():
        texts = [f"sequence {s} into {times[s]}" for s in cut]
        raise ArgumentError(f"{name} are of whole sequences, some were cut: {list_offenders(texts)}")
    return values[sequence_ids]


def amounts_of_items(budgets: Sequence[Budget], sequence_ids: Int64Array, num_sequences: int) -> Int64Array:
    """Return int64[d, p]: what each item takes of each of d budgets.

    Raises:
        ArgumentError: budgets for another number of sequences, or sequences that were cut.
        InfeasibleError: a sequence takes more of a budget than a bin holds; all are named.

    Example:
        >>> images = Budget(name="images", amounts=[1, 0, 3], limit=2)
        >>> amounts_of_items([images], np.array([1, 0]), 3).tolist()
        [[0, 1]]
    """
    amounts = np.zeros((len(budgets), sequence_ids.size), np.int64)
    for d, budget in enumerate(budgets):
        name = f"amounts of budget {budget.name!r}"
        amounts[d] = values_of_items(name, budget.amounts, sequence_ids, num_sequences)
        if over := np.flatnonzero(amounts[d] > budget.limit).tolist():
            texts = [f"sequence {sequence_ids[i]} takes {amounts[d, i]}" for i in over]
            raise InfeasibleError(f"budget {budget.name!r} of {budget.limit} a bin: {list_offenders(texts)}")
    return amounts
