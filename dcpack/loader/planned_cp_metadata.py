"""Mode 4 where lengths are known by index: the plan comes first, and each sample is read by one of those it goes to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dcpack._checks import Int64Array, list_offenders
from dcpack.comm import Communicator
from dcpack.comm.guard import tell_failure
from dcpack.errors import ArgumentError
from dcpack.exchange import GatheredSamples, PackedBatch
from dcpack.loader.batches import Draft, Step
from dcpack.loader.cp_planner import CPPlanner
from dcpack.loader.metadata_mode import Metadata
from dcpack.loader.planned_cp import CPSteps, join_columns
from dcpack.loader.rounds import Round, SamplerSource, indices_of
from dcpack.loader.sharing import Planned
from dcpack.plans import Plan

__all__ = ["PlannedCPMetadataSteps", "readers_of"]


def readers_of(plan: Plan) -> Int64Array:
    """Return int64[n]: the rank that reads each sequence of a plan that drops none: one of those that share its bin.

    The ranks of a bin take turns, over its entries and from one micro-batch to the next.

    Example:
        >>> import dcpack
        >>> readers_of(dcpack.plan([8, 8, 40], num_ranks=4, capacity=10, scheduler="uniform_cp")).tolist()
        [1, 2, 0]
    """
    sequences, entry = np.unique(plan.sequence_ids, return_index=True)
    assert sequences.size == plan.lengths.size, "the loader's policies keep every sequence"
    bins = plan.entry_bin[entry]
    turn = entry - plan.offsets[bins] + plan.microbatch[bins]
    return plan.first_rank[bins] + turn % plan.cp_size[bins]


def renumbered(plan: Plan, order: Int64Array) -> Plan:
    """Return the plan for the same sequences in another order: sequence ``order[i]`` becomes sequence i.

    Example:
        >>> import dcpack
        >>> plan = dcpack.plan([4, 9], num_ranks=2, capacity=9)
        >>> plan.lengths[plan.sequence_ids].tolist(), renumbered(plan, np.array([1, 0])).sequence_ids.tolist()
        ([9, 4], [0, 1])
    """
    number = np.empty_like(order)
    number[order] = np.arange(order.size)
    return replace(
        plan,
        sequence_ids=number[plan.sequence_ids],
        lengths=plan.lengths[order],
        dropped=plan.dropped[order],
    )


class PlannedCPMetadataSteps(CPSteps):
    """Makes steps that are planned from lengths by index before anything is read.

    Each sample is read once. Where one rank computes all of it, that rank reads it and nothing is sent; where several
    share it, one of them reads it and sends the others their slices.

    Args:
        communicator: as in `CPSteps`.
        source: of samples.
        collate_fn: as in `CPSteps`.
        planner: of steps.
        metadata: by dataset index.
    """

    def __init__(
        self,
        communicator: Communicator,
        source: SamplerSource,
        *,
        collate_fn: Callable[[PackedBatch], Any] | None,
        planner: CPPlanner,
        metadata: Metadata,
    ) -> None:
        super().__init__(communicator, source, collate_fn=collate_fn, planner=planner)
        self._metadata = metadata

    def plan_step(self, epoch: int, step: int) -> Draft | None:
        """Return the next step as it is planned, or None at the end of the epoch. Collective."""
        communicator = self._communicator
        with self.stages.stage("plan"):
            with tell_failure(communicator):
                self.stages.check()
                rounds = self._rounds.next_step()
                columns = self._columns(rounds)
                state = self._rounds.state()
            told = self._gather_step(epoch, step, len(rounds), **columns)
            if told is None:
                return None
            (ids, lengths), holder = told[0].values(), told[1]
            planned = self._planner.plan(communicator, lengths, holder)
            self._planner.log(communicator, planned)
        return Draft(planned=planned, build=lambda: self._build(planned, ids, epoch, step, state))

    def _build(
        self, planned: Planned, ids: Int64Array, epoch: int, step: int, source_state: Mapping[str, Any] | None
    ) -> Step:
        communicator, plan = self._communicator, planned.plans[0]
        readers = self._planner.homes(communicator.size)[readers_of(plan)]
        order = np.argsort(readers, kind="stable")  # as the samples are gathered: by reader, then as they were given
        with self.stages.stage("read"), tell_failure(communicator):
            self.stages.check()
            samples = self._reader.read(ids[order[readers[order] == communicator.rank]].tolist())
        with self.stages.stage("exchange"):
            gathered = self._gather_samples(samples)
        plan = renumbered(plan, order)
        _require_lengths(gathered, plan.lengths, ids[order])
        return self._exchange(
            gathered, plan, planned=planned, ids=ids[order], epoch=epoch, step=step, source_state=source_state
        )

    def plan_epoch(self) -> list[Planned]:
        """Return the plans of all steps that are left of the epoch; nothing is read, and no other rank is asked.

        Raises:
            ArgumentError: the sampler is no `GlobalBatchSampler`, so what other ranks get is not known here.
        """
        size = self._communicator.size
        members = self._rounds.of_all_members(size)
        planned = []
        while any(rounds := [member.next_step() for member in members]):
            columns, holder = join_columns([self._columns(given) for given in rounds])
            planned.append(self._planner.plan_alone(columns["lengths"], holder, size))
        return planned

    def _columns(self, rounds: Sequence[Round]) -> dict[str, Int64Array]:
        indices = indices_of(rounds)
        lengths = [self._metadata[index].pack_tokens for index in indices]
        return {"ids": np.array(indices, np.int64), "lengths": np.array(lengths, np.int64)}


def _require_lengths(gathered: GatheredSamples, lengths: Int64Array, ids: Int64Array) -> None:
    """Refuse samples that are not as long as the metadata says: the plan is for others."""
    found = gathered.table.lengths
    if wrong := np.flatnonzero(found != lengths).tolist():
        listed = [f"dataset[{ids[i]}] has {found[i]} tokens, metadata says {lengths[i]}" for i in wrong]
        raise ArgumentError(f"samples must be as long as their metadata says: {list_offenders(listed)}")
