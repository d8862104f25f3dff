"""Mode 1: samples are read, described, planned in windows, and moved where the plan wants them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dcpack.comm import Communicator, encoded_size
from dcpack.comm.guard import tell_failure
from dcpack.errors import ArgumentError
from dcpack.loader.batches import Draft, Packing, Step, call_user
from dcpack.loader.payload_steps import build_from_payloads
from dcpack.loader.planning import WindowPlanner
from dcpack.loader.reading import num_valid_tokens
from dcpack.loader.rounds import Round, SamplerSource, SamplerSteps, indices_of
from dcpack.loader.step_table import LocalSample, gather_table
from dcpack.loader.types import SampleKey, SampleMetadata

__all__ = ["OnlineSteps", "describe_sample"]


def describe_sample(
    communicator: Communicator,
    planner: WindowPlanner,
    metadata_fn: Callable[[Any], SampleMetadata],
    payload: Any,
    key: SampleKey,
    *,
    round_: int,
    row: int,
) -> LocalSample:
    """Return what the others must know of a sample that was read.

    Raises:
        ArgumentError: `metadata_fn` returned something else, or the payload cannot be sent.
    """
    metadata = call_user("metadata_fn", metadata_fn, payload)
    if not isinstance(metadata, SampleMetadata):
        raise ArgumentError(f"metadata_fn must return a SampleMetadata, got {metadata!r}")
    return LocalSample(
        metadata=metadata,
        key=key,
        cost=call_user("cost_model", planner.rule.of_sample, metadata, key),
        num_valid=num_valid_tokens(payload, metadata),
        num_bytes=encoded_size(communicator, payload) if communicator.size > 1 else 0,
        round=round_,
        row=row,
    )


class OnlineSteps(SamplerSteps):
    """Makes steps from a batch sampler whose samples are read before they are planned.

    Args:
        communicator: of the constructors.
        source: of samples.
        metadata_fn: describes a sample.
        split_fn: a record to its samples; None: it is its only sample.
        packing: rows and batches.
        planner: of windows.
    """

    def __init__(
        self,
        communicator: Communicator,
        source: SamplerSource,
        *,
        metadata_fn: Callable[[Any], SampleMetadata],
        split_fn: Callable[[Any], Sequence[Any]] | None,
        packing: Packing,
        planner: WindowPlanner,
    ) -> None:
        super().__init__(communicator, source)
        self._metadata_fn = metadata_fn
        self._split_fn = split_fn
        self._packing = packing
        self._planner = planner

    def plan_step(self, epoch: int, step: int) -> Draft | None:
        """Return the next step as it is planned, or None at the end of the epoch. Collective."""
        with self.stages.stage("read"), tell_failure(self._communicator):
            self.stages.check()
            rounds = self._rounds.next_step()
            payloads, samples = self._read(rounds)
            state = self._rounds.state()
        with self.stages.stage("plan"):
            table = gather_table(
                self._communicator,
                samples,
                at=(epoch, step),
                num_rounds=len(rounds),
                constraints=self._planner.constraints,
                with_metadata=self._planner.needs_metadata,
            )
            if table is None:
                return None
            planned, layout = self._planner.plan(self._communicator, table)

        def build() -> Step:
            return build_from_payloads(
                self._communicator,
                table,
                layout,
                payloads,
                planned=planned,
                packing=self._packing,
                stages=self.stages,
                epoch=epoch,
                step=step,
                source_state=state,
            )

        return Draft(planned=planned, build=build)

    def _read(self, rounds: Sequence[Round]) -> tuple[list[Any], list[LocalSample]]:
        records = self._reader.read(indices_of(rounds))
        places = [(r, k, found) for r, found in enumerate(rounds) for k in range(len(found.indices))]
        payloads: list[Any] = []
        samples: list[LocalSample] = []
        for record, (r, k, found) in zip(records, places, strict=True):
            parts = [record] if self._split_fn is None else list(call_user("split_fn", self._split_fn, record))
            for part, payload in enumerate(parts):
                key = SampleKey(position=found.position + k, part=part, dataset_index=found.indices[k])
                described = describe_sample(
                    self._communicator, self._planner, self._metadata_fn, payload, key, round_=r, row=k
                )
                payloads.append(payload)
                samples.append(described)
        return payloads, samples
