"""What a scheduler is given, and what it returns.

A scheduler sees a `Problem`: *items* (sequences, or the pieces that an overlong policy cut them into) and limits. It
returns micro-batches, each a list of `Group`: the items of one bin and the CP size that shares it. The driver turns
them into a `Plan`; where in the micro-batch each group sits is decided there, in one place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from dcpack._checks import BoolArray, Int64Array
from dcpack.cost import CostModel
from dcpack.padding import PaddingRule, padded_lengths, row_capacity

__all__ = ["EFFORTS", "OPTIONS", "Group", "MicroBatch", "Problem", "Scheduler", "Spares"]

EFFORTS = ("fast", "balanced", "best")
"""How much a scheduler searches: budgets of candidates and moves, never of time."""

OPTIONS = ("budgets", "groups", "max_displacement", "effort")
"""Options of `dcpack.plan` that only the schedulers take that name them in their attribute ``options``."""


@dataclass(slots=True)
class Group:
    """One bin in the making: its items, the ranks that share it, and their row. Without items it is a dummy.

    Attributes:
        cp_size: ranks that share the bin.
        items: numbers of the items in it.
        row: row of its ranks.

    Example:
        >>> Group(2, [0, 3])
        Group(cp_size=2, items=[0, 3], row=0)
    """

    cp_size: int
    items: list[int]
    row: int = 0


MicroBatch = list[Group]
"""The groups of one micro-batch; in each row their CP sizes add up to all ranks."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """All that a scheduler may look at.

    Attributes:
        sequence_ids: int64[p], the sequence that each item is (a part of), for messages.
        lengths: int64[p], real tokens of each item, at least 1.
        oversized: bool[p], items that are longer than any legal bin and must be alone.
        num_ranks: ranks of the DPxCP domain.
        capacity: padded tokens of one row on one rank.
        cp_sizes: legal CP sizes, ascending.
        padding: the padding rule, or None.
        microbatch_multiple: the number of micro-batches must be a multiple of it.
        max_sequences: most items in a bin, or None.
        on_empty: ``"error"`` or ``"dummy"``: what to do where items are too few to give each rank work.
        cost: the cost model, for schedulers that minimise time.
        sync: ``"microbatch"`` or ``"step"``, when ranks meet.
        num_sequences: sequences of the whole batch, those included that no item comes from.
        amounts: int64[d, p], what each item takes of each of d budgets; None is no budgets.
        amount_limits: what a bin holds of each of them.
        groups: int64[p]; items with the same number must share a micro-batch. None is no groups.
        reference: the micro-batches that displacement is counted from, or None.
        max_displacement: micro-batches that an item may be away from its place in `reference`.
        effort: one of `EFFORTS`, for schedulers that search.

    Example:
        >>> import dcpack
        >>> class Alone:
        ...     name = "alone"
        ...     def usable_cp_sizes(self, legal):
        ...         return legal[:1]
        ...     def schedule(self, problem):                    # each item in a micro-batch of its own, on all ranks
        ...         return [[Group(problem.cp_sizes[0], [item])] for item in problem.longest_first.tolist()]
        >>> dcpack.plan([5, 7], num_ranks=1, capacity=8, scheduler=Alone()).to_sample_id_groups()
        [[[1]], [[0]]]
    """

    sequence_ids: Int64Array
    lengths: Int64Array
    oversized: BoolArray
    num_ranks: int
    capacity: int
    cp_sizes: tuple[int, ...]
    padding: PaddingRule | None
    microbatch_multiple: int
    max_sequences: int | None
    on_empty: str
    cost: CostModel
    sync: str
    num_sequences: int = 0
    amounts: Int64Array | None = None
    amount_limits: tuple[int, ...] = ()
    groups: Int64Array | None = None
    reference: list[MicroBatch] | None = None
    max_displacement: int = 0
    effort: str = "balanced"

    @cached_property
    def padded(self) -> Int64Array:
        """int64[k, p]: padded length of each item at each of the k legal CP sizes."""
        sizes = np.array(self.cp_sizes, np.int64)[:, np.newaxis]
        return padded_lengths(self.lengths, sizes, self.padding)

    def padded_to(self, lengths: Int64Array, cp_size: Int64Array | int) -> Int64Array:
        """Return `lengths` (int64[n]) padded for CP sizes (int64[n], or one for all)."""
        return lengths if self.padding is None else padded_lengths(lengths, cp_size, self.padding)

    @cached_property
    def limits(self) -> Int64Array:
        """int64[k]: padded tokens that a bin of each legal CP size holds."""
        return row_capacity(self.capacity, self.padding) * np.array(self.cp_sizes, np.int64)

    @cached_property
    def longest_first(self) -> Int64Array:
        """int64[p]: the items by decreasing length, equal lengths in the order given."""
        return np.argsort(-self.lengths, kind="stable")

    @property
    def has_whole_domain(self) -> bool:
        """Whether all ranks together are a legal CP size."""
        return self.cp_sizes[-1] == self.num_ranks

    @cached_property
    def homes(self) -> Int64Array | None:
        """int64[p]: micro-batch of each item in `reference`, or None."""
        if self.reference is None:
            return None
        homes = np.zeros(self.lengths.size, np.int64)
        for m, groups in enumerate(self.reference):
            homes[[item for group in groups for item in group.items]] = m
        return homes

    @property
    def ties_microbatches(self) -> bool:
        """Whether it matters in which micro-batch an item is, and in which others are."""
        return self.groups is not None or self.reference is not None

    @property
    def is_restricted(self) -> bool:
        """Whether there are budgets, groups or a limit on displacement."""
        return self.amounts is not None or self.ties_microbatches

    def fits(self, group: Group, size_index: int) -> bool:
        """Tell whether the items of `group` fit in a bin of the `size_index`-th legal CP size."""
        items = group.items
        if len(items) == 1 and self.oversized[items[0]]:
            return size_index == len(self.cp_sizes) - 1
        return int(self.padded[size_index, items].sum()) <= self.limits[size_index]

    def fits_sizes(self, group: Group) -> list[bool]:
        """Tell for each legal CP size whether a bin of it holds the items of `group`."""
        items = group.items
        if len(items) == 1 and self.oversized[items[0]]:
            return [k == len(self.cp_sizes) - 1 for k in range(len(self.cp_sizes))]
        return (self.padded[:, items].sum(axis=1) <= self.limits).tolist()

    def smallest_size(self, group: Group) -> int | None:
        """Return the smallest legal CP size that holds the items of `group`, or None."""
        return next((size for k, size in enumerate(self.cp_sizes) if self.fits(group, k)), None)

    def describe(self, items: Sequence[int]) -> list[str]:
        """Return a text for each of `items`, for errors."""
        return [f"sequence {self.sequence_ids[i]} of {self.lengths[i]} tokens" for i in items]


class Spares:
    """What groups in the making have left of the budgets; everything where a problem has none.

    Args:
        problem: the problem.
        items: int64[n], the items that will be placed, named by their number in here.
    """

    def __init__(self, problem: Problem, items: Int64Array) -> None:
        self._amounts: list[list[int]] | None = None
        if problem.amounts is not None:
            self._amounts = problem.amounts[:, items].T.tolist()
        self._limits = problem.amount_limits
        self._left: dict[int, list[int]] = {}

    @property
    def is_limited(self) -> bool:
        """Whether there are budgets at all."""
        return self._amounts is not None

    def affords(self, group: int, at: int) -> bool:
        """Tell whether `group` can take the item numbered `at`."""
        if self._amounts is None:
            return True
        left = self._left.get(group, self._limits)
        return all(amount <= free for amount, free in zip(self._amounts[at], left, strict=True))

    def take(self, group: int, at: int) -> None:
        """Count the item numbered `at` in `group`."""
        if self._amounts is not None:
            left = self._left.get(group, self._limits)
            self._left[group] = [free - amount for amount, free in zip(self._amounts[at], left, strict=True)]


class Scheduler(Protocol):
    """Lengths and limits to micro-batches; pure, and the same on every machine.

    One whose groups all have one size in a micro-batch may have an attribute ``equal_groups = True``: of its usable CP
    sizes only those that divide the ranks are then legal, and overlong sequences are judged by them.

    One that takes some of `OPTIONS` names them in an attribute ``options``; the others are refused for it.

    Example:
        >>> from dcpack.scheduling import get_scheduler
        >>> scheduler: Scheduler = get_scheduler("balanced")
        >>> scheduler.usable_cp_sizes((1, 2, 4))
        (1,)
    """

    name: str

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        """Return which of the legal CP sizes (ascending) this scheduler assigns."""
        ...

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        """Return micro-batches whose groups add up to all ranks, each item in exactly one group.

        Raises:
            InfeasibleError: none was found; names the items, their lengths and the limits.
        """
        ...
