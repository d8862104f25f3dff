"""Which rank does whose work: names of ranks chosen so that most samples stay where they are."""

from __future__ import annotations

import numpy as np

from dcpack._checks import Int64Array
from dcpack.scheduling.workload import Slots

__all__ = ["largest_overlap", "stay_where_possible"]

# Up to so many ranks the largest overlap is found exactly; beyond, ranks are named greedily, at least half as well.
_MOST_EXACT = 128


def largest_overlap(overlap: Int64Array) -> Int64Array:
    """Return an assignment of rows to columns with a large sum, one column a row; up to 128 rows the largest.

    The Hungarian method by shortest augmenting paths (Jonker and Volgenant, "A shortest augmenting path algorithm for
    dense and sparse linear assignment problems", 1987), O(n**3). It would take seconds for a thousand rows, so larger
    tables are gone through by decreasing overlap, which gives at least half of the largest sum.

    Args:
        overlap: int64[n, n], at least 0.

    Returns:
        int64[n], the column of each row.

    Example:
        >>> largest_overlap(np.array([[3, 2], [3, 0]])).tolist()
        [1, 0]
    """
    return _exact(overlap) if len(overlap) <= _MOST_EXACT else _greedy(overlap)


def _greedy(overlap: Int64Array) -> Int64Array:
    rows, columns = np.nonzero(overlap)
    order = np.argsort(-overlap[rows, columns], kind="stable")
    column_of = np.full(len(overlap), -1, np.int64)
    is_free = np.ones(len(overlap), np.bool_)
    for row, column in zip(rows[order].tolist(), columns[order].tolist(), strict=True):
        if column_of[row] < 0 and is_free[column]:
            column_of[row] = column
            is_free[column] = False
    column_of[column_of < 0] = np.flatnonzero(is_free)
    return column_of


def _exact(overlap: Int64Array) -> Int64Array:
    size = len(overlap)
    costs = int(overlap.max(initial=0)) - overlap
    far = np.iinfo(np.int64).max
    row_price, column_price = np.zeros(size + 1, np.int64), np.zeros(size + 1, np.int64)
    row_of = np.full(size + 1, -1, np.int64)  # of each column; the last one is where a search starts
    # Rows whose best column is free take it; the others search.
    row_price[:size] = costs.min(axis=1, initial=far)
    first_choice = costs.argmin(axis=1) if size else np.zeros(0, np.int64)
    columns, takers = np.unique(first_choice, return_index=True)
    row_of[columns] = takers
    for row in np.setdiff1d(np.arange(size), takers).tolist():
        row_of[size] = row
        column = size
        reached = np.zeros(size + 1, np.bool_)
        nearest = np.full(size, far, np.int64)
        came_from = np.full(size, size, np.int64)
        while row_of[column] >= 0:
            reached[column] = True
            at = int(row_of[column])
            detour = costs[at] - row_price[at] - column_price[:size]
            closer = (detour < nearest) & ~reached[:size]
            nearest[closer], came_from[closer] = detour[closer], column
            open_columns = np.where(reached[:size], far, nearest)
            column = int(open_columns.argmin())
            step = int(open_columns[column])
            row_price[row_of[reached]] += step
            column_price[reached] -= step
            nearest[~reached[:size]] -= step
        while column != size:
            previous = int(came_from[column])
            row_of[column] = row_of[previous]
            column = previous
    result = np.empty(size, np.int64)
    result[row_of[:size]] = np.arange(size)
    return result


def stay_where_possible(slots: Slots, slot_of: Int64Array, home: Int64Array) -> Int64Array:
    """Return the slots with their ranks renamed so that the most items stay on their home rank.

    Where ranks meet in every micro-batch, each micro-batch is renamed by itself: who takes which share of it changes no
    time.

    Args:
        slots: the slots.
        slot_of: int64[n], slot of each item.
        home: int64[n], the rank that has each item now.

    Returns:
        int64[n], slot of each item.

    Example:
        >>> slots = Slots(num_microbatches=1, num_ranks=2, num_rows=1, sync="step")
        >>> stay_where_possible(slots, np.array([0, 0, 1]), np.array([1, 1, 0])).tolist()
        [1, 1, 0]
    """
    cell, rank = slots.cell_of(slot_of), slot_of % slots.num_ranks
    overlap = np.zeros((slots.num_cells, slots.num_ranks), np.int64)
    np.add.at(overlap, (cell, home), 1)
    tables = overlap.reshape(slots.num_meetings, slots.num_ranks, slots.num_ranks)
    new_rank = np.concatenate([largest_overlap(table) for table in tables])
    return slot_of - rank + new_rank[cell]
