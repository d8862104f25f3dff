"""What can be plugged into the loader: where indices or steps come from, and a policy for which sample goes where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from dcpack.loader.types import PackingConstraints, SampleMetadata, WorkloadCost

__all__ = ["BalancingAlgorithm", "BatchSampler", "ExternalStepSource"]


class BalancingAlgorithm(Protocol):
    """A policy of one's own for which sample goes where.

    It only proposes. The loader checks that every sample is in one row, that no row is empty or breaks a limit, and
    keeps the placement as it was unless the objective falls by more than `min_balance_gain`.

    Example:
        >>> class Backwards:
        ...     def assign(self, samples, *, reference_bins, constraints, data_parallel_size, local_batch_size):
        ...         return list(reference_bins)[::-1]
        ...     def objective(self, rank_costs):
        ...         return max(cost.llm for cost in rank_costs)
        >>> algorithm: BalancingAlgorithm = Backwards()
        >>> algorithm.objective([WorkloadCost(llm=3.0), WorkloadCost(llm=5.0)])
        5.0
    """

    def assign(
        self,
        samples: Sequence[SampleMetadata],
        *,
        reference_bins: Sequence[Sequence[int]],
        constraints: PackingConstraints,
        data_parallel_size: int,
        local_batch_size: int,
    ) -> Sequence[Sequence[int]]:
        """Return ``data_parallel_size * local_batch_size`` rows of indices into `samples`, rank after rank.

        Args:
            samples: of the window, in global order; each has its `key`, and its `cost` as the cost model says.
            reference_bins: the rows as they are, rank after rank.
            constraints: what every row must keep.
            data_parallel_size: ranks.
            local_batch_size: rows of each rank in the window, micro-batch after micro-batch.
        """
        ...

    def objective(self, rank_costs: Sequence[WorkloadCost]) -> float:
        """Return what should be small, given the cost of each rank over the window: finite and at least 0."""
        ...


@runtime_checkable
class ExternalStepSource(Protocol):
    """Where steps come from that some other loader has put together already.

    Each item is one optimizer step of this rank: `local_batch_size` rows, each a sequence of at least one sample.
    Optional: ``set_epoch(epoch)``; ``state_dict()`` and ``load_state_dict(state)``, without which the loader has no
    state either; ``__len__()``, steps in an epoch.

    Example:
        >>> isinstance([[[{"input_ids": [1]}], [{"input_ids": [2]}]]], ExternalStepSource)     # a step of two rows
        True
    """

    def __iter__(self) -> Iterator[Sequence[Sequence[Any]]]:
        """Return the steps."""
        ...


@runtime_checkable
class BatchSampler(Protocol):
    """What the loader asks of a batch sampler: each yield is the dataset indices of one micro-batch of this rank.

    Beside the members below it may say ``dp_rank``, ``dp_world_size``, ``micro_batch_size`` and ``drop_last``; what it
    says must agree with the loader.

    All its numbers are over all ranks; each yield adds one `global_micro_batch_size` to `consumed_samples`.

    Example:
        >>> import dcpack
        >>> place = {"dp_rank": 0, "dp_world_size": 2, "micro_batch_size": 2}
        >>> isinstance(dcpack.GlobalBatchSampler(8, global_batch_size=4, **place), BatchSampler)
        True
    """

    @property
    def epoch(self) -> int:
        """The current epoch."""
        ...

    @property
    def consumed_samples(self) -> int:
        """Samples handed out so far."""
        ...

    @property
    def global_batch_size(self) -> int:
        """Samples of one optimizer step."""
        ...

    @property
    def global_micro_batch_size(self) -> int:
        """Samples of one micro-batch."""
        ...

    def __iter__(self) -> Iterator[Sequence[int]]:
        """Return the rest of the epoch."""
        ...

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """Return where it is."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go there."""
        ...
