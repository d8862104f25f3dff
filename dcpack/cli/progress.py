"""The progress bar of long commands; silent where standard error is no terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(what: str, *, unit: str, silent: bool = False) -> Iterator[Callable[[int], Callable[[], object]]]:
    """Yield a function that takes the number of units of work and returns what is called after each.

    Args:
        what: stands before the bar.
        unit: of the work.
        silent: no bar at all, for all ranks but one.

    Example:
        >>> with progress_bar("counting", unit="number") as progress:
        ...     done = progress(2)
        ...     _ = done(), done()
    """
    with tqdm(desc=what, unit=unit, disable=True if silent else None) as bar:

        def start(total: int) -> Callable[[], object]:
            bar.reset(total)
            return bar.update

        yield start
