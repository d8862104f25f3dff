"""Mode 2: lengths are known by index, so the plan comes first, and each constructor reads its own samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dcpack._checks import as_lengths
from dcpack.comm import Communicator
from dcpack.comm.guard import tell_failure
from dcpack.data.megatron import read_idx_lengths
from dcpack.errors import ArgumentError
from dcpack.loader.batches import Draft, Packing, Step, call_user, make_batches
from dcpack.loader.planning import StepLayout, WindowPlanner
from dcpack.loader.reading import num_valid_tokens
from dcpack.loader.rounds import Round, SamplerSource, SamplerSteps
from dcpack.loader.sharing import Planned
from dcpack.loader.step_table import LocalSample, StepTable, describe, gather_parts, merge_table
from dcpack.loader.types import SampleKey, SampleMetadata

__all__ = ["Metadata", "MetadataSteps", "open_metadata"]


class Metadata:
    """Metadata by dataset index.

    Args:
        values: lengths, or `SampleMetadata`, by index.
    """

    def __init__(self, values: Any) -> None:
        self._values = values

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> SampleMetadata:
        if not 0 <= index < len(self):
            raise ArgumentError(f"indices must be below {len(self)} samples, got {index}")
        value = self._values[index]
        if isinstance(value, SampleMetadata):
            return value
        try:
            return SampleMetadata(pack_tokens=value)
        except ArgumentError as error:
            raise ArgumentError(f"metadata[{index}]: {error}") from error


def open_metadata(metadata: Any) -> Metadata:
    """Return metadata by index, from lengths or `SampleMetadata` in a sequence or array, a source, or an index file.

    Args:
        metadata: something with ``len()`` and values by number; a source with ``lengths()``; or the path of a Megatron
            ``.idx`` file.

    Raises:
        ArgumentError: something else.

    Example:
        >>> open_metadata([5, 7])[1].pack_tokens
        7
    """
    if isinstance(metadata, str | Path):
        return Metadata(read_idx_lengths(metadata))
    if callable(getattr(metadata, "lengths", None)):
        return Metadata(as_lengths("lengths of metadata", metadata.lengths()))
    if isinstance(metadata, np.ndarray):
        return Metadata(as_lengths("metadata", metadata))
    if isinstance(metadata, Mapping) or not all(hasattr(metadata, name) for name in ("__len__", "__getitem__")):
        raise ArgumentError(f"metadata must have values by number and a length, got {type(metadata).__name__}")
    return Metadata(metadata)


class MetadataSteps(SamplerSteps):
    """Makes steps from a batch sampler; nothing is read before it is planned, and no sample is sent.

    Args:
        communicator: of the constructors.
        source: of samples.
        metadata: by dataset index.
        packing: rows and batches.
        planner: of windows.
    """

    def __init__(
        self,
        communicator: Communicator,
        source: SamplerSource,
        *,
        metadata: Metadata,
        packing: Packing,
        planner: WindowPlanner,
    ) -> None:
        super().__init__(communicator, source)
        self._metadata = metadata
        self._packing = packing
        self._planner = planner

    def plan_step(self, epoch: int, step: int) -> Draft | None:
        """Return the next step as it is planned, or None at the end of the epoch. Collective."""
        with self.stages.stage("plan"):
            with tell_failure(self._communicator):
                self.stages.check()
                rounds = self._rounds.next_step()
                described = self._description(self._describe(rounds), (epoch, step), len(rounds))
                state = self._rounds.state()
            parts = gather_parts(self._communicator, described)
            table = merge_table(parts, self._communicator.ranks, self._planner.constraints)
            if table is None:
                return None
            planned, layout = self._planner.plan(self._communicator, table)
        return Draft(planned=planned, build=lambda: self._build(table, layout, planned, epoch, step, state))

    def _build(
        self,
        table: StepTable,
        layout: StepLayout,
        planned: Planned,
        epoch: int,
        step: int,
        source_state: Mapping[str, Any] | None,
    ) -> Step:
        mine = layout.samples
        with self.stages.stage("read"), tell_failure(self._communicator):
            self.stages.check()
            indices = table.columns["dataset_index"][list(mine)].tolist()
            payloads = dict(zip(mine, self._reader.read(indices), strict=True))
            num_valid = np.zeros(table.num_samples, np.int64)
            for i in mine:
                num_valid[i] = num_valid_tokens(payloads[i], self._metadata[int(table.columns["dataset_index"][i])])
        with self.stages.stage("exchange"):  # of counts alone
            total = sum(int(part) for part in self._communicator.all_gather(num_valid.sum()))
        with self.stages.stage("pack"), self._communicator.guard():
            self.stages.check()
            batches = make_batches(
                layout.microbatches,
                payloads,
                self._packing,
                num_valid=num_valid,
                sample_ids=table.columns["dataset_index"],
                global_valid_tokens=total,
                epoch=epoch,
                step=step,
                plan_rank=self._communicator.rank,
            )
        return Step(batches=batches, planned=planned, source_state=source_state)

    def plan_epoch(self) -> list[Planned]:
        """Return the plans of all steps that are left of the epoch; nothing is read, and no other rank is asked.

        Raises:
            ArgumentError: the sampler is no `GlobalBatchSampler`, so what other ranks get is not known here.
        """
        members = self._rounds.of_all_members(self._communicator.size)
        planned = []
        while rounds := [member.next_step() for member in members]:
            parts = [self._description(self._describe(given), (0, 0), len(given)) for given in rounds]
            table = merge_table(parts, self._communicator.ranks, self._planner.constraints)
            if table is None:
                break
            planned.append(self._planner.plan_alone(table))
        return planned

    def _describe(self, rounds: Sequence[Round]) -> list[LocalSample]:
        samples = []
        for r, found in enumerate(rounds):
            for k, index in enumerate(found.indices):
                key = SampleKey(position=found.position + k, dataset_index=index)
                metadata = self._metadata[index]
                cost = call_user("cost_model", self._planner.rule.of_sample, metadata, key)
                samples.append(
                    LocalSample(metadata=metadata, key=key, cost=cost, num_valid=-1, num_bytes=0, round=r, row=k)
                )
        return samples

    def _description(self, samples: Sequence[LocalSample], at: tuple[int, int], num_rounds: int) -> dict[str, Any]:
        return describe(
            samples,
            at=at,
            num_rounds=num_rounds,
            constraints=self._planner.constraints,
            with_metadata=self._planner.needs_metadata,
        )
