"""One CP size for all ranks of a micro-batch, so that one compiled program serves all devices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from dcpack._checks import Int64Array, list_offenders
from dcpack.errors import InfeasibleError
from dcpack.scheduling.base import MicroBatch, Problem
from dcpack.scheduling.one_size import SizedPart
from dcpack.scheduling.price_of_cp import priced
from dcpack.scheduling.size_ranges import SizeRange, cut_by_size
from dcpack.scheduling.size_times import SizeTimes

__all__ = ["UniformCP"]

_TRIES = ((0.98, 0.0), (0.98, 0.03), (0.9, 0.01), (0.8, 0.0))
"""Fill and price of a range, in the cuts that are packed for real."""


class UniformCP:
    """All groups of a micro-batch have the same CP size; which one, and which sequences it takes, is chosen by time.

    Sequences, longest first, are cut into ranges, and each range gets a CP size of its own: of all cuts the one whose
    estimated time is least (`dcpack.scheduling.size_ranges`), under a few assumptions of how full bins get. Each range
    is packed and levelled in as few micro-batches as it needs, the largest CP size first; groups that would wait for
    their micro-batch take sequences of the ranges to come (`dcpack.scheduling.one_size`). The plan with the lowest
    simulated time wins, where each doubling of the mean CP must gain 4%.

    Only CP sizes that divide the number of ranks are used. Dummies are added only where no plan without them is found.

    Example:
        >>> import dcpack
        >>> cost = dcpack.RingCost()
        >>> plan = dcpack.plan([300, 90, 90, 90, 90], num_ranks=4, capacity=100, scheduler="uniform_cp", cost=cost)
        >>> plan.to_sample_id_groups()
        [[[0], [0], [0], [0]], [[1], [2], [3], [4]]]
    """

    name = "uniform_cp"
    equal_groups = True

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        """Return all legal sizes; of them the driver takes those that divide the ranks."""
        return legal

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        """Return the micro-batches; see `dcpack.scheduling.base.Scheduler`."""
        if problem.lengths.size == 0:
            return []
        times = SizeTimes(problem)
        by_memory = [_one_range_a_size(times, largest=largest) for largest in (True, False)]
        parts = _best(times, [cut_by_size(times, fill=fill, range_price=price) for fill, price in _TRIES])
        parts = parts or _best(times, by_memory)
        if not parts and problem.on_empty == "dummy":
            parts = _best(times, by_memory, with_dummies=True)
        if not parts:
            raise InfeasibleError(
                f"no plan found: {problem.lengths.size} sequences cannot give each of {problem.num_ranks} ranks work "
                f"in a multiple of {problem.microbatch_multiple} micro-batches with one of the CP sizes "
                f"{problem.cp_sizes} each and capacity {problem.capacity}: "
                f"{list_offenders(problem.describe(problem.longest_first.tolist()))}; "
                "on_empty='dummy' fills up with empty sequences"
            )
        return [groups for part in parts for groups in part.microbatches()]


def _best(times: SizeTimes, cuts: Sequence[list[SizeRange] | None], *, with_dummies: bool = False) -> list[SizedPart]:
    """Return what the best of the cuts is packed into; nothing where none works out."""
    best: list[SizedPart] = []
    lowest = np.inf
    tried: list[list[SizeRange]] = []
    for ranges in cuts:
        if ranges is None or ranges in tried:
            continue
        tried.append(ranges)
        parts = _pack(times, ranges, with_dummies)
        if parts is None:
            continue
        if times.problem.sync == "step":
            _level_ranks(parts, times.problem.num_ranks)
        score = _score(times, parts)
        if score < lowest:
            best, lowest = parts, score
    return best


def _one_range_a_size(times: SizeTimes, *, largest: bool) -> list[SizeRange]:
    """Return ranges of the items by the largest size that each fits at, or by the smallest; larger sizes first."""
    fits = times.fits[:, times.problem.longest_first]
    size = len(fits) - 1 - fits[::-1].argmax(axis=0) if largest else fits.argmax(axis=0)
    starts = np.concatenate([[0], np.flatnonzero(np.diff(size)) + 1, [size.size]]).tolist()
    ranges = [SizeRange(int(size[start]), start, stop) for start, stop in pairwise(starts)]
    return sorted(ranges, key=lambda part: -part.size_index)


def _pack(times: SizeTimes, ranges: Sequence[SizeRange], with_dummies: bool) -> list[SizedPart] | None:
    """Return micro-batches for each range; None where some bin has no item, unless `with_dummies`."""
    order = times.problem.longest_first
    is_taken = np.zeros(order.size, np.bool_)
    parts: list[SizedPart] = []
    for part_range in ranges:
        own = order[part_range.start : part_range.stop]
        own = own[~is_taken[part_range.start : part_range.stop]]
        later = part_range.stop + np.flatnonzero(~is_taken[part_range.stop :])
        if own.size == 0:
            continue
        part = _large_enough(times, part_range.size_index, own, later.size)
        if part is None:
            if not with_dummies:
                return None
            part = SizedPart(times, part_range.size_index, own)
        if later.size:
            is_taken[later[part.absorb(order[later])]] = True
        parts.append(part)
    missing = -sum(part.slots.num_microbatches for part in parts) % times.problem.microbatch_multiple
    for part in reversed(parts):
        missing -= _spread(part, missing)
    if missing and with_dummies:
        parts[-1].refill(parts[-1].slots.num_microbatches + missing)
    elif missing or (not with_dummies and any(part.num_empty for part in parts)):
        return None
    return parts


def _large_enough(times: SizeTimes, size_index: int, own: Int64Array, num_later: int) -> SizedPart | None:
    """Return `own` packed at the smallest size, from `size_index` on, that leaves no bin without an item."""
    for k in range(size_index, len(times.problem.cp_sizes)):
        if times.fits[k, own].all():
            part = SizedPart(times, k, own)
            if own.size + num_later >= part.slots.num_slots:
                return part
    return None


def _spread(part: SizedPart, most: int) -> int:
    """Spread a part over up to `most` more micro-batches, as many as its items can fill; return how many."""
    count = part.slots.num_microbatches
    more = max(min(most, part.items.size // part.slots.num_ranks - count), 0)
    if more:
        part.refill(count + more)
    return more


def _level_ranks(parts: Sequence[SizedPart], num_ranks: int) -> None:
    """Where ranks meet once a step: give the most work of each part to the ranks that have the least so far."""
    total = np.zeros(num_ranks)
    for part in parts:
        width = part.slots.num_ranks
        busy = total.reshape(width, -1).max(axis=1)
        place = np.empty(width, np.int64)
        place[np.argsort(-part.bin_times().sum(axis=0), kind="stable")] = np.argsort(busy, kind="stable")
        microbatch, group = np.divmod(part.slot_of, width)
        part.slot_of = microbatch * width + place[group]
        total += np.repeat(part.bin_times().sum(axis=0), num_ranks // width)


def _score(times: SizeTimes, parts: Sequence[SizedPart]) -> float:
    """Return the time of the step, with the price of the mean CP."""
    problem = times.problem
    taken = [part.bin_times() for part in parts]
    if problem.sync == "microbatch":
        time = sum(float(bins.max(axis=1).sum()) for bins in taken)
    else:
        by_rank = [np.repeat(bins.sum(axis=0), problem.num_ranks // bins.shape[1]) for bins in taken]
        time = float(np.sum(by_rank, axis=0).max())
    tokens = [int(problem.lengths[part.items].sum()) for part in parts]
    ranked = sum(count * problem.cp_sizes[part.size_index] for count, part in zip(tokens, parts, strict=True))
    return float(priced(time, ranked / sum(tokens)))
