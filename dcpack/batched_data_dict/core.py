"""`BatchedDataDict`: the rows of an RL batch, column by column."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any, Self

import numpy as np

from dcpack._checks import check_int, list_offenders
from dcpack.batched_data_dict.arrays import array_kind_of
from dcpack.batched_data_dict.columns import ColumnKind
from dcpack.batched_data_dict.kinds import count_rows, kind_of
from dcpack.batched_data_dict.microbatches import even_chunks
from dcpack.batched_data_dict.options import MOST_TOKENS, DynamicBatching, SequencePacking, as_options
from dcpack.batched_data_dict.row_numbers import row_numbers, rows_in_order
from dcpack.batched_data_dict.sharding import Shard, shard_rows
from dcpack.batched_data_dict.stacking import gather_columns, stack_columns
from dcpack.comm import Communicator
from dcpack.errors import ArgumentError

__all__ = ["BatchedDataDict", "SlicedDataDict"]


class BatchedDataDict(UserDict[Any, Any]):
    """A dict of columns that hold one value for each row of a batch, such as the rollouts of an RL step.

    A column is an array of NumPy, torch or JAX whose first dim are the rows, a list, or a `PackedColumn` for ragged
    side fields. Results are of the type given. The names and results are those of NeMo-RL's class of this name.

    Attributes:
        micro_batch_indices: for each chunk, the first row and the row behind the last of each micro-batch, counted in
            the chunk; None without micro-batches. `shard_by_batch_size` sets the three, `get_batch` hands them on.
        micro_batch_lengths: for each chunk, the padded length of each micro-batch.
        elem_counts_per_gb: rows of each chunk.

    Example:
        >>> batch = BatchedDataDict({"input_ids": np.array([[1, 2], [3, 0]]), "reward": [0.5, 1.0]})
        >>> batch.size, batch.slice(1, 2)
        (2, {'input_ids': array([[3, 0]]), 'reward': [1.0]})
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.micro_batch_indices: list[list[list[int]]] | None = None
        self.micro_batch_lengths: list[list[int]] | None = None
        self.elem_counts_per_gb: list[int] | None = None
        self._is_packed = False

    # Whole batches.

    @classmethod
    def from_batches(
        cls, batches: Sequence[Mapping[Any, Any]], pad_value_dict: Mapping[Any, int | float] | None = None
    ) -> Self:
        """Join batches into one.

        Arrays of one dim are concatenated; of two and more padded along dim 1 to the longest; lists are joined; a
        packed column that a batch lacks has rows without items there.

        Args:
            batches: mappings from key to column. None at all give an empty dict.
            pad_value_dict: what to pad a key with, 0 where it says nothing.

        Raises:
            ArgumentError: a key that a batch with rows lacks, or columns that do not fit each other.

        Example:
            >>> joined = BatchedDataDict.from_batches(
            ...     [{"ids": np.array([[1, 2, 3]]), "who": ["a"]}, {"ids": np.array([[4]]), "who": ["b"]}], {"ids": 9}
            ... )
            >>> joined["ids"].tolist(), joined["who"]
            ([[1, 2, 3], [4, 9, 9]], ['a', 'b'])
        """
        return cls(stack_columns(batches, pad_value_dict))

    def all_gather(self, group: Communicator, pad_value_dict: Mapping[Any, int | float] | None = None) -> Self:
        """Return the rows of all ranks, in the order of the group, as `from_batches` joins them; one message a rank.

        Ranks may have different numbers of rows, none included, and rows of different lengths. Lists hold what JSON
        can: texts, numbers, None, lists and dicts of such.

        Args:
            group: the ranks, such as those of the DP axis, or of DP and PP.
            pad_value_dict: what to pad a key with, 0 where it says nothing.

        Raises:
            PeerError: on all ranks: some rank failed, or its batch is wrong.
            ArgumentError: on all ranks: the batches do not fit each other, or the ranks differ in `pad_value_dict`.

        Example:
            >>> from dcpack import run_ranks
            >>> def fn(communicator):
            ...     rows = communicator.rank + 1
            ...     batch = BatchedDataDict({"ids": np.full((rows, rows), rows)})
            ...     return batch.all_gather(communicator)["ids"].tolist()
            >>> run_ranks(2, fn)[0]
            [[1, 0], [2, 2], [2, 2]]
        """
        return type(self)(gather_columns(self.data, group, pad_value_dict))

    @property
    def size(self) -> int:
        """The number of rows; all columns must have equally many. 0 without columns."""
        return count_rows(self.data)

    def get_dict(self) -> dict[Any, Any]:
        """Return the dict of the columns itself, not a copy."""
        return self.data

    def to(self, device: Any) -> Self:
        """Move tensors, JAX arrays and the values of packed columns to `device`, in place, and return the batch.

        Raises:
            ArgumentError: columns that cannot be there, such as NumPy arrays on a GPU; all are named, and none moves.
        """
        moved, refused = {}, {}
        for key, kind in self._kinds().items():
            try:
                moved[key] = kind.move(self.data[key], device)
            except ArgumentError as error:
                refused[key] = str(error)
        if refused:
            columns = list_offenders([repr(key) for key in refused])
            raise ArgumentError(
                f"column{'s'[: len(refused) > 1]} {columns}: {'; '.join(dict.fromkeys(refused.values()))}"
            )
        self.data = moved
        return self

    # Rows.

    def slice(self, start: int, end: int) -> SlicedDataDict:
        """Return the rows from `start` to before `end`; of NumPy and torch arrays as views.

        Example:
            >>> BatchedDataDict({"x": [*"abcd"]}).slice(1, 3)
            {'x': ['b', 'c']}
        """
        size = self.size
        end = check_int("end", end, minimum=0, maximum=size)
        start = check_int("start", start, minimum=0, maximum=end)
        return SlicedDataDict(self._columns(lambda kind, column: kind.cut(column, start, end)))

    def select_indices(self, indices: Any) -> Self:
        """Return the rows of these numbers, in their order, as copies.

        Args:
            indices: int[k], a list or an array of any kind; numbers may repeat.

        Example:
            >>> BatchedDataDict({"x": [*"abcd"]}).select_indices([3, 0, 0])
            {'x': ['d', 'a', 'a']}
        """
        rows = row_numbers("indices", indices, self.size)
        return type(self)(self._columns(lambda kind, column: kind.take(column, rows)))

    def chunk(self, rank: int, chunks: int) -> SlicedDataDict:
        """Return the `rank`-th of `chunks` equal parts, as a copy.

        Example:
            >>> BatchedDataDict({"x": [*"AAABBBDDE"]}).chunk(2, 3)
            {'x': ['D', 'D', 'E']}
        """
        size = self.size
        chunks = check_int("chunks", chunks, minimum=1)
        rank = check_int("rank", rank, minimum=0, maximum=chunks - 1)
        if size % chunks or size == 0:
            raise ArgumentError(f"the batch of {size} rows does not divide into {chunks} chunks of at least one row")
        rows = np.arange(rank * size // chunks, (rank + 1) * size // chunks)
        return SlicedDataDict(self._columns(lambda kind, column: kind.take(column, rows)))

    def reorder_data(self, indices: Any) -> None:
        """Bring row i to the place that ``indices[i]`` has among all `indices` in sorted order, in place.

        With the indices that `shard_by_batch_size` returned, the joined shards become the batch again. Bounds of
        micro-batches are dropped, as they no longer hold.

        Args:
            indices: int[rows], all different.

        Example:
            >>> batch = BatchedDataDict({"x": [3, 1, 2]})
            >>> batch.reorder_data([2, 0, 1])
            >>> batch
            {'x': [1, 2, 3]}
        """
        rows = rows_in_order(indices, self.size)
        self.data = self._columns(lambda kind, column: kind.take(column, rows))
        self._set_bounds(None)

    def repeat_interleave(self, num_repeats: int) -> Self:
        """Return each row `num_repeats` times in a row; items of lists are deep copies.

        Example:
            >>> BatchedDataDict({"x": [1, 2]}).repeat_interleave(2)
            {'x': [1, 1, 2, 2]}
        """
        size = self.size
        most = MOST_TOKENS // max(size, 1)
        rows = np.repeat(np.arange(size), check_int("num_repeats", num_repeats, minimum=0, maximum=most))
        columns = self._columns(lambda kind, column: kind.take(column, rows))
        return type(self)(
            {
                key: [deepcopy(item) for item in each] if isinstance(each, list) else each
                for key, each in columns.items()
            }
        )

    def truncate_tensors(self, dim: int, truncated_len: int) -> None:
        """Cut dim `dim` of each array that has it to its first `truncated_len`, in place; other columns stay.

        Args:
            dim: at least 1, as dim 0 are the rows.
            truncated_len: at most the size of that dim in every array.

        Example:
            >>> batch = BatchedDataDict({"ids": np.array([[1, 2, 3]]), "reward": np.array([0.5])})
            >>> batch.truncate_tensors(1, 2)
            >>> batch["ids"].tolist(), batch["reward"].tolist()
            ([[1, 2]], [0.5])
        """
        dim = check_int("dim", dim, minimum=1)
        length = check_int("truncated_len", truncated_len, minimum=0)
        arrays = {key: kind for key, column in self.data.items() if (kind := array_kind_of(column))}
        deep = {key: kind for key, kind in arrays.items() if self.data[key].ndim > dim}
        shapes = {key: tuple(self.data[key].shape) for key in deep}
        if short := [f"{key!r} has shape {shape}" for key, shape in shapes.items() if shape[dim] < length]:
            raise ArgumentError(f"dim {dim} cannot be cut to {length}: {list_offenders(short)}")
        self.data.update({key: kind.truncate(self.data[key], dim, length) for key, kind in deep.items()})

    # Shards.

    def shard_by_batch_size(
        self,
        shards: int,
        batch_size: int | None = None,
        allow_uneven_shards: bool = False,
        dynamic_batching_cfg: DynamicBatching | Mapping[str, Any] | None = None,
        sequence_packing_cfg: SequencePacking | Mapping[str, Any] | None = None,
    ) -> Any:
        """Cut the batch into chunks of `batch_size` rows and each into `shards` parts; join the parts of equal place.

        Args:
            shards: number of shards.
            batch_size: rows of a chunk, one optimizer step on all shards; None for the whole batch. It divides the
                batch, and `shards` divides it.
            allow_uneven_shards: sizes may differ by one, larger ones first; not with `batch_size` or dynamic batching.
            dynamic_batching_cfg: a `DynamicBatching`, or a mapping of its arguments. Rows are sorted by length in each
                chunk and dealt to the shards in turn; the bounds of micro-batches are the same on all shards.
            sequence_packing_cfg: a `SequencePacking`, or a mapping of its arguments. Rows are packed within each
                chunk; every shard has equally many micro-batches.

        Returns:
            The shards, list of `SlicedDataDict`. With either cfg a tuple of them and list[int]: the row of the batch
            that each row of the joined shards was, which `reorder_data` takes.

        Raises:
            ArgumentError: sizes that do not divide, a missing column, lengths beyond the width of the tokens.
            InfeasibleError: a row, or a group, of more tokens than a micro-batch; too few rows for all shards.

        Example:
            >>> batch = BatchedDataDict({"x": [*"AABBCCDD"]})
            >>> batch.shard_by_batch_size(2, batch_size=2)
            [{'x': ['A', 'B', 'C', 'D']}, {'x': ['A', 'B', 'C', 'D']}]
            >>> batch = BatchedDataDict({"n": [5, 4, 3, 3]})
            >>> cfg = {"max_tokens_per_microbatch": 8, "input_lengths_key": "n"}
            >>> shards, order = batch.shard_by_batch_size(2, sequence_packing_cfg=cfg)
            >>> shards, order, shards[0].micro_batch_indices, shards[0].micro_batch_lengths
            ([{'n': [5, 3]}, {'n': [4, 3]}], [0, 2, 1, 3], [[[0, 2]]], [[8]])
        """
        dynamic, packing = None, None
        if dynamic_batching_cfg is not None:
            dynamic = as_options(DynamicBatching, "dynamic_batching_cfg", dynamic_batching_cfg)
        if sequence_packing_cfg is not None:
            packing = as_options(SequencePacking, "sequence_packing_cfg", sequence_packing_cfg)
        plans = shard_rows(self.data, shards, batch_size, allow_uneven_shards, dynamic, packing)
        parts = [self._take_shard(plan, packing is not None) for plan in plans]
        if dynamic is None and packing is None:
            return parts
        return parts, np.concatenate([plan.rows for plan in plans]).tolist()

    def get_batch(self, batch_idx: int, batch_size: int | None = None) -> SlicedDataDict:
        """Return the rows of one chunk, with the bounds of its micro-batches.

        Args:
            batch_idx: number of the chunk.
            batch_size: rows of a chunk on this shard; it must divide the rows. Not needed where `shard_by_batch_size`
                made micro-batches; with sequence packing it is ignored, since the rows are then as the packing dealt
                them.

        Example:
            >>> BatchedDataDict({"x": [*"abcd"]}).get_batch(1, 2)
            {'x': ['c', 'd']}
        """
        size = self.size
        if batch_size is not None:
            batch_size = check_int("batch_size", batch_size, minimum=1)
        counts = self.elem_counts_per_gb
        if counts is None:
            counts = even_chunks(size, batch_size)
        elif batch_size is not None and not self._is_packed and set(counts) != {batch_size}:
            raise ArgumentError(f"batch_size must be the {counts[0]} rows of a chunk on this shard, got {batch_size}")
        if not counts:
            raise ArgumentError(f"the batch of {size} rows has no chunk of {batch_size} rows")
        batch_idx = check_int("batch_idx", batch_idx, minimum=0, maximum=len(counts) - 1)
        start = sum(counts[:batch_idx])
        part = self.slice(start, start + counts[batch_idx])
        if self.micro_batch_indices is not None and self.micro_batch_lengths is not None:
            chosen = slice(batch_idx, batch_idx + 1)
            bounds = self.micro_batch_indices[chosen], self.micro_batch_lengths[chosen], counts[chosen]
            part._set_bounds(bounds, self._is_packed)
        return part

    # Micro-batches.

    def make_microbatch_iterator(self, microbatch_size: int) -> Iterator[SlicedDataDict]:
        """Return an iterator over micro-batches of `microbatch_size` rows, which must divide the batch.

        Example:
            >>> list(BatchedDataDict({"x": [1, 2, 3, 4]}).make_microbatch_iterator(2))
            [{'x': [1, 2]}, {'x': [3, 4]}]
        """
        size = self.size
        microbatch_size = check_int("microbatch_size", microbatch_size, minimum=1)
        if size % microbatch_size:
            raise ArgumentError(f"the batch of {size} rows is not a multiple of microbatch_size {microbatch_size}")
        return (self.slice(start, end) for start, end in pairwise(range(0, size + 1, microbatch_size)))

    def make_microbatch_iterator_with_dynamic_shapes(self, sequence_dim: int = 1) -> Iterator[SlicedDataDict]:
        """Return an iterator over the micro-batches of dynamic batching, cut to their length along `sequence_dim`."""
        bounds, lengths = self._one_chunk()
        return (self._truncated(pair, sequence_dim, length) for pair, length in zip(bounds, lengths, strict=True))

    def get_microbatch_iterator_dynamic_shapes_len(self) -> int:
        """Return how many micro-batches `make_microbatch_iterator_with_dynamic_shapes` gives."""
        return len(self._one_chunk()[0])

    def make_microbatch_iterator_for_packable_sequences(self) -> Iterator[SlicedDataDict]:
        """Return an iterator over the micro-batches of sequence packing: rows still padded, ready to be packed."""
        bounds, _ = self._one_chunk()
        return (self.slice(start, end) for start, end in bounds)

    def get_microbatch_iterator_for_packable_sequences_len(self) -> tuple[int, int]:
        """Return how many micro-batches there are, and the padded tokens of the largest."""
        bounds, lengths = self._one_chunk()
        return len(bounds), max(lengths)

    # Helpers.

    def _kinds(self) -> dict[Any, ColumnKind]:
        return {key: kind_of(key, column) for key, column in self.data.items()}

    def _columns(self, change: Callable[[ColumnKind, Any], Any]) -> dict[Any, Any]:
        return {key: change(kind, self.data[key]) for key, kind in self._kinds().items()}

    def _take_shard(self, shard: Shard, is_packed: bool) -> SlicedDataDict:
        part = SlicedDataDict(self._columns(lambda kind, column: kind.take(column, shard.rows)))
        if shard.chunks:
            bounds = [chunk.bounds for chunk in shard.chunks]
            lengths = [chunk.lengths for chunk in shard.chunks]
            part._set_bounds((bounds, lengths, [chunk.rows.size for chunk in shard.chunks]), is_packed)
        return part

    def _set_bounds(
        self, bounds: tuple[list[list[list[int]]], list[list[int]], list[int]] | None, is_packed: bool = False
    ) -> None:
        self.micro_batch_indices, self.micro_batch_lengths, self.elem_counts_per_gb = bounds or (None, None, None)
        self._is_packed = is_packed

    def _one_chunk(self) -> tuple[list[list[int]], list[int]]:
        """Return bounds and lengths of the micro-batches of the only chunk."""
        if self.micro_batch_indices is None or self.micro_batch_lengths is None:
            raise ArgumentError("no micro-batches: shard with dynamic_batching_cfg or sequence_packing_cfg first")
        if len(self.micro_batch_indices) != 1:
            raise ArgumentError(f"{len(self.micro_batch_indices)} chunks: take one with get_batch first")
        return self.micro_batch_indices[0], self.micro_batch_lengths[0]

    def _truncated(self, bounds: list[int], dim: int, length: int) -> SlicedDataDict:
        part = self.slice(*bounds)
        part.truncate_tensors(dim, length)
        return part


class SlicedDataDict(BatchedDataDict):
    """A part of a larger batch: what slices and shards are, so that type checkers tell them from whole batches.

    Example:
        >>> batch = BatchedDataDict({"reward": [0.5, 1.0, 0.0, 2.0]})
        >>> [dict(shard) for shard in batch.shard_by_batch_size(2)]
        [{'reward': [0.5, 1.0]}, {'reward': [0.0, 2.0]}]
        >>> isinstance(batch.slice(0, 1), SlicedDataDict)
        True
    """
