"""Deal items to micro-batches that take different times.

Where sizes are powers of two, the CP size of a long item leaves up to half of its ranks' time unused at one target and
nearly none at another. Micro-batches that aim at different times give each long item a choice.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dcpack._checks import Float64Array, Int64Array
from dcpack.scheduling.size_table import size_grid
from dcpack.scheduling.timing import GroupTimes

__all__ = ["deal_speeds"]

_MAX_RATIO = 4.0
_RATIOS = 16
_SLACKS = 1.0 + 0.02 * np.arange(16)
_USABLE = 0.8  # of the time that wide groups leave unused, for short items
_MAX_TABLE = 1 << 18


def deal_speeds(times: GroupTimes, count: int, most: int) -> Iterator[list[tuple[Int64Array, float]]]:
    """Yield up to `most` different deals, the most promising first.

    Many combinations of target times are tried at once on the long items alone: each goes to the micro-batch where its
    ranks times the target time are least. Short items then even out what is left.

    Args:
        times: times of the problem.
        count: number of micro-batches, at least 2.
        most: deals that are yielded at most.

    Yields:
        For each micro-batch its items, int64[n], longest first, and the time it aims at.
    """
    problem = times.problem
    search = _Search(times, count)
    seen: set[bytes] = set()
    for c in search.promising():
        if len(seen) == most:
            break
        wide = search.chosen[:, c].astype(np.int64)
        key = wide.tobytes()
        if key in seen:
            continue
        seen.add(key)
        targets = search.targets[c]
        dealt = _deal(times, wide, targets)
        if dealt is not None and all(dealt):
            ordered = problem.longest_first
            yield [(ordered[members], float(target)) for members, target in zip(dealt, targets, strict=True)]


class _Search:
    """Long items dealt for many combinations of targets at once.

    Attributes:
        targets: float64[c, m], the target of each micro-batch in each combination.
        chosen: int8[w, c], the micro-batch of each long item.
    """

    def __init__(self, times: GroupTimes, count: int) -> None:
        self.times = times
        problem = times.problem
        self.num_ranks, self.base = problem.num_ranks, int(times.sizes[0])
        powers = _MAX_RATIO ** (np.linspace(0, 1, _RATIOS)[:, np.newaxis] * (1 - np.arange(count) / (count - 1)))
        speeds = np.rint(2.0**40 * powers) / 2.0**40  # the last bits of a power differ between machines
        shares = speeds / speeds.sum(axis=1, keepdims=True)
        self.targets = ((times.even_time * _SLACKS)[:, np.newaxis, np.newaxis] * shares[np.newaxis]).reshape(-1, count)
        items = problem.longest_first
        smallest = times.smallest[items]
        alone = times.alone(smallest, items)
        self.num_wide = int(np.flatnonzero((smallest > 0) | (alone > self.targets.min())).max(initial=-1)) + 1
        grid = size_grid(problem.cp_sizes)
        self.num_wide = min(self.num_wide, _MAX_TABLE // grid.size)
        items, smallest = items[: self.num_wide], smallest[: self.num_wide]
        table = times.alone_table(items, grid)
        table[grid < smallest[:, np.newaxis]] = np.inf
        self.table: Float64Array = np.minimum.accumulate(table, axis=1)
        self.work = alone[: self.num_wide] * times.sizes[smallest]
        self.lengths = problem.lengths[items]
        self.narrow_work = times.work - float(self.work.sum())
        self.narrow_tokens = int(problem.lengths.sum() - self.lengths.sum())
        self.chosen = np.zeros((self.num_wide, len(self.targets)), np.int8)
        self._sizes = np.append(times.sizes[grid], problem.num_ranks + 1)
        self._deal_wide()

    def _deal_wide(self) -> None:
        combinations, count = self.targets.shape
        every = np.arange(combinations)
        self.free = np.full((combinations, count), self.num_ranks)
        taken = np.zeros((self.num_wide, combinations), np.int64)  # ranks
        areas = np.zeros((self.num_wide, combinations))  # ranks times the target
        flat = -self.targets.ravel()
        for w in range(self.num_wide):
            # The table falls with the size; its first entry within the target is the size.
            sizes = self._sizes[np.searchsorted(-self.table[w], flat)].reshape(combinations, count)
            area = np.where(sizes <= self.free, sizes * self.targets, np.inf)
            chosen = self.chosen[w] = np.argmin(area, axis=1)
            taken[w], areas[w] = sizes[every, chosen], area[every, chosen]
            self.free[every, chosen] -= np.where(taken[w] > self.base, taken[w], 0)
        wide, works = taken > self.base, areas < np.inf
        self.chosen[~wide] = -1
        self.feasible = np.asarray(np.all(works, axis=0))
        self.narrow = self.narrow_work + np.where(wide, 0.0, self.work[:, np.newaxis]).sum(axis=0)
        self.slack = np.where(wide & works, areas - self.work[:, np.newaxis], 0.0).sum(axis=0)
        self.ranks_times_tokens = self.narrow_tokens + self.lengths @ taken

    def promising(self) -> list[int]:
        """Return the combinations that may work out, those of the least time and CP first."""
        room = (self.free * self.targets).sum(axis=1) + _USABLE * self.slack
        works = np.flatnonzero(self.feasible & (room >= self.narrow) & (self.chosen >= 0).any(axis=0))
        # Short items that find no time on ranks of their own share the ranks of long ones.
        beside = np.maximum(self.narrow - (self.free * self.targets).sum(axis=1), 0.0) / np.maximum(self.narrow, 1.0)
        wide_tokens = max(int(self.lengths.sum()), 1)
        mean_wide = (self.ranks_times_tokens - self.narrow_tokens) / wide_tokens
        shared = self.ranks_times_tokens + beside * self.narrow_tokens * mean_wide
        mean_cp = shared[works] / (self.narrow_tokens + wide_tokens)
        score = self.times.priced(self.targets[works].sum(axis=1), mean_cp)
        return works[np.lexsort((works, score))].tolist()


def _deal(times: GroupTimes, wide: Int64Array, targets: Float64Array) -> list[list[int]] | None:
    """Deal the long items as chosen, the others to where most time is left; None where a micro-batch has no room."""
    problem = times.problem
    items = problem.longest_first
    smallest = times.smallest[items]
    work = times.alone(smallest, items) * times.sizes[smallest]
    free_work = (targets * problem.num_ranks).tolist()
    per_rank = int(problem.limits[-1]) // int(times.sizes[-1])
    free_tokens = [per_rank * problem.num_ranks] * len(targets)
    dealt: list[list[int]] = [[] for _ in range(len(targets))]
    fixed = np.append(wide, np.full(items.size - wide.size, -1)).tolist()
    tokens = times.padded(smallest, items).tolist()
    for at, (m, done) in enumerate(zip(fixed, work.tolist(), strict=True)):
        if m >= 0:
            dealt[m].append(at)
            free_tokens[m] -= tokens[at]
            free_work[m] -= done
    for at, (m, done) in enumerate(zip(fixed, work.tolist(), strict=True)):
        if m < 0:
            inside = [k for k, free in enumerate(free_tokens) if tokens[at] <= free]
            if not inside:
                return None
            chosen = max(inside, key=lambda k: free_work[k])
            dealt[chosen].append(at)
            free_tokens[chosen] -= tokens[at]
            free_work[chosen] -= done
    return [sorted(members) for members in dealt]
