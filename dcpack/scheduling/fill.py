"""Give every rank of a micro-batch work: widen groups, split them, fall back to the whole domain, add dummies.

The steps are tried in this order, each only where the one before does not end with all ranks busy:

1. `widen`: the smallest group goes to the next legal CP size, the oldest of equals first (Megatron-Core's rule).
2. `fill_exactly`: some combination of legal sizes that adds up to exactly all ranks.
3. `split_off`: the shortest item of the fullest group becomes a group of its own, then again from 1.

What then is left to a scheduler is the whole domain as one group (`whole_domain`), items from other micro-batches
(`repair`), or dummies.
"""

from __future__ import annotations

import heapq

import numpy as np

from dcpack._checks import list_offenders
from dcpack.errors import InfeasibleError
from dcpack.scheduling.base import Group, MicroBatch, Problem

__all__ = ["fill_ranks", "repair", "whole_domain"]


def fill_ranks(problem: Problem, groups: MicroBatch) -> MicroBatch | None:
    """Return groups with the same items that add up to all ranks, or None where the three steps do not reach it."""
    groups = [Group(group.cp_size, list(group.items)) for group in groups]
    while True:
        widest = [_sizes_that_fit(problem, group)[-1] for group in groups]
        if sum(widest) >= problem.num_ranks:
            widened = _widen(problem, groups)
            if _ranks_used(widened) == problem.num_ranks:
                return widened
            exact = _fill_exactly(problem, groups)
            if exact is not None:
                return exact
        if not _split_off(problem, groups):
            return None


def _ranks_used(groups: MicroBatch) -> int:
    return sum(group.cp_size for group in groups)


def _sizes_that_fit(problem: Problem, group: Group) -> list[int]:
    """Return the legal sizes from the present one of `group` up that hold its items; never empty."""
    fits = problem.fits_sizes(group)
    return [
        group.cp_size,
        *(size for size, fit in zip(problem.cp_sizes, fits, strict=True) if fit and size > group.cp_size),
    ]


def _widen(problem: Problem, groups: MicroBatch) -> MicroBatch:
    """Widen the smallest group that can be, as long as ranks are free."""
    widened = [Group(group.cp_size, group.items) for group in groups]
    free = problem.num_ranks - _ranks_used(groups)
    waiting = [(group.cp_size, age) for age, group in enumerate(widened)]
    heapq.heapify(waiting)
    while free and waiting:
        size, age = heapq.heappop(waiting)
        larger = next(iter(_sizes_that_fit(problem, widened[age])[1:]), None)
        if larger is None or larger - size > free:
            continue  # free ranks only become fewer: this group stays as it is
        widened[age].cp_size = larger
        free -= larger - size
        heapq.heappush(waiting, (larger, age))
    return widened


def _fill_exactly(problem: Problem, groups: MicroBatch) -> MicroBatch | None:
    """Find sizes, each at least the present one, that add up to all ranks: reachability over group x spare ranks."""
    spare = problem.num_ranks - _ranks_used(groups)
    reachable = np.zeros((len(groups) + 1, spare + 1), np.bool_)
    reachable[0, 0] = True
    steps = [[size - group.cp_size for size in _sizes_that_fit(problem, group)] for group in groups]
    for g, choices in enumerate(steps):
        for extra in choices:
            if extra <= spare:
                reachable[g + 1, extra:] |= reachable[g, : spare + 1 - extra]
    if not reachable[-1, spare]:
        return None
    result = [Group(group.cp_size, group.items) for group in groups]
    for g in range(len(groups) - 1, -1, -1):
        extra = next(extra for extra in steps[g] if extra <= spare and reachable[g, spare - extra])
        result[g].cp_size += extra
        spare -= extra
    return result


def _split_off(problem: Problem, groups: MicroBatch) -> bool:
    """Make the shortest item of the fullest group a group of its own, in place; False where no group can give one."""
    free = problem.num_ranks - _ranks_used(groups)
    donors = sorted((g for g in groups if len(g.items) > 1), key=lambda g: -_work(problem, g))
    for donor in donors:
        item = min(donor.items, key=lambda i: (problem.lengths[i], -i))
        size = problem.smallest_size(Group(1, [item]))
        if size is not None and size <= free:
            donor.items.remove(item)
            groups.append(Group(size, [item]))
            return True
    return False


def _work(problem: Problem, group: Group) -> float:
    return float(np.square(problem.lengths[group.items].astype(np.float64)).sum()) / group.cp_size


