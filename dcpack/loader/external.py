"""Mode 3: steps come from another loader, and ranks near each other even them out."""

from __future__ import annotations

import copy
import logging
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dcpack._checks import list_offenders
from dcpack.comm import Communicator
from dcpack.comm.guard import tell_failure
from dcpack.comm.trees import all_gather_trees
from dcpack.errors import ArgumentError
from dcpack.loader.batches import Draft, Packing, Step
from dcpack.loader.online import describe_sample
from dcpack.loader.payload_steps import build_from_payloads
from dcpack.loader.planning import WindowPlanner
from dcpack.loader.rounds import length_of
from dcpack.loader.stages import Stages
from dcpack.loader.step_table import LocalSample, gather_table, require_same_place
from dcpack.loader.types import SampleKey, SampleMetadata

__all__ = ["ExternalSteps", "balance_groups"]

_log = logging.getLogger(__name__)


def balance_groups(communicator: Communicator, group_size: int | None) -> Communicator:
    """Return the communicator of the ranks that this one balances with. Collective.

    Args:
        communicator: of all ranks.
        group_size: consecutive ranks of a group; None: the ranks of a node, by the variable GROUP_RANK that torchrun
            sets, else by host name.

    Raises:
        ArgumentError: `group_size` does not divide the ranks.
    """
    size = communicator.size
    if group_size is not None:
        if size % group_size:
            raise ArgumentError(f"balance_group_size must divide the {size} ranks, got {group_size}")
        return communicator.split([range(start, start + group_size) for start in range(0, size, group_size)])
    names = all_gather_trees(communicator, os.environ.get("GROUP_RANK") or socket.gethostname())
    nodes: dict[str, list[int]] = {}
    for member, name in enumerate(names):
        nodes.setdefault(name, []).append(member)
    return communicator.split(nodes.values())


class ExternalSteps:
    """Makes steps from an external step source: each row is a micro-batch, and samples move within the group alone.

    The end is agreed: where one rank's source ends, the step is delivered on no rank, and what the others hold for it
    is counted in `num_dropped`.

    Args:
        communicator: of all ranks.
        group: of those that balance with this one.
        source: of steps.
        metadata_fn: describes a sample.
        packing: rows and batches.
        planner: of windows.
        rows_per_step: rows of this rank in a step.
    """

    def __init__(
        self,
        communicator: Communicator,
        group: Communicator,
        *,
        source: Any,
        metadata_fn: Callable[[Any], SampleMetadata],
        packing: Packing,
        planner: WindowPlanner,
        rows_per_step: int,
    ) -> None:
        self._communicator = communicator
        self._group = group
        self._source = source
        self._metadata_fn = metadata_fn
        self._packing = packing
        self._planner = planner
        self._rows_per_step = rows_per_step
        self._iterator: Iterator[Any] | None = None
        self._has_state = all(callable(getattr(source, name, None)) for name in ("state_dict", "load_state_dict"))
        self.num_dropped = 0
        self.stages = Stages()

    def tell(self, error: BaseException) -> None:
        """Raise an error on all ranks."""
        self._communicator.agree(error)

    def begin_epoch(self, epoch: int) -> None:
        """Tell the source of the epoch, if it can hear, and start it again."""
        if callable(set_epoch := getattr(self._source, "set_epoch", None)):
            set_epoch(epoch)
        self._iterator = None

    def source_state(self) -> Mapping[str, Any] | None:
        """Return where the source is, or None where it cannot tell."""
        return copy.deepcopy(self._source.state_dict()) if self._has_state else None

    def load_source_state(self, state: Mapping[str, Any]) -> None:
        """Put the source where `state` says."""
        self._source.load_state_dict(state)
        self._iterator = None

    def plan_step(self, epoch: int, step: int) -> Draft | None:
        """Return the next step as it is planned, or None where some source has ended. Collective."""
        with self.stages.stage("read"), tell_failure(self._communicator):
            self.stages.check()
            rows = self._next_rows()
            payloads, samples = self._describe(rows or [])
            state = self.source_state()
        with self.stages.stage("plan"):
            num_valid = sum(sample.num_valid for sample in samples)
            heard = self._communicator.all_gather(np.array([rows is not None, num_valid, epoch, step], np.int64))
            require_same_place([(int(part[2]), int(part[3])) for part in heard], self._communicator.ranks)
            has_step = [bool(part[0]) for part in heard]
            if not all(has_step):
                self._count_dropped(has_step, len(samples), step + (rows is not None))
                return None
            with self._communicator.guard():
                table = gather_table(
                    self._group,
                    samples,
                    at=(epoch, step),
                    num_rounds=self._rows_per_step,
                    constraints=self._planner.constraints,
                    with_metadata=self._planner.needs_metadata,
                )
                assert table is not None, "every rank of the group has a step"
                planned, layout = self._planner.plan(self._group, table)

        def build() -> Step:
            with self._communicator.guard():
                return build_from_payloads(
                    self._group,
                    table,
                    layout,
                    payloads,
                    planned=planned,
                    packing=self._packing,
                    stages=self.stages,
                    epoch=epoch,
                    step=step,
                    source_state=state,
                    sample_ids=np.arange(table.num_samples),
                    global_valid_tokens=sum(int(part[1]) for part in heard),
                    plan_rank=self._communicator.rank,
                )

        return Draft(planned=planned, build=build)

    def _next_rows(self) -> list[list[Any]] | None:
        """Return this rank's rows of the next step, or None at the end of its source."""
        if self._iterator is None:
            self._iterator = iter(self._source)
        try:
            item = next(self._iterator)
        except StopIteration:
            return None
        try:
            rows = [list(row) for row in item]
        except TypeError as error:
            raise ArgumentError(f"external_step_source must yield rows of samples: {error}") from error
        if len(rows) != self._rows_per_step:
            raise ArgumentError(
                f"external_step_source must yield local_batch_size {self._rows_per_step} rows a step, got {len(rows)}"
            )
        if empty := [f"row {number}" for number, row in enumerate(rows) if not row]:
            raise ArgumentError(f"external_step_source must yield rows that are not empty, got {list_offenders(empty)}")
        return rows

    def _describe(self, rows: Sequence[Sequence[Any]]) -> tuple[list[Any], list[LocalSample]]:
        payloads, samples = [], []
        first = 2**40 * self._group.rank  # keys order samples by rank, then as the source gave them
        for number, row in enumerate(rows):
            for payload in row:
                key = SampleKey(position=first + len(payloads), reader=self._group.rank)
                payloads.append(payload)
                samples.append(
                    describe_sample(self._group, self._planner, self._metadata_fn, payload, key, round_=number, row=0)
                )
        return payloads, samples

    def _count_dropped(self, has_step: Sequence[bool], num_samples: int, num_taken: int) -> None:
        """Count what this rank has and will not deliver, and tell of it."""
        self.num_dropped += num_samples
        if not any(has_step):
            return
        ended = [rank for rank, has in zip(self._communicator.ranks, has_step, strict=True) if not has]
        length = length_of(self._source)
        behind = "" if length is None else f", and {length - num_taken} more steps of its source"
        _log.warning(
            "the sources of ranks %s ended, so the epoch ends on all; rank %d drops a step of %d samples%s",
            ended,
            self._communicator.ranks[self._communicator.rank],
            num_samples,
            behind,
        )
