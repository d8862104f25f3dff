"""Joining batches into one, row after row, on one process or over a group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dcpack._checks import check_items, list_offenders
from dcpack.batched_data_dict.columns import ListKind
from dcpack.batched_data_dict.kinds import count_rows, kind_named, kind_of
from dcpack.batched_data_dict.packed_column import PackedKind
from dcpack.comm import Communicator, all_gather_trees
from dcpack.comm.guard import tell_failure
from dcpack.errors import ArgumentError

__all__ = ["gather_columns", "stack_columns"]


def stack_columns(
    batches: Sequence[Mapping[Any, Any]], pad_value_dict: Mapping[Any, Any] | None = None, noun: str = "batch"
) -> dict[Any, Any]:
    """Return the columns of all batches, end to end.

    The keys are those of all batches together, in the order in which they first appear. A packed column that a batch
    lacks has rows without items there; any other column must be in every batch that has rows. Batches without rows
    need no columns, and say nothing about dtypes while others have rows.

    Args:
        batches: mappings from key to column.
        pad_value_dict: what to pad a key's shorter rows with, 0 where it says nothing.
        noun: what a batch is called in errors.

    Raises:
        ArgumentError: a key that a batch with rows lacks, or columns that do not fit each other; names key and batch.

    Example:
        >>> import numpy as np
        >>> joined = stack_columns([{"x": np.array([[1, 2]])}, {"x": np.array([[3]])}], {"x": -1})
        >>> joined["x"].tolist()
        [[1, 2], [3, -1]]
        >>> stack_columns([{"x": [1], "y": [2]}, {"y": [3]}])
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: key 'x' is missing from batch 1, which has 1 row
    """
    batches = list(check_items("batches", batches))
    if wrong := [f"{noun} {i} is {type(b).__name__}" for i, b in enumerate(batches) if not isinstance(b, Mapping)]:
        raise ArgumentError(f"batches must be mappings: {list_offenders(wrong)}")
    pads = _pads(pad_value_dict)
    counts = [count_rows(batch, f"{noun} {i}") for i, batch in enumerate(batches)]
    keys = dict.fromkeys(key for batch in batches for key in batch)
    return {key: _stack_key(key, batches, counts, pads.get(key, 0), noun) for key in keys}


def _pads(pad_value_dict: Mapping[Any, Any] | None) -> Mapping[Any, Any]:
    if pad_value_dict is not None and not isinstance(pad_value_dict, Mapping):
        raise ArgumentError(f"pad_value_dict must be a mapping, got {pad_value_dict!r}")
    return pad_value_dict or {}


def _stack_key(key: Any, batches: Sequence[Mapping[Any, Any]], counts: list[int], pad_value: Any, noun: str) -> Any:
    holders = [i for i, batch in enumerate(batches) if key in batch]
    kinds = {i: kind_of(key, batches[i][key]) for i in holders}
    # Rows decide what a column is; where there are none at all, arrays do, as an empty list says nothing.
    deciding = [i for i in holders if counts[i]] or [i for i in holders if kinds[i].name != ListKind.name] or holders
    kind = kinds[deciding[0]]
    if len({kinds[i] for i in deciding}) > 1:
        listed = list_offenders([f"{kinds[i].name} in {noun} {i}" for i in deciding])
        raise ArgumentError(f"key {key!r} must be of one kind in all: {listed}")
    parts = {i: batches[i][key] for i in holders if kinds[i] is kind}
    if isinstance(kind, PackedKind):
        like = parts[deciding[0]]
        parts = {i: parts[i] if i in parts else kind.empty_rows(like, count) for i, count in enumerate(counts)}
    elif lacking := [
        f"{noun} {i}, which has {n} row{'s'[: n != 1]}" for i, n in enumerate(counts) if n and i not in parts
    ]:
        raise ArgumentError(f"key {key!r} is missing from {list_offenders(lacking)}")
    used = [i for i in parts if counts[i]] or list(parts)
    try:
        return kind.stack([parts[i] for i in used], pad_value)
    except ArgumentError as error:
        raise ArgumentError(f"key {key!r} of {noun} {', '.join(map(str, used))}: {error}") from error


def gather_columns(
    columns: Mapping[Any, Any], communicator: Communicator, pad_value_dict: Mapping[Any, Any] | None
) -> dict[Any, Any]:
    """Return the columns of all ranks, end to end in the order of the group, by one all-gather.

    Raises:
        PeerError: on all ranks: some rank failed, or its columns are not right or cannot be sent.
        ArgumentError: on all ranks: the columns of the ranks do not fit each other, or their `pad_value_dict` differ.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> run_ranks(2, lambda c: gather_columns({"names": ["a"] * c.rank}, c, None))
        [{'names': ['a']}, {'names': ['a']}]
    """
    if not isinstance(communicator, Communicator):
        raise ArgumentError(
            f"group must be a dcpack Communicator, got {type(communicator).__name__}; for a process group of torch: "
            "dcpack.get_backend('torch-gloo', group=group).world()"
        )
    with tell_failure(communicator):  # the others wait in their gather
        count_rows(columns)
        kinds = {key: kind_of(key, column) for key, column in columns.items()}
        pads = ", ".join(sorted(f"{key!r}: {value!r}" for key, value in _pads(pad_value_dict).items()))
        tree = [pads, {key: [kind.name, kind.to_tree(columns[key])] for key, kind in kinds.items()}]
    gathered = all_gather_trees(communicator, tree)
    if len({text for text, _ in gathered}) > 1:
        listed = list_offenders([f"rank {rank} has {{{text}}}" for rank, (text, _) in enumerate(gathered)])
        raise ArgumentError(f"pad_value_dict must be equal on all ranks: {listed}")
    batches = [{key: kind_named(name).from_tree(part) for key, (name, part) in each.items()} for _, each in gathered]
    return stack_columns(batches, pad_value_dict, "rank")
