"""Refinement: moves and swaps of items between parts, many pairs of parts at once.

A part is a row of slots, each with an item or empty; an empty slot costs nothing. Everything here exchanges as many
slots of one part for as many of another: an item for an empty slot is a move, an item for an item a swap, two items for
an item and an empty slot both. With `equal_size` the rows have as many slots as the larger size, and an empty slot goes
only to a part that has none, so that every part keeps one of the two sizes; otherwise each row has two to spare.

An exchange between a dear part H and a cheap part L that shifts cost x lowers the larger of the two exactly where
0 < x < H - L, and lowers it most where x is nearest to half of that. Only such exchanges are made, so the dearest part
never gets dearer. And no part is ever emptied: of H, the cost H - x > L stays; L takes something that costs more than
what it gives.

In a round the dearest parts are paired with the cheapest. For a pair, the sums of all choices of slots of L are sorted,
and for each choice of H the sum that comes nearest to its own less (H - L) / 2 is searched; all pairs at once, in one
sorted array. With choices of two slots, two parts of 16 slots have 14,400 exchanges, of 128 slots 66 million.

At first half of the parts are dear and each has one partner. Where that did not lower the maximum, half as many are
dear and each has more partners to choose from, down to the dearest part alone against all others. So it ends after a
number of rounds, where the maximum is a lower bound, or where no such exchange lowers it.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_integers, check_flag, check_int, list_offenders
from dcpack.errors import ArgumentError

__all__ = ["refine"]

_ROUNDS = 5
_ROUNDS_EQUAL_SIZE = 16  # equal sizes start farther from level
# Of parts with more than 32 items, a quarter of the items take part, but not fewer than 32.
_SLOTS = 32
_ITEMS_PER_SLOT = 4
# A round looks at no more choices than about these, however many items and parts there are.
_MAX_CHOICES = 2**17
_MIN_SLOTS = 6
_KEY_BITS = 62
_MAX_SUM = 2**59
_MOST_PARTS = 2**40


def refine(costs: Int64Array, part_of: Int64Array, num_parts: int, *, equal_size: bool) -> Int64Array:
    """Make the dearest part cheaper by moving and swapping items.

    Deterministic; the budget is of rounds, never of time. Without `equal_size` the start should be near level, as what
    the methods make is: a part is lowered by two items a round at most.

    Args:
        costs: int64[n], descending, at least 0; their sum is less than 2**59.
        part_of: int64[n], the part of each item, from 0 to `num_parts` - 1; no part is empty.
        num_parts: number of parts, from 2 to n.
        equal_size: whether the sizes of the parts differ by at most 1; if so, they still do in the result.

    Returns:
        int64[n], the part of each item. The dearest part costs at most what it did, and no part is empty.

    Raises:
        ArgumentError: costs that are not descending, parts that are not those of the costs, or an empty part.

    Example:
        >>> costs = np.array([8, 7, 6, 5, 4])
        >>> refine(costs, np.array([1, 0, 1, 0, 0]), 2, equal_size=False)  # 16 and 14 become 15 and 15
        array([1, 1, 0, 0, 0])
    """
    equal_size = check_flag("equal_size", equal_size)
    costs, part_of, num_parts = _checked(costs, part_of, num_parts)
    loads = np.zeros(num_parts, np.int64)
    np.add.at(loads, part_of, costs)
    goal = _least_maximum(costs, num_parts, equal_size)
    if loads.max() <= goal:
        return part_of
    priced = np.append(costs, 0)  # an empty slot holds the item n, which costs nothing
    refined = part_of.copy()
    if equal_size:
        slots = _slots(refined, num_parts, max_width=costs.size, spare=0)
        _level(slots, priced, loads, goal)
        _write(refined, slots)
    wanted = max(_SLOTS, costs.size // num_parts // _ITEMS_PER_SLOT)
    affordable = math.isqrt(2 * _MAX_CHOICES // (num_parts // 2))
    width = max(_MIN_SLOTS, min(wanted, affordable))
    slots = _slots(refined, num_parts, max_width=width, spare=0 if equal_size else 2)
    _exchange(slots, priced, loads, goal, equal_size=equal_size)
    _write(refined, slots)
    return refined


def _checked(costs: Int64Array, part_of: Int64Array, num_parts: int) -> tuple[Int64Array, Int64Array, int]:
    costs, part_of = as_integers("costs", costs), as_integers("part_of", part_of)
    num_parts = check_int("num_parts", num_parts, minimum=2)
    if num_parts > _MOST_PARTS:
        raise ArgumentError(f"num_parts must be at most {_MOST_PARTS}, got {num_parts}")
    if costs.ndim != 1 or costs.shape != part_of.shape:
        raise ArgumentError(f"costs and part_of must be equally long, got shapes {costs.shape} and {part_of.shape}")
    if rises := (np.flatnonzero(np.diff(costs) > 0) + 1).tolist():
        listed = list_offenders([f"costs[{i}] = {costs[i]} after {costs[i - 1]}" for i in rises])
        raise ArgumentError(f"costs must be descending: {listed}")
    if costs.sum(dtype=np.float64) >= _MAX_SUM:
        raise ArgumentError(f"costs must sum to less than 2**59, got about {costs.sum(dtype=np.float64):.3g}")
    sizes = np.bincount(part_of[part_of < num_parts], minlength=num_parts)
    if beyond := np.flatnonzero(part_of >= num_parts).tolist():
        listed = list_offenders([f"part_of[{i}] = {part_of[i]}" for i in beyond])
        raise ArgumentError(f"part_of must be less than num_parts, {num_parts}: {listed}")
    if empty := np.flatnonzero(sizes == 0).tolist():
        raise ArgumentError(f"no part may be empty: {list_offenders([f'part {part}' for part in empty])}")
    return costs, part_of, num_parts


def _least_maximum(costs: Int64Array, num_parts: int, equal_size: bool) -> int:
    """Return a lower bound of the dearest part: where it is reached, nothing is left to do."""
    mean = -(-int(costs.sum()) // num_parts)
    bounds = [mean, int(costs[0])]
    # Of the num_parts * j + 1 dearest items some j + 1 share a part, and cost at least what the cheapest of them do.
    j = np.arange(1, (costs.size - 1) // num_parts + 1)
    before = np.append(0, np.cumsum(costs))
    bounds.extend((before[num_parts * j + 1] - before[num_parts * j - j]).tolist())
    if equal_size:
        company = costs.size // num_parts - 1  # the dearest item has so many others in its part
        bounds.append(int(costs[0]) + int(costs[costs.size - company :].sum()))
    return max(bounds)


def _slots(part_of: Int64Array, num_parts: int, *, max_width: int, spare: int) -> Int64Array:
    """Lay out the items that may be exchanged.

    Args:
        part_of: int64[n], the part of each item; items are in descending order of cost.
        num_parts: number of parts.
        max_width: slots of a part at most.
        spare: how many slots of each part stay empty.

    Returns:
        int64[num_parts, width], item numbers, n in an empty slot. Of parts with more items than slots there are some of
        all costs, evenly spread from the dearest on.
    """
    narrow = part_of.astype(np.min_scalar_type(num_parts))  # sorts faster
    by_part = np.argsort(narrow, kind="stable")
    sizes = np.bincount(part_of, minlength=num_parts)
    width = min(int(sizes.max()) + spare, max_width)
    shown = np.minimum(sizes, width - spare)[:, np.newaxis]
    column = np.arange(width)
    place = (np.cumsum(sizes) - sizes)[:, np.newaxis] + column * sizes[:, np.newaxis] // shown
    return np.where(column < shown, by_part[np.minimum(place, part_of.size - 1)], part_of.size)


def _write(part_of: Int64Array, slots: Int64Array) -> None:
    """Set the part of each item that has a slot."""
    parts, columns = np.nonzero(slots < part_of.size)
    part_of[slots[parts, columns]] = parts


def _level(slots: Int64Array, costs: Int64Array, loads: Int64Array, goal: int) -> None:
    """Exchange many items at once between the dearest and the cheapest parts, until that no longer helps.

    Equal sizes can leave a part too dear by the cost of many items. In a pair the dearest item of one faces the
    cheapest of the other and so on; those pairs that shift at most half the difference of the loads are added up, and
    as many of them are exchanged as come nearest to it.

    Args:
        slots: int64[num_parts, width], item numbers; changed in place.
        costs: int64[n + 1], of the items and of an empty slot.
        loads: int64[num_parts]; changed in place.
        goal: the maximum that is good enough.
    """
    for _ in range(_ROUNDS_EQUAL_SIZE):
        largest = loads.max()
        if largest <= goal:
            return
        by_load = np.argsort(-loads, kind="stable")
        dear, cheap = by_load[: loads.size // 2], by_load[::-1][: loads.size // 2]
        gap = loads[dear] - loads[cheap]
        falling, rising = np.sort(slots[dear], axis=1), np.sort(slots[cheap], axis=1)[:, ::-1]
        shift = costs[falling] - costs[rising]
        usable = (shift > 0) & (2 * shift <= gap[:, np.newaxis])
        empty = costs.size - 1
        usable &= (rising != empty) | (falling[:, -1:] != empty)  # at most one empty slot a part
        shifted = np.cumsum(np.where(usable, shift, 0), axis=1)
        error = np.abs(2 * shifted - gap[:, np.newaxis])
        last = error.argmin(axis=1)
        usable &= np.arange(slots.shape[1]) <= last[:, np.newaxis]
        slots[dear] = np.where(usable, rising, falling)
        slots[cheap] = np.where(usable, falling, rising)
        total = np.where(usable, shift, 0).sum(axis=1)
        loads[dear] -= total
        loads[cheap] += total
        if loads.max() == largest:
            return


def _exchange(slots: Int64Array, costs: Int64Array, loads: Int64Array, goal: int, *, equal_size: bool) -> None:
    """Exchange one or two slots of the dearest parts for as many of others, as the module describes.

    Args:
        slots: int64[num_parts, width], item numbers; changed in place.
        costs: int64[n + 1], of the items and of an empty slot.
        loads: int64[num_parts]; changed in place.
        goal: the maximum that is good enough.
        equal_size: whether there may be no empty slots, so that one item for one is a choice of its own.
    """
    width = slots.shape[1]
    one, two = np.arange(width)[np.newaxis], np.stack(np.triu_indices(width, 1))
    choices = [columns for columns in ([one, two] if equal_size else [two]) if columns.size]
    num_dear = loads.size // 2
    for _ in range(_ROUNDS_EQUAL_SIZE if equal_size else _ROUNDS):
        largest = loads.max()
        if largest <= goal:
            return
        for columns in choices:
            _exchange_once(slots, costs, loads, columns, num_dear, equal_size=equal_size)
        num_dear = min(2 * num_dear, loads.size // 2) if loads.max() < largest else num_dear // 2
        if num_dear == 0:
            return


def _exchange_once(
    slots: Int64Array,
    costs: Int64Array,
    loads: Int64Array,
    columns: npt.NDArray[np.intp],
    num_dear: int,
    *,
    equal_size: bool,
) -> None:
    """Make the best exchange for each of the dearest parts that has one.

    Args:
        slots: int64[num_parts, width], item numbers; changed in place.
        costs: int64[n + 1], of the items and of an empty slot.
        loads: int64[num_parts]; changed in place.
        columns: int[count, m], the slots of each choice.
        num_dear: how many parts are to get cheaper. The others are dealt out to them, the cheapest to the dearest.
        equal_size: whether a part may have at most one empty slot.
    """
    by_load = np.argsort(-loads, kind="stable")
    dear = by_load[:num_dear]
    partners = (loads.size - num_dear) // num_dear
    cheap = by_load[::-1][: partners * num_dear].reshape(partners, num_dear)
    gap = loads[dear] - loads[cheap]  # [partners, num_dear]

    slots_dear, slots_cheap = costs[slots[dear]], costs[slots[cheap]]
    if equal_size:
        # A price at which an empty slot goes for another one only: any other exchange shifts too much, or nothing.
        barred = -int(loads.max() + costs[0])
        dear_empty = slots[dear] == costs.size - 1
        slots_dear[dear_empty] = barred
        slots_cheap[(slots[cheap] == costs.size - 1) & dear_empty.any(axis=1)[:, np.newaxis]] = barred
    of_dear = _add_up(slots_dear, columns)  # [num_dear, m]
    of_cheap = _add_up(slots_cheap, columns)  # [partners, num_dear, m]
    given = np.sort(of_dear, axis=-1)
    taken = np.sort(of_cheap, axis=-1)
    error, at_given, at_taken = _nearest(given, taken, gap)

    after = loads[dear] + loads[cheap] + error  # twice the larger of the two afterwards
    partner = after.argmin(axis=0)
    best = partner, np.arange(num_dear)
    better = error[best] < gap[best]
    row, pair = np.flatnonzero(better), (partner[better], np.flatnonzero(better))
    value_given, value_taken = given[row, at_given[pair]], taken.ravel()[at_taken[pair]]
    # Where a choice of that cost is, in the order of `columns`.
    choice_given = (of_dear[row] == value_given[:, np.newaxis]).argmax(axis=1)
    choice_taken = (of_cheap[pair] == value_taken[:, np.newaxis]).argmax(axis=1)
    giver, taker = (dear[row], columns[:, choice_given]), (cheap[pair], columns[:, choice_taken])
    slots[giver], slots[taker] = slots[taker], slots[giver]
    loads[dear[row]] -= value_given - value_taken
    loads[cheap[pair]] += value_given - value_taken


def _add_up(costs: Int64Array, columns: npt.NDArray[np.intp]) -> Int64Array:
    """Return what each choice of slots costs: int64[..., width] and int[count, m] make int64[..., m]."""
    total = np.take(costs, columns[0], axis=-1)
    for column in columns[1:]:
        total += np.take(costs, column, axis=-1)
    return total


def _nearest(given: Int64Array, taken: Int64Array, gap: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Search for each pair of parts the exchange that shifts nearest to half the gap.

    Args:
        given: int64[num_dear, m], ascending, what choices of the dear parts cost.
        taken: int64[partners, num_dear, m], ascending, the same of the cheap parts.
        gap: int64[partners, num_dear], by how much more the dear part costs.

    Returns:
        For each pair int64[partners, num_dear]: by how much twice the shift misses the gap, the place of the choice in
        its row of `given`, and the place in all of `taken`.
    """
    num_pairs, num_choices = gap.size, taken.shape[-1]
    half = (gap // 2)[..., np.newaxis]
    # One sorted array for all pairs: each pair's keys lie above those of the pair before. Costs too large for that lose
    # their last bits, but only for the search.
    lowest = min(int(given.min()) - int(half.max()), int(taken.min()))
    span = max(int(given.max()), int(taken.max())) - lowest + 1
    lost = max(0, span.bit_length() + num_pairs.bit_length() - _KEY_BITS)
    start = (np.arange(num_pairs) * ((span >> lost) + 2)).reshape(half.shape)
    keys, wanted = (taken >> lost) + start, ((given - half) >> lost) + start
    above = np.searchsorted(keys.ravel(), wanted.ravel()).reshape(num_pairs, num_choices)
    pairs = np.arange(num_pairs)
    first = (pairs * num_choices)[:, np.newaxis]
    flat = taken.ravel()
    best = []
    for place in (np.minimum(above, first + (num_choices - 1)), np.maximum(above - 1, first)):
        shift = given - flat[place].reshape(taken.shape)
        error = np.abs(2 * shift - gap[..., np.newaxis]).reshape(num_pairs, num_choices)
        at = error.argmin(axis=1)
        best.append((error[pairs, at], at, place[pairs, at]))
    below_is_nearer = best[1][0] < best[0][0]
    error, at_given, at_taken = (np.where(below_is_nearer, b, a).reshape(gap.shape) for a, b in zip(*best, strict=True))
    return error, at_given, at_taken
