"""Packing of a stream of lengths that is too long to be looked at as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any, Final, Self

import numpy as np

from dcpack._checks import Int64Array, as_lengths, check_int, frozen, list_offenders
from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.packing.base import Bins, Packer

__all__ = ["StreamingPacker"]

_VERSION: Final = 1
_MOST: Final = 2**62


class StreamingPacker:
    """Reads a window of lengths, packs it, delivers its bins, and goes on with the next window.

    Memory is that of one window, however long the stream. The order of arrival is kept up to the window: all sequences
    of a window come before all of the next one, and inside a window bins come in the order of their first sequences.
    The last bins of a window are not filled from the next one, so a window should hold many bins.

    The state is a recipe to replay and not a copy of what is pending: where the window starts, and how many of its bins
    were delivered. After a resume the window is read and packed again.

    Args:
        open_at: gives the lengths of the stream from a position on, in padded tokens; called for the start, and again
            after `load_state_dict`. A sequence of length 0 ends in no bin.
        capacity: padded tokens that a bin holds at most.
        packer: packs a window; any of `dcpack.packing.PACKERS`, or your own.
        window: sequences that are read and packed together, at least 1.
        max_sequences: sequences that a bin holds at most; None is no limit.

    Raises:
        ArgumentError: an argument of the wrong type or range, or lengths in the stream that are no lengths.
        InfeasibleError: sequences of a window are over the capacity; all are named by their position in the stream.

    Example:
        >>> from dcpack.packing import best_fit_decreasing
        >>> lengths = [6, 3, 6, 4, 5]
        >>> packer = StreamingPacker(lambda at: lengths[at:], 10, packer=best_fit_decreasing, window=4)
        >>> next(packer)
        array([0, 3])
        >>> state = packer.state_dict()
        >>> again = StreamingPacker(lambda at: lengths[at:], 10, packer=best_fit_decreasing, window=4)
        >>> again.load_state_dict(state)
        >>> list(again)
        [array([1, 2]), array([4])]
    """

    def __init__(
        self,
        open_at: Callable[[int], Iterable[int]],
        capacity: int,
        *,
        packer: Packer,
        window: int = 8192,
        max_sequences: int | None = None,
    ) -> None:
        if wrong := [f"{name} = {fn!r}" for name, fn in (("open_at", open_at), ("packer", packer)) if not callable(fn)]:
            raise ArgumentError(f"open_at and packer must be functions, got {list_offenders(wrong)}")
        self._open_at = open_at
        self._capacity = check_int("capacity", capacity, minimum=1)
        self._packer = packer
        self._window = check_int("window", window, minimum=1, maximum=_MOST)
        if max_sequences is not None:
            max_sequences = check_int("max_sequences", max_sequences, minimum=1)
        self._max_sequences = max_sequences
        self._reader: Iterator[int] | None = None
        self._stand_at(0)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Int64Array:
        """Return the positions of the sequences of the next bin, int64[k], ascending."""
        while self._delivered == len(self._bins):
            self._stand_at(self._start + self._num_read)
            self._read_window()
        self._delivered += 1
        return self._bins[self._delivered - 1]

    def state_dict(self) -> dict[str, Any]:
        """Return where the packer stands: JSON-able, the same few whole numbers at any time.

        Example:
            >>> from dcpack.packing import next_fit
            >>> StreamingPacker(lambda at: [6, 6][at:], 10, packer=next_fit, window=9).state_dict()["window_start"]
            0
        """
        return {
            "version": _VERSION,
            **self._recipe(),
            "window_start": self._start,
            "window_tokens": self._num_tokens,
            "bins_delivered": self._delivered,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state: the next bin is the one that followed when it was saved.

        Args:
            state: what `state_dict` gave.

        Raises:
            ArgumentError: not such a state, one of another recipe (capacity, window, max_sequences, packer), or the
                stream gives other lengths than it did.

        Example:
            >>> from dcpack.packing import next_fit
            >>> one = StreamingPacker(lambda at: [6, 6][at:], 10, packer=next_fit)
            >>> other = StreamingPacker(lambda at: [6, 6][at:], 12, packer=next_fit)
            >>> other.load_state_dict(one.state_dict())
            Traceback (most recent call last):
            ...
            dcpack.errors.ArgumentError: state has capacity = 10, but here it is 12
        """
        here = {"version": _VERSION, **self._recipe()}
        numbers = ("window_start", "window_tokens", "bins_delivered")
        if not isinstance(state, dict) or set(state) != {*here, *numbers}:
            found = sorted(map(str, state)) if isinstance(state, dict) else type(state).__name__
            raise ArgumentError(f"state must have the keys {sorted((*here, *numbers))}, got {found}")
        strangers = [k for k, v in here.items() if type(state[k]) is not type(v) or state[k] != v]
        if other := [f"{k} = {state[k]!r}, but here it is {here[k]!r}" for k in strangers]:
            raise ArgumentError(f"state has {list_offenders(other)}")
        start, tokens, delivered = (check_int(name, state[name], minimum=0, maximum=_MOST) for name in numbers)
        before = self.__dict__.copy()
        self._reader = None
        self._stand_at(start)
        if delivered:
            try:
                self._replay(tokens, delivered)
            except BaseException:
                self.__dict__.update(before)  # a state that is refused changes nothing
                self._reader = None  # but the stream may stand anywhere
                raise

    def _stand_at(self, position: int) -> None:
        """Stand before the window that starts there, nothing of it read yet."""
        self._start = position
        self._num_read = 0  # sequences of the window
        self._num_tokens = 0  # and their tokens
        self._bins: list[Int64Array] = []
        self._delivered = 0  # how many of them were

    def _recipe(self) -> dict[str, Any]:
        return {
            "capacity": self._capacity,
            "window": self._window,
            "max_sequences": self._max_sequences,
            "packer": getattr(self._packer, "__name__", type(self._packer).__name__),
        }

    def _replay(self, tokens: int, delivered: int) -> None:
        """Read and pack the window again, and stand behind the bins of it that were delivered."""
        try:
            self._read_window()
        except StopIteration:
            pass  # then it has no tokens, which is said below
        if self._num_tokens != tokens or delivered > len(self._bins):
            raise ArgumentError(
                f"the stream has changed: from position {self._start} on the window had {tokens} tokens and at least "
                f"{delivered} bins, now it has {self._num_tokens} tokens and {len(self._bins)} bins"
            )
        self._delivered = delivered

    def _read_window(self) -> None:
        """Read and pack the window at `_start`; StopIteration where the stream ends there."""
        reader = iter(self._open_at(self._start)) if self._reader is None else self._reader
        self._reader = None  # opened again after a failure, as it may stand anywhere
        lengths = as_lengths(f"lengths from position {self._start} on", list(islice(reader, self._window)))
        if lengths.size == 0:
            raise StopIteration
        if over := np.flatnonzero(lengths > self._capacity).tolist():
            listed = list_offenders([f"sequence {self._start + i} has {lengths[i]}" for i in over])
            text = "1 sequence is" if len(over) == 1 else f"{len(over)} sequences are"
            raise InfeasibleError(f"{text} longer than the capacity of {self._capacity} tokens: {listed}")
        filled = np.flatnonzero(lengths)
        bins = self._packer(lengths[filled], self._capacity, max_sequences=self._max_sequences)
        _check_bins(bins, lengths[filled], self._capacity)
        self._bins = _in_order(bins, filled + self._start)
        self._num_read, self._num_tokens, self._reader = lengths.size, int(lengths.sum()), reader


def _in_order(bins: Bins, positions: Int64Array) -> list[Int64Array]:
    """Return the positions of each bin, ascending, the bin with the first of all first."""
    members = np.split(positions[bins.items], bins.offsets[1:-1]) if bins.num_bins else []
    return sorted((frozen(np.sort(each)) for each in members), key=lambda each: int(each[0]))


def _check_bins(bins: Any, lengths: Int64Array, capacity: int) -> None:
    """Refuse what a packer of the user's own got wrong: nothing may be lost or over the capacity without a word."""
    if not isinstance(bins, Bins):
        raise ArgumentError(f"packer must return Bins, got {type(bins).__name__}")
    if not np.array_equal(np.sort(bins.items), np.arange(lengths.size)):
        raise ArgumentError(f"packer must give each of {lengths.size} items once, got {bins.items.size} items")
    loads = np.add.reduceat(lengths[bins.items], bins.offsets[:-1]) if bins.num_bins else np.zeros(0, np.int64)
    if over := np.flatnonzero(loads > capacity).tolist():
        texts = [f"bin {b} holds {loads[b]}" for b in over]
        raise ArgumentError(f"packer must keep the capacity of {capacity} tokens: {list_offenders(texts)}")
