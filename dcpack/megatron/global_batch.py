"""What all data-parallel ranks have read for one step: fetched, taken apart, counted, numbered."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, check_int, check_kinds, exact_sum, frozen, list_offenders
from dcpack.comm import Communicator
from dcpack.errors import ArgumentError, DcpackError
from dcpack.megatron.samples import Sample, UnpackedSamples, unpack_samples

__all__ = ["EndOfData", "GlobalBatch", "get_batch_and_global_lengths"]


class EndOfData(DcpackError, StopIteration):
    """Some rank's iterator ended before the step was complete; all ranks stop at the same step.

    What the ranks had fetched for that step is in no batch. What their iterators still hold was not looked at.

    Attributes:
        num_items: items that each data-parallel rank had fetched for the step.
        num_sequences: sequences of those items, over all ranks.
        num_tokens: their real tokens.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> def fn(communicator):
        ...     items = iter([{"tokens": np.arange(4), "padded_seq_len": 4}] * (2 - communicator.rank))
        ...     try:
        ...         get_batch_and_global_lengths(communicator, items, num_microbatches=2)
        ...     except EndOfData as end:
        ...         return end.num_items, end.num_sequences, end.num_tokens
        >>> run_ranks(2, fn)[1]
        ((2, 1), 3, 12)
    """

    def __init__(self, *, num_items: Sequence[int], num_sequences: int, num_tokens: int) -> None:
        super().__init__(
            f"the data has ended: of the last step, ranks fetched {list(num_items)} items, "
            f"{num_sequences} sequences of {num_tokens} tokens in all, which are in no batch"
        )
        self.num_items = tuple(num_items)
        self.num_sequences = num_sequences
        self.num_tokens = num_tokens


@dataclass(frozen=True, kw_only=True, eq=False)
class GlobalBatch:
    """The sequences of one step. They are numbered by data-parallel rank, then by their place on the rank.

    Attributes:
        samples: this rank's sequences.
        ids: int64[k], their numbers.
        offsets: int64[dp_size + 1], number of the first sequence of each rank; an array of the host.
        lengths: int64[n], real tokens by number.
        padded_lengths: int64[n], padded tokens by number, as the datasets padded them.
        num_empty: sequences without a token, over all ranks; they have no number.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> def fn(communicator):
        ...     items = iter([{"tokens": np.arange(3 + communicator.rank), "padded_seq_len": 3 + communicator.rank}])
        ...     return get_batch_and_global_lengths(communicator, items, num_microbatches=1)
        >>> batch = run_ranks(2, fn)[1]
        >>> batch.ids.tolist(), batch.lengths.tolist(), batch.num_tokens
        ([1], [3, 4], 7)
    """

    samples: tuple[Sample, ...]
    ids: Int64Array
    offsets: Int64Array
    lengths: Int64Array
    padded_lengths: Int64Array
    num_empty: int

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """(number, padded tokens) of every sequence, as Megatron's schedulers take them."""
        return list(enumerate(self.padded_lengths.tolist()))

    @property
    def num_tokens(self) -> int:
        """Real tokens of the step."""
        return exact_sum(self.lengths)


def get_batch_and_global_lengths(
    communicator: Communicator,
    data_iterator: Iterator[Any],
    *,
    num_microbatches: int,
    to_host: Callable[[Any], Any] = np.asarray,
) -> GlobalBatch:
    """Fetch this rank's items of one step and learn the lengths of all. Collective, one all-gather.

    Ranks may bring different numbers of sequences.

    Args:
        communicator: the data-parallel group.
        data_iterator: yields mappings, or lists of mappings; see `unpack_samples`.
        num_microbatches: items to fetch.
        to_host: makes a NumPy array of a field.

    Returns:
        This rank's sequences, and the lengths of all.

    Raises:
        EndOfData: an iterator ended early; on every rank.
        PeerError: an iterator failed, or yielded something else; on every rank.
        ArgumentError: ranks fetch different numbers of items; on every rank.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> def fn(communicator):
        ...     items = iter([{"tokens": np.arange(3 + communicator.rank), "padded_seq_len": 3 + communicator.rank}])
        ...     return get_batch_and_global_lengths(communicator, items, num_microbatches=1).pairs
        >>> run_ranks(2, fn)
        [[(0, 3), (1, 4)], [(0, 3), (1, 4)]]
    """
    check_kinds(communicator=(communicator, Communicator))
    with communicator.guard():
        count = check_int("num_microbatches", num_microbatches, minimum=1, maximum=2**31 - 1)
        items = _fetch(data_iterator, count)
        unpacked = unpack_samples(_flatten(items), to_host=to_host)
        message = np.array([[count, 0], [len(items), unpacked.num_empty], *_length_pairs(unpacked)], np.int64)
    parts = communicator.all_gather(message)
    asked = [int(part[0, 0]) for part in parts]
    if len(set(asked)) > 1:
        raise ArgumentError(f"num_microbatches must be the same on every rank, got {asked}")
    counts = np.array([len(part) - 2 for part in parts])
    lengths = np.concatenate([part[2:] for part in parts])
    num_items = [int(part[1, 0]) for part in parts]
    if min(num_items) < count:
        raise EndOfData(num_items=num_items, num_sequences=len(lengths), num_tokens=exact_sum(lengths[:, 0]))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    return GlobalBatch(
        samples=unpacked.samples,
        ids=np.arange(offsets[communicator.rank], offsets[communicator.rank + 1]),
        offsets=frozen(offsets),
        lengths=frozen(lengths[:, 0]),
        padded_lengths=frozen(lengths[:, 1]),
        num_empty=sum(int(part[1, 1]) for part in parts),
    )


def _fetch(data_iterator: Any, count: int) -> list[Any]:
    if not hasattr(data_iterator, "__next__"):
        raise ArgumentError(f"data_iterator must be an iterator, got {type(data_iterator).__name__}")
    return list(islice(data_iterator, count))


def _flatten(items: Sequence[Any]) -> list[Mapping[str, Any]]:
    samples: list[Mapping[str, Any]] = []
    wrong = []
    for i, item in enumerate(items):
        if isinstance(item, Mapping):
            samples.append(item)
        elif isinstance(item, list | tuple) and all(isinstance(sample, Mapping) for sample in item):
            samples.extend(item)
        else:
            wrong.append(f"item {i} is {_describe(item)}")
    if wrong:
        raise ArgumentError(f"data_iterator must yield mappings or lists of mappings: {list_offenders(wrong)}")
    return samples


def _describe(item: Any) -> str:
    if not isinstance(item, list | tuple):
        return type(item).__name__
    return f"a {type(item).__name__} of {', '.join(sorted({type(sample).__name__ for sample in item}))}"


def _length_pairs(unpacked: UnpackedSamples) -> list[list[int]]:
    return np.stack([unpacked.lengths, unpacked.padded_lengths], axis=1).tolist()
