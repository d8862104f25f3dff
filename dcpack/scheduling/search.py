"""Look for any plan at all where faster ways found none, item by item with backtracking; or know that none exists."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from dcpack._checks import Int64Array, list_offenders
from dcpack.scheduling.base import Group, MicroBatch, Problem

__all__ = ["Searched", "search_any_plan", "why_impossible"]

_MOST_STEPS = 20_000
_NEVER = 1 << 30


@dataclass(frozen=True, kw_only=True)
class Searched:
    """What a search came to.

    Attributes:
        plan: micro-batches that hold all options, or None.
        is_proof: whether all plans were looked at, so that without one none exists.
    """

    plan: list[MicroBatch] | None
    is_proof: bool


def why_impossible(problem: Problem) -> str | None:
    """Return a reason why no plan can exist, or None where none of the simple ones holds."""
    fewest = _fewest_groups(problem)[problem.num_ranks]
    if fewest >= _NEVER:
        return f"no sum of the sizes is {problem.num_ranks}"
    least = _fewest_microbatches(problem)
    if problem.on_empty == "error" and least * fewest > problem.lengths.size:
        return (
            f"at least {least} micro-batches of at least {fewest} groups each cannot all get work from "
            f"{problem.lengths.size} sequences"
        )
    if problem.groups is None:
        return None
    _, of_item = np.unique(problem.groups, return_inverse=True)
    for column, limit in _needs(problem):
        needed = np.zeros(int(of_item.max(initial=-1)) + 1, np.int64)
        np.add.at(needed, of_item, column)
        if over := np.flatnonzero((needed > limit)[of_item]).tolist():
            return f"groups that are too large for one micro-batch: {list_offenders(problem.describe(over))}"
    return None


def _needs(problem: Problem) -> list[tuple[Int64Array, int]]:
    """Return what each item takes at least (int64[p]) of what a micro-batch holds at most, for each kind of limit."""
    bins = _most_groups(problem)
    room = int(problem.limits[-1]) // problem.cp_sizes[-1] * problem.num_ranks
    needs = [(np.where(problem.oversized, 0, problem.lengths), room)]
    if problem.amounts is not None:
        needs += [(column, limit * bins) for column, limit in zip(problem.amounts, problem.amount_limits, strict=True)]
    if problem.max_sequences is not None:
        needs.append((np.ones_like(problem.lengths), problem.max_sequences * bins))
    return needs


def _fewest_microbatches(problem: Problem) -> int:
    """Return a number of micro-batches, a multiple as asked for, that no plan can do with less than."""
    least = 1 if problem.lengths.size else 0
    for column, limit in _needs(problem):
        total = int(column.sum())
        least = max(least, -(-total // limit) if limit else 0)
    return -(-least // problem.microbatch_multiple) * problem.microbatch_multiple


def _most_groups(problem: Problem) -> int:
    """Return the most groups of legal sizes that fill all ranks exactly; 0 where none do."""
    most = np.full(problem.num_ranks + 1, -1, np.int64)
    most[0] = 0
    sizes = np.array(problem.cp_sizes, np.int64)
    for ranks in range(1, problem.num_ranks + 1):
        before = most[ranks - sizes[sizes <= ranks]]
        if np.any(before >= 0):
            most[ranks] = before.max() + 1
    return max(int(most[-1]), 0)


def search_any_plan(problem: Problem) -> Searched:
    """Look for micro-batches that hold all options of the problem.

    Items go by decreasing length, each into a bin with room (the fullest first) or a new one of some size; where that
    comes to nothing the last choice is changed. Numbers of micro-batches go up from the fewest. After 20,000 steps it
    gives up. Micro-batches and bins that are alike are tried once.
    """
    search = _Search(problem)
    for count in search.counts():
        found = search.run(count)
        if found is not None:
            return Searched(plan=found, is_proof=True)
        if search.steps >= _MOST_STEPS:
            return Searched(plan=None, is_proof=False)
    return Searched(plan=None, is_proof=True)


def _fewest_groups(problem: Problem) -> list[int]:
    """Return for 0, 1, ... ranks the fewest groups of legal sizes that fill them exactly; `_NEVER` where none do."""
    fewest = np.full(problem.num_ranks + 1, _NEVER, np.int64)
    fewest[0] = 0
    sizes = np.array(problem.cp_sizes, np.int64)
    for ranks in range(1, problem.num_ranks + 1):
        usable = sizes[sizes <= ranks]
        if usable.size:
            fewest[ranks] = min(_NEVER, int(fewest[ranks - usable].min()) + 1)
    return fewest.tolist()


@dataclass(slots=True)
class _Bin:
    microbatch: int
    kind: int  # index of the size
    room: int
    items: list[int]
    left: list[int]  # of each budget


class _Search:
    """One problem, searched with several numbers of micro-batches; counts steps over all of them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.steps = 0
        self.fewest = _fewest_groups(problem)
        self.order = problem.longest_first.tolist()
        self.padded = problem.padded.tolist()
        self.limits = problem.limits.tolist()
        self.most = len(self.order) if problem.max_sequences is None else problem.max_sequences
        self.dummies = problem.on_empty == "dummy"
        amounts = problem.amounts
        self.amounts = [[]] * len(self.order) if amounts is None else amounts.T.tolist()
        self.groups = None if problem.groups is None else problem.groups.tolist()
        self.homes = None if problem.homes is None else problem.homes.tolist()

    def counts(self) -> range:
        """Return the numbers of micro-batches that a plan can have."""
        problem, multiple = self.problem, self.problem.microbatch_multiple
        count = len(self.order)
        most = count if self.dummies else count // max(self.fewest[problem.num_ranks], 1)
        if self.homes is not None:
            last = max(self.homes, default=-1) + problem.max_displacement + 1
            most = last if self.dummies else min(most, last)
        if self.dummies:
            most = -(-most // multiple) * multiple
        return range(max(_fewest_microbatches(problem), multiple), most + 1, multiple)

    def run(self, count: int) -> list[MicroBatch] | None:
        """Return a plan with `count` micro-batches, or None."""
        self.free = [self.problem.num_ranks] * count
        self.bins: list[_Bin] = []
        self.place_of_group: dict[int, list[int]] = {}  # micro-batch, members so far
        choices = [self._choices(0)] if self.order else []
        while choices:
            if self.steps >= _MOST_STEPS:
                return None
            self.steps += 1
            undo = next(choices[-1], None)
            if undo is None:
                choices.pop()
            elif len(choices) == len(self.order):
                if self._is_whole():
                    return self._result(count)
            else:
                choices.append(self._choices(len(choices)))
        return None

    def _is_whole(self) -> bool:
        return all(free == 0 or (self.dummies and self.fewest[free] < _NEVER) for free in self.free)

    def _choices(self, at: int) -> Iterator[bool]:
        """Make one choice for an item after another; each is taken back when the next is asked for."""
        item = self.order[at]
        left = len(self.order) - at
        needed = 0 if self.dummies else sum(self.fewest[free] for free in self.free)
        if needed > left:
            return
        oversized = bool(self.problem.oversized[item])
        allowed = self._allowed(item)
        if needed < left and not oversized:
            yield from self._join(item, allowed)
        yield from self._open(item, allowed, oversized)

    def _allowed(self, item: int) -> range:
        low, high = 0, len(self.free) - 1
        if self.homes is not None:
            low = max(low, self.homes[item] - self.problem.max_displacement)
            high = min(high, self.homes[item] + self.problem.max_displacement)
        if self.groups is not None and self.groups[item] in self.place_of_group:
            own = self.place_of_group[self.groups[item]][0]
            low, high = max(low, own), min(high, own)
        return range(low, high + 1)

    def _join(self, item: int, allowed: range) -> Iterator[bool]:
        tried: set[tuple[object, ...]] = set()
        for bin_ in sorted(self.bins, key=lambda b: b.room - self.padded[b.kind][item]):
            if bin_.microbatch not in allowed or self.padded[bin_.kind][item] > bin_.room:
                continue
            if len(bin_.items) >= self.most or any(a > b for a, b in zip(self.amounts[item], bin_.left, strict=True)):
                continue
            like = (bin_.kind, bin_.room, len(bin_.items), tuple(bin_.left), self._like(bin_.microbatch))
            if like in tried:
                continue
            tried.add(like)
            self._put(bin_, item)
            yield True
            self._take_back(bin_, item)

    def _open(self, item: int, allowed: range, oversized: bool) -> Iterator[bool]:
        tried: set[tuple[object, ...]] = set()
        for m in allowed:
            for k, size in enumerate(self.problem.cp_sizes):
                if size > self.free[m] or self.fewest[self.free[m] - size] >= _NEVER:
                    continue
                if self.padded[k][item] > self.limits[k] and not (oversized and k == len(self.limits) - 1):
                    continue
                like = (k, self._like(m))
                if like in tried:
                    continue
                tried.add(like)
                room = self.padded[k][item] if oversized else self.limits[k]
                bin_ = _Bin(m, k, room, [], list(self.problem.amount_limits))
                self.bins.append(bin_)
                self.free[m] -= size
                self._put(bin_, item)
                yield True
                self._take_back(bin_, item)
                self.free[m] += size
                self.bins.pop()

    def _like(self, m: int) -> tuple[object, ...]:
        """Return what makes micro-batches alike: where places matter, none is like another."""
        if self.problem.ties_microbatches:
            return (m,)
        return (self.free[m], *sorted((b.kind, b.room, len(b.items), *b.left) for b in self.bins if b.microbatch == m))

    def _put(self, bin_: _Bin, item: int) -> None:
        bin_.room -= self.padded[bin_.kind][item]
        bin_.items.append(item)
        bin_.left = [b - a for a, b in zip(self.amounts[item], bin_.left, strict=True)]
        if self.groups is not None:
            place = self.place_of_group.setdefault(self.groups[item], [bin_.microbatch, 0])
            place[1] += 1

    def _take_back(self, bin_: _Bin, item: int) -> None:
        bin_.room += self.padded[bin_.kind][item]
        bin_.items.pop()
        bin_.left = [b + a for a, b in zip(self.amounts[item], bin_.left, strict=True)]
        if self.groups is not None:
            place = self.place_of_group[self.groups[item]]
            place[1] -= 1
            if place[1] == 0:
                del self.place_of_group[self.groups[item]]

    def _result(self, count: int) -> list[MicroBatch]:
        result: list[MicroBatch] = [[] for _ in range(count)]
        for bin_ in self.bins:
            result[bin_.microbatch].append(Group(self.problem.cp_sizes[bin_.kind], list(bin_.items)))
        for m, free in enumerate(self.free):
            while free:
                size = next(s for s in self.problem.cp_sizes if s <= free and self.fewest[free - s] < self.fewest[free])
                result[m].append(Group(size, []))
                free -= size
        return result
