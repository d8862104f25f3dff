"""Mode 4: the plan says how many micro-batches a step has, and how many ranks share each bin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, check_choice, check_int, check_names, list_offenders
from dcpack.comm import Communicator
from dcpack.comm.trees import all_gather_trees
from dcpack.cost import CostModel
from dcpack.errors import ArgumentError
from dcpack.exchange import (
    GatheredSamples,
    PackedBatch,
    StaticShapes,
    align_fields,
    exchange_samples,
    gather_samples,
)
from dcpack.loader.batches import Draft, LoaderBatch, Step, call_user
from dcpack.loader.planning import report
from dcpack.loader.reading import SampleReader
from dcpack.loader.rounds import SamplerRounds, SamplerSteps
from dcpack.loader.sharing import Planned, share_plans, tell_failure
from dcpack.loader.step_table import require_same_place
from dcpack.loader.types import SampleMetadata
from dcpack.padding import PaddingRule
from dcpack.plans import SYNC_MODES, Plan
from dcpack.scheduling import Scheduler
from dcpack.scheduling.driver import get_scheduler, make_plan
from dcpack.sharding import SHARDINGS

__all__ = ["CPPlanning", "PlannedCPSteps", "packed_fields"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CPPlanning:
    """How steps with planned CP are planned and cut: what `dcpack.plan` and `exchange_samples` take beside the rest.

    Args:
        scheduler: a name, or an object that assigns CP sizes.
        cp_sizes: legal CP sizes, as in `dcpack.plan`.
        min_cp_size: smaller sizes are not legal.
        max_cp_size: larger sizes are not legal.
        block: tokens of a kernel block, as in `PaddingRule`; the TP size comes from the mesh.
        sequence_parallel: as in `PaddingRule`.
        sync: ``"microbatch"`` or ``"step"``, when ranks meet.
        microbatch_multiple: the number of micro-batches is a multiple of it.
        max_sequences: most sequences in a bin.
        sharding: the CP slicing.
        static_shapes: fixed shapes, or None.
        per_token: further fields that have one element a token.
        aligned_fields: optional fields that all ranks of a micro-batch get or none (`align_fields`).

    Raises:
        ArgumentError: an option of the wrong type or range.
    """

    scheduler: str | Scheduler = "dynamic_cp"
    cp_sizes: str | Sequence[int] = "powers_of_two"
    min_cp_size: int = 1
    max_cp_size: int | None = None
    block: int = 1
    sequence_parallel: bool = False
    sync: str = "microbatch"
    microbatch_multiple: int = 1
    max_sequences: int | None = None
    sharding: str = "zigzag"
    static_shapes: StaticShapes | None = None
    per_token: tuple[str, ...] = ()
    aligned_fields: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        get_scheduler(self.scheduler)
        check_choice("sync", self.sync, SYNC_MODES)
        check_choice("sharding", self.sharding, SHARDINGS)
        check_int("microbatch_multiple", self.microbatch_multiple, minimum=1)
        self.padding(1)
        for name in ("per_token", "aligned_fields"):
            object.__setattr__(self, name, check_names(name, getattr(self, name)))

    def padding(self, tp_size: int) -> PaddingRule:
        """Return the padding rule at a TP size."""
        return PaddingRule(tp=tp_size, block=self.block, sequence_parallel=self.sequence_parallel)

    def plan(
        self, lengths: Int64Array, *, num_ranks: int, capacity: int, tp_size: int, cost: CostModel, overlong: str
    ) -> Plan:
        """Return the plan of a step."""
        return make_plan(
            lengths,
            num_ranks=num_ranks,
            capacity=capacity,
            scheduler=self.scheduler,
            cost=cost,
            cp_sizes=self.cp_sizes,
            min_cp_size=self.min_cp_size,
            max_cp_size=self.max_cp_size,
            padding=self.padding(tp_size),
            sync=self.sync,
            microbatch_multiple=self.microbatch_multiple,
            max_sequences=self.max_sequences,
            on_empty="dummy",
            overlong=overlong,
        )


def packed_fields(batch: PackedBatch) -> dict[str, Any]:
    """Return a packed batch as a flat dict: its per-token fields and offsets by name, for models and for peers.

    ``sample_fields`` is a list with a dict for each sequence; ``dummy_fields`` a dict.
    """
    return {
        **batch.tokens,
        "cu_seqlens": batch.cu_seqlens,
        "cu_seqlens_padded": batch.cu_seqlens_padded,
        "local_cu_seqlens": batch.local_cu_seqlens,
        "local_cu_seqlens_padded": batch.local_cu_seqlens_padded,
        "max_seqlen": batch.max_seqlen,
        "true_max_seqlen": batch.true_max_seqlen,
        "num_sequences": batch.num_sequences,
        "sequence_valid_tokens": batch.sequence_valid_tokens,
        "global_valid_sequences": batch.global_valid_sequences,
        "starts": batch.starts,
        "slots": batch.slots,
        "sample_fields": [dict(fields) for fields in batch.sample_fields],
        "dummy_fields": dict(batch.dummy_fields),
    }


class PlannedCPSteps(SamplerSteps):
    """Makes steps from a batch sampler; the window is the whole step, and samples are cut as the plan says.

    Args:
        communicator: of the constructors: the DPxCP domain.
        rounds: what the sampler gives this member.
        reader: of the dataset.
        metadata_fn: where given, its `pack_tokens` must be the length of each sample.
        collate_fn: from a `PackedBatch` to what the model takes; None: `packed_fields`.
        options: how to plan and cut.
        capacity: padded tokens of a row on one rank.
        tp_size: of the mesh.
        cost: what is minimised.
        overlong: what becomes of samples that fit nowhere.
        planner: member that plans.
        broadcast: whether it alone does.
        logs: whether what was decided is logged.
        num_dropped: samples that the sampler leaves out of every epoch.
    """

    def __init__(
        self,
        communicator: Communicator,
        *,
        rounds: SamplerRounds,
        reader: SampleReader,
        metadata_fn: Callable[[Any], SampleMetadata] | None,
        collate_fn: Callable[[PackedBatch], Any] | None,
        options: CPPlanning,
        capacity: int,
        tp_size: int,
        cost: CostModel,
        overlong: str,
        planner: int,
        broadcast: bool,
        logs: bool,
        num_dropped: int,
    ) -> None:
        super().__init__(communicator, rounds, num_dropped)
        self._reader = reader
        self._metadata_fn = metadata_fn
        self._collate_fn = collate_fn
        self._options = options
        self._capacity = capacity
        self._tp_size = tp_size
        self._cost = cost
        self._overlong = overlong
        self._planner = planner
        self._broadcast = broadcast
        self._logs = logs

    def plan_step(self, epoch: int, step: int) -> Draft | None:
        """Return the next step as it is planned, or None at the end of the epoch. Collective."""
        communicator = self._communicator
        with self.stages.stage("read"), tell_failure(communicator):
            self.stages.check()
            rounds = self._rounds.next_step()
            indices = [index for found in rounds for index in found.indices]
            samples = self._reader.read(indices)
            self._check_metadata(samples)
            state = self._rounds.state()
        with self.stages.stage("plan"):
            heard = all_gather_trees(
                communicator, {"at": [epoch, step], "num_rounds": len(rounds), "ids": np.array(indices, np.int64)}
            )
            require_same_place([tuple(part["at"]) for part in heard], communicator.ranks)
            _require_same_rounds(communicator, [part["num_rounds"] for part in heard])
            if not rounds:
                return None
            ids = np.concatenate([part["ids"] for part in heard])
            gathered = gather_samples(communicator, samples, per_token=self._options.per_token)
            _refuse_empty(gathered, ids)
            planned = share_plans(
                communicator, self._planner, lambda: self._planned(gathered), broadcast=self._broadcast
            )
            plan, dummies = align_fields(planned.plans[0], gathered.table, self._options.aligned_fields)
            planned = replace(planned, plans=(plan,))
            if self._logs and communicator.rank == self._planner:
                report(planned)
        return Draft(
            planned=planned, build=lambda: self._build(gathered, planned, dummies, ids, epoch, step, source_state=state)
        )

    def _build(
        self,
        gathered: GatheredSamples,
        planned: Planned,
        dummy_fields: Any,
        ids: Int64Array,
        epoch: int,
        step: int,
        *,
        source_state: Mapping[str, Any] | None,
    ) -> Step:
        communicator = self._communicator
        before = communicator.counters.bytes_sent
        with self.stages.stage("exchange"):  # which packs, too
            packed = exchange_samples(
                communicator,
                gathered,
                planned.plans[0],
                sharding=self._options.sharding,
                static_shapes=self._options.static_shapes,
                dummy_fields=dummy_fields,
            )[communicator.rank]
        sent = communicator.counters.bytes_sent - before
        with self.stages.stage("pack"), communicator.guard():
            self.stages.check()
            batches = tuple(self._batch(batch, ids, epoch, step) for batch in packed)
        return Step(batches=batches, planned=planned, source_state=source_state, bytes_sent=sent)

    def _planned(self, gathered: GatheredSamples) -> Planned:
        plan, table = self._plan(gathered), gathered.table
        reader = table.holders[table.holder_offsets[:-1]]
        columns = self._cost.columns(table.lengths)
        alone = self._cost.bin_time(columns, np.ones(len(columns), np.int64), np.zeros(len(columns), np.bool_))
        of_bin = plan.entry_bin
        leaves = (plan.cp_size[of_bin] > 1) | (plan.first_rank[of_bin] != reader[plan.sequence_ids])
        return Planned(
            plans=(plan,),
            loads_before=tuple(np.bincount(reader, alone, minlength=self._communicator.size).tolist()),
            loads_after=tuple(plan.rank_times(self._cost).sum(axis=0).tolist()),
            num_moved=int(np.unique(plan.sequence_ids[leaves]).size),
        )

    def _plan(self, gathered: GatheredSamples) -> Plan:
        return self._options.plan(
            gathered.table.lengths,
            num_ranks=self._communicator.size,
            capacity=self._capacity,
            tp_size=self._tp_size,
            cost=self._cost,
            overlong=self._overlong,
        )

    def _batch(self, batch: PackedBatch, ids: Int64Array, epoch: int, step: int) -> LoaderBatch:
        data = packed_fields(batch) if self._collate_fn is None else call_user("collate_fn", self._collate_fn, batch)
        if data is None:
            raise ArgumentError("collate_fn must return a batch, got None")
        return LoaderBatch(
            data=data,
            epoch=epoch,
            step=step,
            microbatch=batch.microbatch,
            num_microbatches=batch.num_microbatches,
            num_valid_tokens=batch.num_valid_tokens,
            global_valid_tokens=batch.global_valid_tokens,
            sample_ids=np.where(batch.sequence_ids < 0, -1, ids[batch.sequence_ids]),
            cp_size=batch.cp_size,
            cp_rank=batch.cp_rank,
            cp_ranks=batch.cp_ranks,
            is_dummy=batch.is_dummy,
        )

    def _check_metadata(self, samples: Sequence[Any]) -> None:
        if self._metadata_fn is None:
            return
        for sample in samples:
            metadata = call_user("metadata_fn", self._metadata_fn, sample)
            if not isinstance(metadata, SampleMetadata):
                raise ArgumentError(f"metadata_fn must return a SampleMetadata, got {metadata!r}")
            length = len(sample["input_ids"]) if isinstance(sample, Mapping) and "input_ids" in sample else None
            if length is not None and length != metadata.pack_tokens:
                raise ArgumentError(
                    f"metadata_fn says pack_tokens {metadata.pack_tokens} of a sample of {length} tokens; with planned "
                    "CP they must be the same"
                )


def _refuse_empty(gathered: GatheredSamples, ids: Int64Array) -> None:
    """Refuse samples without tokens: they would be in no bin, and nobody would see it."""
    if empty := ids[gathered.table.lengths == 0].tolist():
        raise ArgumentError(f"samples must have tokens: {list_offenders([f'dataset[{i}]' for i in empty])} have none")


def _require_same_rounds(communicator: Communicator, rounds: Sequence[int]) -> None:
    if len(set(rounds)) > 1:
        listed = ", ".join(f"rank {rank} read {n}" for rank, n in zip(communicator.ranks, rounds, strict=True))
        raise ArgumentError(f"the samplers of all ranks must give as many micro-batches of a step: {listed}")