def whole_domain(problem: Problem, waiting: list[int]) -> tuple[MicroBatch, list[int]] | None:
    """Put as many of the `waiting` items as fit, in their order, into one group of all ranks.

    Returns:
        The micro-batch and the items that did not fit, or None where the whole domain is no legal CP size or the first
        item does not fit in it.
    """
    last = len(problem.cp_sizes) - 1
    if not problem.has_whole_domain or not problem.fits(Group(problem.num_ranks, waiting[:1]), last):
        return None
    if problem.oversized[waiting[0]]:
        return [Group(problem.num_ranks, waiting[:1])], waiting[1:]
    room = int(problem.limits[-1])
    places = len(waiting) if problem.max_sequences is None else problem.max_sequences
    taken: list[int] = []
    left: list[int] = []
    for item, tokens in zip(waiting, problem.padded[-1, waiting].tolist(), strict=True):
        if tokens <= room and len(taken) < places and not problem.oversized[item]:
            taken.append(item)
            room -= tokens
        else:
            left.append(item)
    return [Group(problem.num_ranks, taken)], left


def repair(problem: Problem, microbatches: list[MicroBatch]) -> None:
    """Fill, in place, each micro-batch with free ranks from groups of other micro-batches that can spare an item.

    Raises:
        InfeasibleError: ranks stay free and `on_empty` is ``"error"``, or dummies of the legal sizes cannot fill them.
    """
    for m, groups in enumerate(microbatches):
        if _ranks_used(groups) == problem.num_ranks:
            continue
        others = [group for k, other in enumerate(microbatches) if k != m for group in other]
        microbatches[m] = _borrow(problem, groups, others) or _add_dummies(problem, groups)


def _borrow(problem: Problem, groups: MicroBatch, others: list[Group]) -> MicroBatch | None:
    """Move single items out of `others` until `groups` fills all ranks; nothing is moved where that fails."""
    groups = [Group(group.cp_size, list(group.items)) for group in groups]
    kept = {id(donor): list(donor.items) for donor in others if len(donor.items) > 1}
    donors = sorted((d for d in others if len(d.items) > 1), key=lambda d: -_work(problem, d))
    moved: list[tuple[Group, int]] = []
    while donors:
        donor = donors[len(moved) % len(donors)]
        item = min(kept[id(donor)], key=lambda i: (problem.lengths[i], -i))
        size = problem.smallest_size(Group(1, [item]))
        if size is not None and size <= problem.num_ranks - _ranks_used(groups):
            kept[id(donor)].remove(item)
            moved.append((donor, item))
            groups.append(Group(size, [item]))
            filled = fill_ranks(problem, groups)
            if filled is not None:
                for giver, given in moved:
                    giver.items.remove(given)
                return filled
        if size is None or size > problem.num_ranks - _ranks_used(groups) or len(kept[id(donor)]) == 1:
            donors.remove(donor)
    return None


def _add_dummies(problem: Problem, groups: MicroBatch) -> MicroBatch:
    """Fill the free ranks with dummy groups, after splitting and widening what can be."""
    if problem.on_empty == "dummy":
        split = [Group(group.cp_size, list(group.items)) for group in groups]
        while _split_off(problem, split):
            pass
        for real in (_widen(problem, split), split, _widen(problem, groups), groups):
            dummies = _dummy_sizes(problem, problem.num_ranks - _ranks_used(real))
            if dummies is not None:
                return [*real, *(Group(size, []) for size in dummies)]
    items = [item for group in groups for item in group.items]
    raise InfeasibleError(
        f"no plan found: {len(items)} sequences cannot give each of {problem.num_ranks} ranks work in one micro-batch "
        f"with CP sizes {problem.cp_sizes} and capacity {problem.capacity}"
        f"{': ' + list_offenders(problem.describe(items)) if items else ''}"
        f"{'' if problem.on_empty == 'dummy' else '; on_empty=' + repr('dummy') + ' fills up with empty sequences'}"
    )


def _dummy_sizes(problem: Problem, free: int) -> list[int] | None:
    """Return legal sizes that add up to `free`, large ones preferred, or None."""
    made_with: list[int | None] = [0] + [None] * free
    for total in range(1, free + 1):
        for size in problem.cp_sizes:
            if size <= total and made_with[total - size] is not None:
                made_with[total] = size
    sizes: list[int] = []
    while free:
        size = made_with[free]
        if size is None:
            return None
        sizes.append(size)
        free -= size
    return sizes
