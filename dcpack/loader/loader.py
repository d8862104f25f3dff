"""The loader that users iterate: it strings reading, planning, moving, packing and delivering together."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from dcpack._checks import check_int
from dcpack.comm import Backend, Communicator
from dcpack.errors import ArgumentError, PeerError
from dcpack.loader.batches import LoaderBatch, StepMaker
from dcpack.loader.deliver import Delivery
from dcpack.loader.metadata_mode import MetadataSteps
from dcpack.loader.sampler import GlobalBatchSampler
from dcpack.loader.sharing import Planned
from dcpack.loader.state import LoaderState

__all__ = ["DistributedDataLoader"]


class DistributedDataLoader:
    """Micro-batches of this rank, one epoch an iteration; made by `build_distributed_dataloader`.

    All ranks iterate alike. An iteration that was left goes on where it was; one after the end of an epoch is the next
    epoch. An error on one rank is an error on all; the loader is then of no more use, and another one takes its state.

    Args:
        maker: makes steps; None on ranks that only receive.
        delivery: to and from the ranks that get the same batches.
        sampler: what the user gave as `batch_sampler`, or None.
        backend: of the communicators.
        device: where batches are moved to; None leaves them where they are.
        fingerprint: what must not change between a state and its restoring.
        length: micro-batches of an epoch; None where they are not known before.
        epoch: the first one.
        communicators: closed with the loader.
    """

    def __init__(
        self,
        *,
        maker: StepMaker | None,
        delivery: Delivery,
        sampler: Any,
        backend: Backend,
        device: Any,
        fingerprint: Mapping[str, Any],
        length: int | None,
        epoch: int,
        communicators: tuple[Communicator, ...],
    ) -> None:
        self._maker = maker
        self._delivery = delivery
        self._sampler = sampler if isinstance(sampler, GlobalBatchSampler) else None
        self._backend = backend
        self._device = device
        self._fingerprint = dict(fingerprint)
        self._length = length
        self._communicators: tuple[Communicator, ...] = communicators
        self._epoch = epoch
        self._step = 0
        self._pending: deque[LoaderBatch] = deque()
        self._pending_source: Mapping[str, Any] | None = None
        self._has_started = False
        self._has_ended = False
        self._failure: BaseException | None = None
        self.last_planned: Planned | None = None
        self._source = self._source_now()

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
        return 0 if self._sampler is None else self._sampler.num_dropped

    def plan_epoch(self) -> list[Planned]:
        """Return the plans of the steps that are left of the epoch, without reading: in metadata mode, on constructors.

        Raises:
            ArgumentError: another mode or another sampler, or a rank that only receives.
        """
        if not isinstance(self._maker, MetadataSteps):
            raise ArgumentError("an epoch can be planned ahead in metadata mode alone, on ranks that build batches")
        return self._maker.plan_epoch()

    # ---- iteration -----------------------------------------------------------------------------------------------

    def __iter__(self) -> Self:
        self._check_usable()
        if self._has_ended:
            self._begin(self._epoch + 1)
        return self

    def __next__(self) -> LoaderBatch:
        self._check_usable()
        if self._has_ended:
            raise StopIteration
        self._has_started = True
        try:
            batch = self._delivery.deliver(self._next_built())
            if batch is None:
                self._has_ended = True
                raise StopIteration
            if (batch.epoch, batch.step) != (self._epoch, self._step):
                raise ArgumentError(
                    f"this rank is at epoch {self._epoch}, step {self._step}, but was sent a batch of epoch "
                    f"{batch.epoch}, step {batch.step}: all ranks must go on from the same step"
                )
            if batch.is_last:
                self._complete_step()
            if self._device is None:
                return batch
            return batch.with_data(self._backend.to_device(batch.data, self._device))
        except StopIteration:
            raise
        except BaseException as error:
            self._failure = error
            raise

    def _next_built(self) -> LoaderBatch | None:
        """Return the next micro-batch of a constructor; None at the end, and on ranks that receive."""
        if self._maker is None:
            return None
        try:
            if not self._pending:
                step = self._maker.next_step(self._epoch, self._step)
                if step is None:
                    return None
                self._pending.extend(step.batches)
                self._pending_source = step.source_state
                self.last_planned = step.planned
            return self._pending.popleft()
        except Exception as error:
            self._tell(error)
            raise
        except BaseException as error:  # Ctrl-C stays what it is
            self._tell(error)
            raise

    def _tell(self, error: BaseException) -> None:
        """Tell the ranks that wait for this one's batch; they raise, and so will this one."""
        try:
            self._delivery.tell(error)
        except PeerError:
            return

    def _complete_step(self) -> None:
        self._step += 1
        if self._maker is not None:
            self._source = self._pending_source
        elif self._sampler is not None:
            self._sampler.skip_step()
            self._source = self._sampler.state_dict()

    def _begin(self, epoch: int) -> None:
        if self._maker is not None:
            self._maker.begin_epoch(epoch)
        elif self._sampler is not None:
            self._sampler.set_epoch(epoch)
        self._epoch, self._step = epoch, 0
        self._pending.clear()
        self._has_started = self._has_ended = False
        self._source = self._source_now()

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; not in the middle of one. The epoch that it is about to begin stays as it is.

        Raises:
            ArgumentError: in the middle of an epoch.
        """
        self._check_usable()
        check_int("epoch", epoch, minimum=0)
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
        if self._maker is not None and self._source is None:
            raise ArgumentError("this loader has no state: its source has no state_dict() and load_state_dict()")
        state = LoaderState(fingerprint=self._fingerprint, epoch=self._epoch, step=self._step, source=self._source)
        return state.to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where a state says; before the first batch is taken. Makes no call to other ranks: all do it.

        Raises:
            ArgumentError: batches were taken already, or the state does not fit; says why.
        """
        self._check_usable()
        if self._has_started:
            raise ArgumentError("load_state_dict must come before the first batch is taken")
        loaded = LoaderState.from_dict(state, self._fingerprint)
        if self._maker is not None:
            if loaded.source is None:
                raise ArgumentError(
                    "this rank needs the state of a rank that builds batches, the one given is of a rank that receives"
                )
            if loaded.source.get("epoch", loaded.epoch) != loaded.epoch:
                raise ArgumentError(
                    f"the state is of epoch {loaded.epoch}, its source of epoch {loaded.source['epoch']}"
                )
            self._maker.load_source_state(loaded.source)
        elif self._sampler is not None and loaded.source is not None:
            self._sampler.load_state_dict(loaded.source)
        self._epoch, self._step, self._source = loaded.epoch, loaded.step, loaded.source

    # ---- the end -------------------------------------------------------------------------------------------------

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise ArgumentError(f"this loader has failed: {type(self._failure).__name__}: {self._failure}")
        if not self._communicators:
            raise ArgumentError("this loader is closed")

    def close(self) -> None:
        """Give back its communicators; it cannot be used any more. Any number of times."""
        for communicator in self._communicators:
            communicator.close()
        self._communicators = ()
        self._pending.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
