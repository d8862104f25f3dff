"""Mode 4: the plan says how many micro-batches a step has, and how many ranks share each bin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dcpack._checks import BoolArray, Int64Array, check_kinds, list_offenders
from dcpack.comm import Communicator
from dcpack.comm.guard import tell_failure
from dcpack.comm.trees import all_gather_trees
from dcpack.errors import ArgumentError
from dcpack.exchange import GatheredSamples, PackedBatch, align_fields, exchange_samples, gather_samples
from dcpack.loader.batches import Draft, LoaderBatch, Step, call_user
from dcpack.loader.cp_planner import CPPlanner
from dcpack.loader.rounds import SamplerSource, SamplerSteps, indices_of
from dcpack.loader.sharing import Planned
from dcpack.loader.step_table import require_same_step
from dcpack.loader.types import SampleMetadata
from dcpack.plans import Plan

__all__ = ["CPSteps", "PlannedCPSteps", "packed_fields"]


def packed_fields(batch: PackedBatch) -> dict[str, Any]:
    """Return a packed batch as a flat dict: its per-token fields and offsets by name, for models and for peers.

    ``sample_fields`` is a list with a dict for each sequence; ``dummy_fields`` a dict.

    Args:
        batch: of `dcpack.exchange.exchange_samples`.

    Example:
        >>> import dcpack
        >>> from dcpack.exchange import gather_samples
        >>> def step(communicator):
        ...     gathered = gather_samples(communicator, [{"input_ids": [1, 2, 3]}])
        ...     plan = dcpack.plan(gathered.table.lengths, num_ranks=1, capacity=4)
        ...     return packed_fields(exchange_samples(communicator, gathered, plan)[0][0])
        >>> found = dcpack.run_ranks(1, step)[0]
        >>> found["input_ids"].tolist(), found["cu_seqlens"].tolist(), found["max_seqlen"]
        ([1, 2, 3], [0, 3], 3)
    """
    check_kinds(batch=(batch, PackedBatch))
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


class CPSteps(SamplerSteps):
    """What both ways to planned CP share: the window is the whole step, and samples are cut as the plan says.

    Args:
        communicator: of the constructors: the DPxCP domain.
        source: of samples.
        collate_fn: from a `PackedBatch` to what the model takes; None: `packed_fields`.
        planner: of steps.
    """

    def __init__(
        self,
        communicator: Communicator,
        source: SamplerSource,
        *,
        collate_fn: Callable[[PackedBatch], Any] | None,
        planner: CPPlanner,
    ) -> None:
        super().__init__(communicator, source)
        self._collate_fn = collate_fn
        self._planner = planner

    def _gather_step(
        self, epoch: int, step: int, num_rounds: int, **columns: Int64Array
    ) -> tuple[dict[str, Int64Array], Int64Array] | None:
        """Return the columns of all members, joined, and who told each line; None at the end. Collective."""
        told = {"at": [epoch, step], "num_rounds": num_rounds, "columns": columns}
        heard = all_gather_trees(self._communicator, told)
        if require_same_step(heard, self._communicator.ranks) == 0:
            return None
        return join_columns([part["columns"] for part in heard])

    def _gather_samples(self, samples: Sequence[Any]) -> GatheredSamples:
        """Tell of the samples that were read here, and learn of those of all. Collective."""
        return gather_samples(self._communicator, samples, per_token=self._planner.options.per_token)

    def _exchange(
        self,
        gathered: GatheredSamples,
        plan: Plan,
        *,
        planned: Planned,
        ids: Int64Array,
        epoch: int,
        step: int,
        source_state: Mapping[str, Any] | None,
        dummy_fields: Mapping[str, BoolArray] | None = None,
    ) -> Step:
        """Return the step of a plan for the samples as they were gathered, and of these. Collective.

        Args:
            gathered: the samples, where they are.
            plan: what to carry out; sequence i is sample i of `gathered`.
            planned: what was decided.
            ids: int64[n], dataset index of each sample.
            epoch: epoch.
            step: step in the epoch.
            source_state: where the source is after the step.
            dummy_fields: bins that get a stand-in, by field.
        """
        communicator, options = self._communicator, self._planner.options
        before = communicator.counters.sent["all_to_all"]
        with self.stages.stage("exchange"):  # which packs, too
            packed = exchange_samples(
                communicator,
                gathered,
                plan,
                topology=self._planner.hosts,
                sharding=options.sharding,
                static_shapes=options.static_shapes,
                dummy_fields=dummy_fields,
            )
        sent = communicator.counters.sent["all_to_all"] - before
        with self.stages.stage("pack"), communicator.guard():
            self.stages.check()
            by_rank = [[self._batch(batch, ids, epoch, step) for batch in packed[rank]] for rank in sorted(packed)]
            is_alone = self._planner.hosts is None
            batches = tuple(by_rank[0]) if is_alone else tuple(map(_batch_of_process, zip(*by_rank, strict=True)))
        return Step(batches=batches, planned=planned, source_state=source_state, bytes_sent=sent)

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


def _batch_of_process(batches: tuple[LoaderBatch, ...]) -> LoaderBatch:
    """Return the micro-batch of a process, of those of its ranks: samples that several of these share count once."""
    groups = {batch.cp_ranks: batch for batch in reversed(batches)}
    return replace(
        batches[0],
        data=tuple(batch.data for batch in batches),
        num_valid_tokens=sum(batch.num_valid_tokens for batch in batches),
        sample_ids=np.concatenate([groups[ranks].sample_ids for ranks in dict.fromkeys(b.cp_ranks for b in batches)]),
        is_dummy=all(batch.is_dummy for batch in batches),
    )


def join_columns(parts: Sequence[Mapping[str, Int64Array]]) -> tuple[dict[str, Int64Array], Int64Array]:
    """Return what all members told, one behind the other, and int64[n]: the member of each line.

    Example:
        >>> columns, member = join_columns([{"ids": np.array([7])}, {"ids": np.array([8, 9])}])
        >>> columns["ids"].tolist(), member.tolist()
        ([7, 8, 9], [0, 1, 1])
    """
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    return columns, np.repeat(np.arange(len(parts)), [len(part["ids"]) for part in parts])


class PlannedCPSteps(CPSteps):
    """Makes steps whose samples are read where the sampler gave them, planned, and moved.

    Args:
        communicator: as in `CPSteps`.
        source: of samples.
        collate_fn: as in `CPSteps`.
        planner: of steps.
        metadata_fn: where given, its `pack_tokens` must be the length of each sample.
    """

    def __init__(
        self,
        communicator: Communicator,
        source: SamplerSource,
        *,
        collate_fn: Callable[[PackedBatch], Any] | None,
        planner: CPPlanner,
        metadata_fn: Callable[[Any], SampleMetadata] | None,
    ) -> None:
        super().__init__(communicator, source, collate_fn=collate_fn, planner=planner)
        self._metadata_fn = metadata_fn

    def plan_step(self, epoch: int, step: int) -> Draft | None:
        """Return the next step as it is planned, or None at the end of the epoch. Collective."""
        communicator = self._communicator
        with self.stages.stage("read"), tell_failure(communicator):
            self.stages.check()
            rounds = self._rounds.next_step()
            indices = indices_of(rounds)
            samples = self._reader.read(indices)
            self._check_metadata(samples)
            state = self._rounds.state()
        with self.stages.stage("plan"):
            told = self._gather_step(epoch, step, len(rounds), ids=np.array(indices, np.int64))
            if told is None:
                return None
            ids, reader = told[0]["ids"], told[1]
            gathered = self._gather_samples(samples)
            _refuse_empty(gathered, ids)
            planned = self._planner.plan(communicator, gathered.table.lengths, reader)
            plan, dummies = align_fields(planned.plans[0], gathered.table, self._planner.options.aligned_fields)
            planned = replace(planned, plans=(plan,))
            self._planner.log(communicator, planned)

        def build() -> Step:
            return self._exchange(
                gathered,
                plan,
                planned=planned,
                ids=ids,
                epoch=epoch,
                step=step,
                source_state=state,
                dummy_fields=dummies,
            )

        return Draft(planned=planned, build=build)

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
