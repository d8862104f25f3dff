"""Reading samples in order with the workers of `torch.utils.data.DataLoader`, which are processes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader

from dcpack._checks import check_items
from dcpack.comm.reader import Indexable, check_reader, read_in_order

__all__ = ["WorkerReader", "read_with_workers"]


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
    return iter(_data_loader(dataset, check_items("indices", indices), num_workers=num_workers, **options))


class WorkerReader:
    """Reads as `read_with_workers` does, any number of times; the workers are started once.

    They are started with the first reading, and end when it is collected. One reading must have ended before the next
    begins.

    Args:
        dataset: as in `read_with_workers`; workers know it as it is when they start.
        num_workers: as there.
        options: as there; workers that are to end after each reading (``persistent_workers=False``) do.

    Example:
        >>> read = WorkerReader(["a", "b", "c"])
        >>> list(read([2, 0])), list(read([1]))
        (['c', 'a'], ['b'])
    """

    def __init__(self, dataset: Indexable, *, num_workers: int = 0, **options: Any) -> None:
        self._dataset = dataset
        self._reads_here = not num_workers and not options.get("pin_memory")
        self._indices: list[int] = []
        if num_workers:
            options = {"persistent_workers": True, **options}
        self._loader = _data_loader(dataset, self._indices, num_workers=num_workers, **options)

    def __call__(self, indices: Sequence[int]) -> Iterator[Any]:
        """Return an iterator over ``dataset[i]`` for each i of `indices`."""
        if self._reads_here:  # as the DataLoader would, but for what each of its steps costs
            return read_in_order(self._dataset, indices)
        self._indices[:] = indices
        return iter(self._loader)


def _data_loader(dataset: Indexable, indices: Iterable[int], *, num_workers: int, **options: Any) -> DataLoader[Any]:
    num_workers = check_reader(dataset, num_workers)
    source: Any = dataset
    sampler: Any = indices
    return DataLoader(
        source, batch_size=None, sampler=sampler, num_workers=num_workers, collate_fn=_unchanged, **options
    )


def _unchanged(sample: Any) -> Any:
    return sample
