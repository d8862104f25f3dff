"""The plan: who computes what, as immutable arrays.

A `Plan` is a table of bins and, in compressed form, the entries of each bin. Entry e of bin b, for
``offsets[b] <= e < offsets[b + 1]``, is the tokens ``starts[e] : starts[e] + entry_lengths[e]`` of sequence
``sequence_ids[e]``. One worked example, four ranks, two micro-batches, capacity 100:

    microbatch   0    0    0    1        the longest sequence (id 2) is shared by ranks 0 and 1 of micro-batch 0
    first_rank   0    2    3    0
    cp_size      2    1    1    4
    entries      [2]  [0]  [4]  [1, 3]   offsets = [0, 1, 2, 3, 5]
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from dcpack._checks import BoolArray, Float64Array, Int64Array, as_lengths, check_choice, check_cost, check_int, frozen
from dcpack._plan_faults import plan_faults
from dcpack._plan_files import FORMAT, check_wanted, read_json, read_npz, restore, write_npz
from dcpack._plan_words import bin_in_words, difference_of_bins, difference_of_headers, difference_of_sequences
from dcpack._rebuilt import Rebuilt
from dcpack.errors import ArgumentError, PlanError
from dcpack.padding import PaddingRule, padded_lengths
from dcpack.topology import crosses_node

if TYPE_CHECKING:
    from dcpack.cost import CostModel

__all__ = ["SYNC_MODES", "Plan"]

SYNC_MODES = ("microbatch", "step")
"""When ranks wait for each other: in every micro-batch (FSDP, PP, changing CP groups) or once a step (plain DP)."""

_BIN_ARRAYS = ("microbatch", "first_rank", "cp_size", "row")
_FLAG_ARRAYS = ("oversized", "dummy")
_ENTRY_ARRAYS = ("sequence_ids", "starts", "entry_lengths")
_SEQUENCE_ARRAYS = ("lengths", "dropped")
_ARRAYS = (*_BIN_ARRAYS, *_FLAG_ARRAYS, "offsets", *_ENTRY_ARRAYS, *_SEQUENCE_ARRAYS)
_SCALARS = ("num_ranks", "num_microbatches", "rows_per_rank", "capacity")


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan(Rebuilt):
    """Which sequences share a bin, on which ranks and in which micro-batch.

    Attributes:
        microbatch: int64[b], micro-batch of each bin; -1 in a plan without ranks.
        first_rank: int64[b], first plan rank of its CP group; -1 in a plan without ranks.
        cp_size: int64[b], consecutive ranks that share the bin.
        row: int64[b], which of the `rows_per_rank` rows it fills; -1 in a plan without ranks.
        oversized: bool[b], a single sequence that is longer than the capacity, kept by the policy ``"single"``.
        dummy: bool[b], a bin without entries, to be filled with one zero-weight sequence.
        offsets: int64[b + 1], where the entries of each bin begin.
        sequence_ids: int64[e], sequence of each entry.
        starts: int64[e], first token of the entry in its sequence; 0 unless the sequence was cut.
        entry_lengths: int64[e], real tokens of the entry, at least 1.
        lengths: int64[n], real tokens of every sequence that was planned.
        dropped: int64[n], tokens of each sequence that are in no bin by the overlong policy.
        num_ranks: ranks of the DPxCP domain; 0 in a plan without ranks (`dcpack.pack`).
        num_microbatches: micro-batches, the same on every rank.
        rows_per_rank: rows of each rank in each micro-batch.
        capacity: padded tokens of one row on one rank.
        padding: the padding rule, or None.
        cp_sizes: the legal CP sizes, ascending.
        bounds: lower bounds of what any plan can reach (`dcpack.bounds`); informative, not part of the digest.

    Raises:
        PlanError: arrays of the wrong shape or dtype. Deeper faults are found by `validate`.

    Example:
        >>> import dcpack
        >>> plan = dcpack.plan([50, 50, 20], num_ranks=2, capacity=100)
        >>> plan.to_sample_id_groups()
        [[[0, 2], [1]]]
    """

    microbatch: Int64Array
    first_rank: Int64Array
    cp_size: Int64Array
    row: Int64Array
    oversized: BoolArray
    dummy: BoolArray
    offsets: Int64Array
    sequence_ids: Int64Array
    starts: Int64Array
    entry_lengths: Int64Array
    lengths: Int64Array
    dropped: Int64Array
    num_ranks: int
    num_microbatches: int
    rows_per_rank: int
    capacity: int
    padding: PaddingRule | None = None
    cp_sizes: tuple[int, ...] = (1,)
    bounds: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in _ARRAYS:
            wanted = _dtype_of(name)
            array = np.asarray(getattr(self, name))
            if array.ndim != 1 or (array.size and array.dtype.newbyteorder("=") != wanted):
                raise PlanError(f"{name} must be {np.dtype(wanted)}[...], got {array.dtype} of shape {array.shape}")
            object.__setattr__(self, name, frozen(array.astype(wanted)))
        for name in _SCALARS:
            try:
                object.__setattr__(self, name, check_int(name, getattr(self, name), minimum=0))
            except ArgumentError as error:
                raise PlanError(str(error)) from error
        object.__setattr__(self, "cp_sizes", tuple(int(size) for size in self.cp_sizes))
        object.__setattr__(self, "bounds", MappingProxyType({k: float(v) for k, v in self.bounds.items()}))
        self._check_shapes()

    def _check_shapes(self) -> None:
        if self.offsets.size == 0 or self.offsets[0] != 0 or np.any(np.diff(self.offsets) < 0):
            raise PlanError(f"offsets must start at 0 and never decrease, got {self.offsets[:8].tolist()}")
        num_bins = self.offsets.size - 1
        wrong = [name for name in (*_BIN_ARRAYS, *_FLAG_ARRAYS) if getattr(self, name).size != num_bins]
        entries = int(self.offsets[-1])
        wrong += [name for name in _ENTRY_ARRAYS if getattr(self, name).size != entries]
        wrong += [] if self.dropped.size == self.lengths.size else ["dropped"]
        if wrong:
            raise PlanError(f"arrays that do not fit {num_bins} bins, {entries} entries: {', '.join(wrong)}")

    # ---- derived sizes -------------------------------------------------------------------------------------------

    @property
    def num_bins(self) -> int:
        """Number of bins, dummies included."""
        return self.offsets.size - 1

    @property
    def num_sequences(self) -> int:
        """Number of sequences that were planned, empty and dropped ones included."""
        return self.lengths.size

    @cached_property
    def entry_bin(self) -> Int64Array:
        """int64[e]: the bin of each entry."""
        return frozen(np.repeat(np.arange(self.num_bins), np.diff(self.offsets)))

    @cached_property
    def entry_padded_lengths(self) -> Int64Array:
        """int64[e]: padded tokens of each entry at the CP size of its bin."""
        return frozen(padded_lengths(self.entry_lengths, self.cp_size[self.entry_bin], self.padding))

    @cached_property
    def bin_padded_tokens(self) -> Int64Array:
        """int64[b]: sum of the padded lengths of each bin, over all its ranks."""
        return frozen(self._sum_over_bins(self.entry_padded_lengths))

    def _sum_over_bins(self, per_entry: Int64Array) -> Int64Array:
        running = np.concatenate([[0], np.cumsum(per_entry)])
        return running[self.offsets[1:]] - running[self.offsets[:-1]]

    # ---- invariants ----------------------------------------------------------------------------------------------

    def validate(self, lengths: Any = None) -> None:
        """Prove that the plan holds every invariant, or raise an error that names all that is broken.

        Each token that is not reported as dropped is in exactly one bin; sequences without tokens are in none; every
        bin is within capacity (oversized ones are alone); the CP groups of every micro-batch and row partition the
        ranks, and blocks of powers of two are aligned; every CP size is legal.

        Args:
            lengths: int64[n], the lengths that the plan should be for; None checks the plan against itself.

        Raises:
            PlanError: some invariant does not hold.
        """
        faults = plan_faults(self)
        if lengths is not None and not np.array_equal(as_lengths("lengths", lengths), self.lengths):
            faults.append("lengths: the plan was made for other lengths")
        if faults:
            raise PlanError("invalid plan: " + "; ".join(faults))

    # ---- identity ------------------------------------------------------------------------------------------------

    def digest(self) -> str:
        """Return a stable hash (64 hex digits) of every decision in the plan.

        The same decisions give the same digest in any process, on any machine. Bounds are floats that inform and are
        left out.

        Example:
            >>> import dcpack
            >>> a, b = (dcpack.plan([5, 6], num_ranks=2, capacity=8) for _ in range(2))
            >>> a.digest() == b.digest(), len(a.digest())
            (True, 64)
        """
        digest = hashlib.sha256(json.dumps(self._header(), sort_keys=True).encode())
        for name in _ARRAYS:
            array = getattr(self, name)
            digest.update(f"{name}:{array.size};".encode())
            digest.update(array.astype(array.dtype.newbyteorder("<")).tobytes())
        return digest.hexdigest()

    def _header(self) -> dict[str, Any]:
        scalars = {name: getattr(self, name) for name in _SCALARS}
        padding = None if self.padding is None else asdict(self.padding)
        return {"format": FORMAT, **scalars, "padding": padding, "cp_sizes": list(self.cp_sizes)}

    def first_difference(self, other: Plan) -> str | None:
        """Return where `other` first departs from this plan, in words, or None where both decide the same.

        Example:
            >>> import dcpack
            >>> a = dcpack.plan([5, 6], num_ranks=1, capacity=11)
            >>> a.first_difference(dcpack.plan([5, 7], num_ranks=1, capacity=12))
            'capacity: 11 against 12'
        """
        if not isinstance(other, Plan):
            raise PlanError(f"other must be a Plan, got {type(other).__name__}")
        of_sequences = (
            difference_of_sequences(name, getattr(self, name), getattr(other, name)) for name in _SEQUENCE_ARRAYS
        )
        found = (difference_of_headers(self._header(), other._header()), *of_sequences)
        return next((difference for difference in found if difference), None) or difference_of_bins(self, other)

    def describe_bin(self, index: int) -> str:
        """Return one line on bin `index`.

        Example:
            >>> import dcpack
            >>> dcpack.plan([5, 6], num_ranks=1, capacity=11).describe_bin(0)
            'micro-batch 0, ranks 0..0, row 0, entries 1[0:6] 0[0:5]'
        """
        if self.num_bins == 0:
            raise PlanError("a plan without bins has none to describe")
        check_int("index", index, minimum=0, maximum=self.num_bins - 1)
        return bin_in_words(self, index)

    # ---- views ---------------------------------------------------------------------------------------------------

    def to_sample_id_groups(self) -> list[list[list[int]]]:
        """Return Megatron's nested lists: ``[micro-batch][rank] -> [sequence ids]``.

        Every list is an object of its own: changing one changes no other.

        Raises:
            PlanError: a plan without ranks, or with more than one row a rank, has no such form.

        Example:
            >>> import dcpack
            >>> dcpack.plan([150, 20], num_ranks=3, capacity=100, cp_sizes="any").to_sample_id_groups()
            [[[0], [0], [1]]]
        """
        if self.num_ranks == 0 or self.rows_per_rank != 1:
            raise PlanError(f"{self.num_ranks} ranks with {self.rows_per_rank} rows have no sample-id groups")
        groups: list[list[list[int]]] = [[[] for _ in range(self.num_ranks)] for _ in range(self.num_microbatches)]
        for b in range(self.num_bins):
            ids = self.sequence_ids[self.offsets[b] : self.offsets[b + 1]].tolist()
            for rank in range(self.first_rank[b], self.first_rank[b] + self.cp_size[b]):
                groups[self.microbatch[b]][rank] = list(ids)
        return groups

    def bins_of_rank(self, rank: int) -> Int64Array:
        """Return int64[k]: the bins that plan rank `rank` works on, by micro-batch and row.

        Example:
            >>> import dcpack
            >>> dcpack.plan([150, 20], num_ranks=3, capacity=100, cp_sizes="any").bins_of_rank(1).tolist()
            [0]
        """
        if self.num_ranks == 0:
            raise PlanError("a plan without ranks has no bins of a rank; make it with dcpack.plan")
        check_int("rank", rank, minimum=0, maximum=self.num_ranks - 1)
        mine = np.flatnonzero((self.first_rank <= rank) & (rank < self.first_rank + self.cp_size))
        return mine[np.lexsort((self.row[mine], self.microbatch[mine]))]

    # ---- time ----------------------------------------------------------------------------------------------------

    def bin_times(self, cost: CostModel) -> Float64Array:
        """Return float64[b]: the time that each rank of each bin works on it, in the unit of `cost`."""
        check_cost(cost)
        columns = cost.columns(self.entry_padded_lengths)
        sums = np.zeros((self.num_bins, columns.shape[1]))
        np.add.at(sums, self.entry_bin, columns)
        return cost.bin_time(sums, self.cp_size, crosses_node(self.first_rank, self.cp_size, cost.node_size))

    def rank_times(self, cost: CostModel) -> Float64Array:
        """Return float64[num_microbatches, num_ranks]: the time of each rank in each micro-batch.

        Example:
            >>> import dcpack
            >>> dcpack.plan([3, 4], num_ranks=2, capacity=4).rank_times(dcpack.QuadraticCost()).tolist()
            [[16.0, 9.0]]
        """
        if self.num_ranks == 0:
            raise PlanError("a plan without ranks has no rank times; make it with dcpack.plan")
        start = np.repeat(np.cumsum(self.cp_size) - self.cp_size, self.cp_size)
        rank = np.repeat(self.first_rank, self.cp_size) + np.arange(start.size) - start
        cell = np.repeat(self.microbatch, self.cp_size) * self.num_ranks + rank
        times = np.repeat(self.bin_times(cost), self.cp_size)
        shape = (self.num_microbatches, self.num_ranks)
        total = np.bincount(cell, weights=times, minlength=shape[0] * shape[1])
        return total.astype(np.float64).reshape(shape)

    def simulate(self, cost: CostModel, *, sync: str = "microbatch", pipeline_stages: int = 1) -> float:
        """Return the time of the step, in the unit of `cost`.

        Args:
            cost: the cost model, of one pipeline stage where there are several.
            sync: ``"microbatch"`` where ranks meet in every micro-batch: the sum over micro-batches of the slowest
                rank; ``"step"`` where they meet once a step: the slowest sum.
            pipeline_stages: stages of a pipeline; each but one adds a bubble of the slowest micro-batch.

        Example:
            >>> import dcpack
            >>> plan = dcpack.plan([4, 4, 4, 2], num_ranks=2, capacity=4)
            >>> plan.simulate(dcpack.QuadraticCost()), plan.simulate(dcpack.QuadraticCost(), sync="step")
            (32.0, 32.0)
        """
        check_choice("sync", sync, SYNC_MODES)
        check_int("pipeline_stages", pipeline_stages, minimum=1)
        times = self.rank_times(cost)
        if times.size == 0:
            return 0.0
        step = times.max(axis=1).sum() if sync == "microbatch" else times.sum(axis=0).max()
        return float(step + (pipeline_stages - 1) * times.max())

    # ---- files ---------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """Return the whole plan as one JSON object, for people and other programs.

        Example:
            >>> import dcpack
            >>> json.loads(dcpack.pack([3, 4], capacity=8).to_json())["sequence_ids"]
            [0, 1]
        """
        arrays = {name: getattr(self, name).tolist() for name in _ARRAYS}
        return json.dumps({**self._file_header(), **arrays})

    @classmethod
    def from_json(cls, text: str | bytes) -> Plan:
        """Return the plan that `to_json` wrote.

        Raises:
            PlanError: something else, or a plan that was changed since.

        Example:
            >>> import dcpack
            >>> plan = dcpack.plan([3, 4], num_ranks=2, capacity=8)
            >>> Plan.from_json(plan.to_json()).digest() == plan.digest()
            True
        """
        return restore("JSON", cls, read_json(text, _ARRAYS), _SCALARS)

    def _file_header(self) -> dict[str, Any]:
        return {**self._header(), "bounds": dict(self.bounds), "digest": self.digest()}

    def save(self, path: str | Path) -> None:
        """Write the plan to `path` (``.npz`` format, the name is taken as it is)."""
        write_npz(path, self._file_header(), {name: getattr(self, name) for name in _ARRAYS})

    @classmethod
    def load(
        cls,
        path: str | Path,
        *,
        capacity: int | None = None,
        padding: PaddingRule | None = None,
        cp_sizes: tuple[int, ...] | None = None,
    ) -> Plan:
        """Read a plan back and check that it is whole and fits what it will be used with.

        Args:
            path: a file that `save` wrote.
            capacity: refuse a plan made for another capacity; None takes any.
            padding: refuse a plan made under another padding rule; None takes any.
            cp_sizes: refuse a plan made for other legal CP sizes; None takes any.

        Raises:
            PlanError: missing, truncated or corrupt file, or another fingerprint; names the file and the reason.
        """
        wanted = check_wanted(capacity, padding, cp_sizes)
        plan = restore(str(path), cls, read_npz(path, _ARRAYS), _SCALARS)
        refused = [
            f"{name} {getattr(plan, name)}, wanted {value}"
            for name, value in wanted.items()
            if value is not None and getattr(plan, name) != value
        ]
        if refused:
            raise PlanError(f"{path}: the plan was made for {'; '.join(refused)}")
        return plan


def _dtype_of(name: str) -> type[np.bool_] | type[np.int64]:
    return np.bool_ if name in _FLAG_ARRAYS else np.int64
