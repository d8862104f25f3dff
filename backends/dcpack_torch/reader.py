"""Reading samples in order with the workers of `torch.utils.data.DataLoader`, which are processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch.utils.data import DataLoader

from dcpack._checks import check_int
from dcpack.comm.reader import Indexable

__all__ = ["read_with_workers"]


def read_with_workers(
    dataset: Indexable, indices: Iterable[int], *, num_workers: int = 0, **options: Any
) -> Iterator[Any]:
    """Yield ``dataset[i]`` for each i of `indices`, in their order, as it is: nothing is collated or converted.

    Args:
        dataset: with `num_workers` above 0, each worker has a copy of it.
        indices: may be endless; it is read only a little ahead.
        num_workers: processes that read ahead; 0 reads in this one, when a sample is asked for.
        options: further arguments of the `DataLoader`, such as ``prefetch_factor`` or ``timeout``.

    Raises:
        ArgumentError: `num_workers` is not a number of at least 0. Errors of the dataset come where its sample would.

    Example:
        >>> list(read_with_workers(["a", "b", "c"], [2, 0]))
        ['c', 'a']
    """
    num_workers = check_int("num_workers", num_workers, minimum=0)
    source: Any = dataset
    sampler: Any = indices
    loader = DataLoader(
        source, batch_size=None, sampler=sampler, num_workers=num_workers, collate_fn=_unchanged, **options
    )
    return iter(loader)


def _unchanged(sample: Any) -> Any:
    return sample
