"""The options of the two ways to make micro-batches while sharding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeVar

from dcpack._checks import check_choice, check_int, list_offenders
from dcpack.cost import CostModel, get_cost
from dcpack.errors import ArgumentError
from dcpack.packing import PACKERS

__all__ = ["GROUP_LEVELS", "MOST_TOKENS", "DynamicBatching", "SequencePacking", "as_options"]

GROUP_LEVELS = ("microbatch", "shard")
"""What the rows of a group may not be parted across."""

MOST_TOKENS = 2**31 - 1
"""Tokens of a row or a micro-batch at most, so that no product leaves int64."""
_Options = TypeVar("_Options")


def _set(options: Any, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(options, name, value)


def _check_key(name: str, key: Any) -> None:
    if not isinstance(key, str):
        raise ArgumentError(f"{name} must be the name of a column, got {key!r}")


@dataclass(frozen=True, kw_only=True, slots=True)
class DynamicBatching:
    """Micro-batches of rows of like length, as many rows as fit when all are padded to the longest.

    Args:
        max_tokens_per_microbatch: rows times padded length of a micro-batch on one shard, at most.
        sequence_length_round: the padded length is rounded up to a multiple of it.
        input_key: the column of tokens, [rows, width, ...]; the padded length is at most its width.
        input_lengths_key: the column of lengths, int[rows].

    Raises:
        ArgumentError: an option of the wrong type or range.

    Example:
        >>> DynamicBatching(max_tokens_per_microbatch=4096, sequence_length_round=64, input_key="input_ids",
        ...     input_lengths_key="input_lengths").sequence_length_round
        64
    """

    max_tokens_per_microbatch: int
    sequence_length_round: int
    input_key: str
    input_lengths_key: str

    def __post_init__(self) -> None:
        _set(
            self,
            **{
                name: check_int(name, getattr(self, name), minimum=1, maximum=MOST_TOKENS)
                for name in ("max_tokens_per_microbatch", "sequence_length_round")
            },
        )
        _check_key("input_key", self.input_key)
        _check_key("input_lengths_key", self.input_lengths_key)


@dataclass(frozen=True, kw_only=True, slots=True)
class SequencePacking:
    """Micro-batches whose rows are to be packed end to end.

    Args:
        max_tokens_per_microbatch: padded tokens of a micro-batch on one shard, at most.
        input_lengths_key: the column of lengths, int[rows].
        input_key: the column of tokens, [rows, width, ...]; where it is named, no length may be beyond its width.
        algorithm: one of `dcpack.packing.PACKERS`.
        sequence_length_pad_multiple: the length of each row is rounded up to a multiple of it, to one at least.
        microbatch_multiple: the micro-batches of a shard are a multiple of it (virtual pipeline stages).
        cost: a cost model, or what `dcpack.cost.get_cost` takes; shards then get equal work by it. None deals bins to
            the shards in turn.
        group_key: a column, int[rows] or a list; rows that are equal there stay together. None for no groups.
        keep_groups: ``"microbatch"`` (DPO pairs) or ``"shard"`` (all responses of a prompt), where they stay together.

    Raises:
        ArgumentError: an option of the wrong type or range.

    Example:
        >>> SequencePacking(max_tokens_per_microbatch=4096, input_lengths_key="input_lengths").algorithm
        'best_fit_decreasing'
    """

    max_tokens_per_microbatch: int
    input_lengths_key: str
    input_key: str | None = None
    algorithm: str = "best_fit_decreasing"
    sequence_length_pad_multiple: int = 1
    microbatch_multiple: int = 1
    cost: CostModel | None = None
    group_key: str | None = None
    keep_groups: str = "microbatch"

    def __post_init__(self) -> None:
        numbers = ("max_tokens_per_microbatch", "sequence_length_pad_multiple", "microbatch_multiple")
        _set(self, **{name: check_int(name, getattr(self, name), minimum=1, maximum=MOST_TOKENS) for name in numbers})
        _check_key("input_lengths_key", self.input_lengths_key)
        for name in ("input_key", "group_key"):
            if getattr(self, name) is not None:
                _check_key(name, getattr(self, name))
        check_choice("algorithm", self.algorithm, PACKERS)
        check_choice("keep_groups", self.keep_groups, GROUP_LEVELS)
        cost: Any = self.cost
        if cost is not None and not hasattr(cost, "bin_time"):
            _set(self, cost=get_cost(cost))


def as_options(cls: type[_Options], name: str, value: Any) -> _Options:
    """Return `value`, an object of `cls` or a mapping of its arguments, as an object of `cls`.

    Raises:
        ArgumentError: something else, or a mapping with keys that are missing or unknown; all are named.

    Example:
        >>> as_options(SequencePacking, "cfg", {"max_tokens_per_microbatch": 8, "input_lengths_key": "n"}).algorithm
        'best_fit_decreasing'
        >>> as_options(SequencePacking, "cfg", {"max_tokens": 8})
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: cfg lacks 'max_tokens_per_microbatch', 'input_lengths_key' and has unknown \
'max_tokens'; known are 'max_tokens_per_microbatch', 'input_lengths_key', 'input_key', 'algorithm', \
'sequence_length_pad_multiple', 'microbatch_multiple', 'cost', 'group_key', 'keep_groups'
    """
    if isinstance(value, cls):
        return value
    if not isinstance(value, Mapping):
        raise ArgumentError(f"{name} must be a mapping or a {cls.__name__}, got {type(value).__name__}")
    known = {field.name: field.default is MISSING for field in fields(cls)}  # pyright: ignore[reportArgumentType]
    lacking = [repr(key) for key, is_required in known.items() if is_required and key not in value]
    unknown = [repr(key) for key in value if key not in known]
    if lacking or unknown:
        faults = [f"lacks {list_offenders(lacking)}"] * bool(lacking)
        faults += [f"has unknown {list_offenders(unknown)}"] * bool(unknown)
        raise ArgumentError(f"{name} {' and '.join(faults)}; known are {', '.join(map(repr, known))}")
    return cls(**value)
