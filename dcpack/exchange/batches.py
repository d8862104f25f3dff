"""The packed batch that one rank computes on, and how it is put together from parcels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import BoolArray, Int64Array, check_int, check_kinds, check_names, frozen, list_offenders
from dcpack.comm.dtypes import dtype_from_name
from dcpack.errors import ArgumentError, PlanError
from dcpack.exchange.codec import Parcels, take_runs
from dcpack.exchange.fields import NEUTRAL_VALUES
from dcpack.exchange.routes import Routes
from dcpack.exchange.shapes import StaticShapes, shapes_of_bins
from dcpack.exchange.table import FieldKind, SampleTable
from dcpack.layout import PackedOffsets, fixed_shape_cu_seqlens, packed_offsets, scatter_real
from dcpack.loss import count_valid_tokens, valid_token_mask
from dcpack.padding import padding_multiple
from dcpack.plans import Plan
from dcpack.sharding import ShardRanges

__all__ = ["PackedBatch", "build_batches"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PackedBatch:
    """What one rank computes in one row of one micro-batch: its slice of a bin.

    Without CP the slice is the whole bin. ``cu_seqlens``, ``cu_seqlens_padded`` and ``max_seqlen`` describe the bin;
    ``local_*`` the slice.

    Attributes:
        tokens: per-token fields by name, each [t, ...] with t the tokens of the slice, padding included. Always there:
            ``input_ids``, ``labels`` (shifted; -100 is ignored), ``loss_mask`` (where a sample has none: 1 for labels
            that count), ``position_ids`` (where a sample has none: from 0 in each sequence), ``segment_ids`` (int32,
            from 1; 0 is padding). Fields that only some samples have hold 0 in the tokens of the others.
        sample_fields: all other fields, a mapping for each sequence of the bin, as its sample had them.
        dummy_fields: names to zero-weight stand-ins (one row of zeros) where `align_fields` asked for them.
        cu_seqlens: int32[n + 1], real tokens.
        cu_seqlens_padded: int32[n + 1], padded tokens.
        local_cu_seqlens: int32[n + 1], real tokens of each sequence in the slice.
        local_cu_seqlens_padded: int32[n + 1], padded tokens of each sequence in the slice.
        max_seqlen: largest padded length, or its static stand-in.
        true_max_seqlen: largest padded length.
        num_sequences: n without the repeated offsets of a static shape.
        sequence_ids: int64[n], sample of each sequence; -1 for a dummy.
        starts: int64[n], first token of each in its sample.
        sequence_valid_tokens: int64[n], tokens of the whole sample (its kept part) that count in the loss.
        slots: int64[t], place of each local token in the bin's padded row; -1 in the tail.
        microbatch: number of the micro-batch.
        num_microbatches: micro-batches of the step.
        row: row of the rank.
        cp_size: ranks that share the bin.
        cp_rank: which of them this is.
        cp_ranks: their plan ranks.
        num_valid_tokens: tokens that count in the loss, here; each token counts on exactly one CP rank.
        global_valid_tokens: the same over the whole step.
        global_valid_sequences: samples of the step with at least one such token.
        is_dummy: a zero-weight sequence that only keeps the rank busy.
        is_oversized: longer than the capacity, by policy.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import exchange_samples, gather_samples
        >>> def step(communicator):
        ...     samples = [{"input_ids": [7, 8, 9]}] if communicator.rank == 0 else []
        ...     gathered = gather_samples(communicator, samples)
        ...     plan = dcpack.plan(gathered.table.lengths, num_ranks=2, capacity=2, padding=dcpack.PaddingRule())
        ...     (batch,) = exchange_samples(communicator, gathered, plan)[communicator.rank]
        ...     return batch.tokens["input_ids"].tolist(), batch.cu_seqlens.tolist(), batch.slots.tolist()
        >>> dcpack.run_ranks(2, step)                                       # zigzag: slots 0 and 3, then 1 and 2
        [([7, 0], [0, 3], [0, 3]), ([8, 9], [0, 3], [1, 2])]
    """

    tokens: Mapping[str, npt.NDArray[Any]]
    sample_fields: tuple[Mapping[str, npt.NDArray[Any]], ...]
    dummy_fields: Mapping[str, npt.NDArray[Any]]
    cu_seqlens: npt.NDArray[np.int32]
    cu_seqlens_padded: npt.NDArray[np.int32]
    local_cu_seqlens: npt.NDArray[np.int32]
    local_cu_seqlens_padded: npt.NDArray[np.int32]
    max_seqlen: int
    true_max_seqlen: int
    num_sequences: int
    sequence_ids: Int64Array
    starts: Int64Array
    sequence_valid_tokens: Int64Array
    slots: Int64Array
    microbatch: int
    num_microbatches: int
    row: int
    cp_size: int
    cp_rank: int
    cp_ranks: tuple[int, ...]
    num_valid_tokens: int
    global_valid_tokens: int
    global_valid_sequences: int
    is_dummy: bool
    is_oversized: bool

    @property
    def num_tokens(self) -> int:
        """Tokens of the slice, padding included."""
        return self.tokens["input_ids"].shape[0]


def build_batches(
    plan: Plan,
    table: SampleTable,
    routes: Routes,
    parcels: Parcels,
    rank: int,
    *,
    static_shapes: StaticShapes | None = None,
    dummy_fields: Mapping[str, BoolArray] | None = None,
) -> list[PackedBatch]:
    """Return the batches of plan rank `rank`, by micro-batch and row.

    Args:
        plan: the plan.
        table: what the samples are.
        routes: the routes that the parcels came by.
        parcels: what this process received and kept.
        rank: a plan rank of this process.
        static_shapes: fixed shapes, or None; see `dcpack.exchange.shapes`.
        dummy_fields: bool[num_bins] by field name: bins that need a zero-weight stand-in (`align_fields`).

    Raises:
        ArgumentError: `dummy_fields` that do not fit the plan and the samples, or an argument of another kind.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import build_routes, gather_samples
        >>> gathered = dcpack.run_ranks(1, lambda c: gather_samples(c, [{"input_ids": [1, 2, 3]}]))[0]
        >>> plan = dcpack.plan(gathered.table.lengths, num_ranks=1, capacity=4)
        >>> from dcpack.exchange import encode
        >>> routes = build_routes(plan, gathered.table, num_processes=1)
        >>> _, parcels = encode(plan, gathered, routes, 0)                  # what stays; move_samples brings the rest
        >>> [batch.tokens["labels"].tolist() for batch in build_batches(plan, gathered.table, routes, parcels, 0)]
        [[2, 3, -100]]
    """
    check_kinds(
        plan=(plan, Plan),
        table=(table, SampleTable),
        routes=(routes, Routes),
        parcels=(parcels, Mapping),
        static_shapes=(static_shapes, StaticShapes | None),
        dummy_fields=(dummy_fields, Mapping | None),
    )
    rank = check_int("rank", rank, minimum=0, maximum=plan.num_ranks - 1)
    builder = _Builder(plan, table, routes, parcels, static_shapes, dummy_fields or {})
    return [builder.build(int(b), rank) for b in plan.bins_of_rank(rank)]


class _Builder:
    def __init__(
        self,
        plan: Plan,
        table: SampleTable,
        routes: Routes,
        parcels: Parcels,
        static_shapes: StaticShapes | None,
        dummy_fields: Mapping[str, BoolArray],
    ) -> None:
        self.plan, self.table, self.routes, self.parcels = plan, table, routes, parcels
        self.static_shapes = static_shapes
        self.shapes = None if static_shapes is None else shapes_of_bins(plan, static_shapes)
        check_dummy_fields(plan, table, dummy_fields)
        self.dummy_fields = dummy_fields
        self.whole_of_entry = self._first_delivery_of_entry()
        self.dtypes = table.token_fields
        self.has_field = {name: table.has_field(name) for name in self.dtypes}

    def _first_delivery_of_entry(self) -> dict[int, int]:
        """Return for each entry the delivery under which its once-per-process fields came."""
        if wrong := [f"{key!r:.40}" for key in self.parcels if not isinstance(key, tuple)]:
            raise ArgumentError(f"parcels must be arrays by (delivery, field name): {list_offenders(wrong)}")
        entries = self.routes.deliveries.entry
        return {int(entries[d]): d for d, _ in sorted(self.parcels, reverse=True)}

    def build(self, b: int, rank: int) -> PackedBatch:
        plan = self.plan
        mine = self.routes.deliveries.of_bin(b, rank - int(plan.first_rank[b]))
        if plan.dummy[b]:
            return self._finish(b, rank, mine, self._dummy_layout(b, rank))
        return self._finish(b, rank, mine, self._layout(mine))

    def _layout(self, mine: Int64Array) -> _Slice:
        plan, deliveries = self.plan, self.routes.deliveries
        entries = deliveries.entry[mine]
        full = deliveries.ranges
        ranges = ShardRanges(starts=full.starts[:, mine], stops=full.stops[:, mine], steps=full.steps[mine])
        offsets = packed_offsets(plan.entry_lengths[entries], plan.entry_padded_lengths[entries])
        return _slice_of(ranges, plan.entry_lengths[entries], offsets)

    def _dummy_layout(self, b: int, rank: int) -> _Slice:
        """One sequence of the shortest legal length, shared evenly; nothing in it counts, so any order will do."""
        cp = int(self.plan.cp_size[b])
        length = max(int(padding_multiple(self.plan.padding, cp)), cp)
        share = length // cp
        starts = np.array([[(rank - int(self.plan.first_rank[b])) * share], [0]])
        ranges = ShardRanges(starts=starts, stops=starts + np.array([[share], [0]]), steps=np.ones(1, np.int64))
        return _slice_of(ranges, np.array([length]), packed_offsets([length]))

    def _finish(self, b: int, rank: int, mine: Int64Array, part: _Slice) -> PackedBatch:
        plan = self.plan
        cp, first = int(plan.cp_size[b]), int(plan.first_rank[b])
        size = self._row_tokens(b, part)
        entries = self.routes.deliveries.entry[mine]
        is_dummy = bool(plan.dummy[b])
        sequence_ids = np.array([-1]) if is_dummy else plan.sequence_ids[entries]
        tokens = self._token_fields(mine, part, size)
        slots = np.full(size, -1, np.int64)
        slots[: part.slots.size] = part.slots
        offsets = self._offsets(b, part)
        return PackedBatch(
            tokens=tokens,
            sample_fields=({},) if is_dummy else tuple(self._sample_fields(int(e)) for e in entries),
            dummy_fields=self._dummies(b),
            **offsets,
            true_max_seqlen=part.offsets.max_seqlen,
            num_sequences=part.offsets.cu_seqlens.size - 1,
            sequence_ids=sequence_ids,
            starts=np.zeros(1, np.int64) if is_dummy else plan.starts[entries],
            sequence_valid_tokens=np.zeros(1, np.int64) if is_dummy else self.table.num_valid[sequence_ids],
            slots=slots,
            microbatch=int(plan.microbatch[b]),
            num_microbatches=plan.num_microbatches,
            row=int(plan.row[b]),
            cp_size=cp,
            cp_rank=rank - first,
            cp_ranks=tuple(range(first, first + cp)),
            num_valid_tokens=count_valid_tokens(tokens["labels"], tokens["loss_mask"]),
            global_valid_tokens=self.table.global_valid_tokens,
            global_valid_sequences=int(np.count_nonzero(self.table.num_valid)),
            is_dummy=is_dummy,
            is_oversized=bool(plan.oversized[b]),
        )

    def _row_tokens(self, b: int, part: _Slice) -> int:
        """Return the tokens of the rank's row: the slice, and the tail that a rule or a static shape asks for."""
        size = part.slots.size
        if self.shapes is not None:
            return self.shapes[b].row_tokens
        if self.plan.padding is not None:
            return int(self.plan.padding.padded_total(size))
        return size

    def _offsets(self, b: int, part: _Slice) -> dict[str, Any]:
        arrays: dict[str, Any] = {
            "cu_seqlens": part.offsets.cu_seqlens,
            "cu_seqlens_padded": part.offsets.cu_seqlens_padded,
            "local_cu_seqlens": part.local_cu_seqlens,
            "local_cu_seqlens_padded": part.local_cu_seqlens_padded,
        }
        ends = (int(arrays["local_cu_seqlens_padded"][-1]), int(arrays["local_cu_seqlens"][-1]))
        held = (part.slots.size, int(np.count_nonzero(part.is_real)))
        if ends != held:  # checked on every batch, also under python -O
            raise PlanError(f"bin {b}: offsets end at {ends} (padded, real), the slice holds {held} tokens")
        if self.static_shapes is None or self.shapes is None:
            return {**arrays, "max_seqlen": part.offsets.max_seqlen}
        limit = self.static_shapes.max_sequences
        fixed = {name: fixed_shape_cu_seqlens(array, limit)[0] for name, array in arrays.items()}
        return {**fixed, "max_seqlen": self.shapes[b].max_seqlen}

    def _token_fields(self, mine: Int64Array, part: _Slice, size: int) -> dict[str, Any]:
        """Return every per-token field that any sample of the step has, so that all batches have the same."""
        labels, _ = self._real_tokens(mine, "labels", part)
        made = {"loss_mask": valid_token_mask(labels), "position_ids": part.positions[part.is_real]}
        real_slots = np.flatnonzero(part.is_real)
        fields: dict[str, Any] = {}
        for name in self.dtypes:
            values, is_given = self._real_tokens(mine, name, part)
            if name in made:
                own = made[name][~is_given]
                values[~is_given] = own.reshape(-1, *[1] * (values.ndim - 1))  # the same on every axis
            fields[name] = scatter_real(values, real_slots, size, NEUTRAL_VALUES.get(name, 0))
        fields["segment_ids"] = scatter_real(part.segments, np.arange(part.slots.size), size, 0)
        return fields

    def _real_tokens(self, mine: Int64Array, name: str, part: _Slice) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """Return one field of the real tokens of the slice, and which of them have it from their sample."""
        dtype, dims = self.dtypes[name]
        values = np.full((np.count_nonzero(part.is_real), *dims), NEUTRAL_VALUES.get(name, 0), dtype)
        is_given = np.zeros(values.shape[0], np.bool_)
        ends = np.cumsum(self.routes.deliveries.num_tokens[mine]).tolist()
        for delivery, start, end in zip(mine.tolist(), [0, *ends[:-1]], ends, strict=True) if ends else ():
            if self.has_field[name][self.plan.sequence_ids[self.routes.deliveries.entry[delivery]]]:
                values[start:end] = self._tokens_of_delivery(delivery, name)
                is_given[start:end] = True
        return values, is_given

    def _tokens_of_delivery(self, delivery: int, name: str) -> npt.NDArray[Any]:
        if not self.routes.whole:
            return self._parcel(delivery, name)
        entry = int(self.routes.deliveries.entry[delivery])
        whole = self._parcel(self.whole_of_entry.get(entry, delivery), name)
        return take_runs(whole, self.routes.deliveries.real, delivery)

    def _parcel(self, delivery: int, name: str) -> npt.NDArray[Any]:
        found = self.parcels.get((delivery, name))
        if found is None:
            raise ArgumentError(f"parcels must hold all that this process needs: no {name!r} of delivery {delivery}")
        return found

    def _sample_fields(self, entry: int) -> dict[str, npt.NDArray[Any]]:
        """Return the whole fields that came with an entry, read-only: what stayed here is the caller's own."""
        delivery = self.whole_of_entry.get(entry, -1)
        kinds = self.table.kind_of[self.plan.sequence_ids[entry]]
        names = [self.table.kinds[kind].name for kind in kinds if kind >= 0 and not self.table.kinds[kind].per_token]
        return {name: frozen(self.parcels[delivery, name]) for name in names if (delivery, name) in self.parcels}

    def _dummies(self, b: int) -> dict[str, npt.NDArray[Any]]:
        needed = [name for name, bins in self.dummy_fields.items() if bins[b]]
        kinds = {kind.name: kind for kind in reversed(self.table.kinds)}
        return {name: _zeros(kinds[name]) for name in needed}


