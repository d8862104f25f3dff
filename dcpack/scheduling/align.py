"""Bring the number of micro-batches to a multiple, as virtual pipeline stages ask."""

from __future__ import annotations

from dcpack.errors import InfeasibleError
from dcpack.scheduling.base import Group, MicroBatch, Problem
from dcpack.scheduling.fill import fill_ranks, repair

__all__ = ["align_microbatches"]


def align_microbatches(problem: Problem, microbatches: list[MicroBatch]) -> list[MicroBatch]:
    """Split micro-batches, the last ones first, until their number is a multiple of `microbatch_multiple`.

    A micro-batch is cut between its groups where half of the ranks are reached (Megatron-Core's
    ``align_sample_id_groups``), else inside its largest group; both halves are widened to all ranks again. Where no
    micro-batch can be cut, a new one is filled with single items of groups that can spare them, or with dummies.

    Raises:
        InfeasibleError: the items are too few.
    """
    result = list(microbatches)
    at = len(result) - 1
    while len(result) % problem.microbatch_multiple:
        halves = _split_between_groups(problem, result[at]) or _split_a_group(problem, result[at])
        if halves is not None:
            result[at], new = halves
            result.append(new)
            at = len(result) - 1
        elif at > 0:
            at -= 1
        else:
            _append_filled(problem, result)
            at = len(result) - 1
    return result


def _split_between_groups(problem: Problem, groups: MicroBatch) -> tuple[MicroBatch, MicroBatch] | None:
    ordered = sorted((g for g in groups if g.items), key=lambda g: -g.cp_size)
    if len(ordered) < 2:
        return None
    used, cut = 0, 0
    while cut < len(ordered) - 1 and used < problem.num_ranks // 2:
        used += ordered[cut].cp_size
        cut += 1
    return _fill_both(problem, ordered[:cut] or ordered[:1], ordered[max(cut, 1) :])


def _split_a_group(problem: Problem, groups: MicroBatch) -> tuple[MicroBatch, MicroBatch] | None:
    largest = max(groups, key=lambda g: len(g.items))
    if len(largest.items) < 2:
        return None
    rest = [group for group in groups if group is not largest and group.items]
    one, two = (Group(largest.cp_size, largest.items[start::2]) for start in (0, 1))
    return _fill_both(problem, [*rest, one], [two])


def _fill_both(problem: Problem, one: MicroBatch, two: MicroBatch) -> tuple[MicroBatch, MicroBatch] | None:
    filled = fill_ranks(problem, one), fill_ranks(problem, two)
    return None if filled[0] is None or filled[1] is None else (filled[0], filled[1])


def _append_filled(problem: Problem, microbatches: list[MicroBatch]) -> None:
    microbatches.append([])
    try:
        repair(problem, microbatches)
    except InfeasibleError as error:
        raise InfeasibleError(
            f"no plan found: {problem.lengths.size} sequences do not give each of {problem.num_ranks} ranks work in a "
            f"multiple of {problem.microbatch_multiple} micro-batches (got to {len(microbatches) - 1})"
        ) from error
