"""The loader that users iterate: it strings reading, planning, moving, packing and delivering together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from dcpack._checks import check_int
from dcpack.comm import Backend, Communicator
from dcpack.errors import ArgumentError, PeerError
from dcpack.loader.ahead import StepsAhead
from dcpack.loader.batches import LoaderBatch, StepMaker
from dcpack.loader.deliver import Delivery
from dcpack.loader.devices import DeviceQueue
from dcpack.loader.failing import Ending
from dcpack.loader.metadata_mode import MetadataSteps
from dcpack.loader.planned_cp_metadata import PlannedCPMetadataSteps
from dcpack.loader.sampler import GlobalBatchSampler
from dcpack.loader.sharing import Planned
from dcpack.loader.state import LoaderState
from dcpack.loader.step_metrics import StepMeter, StepRecord

__all__ = ["DistributedDataLoader"]


class DistributedDataLoader:
    """Micro-batches of this rank, one epoch an iteration; made by `build_distributed_dataloader`.

    All ranks iterate alike. An iteration that was left goes on where it was; one after the end of an epoch is the next
    epoch. An error on one rank is an error on all; the loader is then of no more use, and another one takes its state.

    While a step trains, the next one is read, planned, exchanged and packed: by a thread of this loader where the back
    end allows that (`Backend.allows_threads`), else in `prefetch_plan` and `prefetch`, which the training loop calls
    where it suits, or at the next step where it does not.

    Args:
        maker: makes steps; None on ranks that only receive.
        delivery: to and from the ranks that get the same batches.
        sampler: what the user gave as `batch_sampler`, or None.
        backend: of the communicators.
        device: where batches are moved to; None leaves them where they are.
        device_prefetch_depth: batches on the device ahead of the one that is handed out.
        fills_rows: whether rows are filled up to their capacity.
        fingerprint: what must not change between a state and its restoring.
        length: micro-batches of an epoch; None where they are not known before.
        epoch: the first one.
        step: the first one of it.
        communicators: closed with the loader.
        in_thread: whether steps may be made in a thread.

    Example:
        >>> import dcpack
        >>> data, config = [[1] * n for n in (9, 5, 3, 1)], {"seq_len": 16, "local_batch_size": 1}
        >>> def train(communicator):
        ...     with dcpack.build_distributed_dataloader(
        ...         data, dcpack.Topology.of_domain(1), {**config, "communication_backend": "fake"},
        ...         batch_sampler=dcpack.GlobalBatchSampler(4, global_batch_size=2, shuffle=False),
        ...         metadata_fn=lambda sample: dcpack.SampleMetadata(pack_tokens=len(sample))) as loader:
        ...         return next(loader).sample_ids.tolist(), len(loader)
        >>> dcpack.run_ranks(1, train)
        [([0], 4)]
    """

    def __init__(
        self,
        *,
        maker: StepMaker | None,
        delivery: Delivery,
        sampler: Any,
        backend: Backend,
        device: Any,
        device_prefetch_depth: int,
        fills_rows: bool,
        fingerprint: Mapping[str, Any],
        length: int | None,
        epoch: int,
        step: int,
        communicators: tuple[Communicator, ...],
        in_thread: bool,
    ) -> None:
        self._maker = maker
        self._delivery = delivery
        self._sampler = sampler if isinstance(sampler, GlobalBatchSampler) else None
        self._device = DeviceQueue(backend, device, device_prefetch_depth)
        self._copies_in_thread = device is not None and backend.copies_in_threads(device)
        self._meter = StepMeter(fills_rows=fills_rows)
        self._fingerprint = dict(fingerprint)
        self._length = length
        self._communicators = communicators
        self._num_dropped = 0  # once it is closed
        self._epoch, self._step = epoch, step
        self._pending: deque[LoaderBatch] = deque()
        self._pending_source: Mapping[str, Any] | None = None
        self._has_started = False
        self._has_ended = False
        self._is_in_step = False
        self.last_planned: Planned | None = None
        self._source = self._source_now()
        self._has_state = maker is None or self._source is not None
        self._ahead: StepsAhead | None = None
        if maker is not None:
            self._ahead = StepsAhead(maker, in_thread=in_thread, communicators=communicators)
            self._ahead.begin(epoch, step)
        self._ending = Ending(delivery, self._ahead)

    def __len__(self) -> int:
        """Return the micro-batches of an epoch: the same on all ranks, fixed when the loader was built.

        Raises:
            TypeError: they are not known before, as under planned CP.
        """
        if self._length is None:
            raise TypeError(f"{type(self).__name__} has no length here: the number of micro-batches is planned")
        return self._length

    @property
    def epoch(self) -> int:
        """The epoch that it is in, or that it has just ended."""
        return self._epoch

    @property
    def step(self) -> int:
        """Optimizer steps of the epoch that are delivered whole."""
        return self._step

    @property
    def num_dropped(self) -> int:
        """Samples that are not delivered: behind the last whole global batch, or behind an end that was agreed."""
        if self._maker is not None:
            return self._maker.num_dropped
        if self._ending.is_closed:
            return self._num_dropped
        return 0 if self._sampler is None else self._sampler.num_dropped

    def plan_epoch(self) -> list[Planned]:
        """Return the plans of the steps that are left of the epoch, without reading: in metadata mode, on constructors.

        Raises:
            ArgumentError: another mode or another sampler, a rank that only receives, or a loader that was closed.
        """
        self._ending.require_usable()
        if not isinstance(self._maker, MetadataSteps | PlannedCPMetadataSteps):
            raise ArgumentError("an epoch can be planned ahead in metadata mode alone, on ranks that build batches")
        ahead = self._ahead.peek() if self._ahead is not None else None
        return [*([] if ahead is None else [ahead]), *self._maker.plan_epoch()]

    # ---- staying ahead -------------------------------------------------------------------------------------------

    def prefetch_plan(self) -> None:
        """Read and plan the next step, on this thread, unless that is done or a thread of the loader does it.

        All ranks call it at the same place of the loop, where the device is busy. Calls that are left out are made up
        for by the next step; a second call does nothing, nor does any on a rank that only receives.

        Raises:
            PeerError: some rank failed.
        """
        self._do_ahead(StepsAhead.prefetch_plan)

    def prefetch(self) -> None:
        """Exchange and pack the next step, and before that do what `prefetch_plan` does; otherwise as that."""
        self._do_ahead(StepsAhead.prefetch)

    def _do_ahead(self, work: Callable[[StepsAhead], None]) -> None:
        self._ending.require_usable()
        if self._ahead is None or self._has_ended:
            return
        self._has_started = True
        try:
            work(self._ahead)
            self._stage()
        except BaseException as error:
            self._ending.fail(error)
            raise

    # ---- iteration -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        self._ending.require_usable()
        if self._has_ended:
            self._begin(self._epoch + 1)
        return self

    def __next__(self) -> LoaderBatch:
        self._ending.require_usable()
        if self._has_ended:
            raise StopIteration
        self._has_started = True
        asked_at = time.perf_counter()
        try:
            batch = self._next_batch(asked_at)
        except BaseException as error:
            self._ending.fail(error)
            raise
        if batch is None:
            self._has_ended = True
            raise StopIteration
        return batch

    def _next_batch(self, asked_at: float) -> LoaderBatch | None:
        if not self._is_in_step:
            self._meter.close_step(asked_at)
        built = self._next_built()
        try:
            batch = self._delivery.deliver(built)
        except PeerError:
            self._ending.peers_know()
            raise
        if batch is None:
            return None
        if (batch.epoch, batch.step) != (self._epoch, self._step):
            raise ArgumentError(
                f"this rank is at epoch {self._epoch}, step {self._step}, but was sent a batch of epoch {batch.epoch}, "
                f"step {batch.step}: all ranks must go on from the same step"
            )
        placed = self._device.take(batch, is_own=built is not None)
        self._stage()
        self._is_in_step = not batch.is_last
        if batch.is_last:
            self._complete_step()
        self._meter.delivered(batch, asked_at)
        return placed

    def _stage(self) -> None:
        """Begin copies to the device: of what is left of this step, then of the next one."""
        if not self._device.stage(self._pending) or self._ahead is None:
            return
        if (step := self._ahead.made()) is not None:
            self._device.stage_next(step.batches)
        elif self._copies_in_thread:
            self._ahead.when_made(self._device.stage_made)

    def _next_built(self) -> LoaderBatch | None:
        """Return the next micro-batch of a constructor; None at the end, and on ranks that receive."""
        if self._ahead is None:
            return None
        try:
            if not self._pending:
                step = self._ahead.take()
                if step is None:
                    return None
                self._pending.extend(step.batches)
                self._device.begin_step(step.batches)
                self._pending_source = step.source_state
                self.last_planned = step.planned
                self._meter.made(step)
            return self._pending.popleft()
        except BaseException as error:
            self._ending.tell_peers(error)
            raise

    def _complete_step(self) -> None:
        self._step += 1
        if self._maker is not None:
            self._source = self._pending_source
        elif self._sampler is not None:
            self._sampler.skip_step()
            self._source = self._sampler.state_dict()

    def _begin(self, epoch: int) -> None:
        try:
            self._begin_source(epoch)
            self._source = self._source_now()
        except BaseException as error:
            self._ending.fail(error)
            raise
        self._epoch, self._step = epoch, 0
        self._pending.clear()
        self._device.clear()
        if self._ahead is not None:
            self._ahead.begin(epoch, 0)
        self._has_started = self._has_ended = False

    def _begin_source(self, epoch: int) -> None:
        if self._maker is not None:
            self._maker.begin_epoch(epoch)
        elif self._sampler is not None:
            self._sampler.set_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; not in the middle of one. The epoch that it is about to begin stays as it is.

        Raises:
            ArgumentError: in the middle of an epoch.
        """
        self._ending.require_usable()
        epoch = check_int("epoch", epoch, minimum=0)
        if epoch == self._epoch and not self._has_started:
            return
        if self._has_started and not self._has_ended:
            raise ArgumentError(f"set_epoch({epoch}) in the middle of epoch {self._epoch}, after {self._step} steps")
        self._begin(epoch)

    # ---- state ---------------------------------------------------------------------------------------------------

    def _source_now(self) -> Mapping[str, Any] | None:
        if self._maker is not None:
            return self._maker.source_state()
        return None if self._sampler is None else self._sampler.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return where it is: whole optimizer steps only, so that a save inside a step replays that step.

        Save it after the optimizer update, on every rank; with `GlobalBatchSampler` it is the same on all, and fits any
        number of ranks.

        Raises:
            ArgumentError: the source has no state.
        """
        if not self._has_state:
            raise ArgumentError("this loader has no state: its source has no state_dict() and load_state_dict()")
        state = LoaderState(fingerprint=self._fingerprint, epoch=self._epoch, step=self._step, source=self._source)
        return state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where a state says; before the first batch is taken. Makes no call to other ranks: all do it.

        Raises:
            ArgumentError: batches were taken already, or the state does not fit; says why.
        """
        self._ending.require_usable()
        if self._has_started:
            raise ArgumentError("load_state_dict must come before the first batch is taken")
        loaded = LoaderState.from_dict(state, self._fingerprint)
        if self._sampler is not None:
            loaded.check_position(self._sampler)
        if self._maker is not None:
            self._maker.load_source_state(loaded.source_of_builder())
        elif self._sampler is not None and loaded.source is not None:
            self._sampler.load_state_dict(loaded.source)
        self._epoch, self._step, self._source = loaded.epoch, loaded.step, loaded.source
        if self._ahead is not None:
            self._ahead.begin(loaded.epoch, loaded.step)

    # ---- numbers -------------------------------------------------------------------------------------------------

    @property
    def last_step(self) -> StepRecord | None:
        """The newest step whose micro-batches were all handed out, its time up to now while it trains; None before."""
        return self._meter.last

    def metrics(self) -> dict[str, float]:
        """Return `StepRecord.metrics` of `last_step`; empty before the first. Call it after the optimizer update."""
        record = self._meter.last
        return {} if record is None else record.metrics()

    def on_step(self, callback: Callable[[StepRecord], None]) -> None:
        """Have `callback` called with each `StepRecord`, when its step has ended: at the next one, or at the end."""
        self._meter.on_step(callback)

    # ---- the end -------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End its thread and workers and give back its communicators, whatever is under way; any number of times.

        A step that is being made has 2 seconds to end with those of the other ranks; then its calls are cut off.
        """
        if self._ending.is_closed:
            return
        self._num_dropped = self.num_dropped
        self._ending.close()
        try:
            self._meter.close_step(time.perf_counter())
        finally:
            if self._ahead is not None:
                self._ahead.close()
            for communicator in self._communicators:
                communicator.close()
            self._maker = self._ahead = None  # and with them the workers that read
            self._pending.clear()
            self._device.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._ending.fail(error)  # what went wrong in the training is what the others are told
        self.close()
