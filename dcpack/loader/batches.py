"""What the loader hands out, and how a step is made of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dcpack._checks import Int64Array
from dcpack.errors import ArgumentError
from dcpack.loader.sharing import Planned
from dcpack.loader.stages import Span, Stages

__all__ = ["Draft", "LoaderBatch", "Packing", "Step", "StepMaker", "call_user", "default_collate", "make_batches"]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LoaderBatch:
    """One micro-batch of one rank.

    Attributes:
        data: what the model takes: what `collate_fn` returned; a dict of arrays under planned CP. Where CP is planned
            and processes host several ranks, a tuple of it for each rank of this process, in their order.
        epoch: epoch.
        step: optimizer step in the epoch, from 0.
        microbatch: number in the step, of `num_microbatches`.
        num_microbatches: micro-batches of the step, the same on every rank.
        num_valid_tokens: tokens of this micro-batch that count in the loss; with planned CP those of this rank's slice
            (of all ranks of this process).
        global_valid_tokens: the same over the whole step: all ranks that build batches, all micro-batches.
        sample_ids: int64[k], dataset index of each sample in it, -1 for a dummy (external step source: its number in
            the step).
        cp_size: ranks that share it, as the plan says; 1 without planned CP. Of several ranks of a process it is that
            of the first, as are `cp_rank` and `cp_ranks`; all are in ``loader.last_planned``.
        cp_rank: which of them this is.
        cp_ranks: their global ranks, this one among them (ranks of the plan until it is delivered, and where processes
            host several).
        is_dummy: no sample at all, only zero-weight stand-ins.

    Example:
        >>> batch = LoaderBatch(data={"input_ids": [1, 2]}, epoch=0, step=3, microbatch=1, num_microbatches=2,
        ...     num_valid_tokens=2, global_valid_tokens=9, sample_ids=np.array([7]))
        >>> batch.is_last                                         # time for the optimizer
        True
    """

    data: Any
    epoch: int
    step: int
    microbatch: int
    num_microbatches: int
    num_valid_tokens: int
    global_valid_tokens: int
    sample_ids: Int64Array
    cp_size: int = 1
    cp_rank: int = 0
    cp_ranks: tuple[int, ...] = ()
    is_dummy: bool = False

    @property
    def is_last(self) -> bool:
        """Whether it completes its optimizer step."""
        return self.microbatch == self.num_microbatches - 1

    def with_group(self, cp_ranks: tuple[int, ...]) -> LoaderBatch:
        """Return it with another numbering of its CP group."""
        return replace(self, cp_ranks=cp_ranks)

    def with_data(self, data: Any) -> LoaderBatch:
        """Return it with other data."""
        return replace(self, data=data)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Step:
    """One optimizer step of one constructor, ready to be delivered.

    Attributes:
        batches: its micro-batches.
        planned: the plans behind it.
        source_state: where the source is after it; None where the source has no state.
        bytes_sent: bytes of samples that left this rank; what ranks tell of samples and plans does not count.
        spans: what took how long; filled in when it is done.
    """

    batches: tuple[LoaderBatch, ...]
    planned: Planned
    source_state: Mapping[str, Any] | None
    bytes_sent: int = 0
    spans: tuple[Span, ...] = ()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Draft:
    """A step that is planned, and what makes it of the plan.

    Attributes:
        planned: the plans.
        build: moves and packs the samples. Collective among constructors; called once.
    """

    planned: Planned
    build: Callable[[], Step]


class StepMaker(Protocol):
    """One mode of the loader: makes the steps of an epoch, one after the other."""

    num_dropped: int
    stages: Stages

    def begin_epoch(self, epoch: int) -> None:
        """Go on where the source is, in an epoch that it is told of; no call of the group."""
        ...

    def plan_step(self, epoch: int, step: int) -> Draft | None:
        """Return the next step as it is planned, or None at the end of the epoch. Collective among constructors."""
        ...

    def tell(self, error: BaseException) -> None:
        """Raise an error on all constructors, in their next call or in this one."""
        ...

    def source_state(self) -> Mapping[str, Any] | None:
        """Return where the source is now; None where it has no state."""
        ...

    def load_source_state(self, state: Mapping[str, Any]) -> None:
        """Put the source where `state` says."""
        ...


def default_collate(rows: Sequence[Any]) -> tuple[Any, ...]:
    """Return the rows as a tuple: what a batch is where no `collate_fn` is given."""
    return tuple(rows)


class Packing:
    """What happens to the samples of a micro-batch: rows first, then a batch of them.

    Args:
        pack: a row from its samples; None where a row is its only sample.
        collate: a batch from rows.
    """

    def __init__(self, pack: Callable[[Sequence[Any]], Any] | None, collate: Callable[[Sequence[Any]], Any]) -> None:
        self._pack = pack
        self._collate = collate

    def __call__(self, rows: Sequence[Sequence[Any]]) -> Any:
        """Return the batch of rows of payloads.

        Raises:
            ArgumentError: `collate_fn` returned None.
        """
        packed = [self._row(row) for row in rows]
        batch = call_user("collate_fn", self._collate, packed)
        if batch is None:
            raise ArgumentError("collate_fn must return a batch, got None")
        return batch

    def _row(self, row: Sequence[Any]) -> Any:
        if self._pack is not None:
            return call_user("pack_fn", self._pack, list(row))
        (sample,) = row
        return sample


def call_user(name: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call what a user gave; a StopIteration in it must not look like the end of the data."""
    try:
        return function(*args)
    except StopIteration as error:
        raise RuntimeError(f"{name} raised StopIteration") from error


def make_batches(
    microbatches: Sequence[Sequence[Sequence[int]]],
    payloads: Mapping[int, Any],
    packing: Packing,
    *,
    num_valid: Int64Array,
    sample_ids: Int64Array,
    global_valid_tokens: int,
    epoch: int,
    step: int,
    plan_rank: int,
) -> tuple[LoaderBatch, ...]:
    """Return the micro-batches of one rank.

    Args:
        microbatches: ``[micro-batch][row] -> samples``.
        payloads: the samples by number.
        packing: rows and batches.
        num_valid: int64[n], tokens of each sample that count in the loss.
        sample_ids: int64[n], what each sample is called.
        global_valid_tokens: tokens of the step that count.
        epoch: epoch.
        step: step in the epoch.
        plan_rank: this rank's number in the plan.
    """
    batches = []
    for number, rows in enumerate(microbatches):
        items = [i for row in rows for i in row]
        batches.append(
            LoaderBatch(
                data=packing([[payloads[i] for i in row] for row in rows]),
                epoch=epoch,
                step=step,
                microbatch=number,
                num_microbatches=len(microbatches),
                num_valid_tokens=int(num_valid[items].sum()) if items else 0,
                global_valid_tokens=global_valid_tokens,
                sample_ids=sample_ids[items] if items else np.array([-1], np.int64),
                cp_ranks=(plan_rank,),
                is_dummy=not items,
            )
        )
    return tuple(batches)
