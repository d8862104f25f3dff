"""Deal the items of a problem to micro-batches, in the ways that suit their number."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from dcpack._checks import Int64Array
from dcpack.scheduling.base import MicroBatch
from dcpack.scheduling.choice import Choice
from dcpack.scheduling.deal_members import deal_members
from dcpack.scheduling.speeds import deal_speeds
from dcpack.scheduling.target_time import at_target, best_target, level
from dcpack.scheduling.timing import GroupTimes
from dcpack.scheduling.token_bins import pack_tokens, slice_ranks

__all__ = ["deals_of"]

_MAX_POOLED, _MAX_SPEEDS = 8, 3  # micro-batches
_POOLED_TARGETS = (1.15, 1.35, 1.6)
_EVEN, _GOOD, _FAR = 1.005, 1.02, 1.045  # times the work shared out evenly
_TIGHT = 0.85  # of the tokens that micro-batches can hold


def deals_of(times: GroupTimes, choice: Choice, most: int, looser: int) -> Iterator[list[MicroBatch]]:
    """Yield micro-batches dealt in the ways that suit the problem; ranks may still be free in them.

    Args:
        times: times of the problem.
        choice: what was best so far, those yielded before among them; what is tried next depends on it.
        most: deals of one kind that are yielded at most.
        looser: how many more micro-batches than the fewest are tried, where the fewest leave no room to balance.
    """
    problem = times.problem
    bins = _slowest_first(times, pack_tokens(times))
    full = slice_ranks(bins, problem.num_ranks)
    if not problem.ties_microbatches:
        yield from _deals(times, choice, most, bins, full)
    if problem.ties_microbatches or (problem.amounts is not None and not choice.best):
        for number, members in enumerate(deal_members(times, len(full))):
            if choice.best and number >= most:
                break
            packed = [_pack_members(times, items) for items in members]
            whole = [groups for groups in packed if groups is not None]
            if len(whole) == len(packed):
                yield whole
    else:
        yield from _looser_deals(times, choice, most, bins, len(full), looser)
    if problem.reference is not None:
        yield problem.reference


def _pack_members(times: GroupTimes, items: Int64Array) -> MicroBatch | None:
    """Return the items of one micro-batch in groups, or None where they do not fit."""
    if items.size == 0:
        return []
    num_ranks = times.problem.num_ranks
    bins = pack_tokens(times, items)
    start = bins if sum(group.cp_size for group in bins) <= num_ranks else None
    return best_target(times, items, num_ranks, start)


def _deals(
    times: GroupTimes, choice: Choice, most: int, bins: MicroBatch, full: list[MicroBatch]
) -> Iterator[list[MicroBatch]]:
    """Yield `bins`, which fill the micro-batches `full`, dealt in the ways that suit their number."""
    some = False
    if 1 < len(full) <= _MAX_SPEEDS:
        for dealt in _speeds(times, len(full), most):
            some = True
            yield dealt
    if 1 < len(full) <= _MAX_POOLED:
        for dealt in _pooled(times, bins, len(full), () if some else _POOLED_TARGETS):
            some = True
            yield dealt
    if not some:
        yield _improve_all(times, full)
    if not some or (len(full) > _MAX_SPEEDS and choice.is_over(_GOOD)):
        yield from _spread(times, bins, len(full))


def _looser_deals(
    times: GroupTimes, choice: Choice, most: int, bins: MicroBatch, fewest: int, looser: int
) -> Iterator[list[MicroBatch]]:
    """Yield deals to up to a quarter more micro-batches (rounded up) where full memory is what keeps ranks idle.

    Long items then take a wide group each, as time asks for, and short ones find no room in the ranks that are left.
    """
    problem = times.problem
    multiple = problem.microbatch_multiple
    fewest = -(-fewest // multiple) * multiple
    room = fewest * problem.num_ranks * (int(problem.limits[-1]) // int(times.sizes[-1]))
    items = problem.longest_first
    if int(times.padded(times.smallest[items], items).sum()) < _TIGHT * room:
        return
    for count in range(fewest + multiple, -(-5 * fewest // 4) + 1, multiple)[:looser]:
        if not choice.is_over(_FAR):
            return
        before = choice.score
        yield from _spread(times, bins, count)
        if choice.score < before:
            continue
        if count <= _MAX_SPEEDS:
            yield from _speeds(times, count, most)
        elif fewest <= _MAX_POOLED:
            yield from _pooled(times, bins, count, ())


def _spread(times: GroupTimes, bins: MicroBatch, count: int) -> Iterator[list[MicroBatch]]:
    """Yield the bins dealt so that all micro-batches have about the same number of ranks to spare."""
    used = sum(group.cp_size for group in bins)
    width = max(max(group.cp_size for group in bins), -(-used // count))
    if count > 1 and width < times.problem.num_ranks:
        spread = slice_ranks(bins, width)
        if len(spread) == count:
            yield _improve_all(times, spread)


def _pooled(times: GroupTimes, bins: MicroBatch, count: int, factors: tuple[float, ...]) -> Iterator[list[MicroBatch]]:
    """Yield all micro-batches planned as one of `count` times the ranks, then cut."""
    problem = times.problem
    ranks = count * problem.num_ranks
    start = bins if sum(group.cp_size for group in bins) <= ranks else None
    pooled = best_target(times, problem.longest_first, ranks, start)
    if pooled is not None:
        yield slice_ranks(_slowest_first(times, pooled), problem.num_ranks)
    for factor in factors:
        aimed = at_target(times, problem.longest_first, ranks, factor)
        if aimed is not None:
            slices = slice_ranks(_slowest_first(times, aimed), problem.num_ranks)
            yield [level(times, groups, problem.num_ranks) for groups in slices]


def _speeds(times: GroupTimes, count: int, most: int) -> Iterator[list[MicroBatch]]:
    """Yield micro-batches of different target times."""
    for dealt in deal_speeds(times, count, most):
        packed = [best_target(times, items, times.problem.num_ranks, aim=target) for items, target in dealt]
        whole = [groups for groups in packed if groups is not None]
        if len(whole) == len(packed):
            yield whole


def _slowest_first(times: GroupTimes, groups: MicroBatch) -> MicroBatch:
    taken, _ = times.of_groups(*times.flat(groups))
    return [groups[g] for g in np.argsort(-taken, kind="stable")]


def _improve_all(times: GroupTimes, microbatches: list[MicroBatch]) -> list[MicroBatch]:
    """Improve each micro-batch that fills no ranks evenly yet."""
    index, counts, items = times.flat([group for groups in microbatches for group in groups])
    taken, _ = times.of_groups(index, counts, items)
    starts = np.cumsum([0, *(len(groups) for groups in microbatches)])[:-1]
    least = np.add.reduceat(times.alone_work(items), (np.cumsum(counts) - counts)[starts]) / times.problem.num_ranks
    done = np.maximum.reduceat(taken, starts) <= _EVEN * least
    return [
        groups if is_done else _improve(times, groups)
        for groups, is_done in zip(microbatches, done.tolist(), strict=True)
    ]


def _improve(times: GroupTimes, groups: MicroBatch) -> MicroBatch:
    """Return the fastest groups found for the items of one micro-batch."""
    items = np.array([item for group in groups for item in group.items], np.int64)
    order: Int64Array = np.lexsort((items, -times.problem.lengths[items]))
    found = best_target(times, items[order], times.problem.num_ranks, groups)
    return level(times, groups, times.problem.num_ranks) if found is None else found
