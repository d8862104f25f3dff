"""Pack in arrival order, deal to the data-parallel ranks: Megatron-Core's ``dp_balanced``."""

from __future__ import annotations

import numpy as np

from dcpack._checks import list_offenders
from dcpack.errors import InfeasibleError
from dcpack.packing.next_fit import next_fit
from dcpack.scheduling.base import Group, MicroBatch, Problem

__all__ = ["InOrder"]


class InOrder:
    """Sequences share a bin until the next one does not fit; bin k goes to micro-batch k // dp, DP rank k % dp.

    The CP size is static: the smallest legal one (1 unless `min_cp_size` or `cp_sizes` says otherwise). The number of
    bins is brought to a multiple of the DP size and `microbatch_multiple` by taking the last sequence of the last bin
    that holds more than one and giving it a bin of its own at the end. Source: Megatron-Core, ``DpBalancedScheduler``,
    which stops before the first bin; here the first bin gives too.

    Example:
        >>> import dcpack
        >>> lengths = [95, 95, 95, 95, 95, 20, 20, 20, 20, 20]
        >>> dcpack.plan(lengths, num_ranks=2, capacity=100, scheduler="in_order").num_microbatches
        3
    """

    name = "in_order"

    def usable_cp_sizes(self, legal: tuple[int, ...]) -> tuple[int, ...]:
        """Return the smallest legal size alone."""
        return legal[:1]

    def schedule(self, problem: Problem) -> list[MicroBatch]:
        """Return the micro-batches; see `dcpack.scheduling.base.Scheduler`."""
        cp_size = problem.cp_sizes[0]
        if problem.num_ranks % cp_size:
            raise InfeasibleError(
                f"in_order needs a CP size that divides the ranks: {problem.num_ranks} ranks, CP size {cp_size}"
            )
        dp_size = problem.num_ranks // cp_size
        packed = next_fit(
            problem.padded[0], int(problem.limits[0]), max_sequences=problem.max_sequences, alone=problem.oversized
        )
        bins = _split_tail(problem, packed.lists(), dp_size * problem.microbatch_multiple)
        groups = [Group(cp_size, items) for items in bins]
        return [groups[start : start + dp_size] for start in range(0, len(groups), dp_size)]


def _split_tail(problem: Problem, bins: list[list[int]], multiple: int) -> list[list[int]]:
    """Move last sequences of the last bins into bins of their own until the number of bins is a multiple."""
    missing = -len(bins) % multiple
    spare = int(np.sum([len(items) - 1 for items in bins], dtype=np.int64))
    if missing > spare and problem.on_empty == "error":
        items = [item for bin_items in bins[-multiple:] for item in bin_items]
        raise InfeasibleError(
            f"{problem.lengths.size} sequences cannot give each of {problem.num_ranks} ranks work: {len(bins)} bins "
            f"and {spare} sequences to spare do not make a multiple of {multiple} bins; the last bins hold "
            f"{list_offenders(problem.describe(items))}; on_empty='dummy' fills up with empty sequences"
        )
    singles: list[list[int]] = []
    at = len(bins) - 1
    while len(singles) < min(missing, spare):
        if len(bins[at]) > 1:
            singles.append([bins[at].pop()])
        else:
            at -= 1
    return [*bins, *singles, *([] for _ in range(missing - len(singles)))]
