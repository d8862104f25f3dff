"""From a plan to micro-batches where the samples are in memory already: move those that change their rank, and pack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dcpack.comm import Communicator
from dcpack.loader.batches import Packing, Step, make_batches
from dcpack.loader.payloads import exchange_payloads
from dcpack.loader.planning import StepLayout
from dcpack.loader.sharing import Planned
from dcpack.loader.stages import Stages
from dcpack.loader.step_table import StepTable

__all__ = ["build_from_payloads"]


def build_from_payloads(
    communicator: Communicator,
    table: StepTable,
    layout: StepLayout,
    payloads: Sequence[Any],
    *,
    planned: Planned,
    packing: Packing,
    stages: Stages,
    epoch: int,
    step: int,
    source_state: Mapping[str, Any] | None,
    sample_ids: Any = None,
    global_valid_tokens: int | None = None,
    plan_rank: int | None = None,
) -> Step:
    """Return a step of samples that were read before they were planned. Collective.

    Args:
        communicator: of the members that exchange samples.
        table: of their samples.
        layout: where these go.
        payloads: what this member read, by place.
        planned: the plans.
        packing: rows and batches.
        stages: timed, and asked whether to go on.
        epoch: epoch.
        step: step in the epoch.
        source_state: where the source is after the step.
        sample_ids: int64[n], what each sample is called; None: its dataset index.
        global_valid_tokens: of the step; None: those of the table.
        plan_rank: this rank's number in the plan; None: that in the communicator.
    """
    before = communicator.counters.sent["all_to_all"]
    with stages.stage("exchange"):
        mine = exchange_payloads(
            communicator,
            payloads,
            holder=table.holder,
            place=table.place,
            num_bytes=table.columns["num_bytes"],
            destination=layout.destination,
        )
    num_valid = table.columns["num_valid"]
    with stages.stage("pack"), communicator.guard():
        stages.check()
        batches = make_batches(
            layout.microbatches,
            mine,
            packing,
            num_valid=num_valid,
            sample_ids=table.columns["dataset_index"] if sample_ids is None else sample_ids,
            global_valid_tokens=int(num_valid.sum()) if global_valid_tokens is None else global_valid_tokens,
            epoch=epoch,
            step=step,
            plan_rank=communicator.rank if plan_rank is None else plan_rank,
        )
    sent = communicator.counters.sent["all_to_all"] - before
    return Step(batches=batches, planned=planned, source_state=source_state, bytes_sent=sent)
