"""What a source of samples is: map-style, and able to tell all lengths before any sample is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import numpy.typing as npt

from dcpack._checks import Int64Array, check_int

__all__ = ["DataSource", "TokenSource"]


@runtime_checkable
class DataSource(Protocol):
    """What the loader asks of a source. Any object with these three methods serves; there is no need to inherit.

    Example:
        >>> from dcpack.data import ArraySource
        >>> isinstance(ArraySource([[1, 2]]), DataSource)
        True
    """

    def __len__(self) -> int:
        """Return the number of samples."""
        ...

    def __getitem__(self, index: int, /) -> Mapping[str, npt.NDArray[Any]]:
        """Return sample `index` (from 0): its fields by name, ``input_ids`` [length] at least."""
        ...

    def lengths(self) -> Int64Array:
        """Return int64[n]: the tokens of each sample. Reads no tokens where the format allows that."""
        ...


class TokenSource(ABC):
    """Base class of sources whose samples are token arrays and nothing else.

    A subclass says how many there are, how long each is, and gives the tokens of one.

    Example:
        >>> import numpy as np
        >>> class Countdown(TokenSource):
        ...     def __len__(self):
        ...         return 3
        ...     def lengths(self):
        ...         return np.arange(3)
        ...     def _tokens(self, index):
        ...         return np.arange(index)[::-1]
        >>> Countdown()[2]
        {'input_ids': array([1, 0])}
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of samples."""

    @abstractmethod
    def lengths(self) -> Int64Array:
        """Return int64[n]: the tokens of each sample."""

    @abstractmethod
    def _tokens(self, index: int) -> npt.NDArray[Any]:
        """Return the tokens of one sample; `index` is within range."""

    def __getitem__(self, index: int, /) -> dict[str, npt.NDArray[Any]]:
        """Return ``{"input_ids": tokens}`` of sample `index`.

        Raises:
            ArgumentError: `index` is no whole number from 0 to ``len(self) - 1``.
        """
        number = check_int("index", index, minimum=0, maximum=len(self) - 1)
        return {"input_ids": self._tokens(number)}

    def __iter__(self) -> Iterator[dict[str, npt.NDArray[Any]]]:
        return (self[index] for index in range(len(self)))