def check_dummy_fields(plan: Plan, table: SampleTable, dummy_fields: Mapping[str, BoolArray]) -> None:
    """Raise where `dummy_fields` names a field that no sample has whole, or has not one bool a bin."""
    check_names("dummy_fields", dummy_fields)
    whole = {kind.name for kind in table.kinds if not kind.per_token}
    for name, bins in dummy_fields.items():
        kind = (bins.dtype, bins.shape) if isinstance(bins, np.ndarray) else type(bins).__name__
        if kind != (np.bool_, (plan.num_bins,)):
            raise ArgumentError(f"dummy_fields[{name!r}] must be an array bool[{plan.num_bins}], got {kind}")
        if name not in whole and np.any(bins):
            raise ArgumentError(f"dummy_fields names {name!r}, which no sample has as a whole field: {sorted(whole)}")


def _zeros(kind: FieldKind) -> npt.NDArray[Any]:
    return np.zeros(() if kind.is_scalar else (1, *kind.dims), dtype_from_name(kind.dtype))


@dataclass(frozen=True, kw_only=True, slots=True)
class _Slice:
    """Where the tokens of one rank's slice lie, per local slot."""

    offsets: PackedOffsets
    local_cu_seqlens: npt.NDArray[np.int32]
    local_cu_seqlens_padded: npt.NDArray[np.int32]
    slots: Int64Array
    positions: Int64Array
    segments: npt.NDArray[np.int32]
    is_real: npt.NDArray[np.bool_]


def _slice_of(ranges: ShardRanges, lengths: Int64Array, offsets: PackedOffsets) -> _Slice:
    counts = ranges.counts().sum(axis=0)
    within = ranges.tokens()  # position of each local slot in its sequence
    is_real = within < np.repeat(lengths, counts)
    segment = np.repeat(np.arange(1, lengths.size + 1), counts)
    real_counts = np.bincount(segment[is_real] - 1, minlength=lengths.size)
    return _Slice(
        offsets=offsets,
        local_cu_seqlens=np.concatenate([[0], np.cumsum(real_counts)]).astype(np.int32),
        local_cu_seqlens_padded=np.concatenate([[0], np.cumsum(counts)]).astype(np.int32),
        slots=within + np.repeat(offsets.cu_seqlens_padded[:-1].astype(np.int64), counts),
        positions=within,
        segments=np.where(is_real, segment, 0).astype(np.int32),
        is_real=is_real,
    )
