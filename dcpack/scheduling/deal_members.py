"""Deal items to micro-batches where it matters who is in which: groups that stay together, places near the old ones."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from dcpack._checks import Float64Array, Int64Array, list_offenders
from dcpack.errors import InfeasibleError
from dcpack.scheduling.base import Problem
from dcpack.scheduling.timing import GroupTimes

__all__ = ["deal_members"]

_COUNTS = 6  # numbers of micro-batches that are tried


def deal_members(times: GroupTimes, fewest: int) -> Iterator[list[Int64Array]]:
    """Yield the items of each micro-batch, int64[n] each, longest first, in several ways.

    Clusters (groups of items, or single ones) go by decreasing work to the micro-batch they may be in that has the
    least work so far and room for their tokens; then the same by their number of items, as every rank wants one.
    Numbers of micro-batches are tried from `fewest` up, then, with a reference, its own deal.

    Args:
        times: times of the problem.
        fewest: micro-batches that memory asks for.

    Raises:
        InfeasibleError: a group whose members `max_displacement` keeps apart.
    """
    clusters = _Clusters(times)
    problem = times.problem
    for count in _counts(problem, clusters, fewest):
        for load in (clusters.work, clusters.members):
            dealt = clusters.deal(count, load)
            if dealt is not None:
                yield _items_of(problem, dealt[clusters.of_item], count)
    if problem.homes is not None and problem.reference is not None:
        yield _items_of(problem, problem.homes, len(problem.reference))


def _counts(problem: Problem, clusters: _Clusters, fewest: int) -> list[int]:
    """Return the numbers of micro-batches to try: the first few from the fewest on, then ever larger ones."""
    multiple = problem.microbatch_multiple
    most = clusters.count
    if problem.homes is not None:
        fewest = max(fewest, int(clusters.earliest.max()) + 1)
        most = int(clusters.latest.max()) + 1
    first = max(1, -(-fewest // multiple)) * multiple
    if problem.on_empty == "dummy":
        most = -(-most // multiple) * multiple
    counts = [count for count in range(first, first + _COUNTS * multiple, multiple) if count <= most]
    count = first + _COUNTS * multiple
    while count <= most:
        counts.append(count)
        count = -(-2 * count // multiple) * multiple
    last = most // multiple * multiple
    return sorted({*counts, *([last] if last >= first else [])})


def _items_of(problem: Problem, place: Int64Array, count: int) -> list[Int64Array]:
    ordered = problem.longest_first
    by_place = ordered[np.argsort(place[ordered], kind="stable")]
    bounds = np.searchsorted(place[by_place], np.arange(count + 1))
    return [by_place[a:b] for a, b in itertools.pairwise(bounds.tolist())]


class _Clusters:
    """Items that must share a micro-batch.

    Attributes:
        of_item: int64[p], cluster of each item.
        earliest, latest: int64[c], the micro-batches that each may be in.
        work, members: [c], time times ranks of each, and its number of items.
    """

    def __init__(self, times: GroupTimes) -> None:
        problem = times.problem
        items = np.arange(problem.lengths.size)
        self.problem = problem
        self.of_item = items if problem.groups is None else np.unique(problem.groups, return_inverse=True)[1]
        self.count = int(self.of_item.max(initial=-1)) + 1
        work = times.alone(times.smallest, items) * times.sizes[times.smallest]
        self.work = np.bincount(self.of_item, weights=work, minlength=self.count)
        self.members = np.bincount(self.of_item, minlength=self.count)
        self.needs, self.room = self._needs(times, items)
        self.earliest = np.zeros(self.count, np.int64)
        self.latest = np.full(self.count, np.iinfo(np.int64).max - 1)
        if problem.homes is not None:
            np.maximum.at(self.earliest, self.of_item, problem.homes - problem.max_displacement)
            np.minimum.at(self.latest, self.of_item, problem.homes + problem.max_displacement)
            self._refuse_torn()

    def _needs(self, times: GroupTimes, items: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return int64[c, d] and int64[d]: what each cluster takes of what all ranks of a micro-batch can hold."""
        problem = self.problem
        ranks, bins = problem.num_ranks, problem.num_ranks // problem.cp_sizes[0]
        tokens = np.where(problem.oversized, problem.limits[-1], times.padded(times.smallest, items))
        columns, room = [tokens], [int(problem.limits[-1]) // problem.cp_sizes[-1] * ranks]
        if problem.max_sequences is not None:
            columns.append(np.ones_like(items))
            room.append(problem.max_sequences * bins)
        if problem.amounts is not None:
            columns += list(problem.amounts)
            room += [limit * bins for limit in problem.amount_limits]
        needs = np.zeros((self.count, len(columns)), np.int64)
        np.add.at(needs, self.of_item, np.stack(columns, axis=1))
        return needs, np.array(room, np.int64)

    def _refuse_torn(self) -> None:
        torn = np.flatnonzero((self.latest < self.earliest)[self.of_item]).tolist()
        if torn:
            homes = self.problem.homes
            assert homes is not None
            texts = [f"{text} in {homes[i]}" for i, text in zip(torn, self.problem.describe(torn), strict=True)]
            raise InfeasibleError(
                f"no plan exists: max_displacement {self.problem.max_displacement} and groups keep apart and together "
                f"(micro-batches of in_order): {list_offenders(texts)}"
            )

    def deal(self, count: int, weight: Float64Array | Int64Array) -> Int64Array | None:
        """Return int64[c], the micro-batch of each cluster, or None where some cluster finds no room.

        Args:
            count: micro-batches.
            weight: [c], what is dealt evenly.
        """
        room = np.tile(self.room, (count, 1))
        load = np.zeros(count)
        result = np.zeros(self.count, np.int64)
        for c in np.lexsort((-self.work, -weight)).tolist():
            low, high = int(self.earliest[c]), int(min(self.latest[c], count - 1)) + 1
            fits = np.all(room[low:high] >= self.needs[c], axis=1)
            if not fits.any():
                return None
            at = low + int(np.argmin(np.where(fits, load[low:high], np.inf)))
            result[c] = at
            room[at] -= self.needs[c]
            load[at] += weight[c]
        return result
