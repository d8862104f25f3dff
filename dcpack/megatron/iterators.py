"""Data iterators for the stages of one rank: data where it is computed on, metadata where it is not."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dcpack._checks import check_flags, check_int, check_kinds, list_offenders
from dcpack.errors import ArgumentError
from dcpack.megatron.pack import MicroBatch, metadata_of
from dcpack.megatron.stages import MAX_STAGES, StageNeeds, fields_left_out

__all__ = ["make_data_iterators", "pick_data_iterator"]


def pick_data_iterator(data_iterator: Any, vpp_size: int = 1) -> Any | None:
    """Return the iterator that this rank reads from: all virtual stages of a rank share one dataset.

    Args:
        data_iterator: an iterator, None, or a list of one for each virtual stage, of which the first that is not None
            is taken.
        vpp_size: virtual stages of a rank.

    Raises:
        ArgumentError: a list of another length.

    Example:
        >>> next(pick_data_iterator([None, iter("ab")], vpp_size=2))
        'a'
    """
    vpp_size = check_int("vpp_size", vpp_size, minimum=1, maximum=MAX_STAGES)
    is_list = isinstance(data_iterator, list | tuple)
    given = data_iterator if is_list else [data_iterator]
    if is_list and len(given) != vpp_size:
        raise ArgumentError(
            f"data_iterator must hold one iterator for each of {vpp_size} virtual stages, got {len(given)}"
        )
    if wrong := [type(each).__name__ for each in given if each is not None and not hasattr(each, "__next__")]:
        raise ArgumentError(f"data_iterator must be an iterator, None, or a list of them, got {list_offenders(wrong)}")
    return next((each for each in given if each is not None), None)


def make_data_iterators(
    rows: Sequence[Mapping[str, Any]] | None, needs: Sequence[StageNeeds], *, is_tp_first: bool
) -> Iterator[MicroBatch] | list[Iterator[MicroBatch]] | list[None] | None:
    """Return an iterator over the micro-batches for each virtual stage.

    No two stages share an array, so that what one does to them is not seen by another: the first that computes on data
    gets those of `rows`, the others copies. A stage gets the fields that it computes on; one that computes on none gets
    what `METADATA_KEYS` names.

    Args:
        rows: the micro-batches, whole or metadata alone; ignored where `is_tp_first` is False.
        needs: what each virtual stage needs, see `needs_of_virtual_stages`; one element without virtual pipelining.
        is_tp_first: whether this rank is the first of its tensor-parallel group. The others get None, as they receive
            from it.

    Returns:
        A list with one element for each virtual stage, or the element itself where there is one stage.

    Raises:
        ArgumentError: a stage needs a field that the micro-batches lack.

    Example:
        >>> rows = [{"tokens": [1, 2], "labels": [2, -100], "max_seqlen": 2}]
        >>> first, second = make_data_iterators(rows, [(True, False), (False, False)], is_tp_first=True)
        >>> next(first), next(second)
        ({'tokens': [1, 2], 'max_seqlen': 2}, {'max_seqlen': 2})
    """
    check_flags(is_tp_first=is_tp_first)
    check_kinds(needs=(needs, list | tuple), rows=(rows, list | tuple | None))
    wrong = [repr(pair) for pair in needs if not isinstance(pair, tuple) or len(pair) != 2]
    if wrong or not needs:
        raise ArgumentError(f"needs must be one pair of bool or more, got {list_offenders(wrong) or needs}")
    check_flags(**{f"needs[{i}][{k}]": flag for i, pair in enumerate(needs) for k, flag in enumerate(pair)})
    if not is_tp_first:
        return [None] * len(needs) if len(needs) > 1 else None
    if rows is None:
        raise ArgumentError("rows must be given on the first rank of a tensor-parallel group, got None")
    owner = next((stage for stage, fields in enumerate(needs) if any(fields)), 0)
    iterators = []
    for stage, fields in enumerate(needs):
        parts = [_part_of(i, row, fields) for i, row in enumerate(rows)]
        iterators.append(iter(parts if stage == owner else copy.deepcopy(parts)))
    return iterators if len(needs) > 1 else iterators[0]


def _part_of(index: int, row: Mapping[str, Any], needs: StageNeeds) -> MicroBatch:
    check_kinds(**{f"rows[{index}]": (row, Mapping)})
    if not any(needs):
        return metadata_of(row)
    wanted = ("tokens" if needs[0] else None, "labels" if needs[1] else None)
    if missing := [name for name in wanted if name is not None and name not in row]:
        raise ArgumentError(f"micro-batch {index} lacks {', '.join(missing)}, which this stage computes on")
    left_out = fields_left_out(needs)
    return {name: value for name, value in row.items() if name not in left_out}
