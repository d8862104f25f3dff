"""Reading samples in order, in this thread or ahead of it in others."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Protocol

from dcpack._checks import check_int, check_items
from dcpack.errors import ArgumentError

__all__ = ["Indexable", "read_in_order"]

# Samples in flight for each worker: one being read, one waiting.
_DEPTH = 2


MAX_WORKERS = 2**12
"""Most threads that read ahead."""


class Indexable(Protocol):
    """Anything with samples by number."""

    def __getitem__(self, index: int, /) -> Any: ...


def read_in_order(dataset: Indexable, indices: Iterable[int], *, num_workers: int = 0) -> Iterator[Any]:
    """Yield ``dataset[i]`` for each i of `indices`, in their order.

    Args:
        dataset: thread-safe if `num_workers` is above 0.
        indices: may be endless; it is read only a little ahead.
        num_workers: threads that read ahead; 0 reads when a sample is asked for.

    Raises:
        ArgumentError: `num_workers` is not a number of at least 0. Errors of the dataset come where its sample would.

    Example:
        >>> list(read_in_order(["a", "b", "c"], [2, 0], num_workers=2))
        ['c', 'a']
    """
    num_workers = check_reader(dataset, num_workers)
    indices = check_items("indices", indices)
    if num_workers == 0:
        return (dataset[index] for index in indices)
    return _read_ahead(dataset, indices, num_workers)


def check_reader(dataset: Any, num_workers: Any) -> int:
    """Return `num_workers` if they can read from `dataset`.

    Example:
        >>> check_reader(["a"], 2)
        2
    """
    if not hasattr(dataset, "__getitem__"):
        raise ArgumentError(f"dataset must give dataset[i], got {type(dataset).__name__}")
    return check_int("num_workers", num_workers, minimum=0, maximum=MAX_WORKERS)


def _read_ahead(dataset: Indexable, indices: Iterator[int], num_workers: int) -> Iterator[Any]:
    pool = ThreadPoolExecutor(num_workers, thread_name_prefix="dcpack-reader")
    try:
        pending: deque[Future[Any]] = deque()
        for index in islice(indices, _DEPTH * num_workers):
            pending.append(pool.submit(dataset.__getitem__, index))
        while pending:
            sample = pending.popleft().result()
            for index in islice(indices, 1):
                pending.append(pool.submit(dataset.__getitem__, index))
            yield sample
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
