"""Grain and the loader: Grain's datasets as its sources, and the loader as one of Grain's datasets.

A `grain.MapDataset` has samples by number and a length, so it is a ``dataset`` of `build_distributed_dataloader` as it
is. An `IterDataset` has an order of its own: `GrainSteps` makes it an ``external_step_source``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Self

import grain

from dcpack._checks import check_int
from dcpack.errors import ArgumentError
from dcpack.loader import DistributedDataLoader, LoaderBatch

__all__ = ["GrainSteps", "LoaderDataset"]

_STATE_KEYS = {"loader", "delivered"}


class GrainSteps:
    """Optimizer steps out of a Grain dataset, for ``external_step_source``: a row is one element.

    What this rank shall read is said in Grain, as by ``dataset[rank::num_ranks]``. What filters left out (None) is
    skipped.

    Args:
        dataset: an `IterDataset` or `MapDataset`; each epoch iterates it from its start, in its order.
        local_batch_size: elements of a step on this rank: that of the loader's configuration.

    Attributes:
        num_dropped: elements behind the last whole step, over all epochs so far. The loader counts the steps that it
            drops; where another rank ends first, what was not taken yet is counted nowhere.

    Raises:
        ArgumentError: something else than a dataset of Grain.

    Example:
        >>> steps = GrainSteps(grain.MapDataset.range(5), local_batch_size=2)
        >>> list(steps), steps.num_dropped
        ([[[0], [1]], [[2], [3]]], 1)
    """

    def __init__(self, dataset: grain.IterDataset[Any] | grain.MapDataset[Any], *, local_batch_size: int) -> None:
        if isinstance(dataset, grain.MapDataset):
            dataset = dataset.to_iter_dataset()
        if not isinstance(dataset, grain.IterDataset):
            raise ArgumentError(f"dataset must be an IterDataset or MapDataset of Grain, got {type(dataset).__name__}")
        self._dataset = dataset
        self._local_batch_size = check_int("local_batch_size", local_batch_size, minimum=1)
        self._iterator = iter(dataset)
        self.num_dropped = 0

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of the dataset, whatever the number of the epoch."""
        check_int("epoch", epoch, minimum=0)
        self._iterator = iter(self._dataset)

    def __iter__(self) -> Iterator[list[list[Any]]]:
        """Return the steps from where it is."""
        while len(rows := [[element] for element in islice(self._iterator, self._local_batch_size)]) > 0:
            if len(rows) < self._local_batch_size:
                self.num_dropped += len(rows)
                return
            yield rows

    def state_dict(self) -> dict[str, Any]:
        """Return Grain's state, behind the steps that were taken."""
        return {"iterator": self._iterator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go where a state says."""
        if set(state) != {"iterator"}:
            raise ArgumentError(f"state must be one of GrainSteps.state_dict(), got {state!r}")
        self._iterator = iter(self._dataset)
        self._iterator.set_state(state["iterator"])


class LoaderDataset(grain.IterDataset[LoaderBatch]):
    """A loader as a Grain dataset, whose elements are `LoaderBatch`; ``.map(lambda batch: batch.data)`` takes the data.

    All ranks iterate alike, and ``iter``, ``next`` and ``set_state`` are calls that all make: put no ``mp_prefetch``
    behind it, as the processes that it starts are no ranks.

    Unlike a state of the loader, one of its iterator is exact inside a step too: that step is made again, and what was
    delivered of it is passed over. So such a state must be restored on as many ranks and with the same windows; what
    comes out otherwise is compared, and refused. A state between steps fits wherever the loader's fits.

    Args:
        build: makes the loader; called by each ``iter`` and ``set_state``.
        num_epochs: after which an iterator ends; None: never.

    Example:
        >>> import dcpack
        >>> def build():
        ...     return dcpack.build_distributed_dataloader(
        ...         [{"input_ids": [i] * 3} for i in range(4)], dcpack.Topology.of_domain(1),
        ...         {"seq_len": 8, "local_batch_size": 1, "communication_backend": "fake"},
        ...         metadata_fn=lambda sample: dcpack.SampleMetadata(pack_tokens=3),
        ...         batch_sampler=dcpack.GlobalBatchSampler(4, global_batch_size=2, shuffle=False))
        >>> dataset = LoaderDataset(build).map(lambda batch: batch.sample_ids.tolist())
        >>> first = iter(dataset)
        >>> next(first), next(first), next(first)
        ([0], [1], [2])
        >>> second = iter(dataset)
        >>> second.set_state(first.get_state())
        >>> list(second)
        [[3]]
    """

    def __init__(self, build: Callable[[], DistributedDataLoader], *, num_epochs: int | None = 1) -> None:
        super().__init__()
        if not callable(build):
            raise ArgumentError(f"build must be a function that makes a loader, got {build!r}")
        self._build = build
        self._num_epochs = None if num_epochs is None else check_int("num_epochs", num_epochs, minimum=1)

    def __iter__(self) -> _LoaderIterator:
        return _LoaderIterator(self._build, self._num_epochs)


class _LoaderIterator(grain.DatasetIterator[LoaderBatch]):
    def __init__(self, build: Callable[[], DistributedDataLoader], num_epochs: int | None) -> None:
        super().__init__()
        self._build = build
        self._num_epochs = num_epochs
        self._loader = build()
        self._delivered: list[list[int]] = []  # of the step that it is in

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> LoaderBatch:
        self._assert_not_closed()
        while (batch := next(self._loader, None)) is None:
            is_over = self._num_epochs is not None and self._loader.epoch + 1 >= self._num_epochs
            if is_over or self._loader.step == 0:  # an epoch without steps: so are all
                raise StopIteration
            iter(self._loader)
        self._delivered = [] if batch.is_last else [*self._delivered, batch.sample_ids.tolist()]
        return batch

    def get_state(self) -> dict[str, Any]:
        return {"loader": self._loader.state_dict(), "delivered": [list(ids) for ids in self._delivered]}

    def set_state(self, state: dict[str, Any]) -> None:
        self._assert_not_closed()
        if not isinstance(state, Mapping) or set(state) != _STATE_KEYS:
            raise ArgumentError(f"state must be one of get_state(), with {sorted(_STATE_KEYS)}, got {state!r}")
        self._loader.close()
        self._loader = self._build()
        self._loader.load_state_dict(state["loader"])
        self._delivered = []
        for number, then in enumerate(state["delivered"]):
            now = next(self).sample_ids.tolist()
            if now != list(then):
                self.close()
                raise ArgumentError(
                    f"the state was saved inside step {state['loader']['step']}, whose micro-batch {number} had "
                    f"samples {then} on this rank and has {now} now: restore it on as many ranks and with the same "
                    "planning, or one that was saved between steps"
                )

    def close(self) -> None:
        self._loader.close()
        super().close()
