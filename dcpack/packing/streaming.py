"""Packing of a stream of lengths that is too long to be looked at as a whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, count, islice
from typing import Any, Final, Self

import numpy as np

from dcpack._checks import Int64Array, as_lengths, check_int, exact_sum, frozen, list_offenders
from dcpack.errors import ArgumentError, InfeasibleError
from dcpack.packing.base import Bins, Packer
from dcpack.packing.groups import merge_groups

__all__ = ["StreamingPacker"]

_VERSION: Final = 1
_MOST: Final = 2**62
_Entry = tuple[int, int | None]
"""The length and the group of a sequence; no group where there are none."""


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
        groups_at: gives the group of each sequence from a position on, any whole numbers from 0; neighbours of one
            number share a bin. A window then ends before the group that it would cut. Groups whose sequences do not
            stand one after another are not seen as one across windows. None is no groups.

    Raises:
        ArgumentError: an argument of the wrong type or range, lengths in the stream that are no lengths, groups that
            end before the lengths, or a group that is longer than a window.
        InfeasibleError: sequences or groups of a window are over the capacity; all are named, sequences by their
            position in the stream.

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
        >>> pairs = [0, 0, 1, 1, 2]  # sequences of one pair share a bin
        >>> whole = {"packer": best_fit_decreasing, "groups_at": lambda at: pairs[at:]}
        >>> list(StreamingPacker(lambda at: lengths[at:], 10, **whole))
        [array([0, 1]), array([2, 3]), array([4])]
    """

    def __init__(
        self,
        open_at: Callable[[int], Iterable[int]],
        capacity: int,
        *,
        packer: Packer,
        window: int = 8192,
        max_sequences: int | None = None,
        groups_at: Callable[[int], Iterable[int]] | None = None,
    ) -> None:
        functions = {"open_at": open_at, "packer": packer}
        if groups_at is not None:
            functions["groups_at"] = groups_at
        if wrong := [f"{name} = {fn!r}" for name, fn in functions.items() if not callable(fn)]:
            raise ArgumentError(f"{', '.join(functions)} must be functions, got {list_offenders(wrong)}")
        self._open_at = open_at
        self._groups_at = groups_at
        self._capacity = check_int("capacity", capacity, minimum=1)
        self._packer = packer
        self._window = check_int("window", window, minimum=1, maximum=_MOST)
        if max_sequences is not None:
            max_sequences = check_int("max_sequences", max_sequences, minimum=1)
        self._max_sequences = max_sequences
        self._reader: Iterator[_Entry] | None = None
        self._ahead: list[_Entry] = []  # what the reader gave beyond the window
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
            ArgumentError: not such a state, one of another recipe (capacity, window, max_sequences, packer, groups),
                or the stream gives other lengths than it did.

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
            "groups": self._groups_at is not None,
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
        reader = self._open() if self._reader is None else self._reader
        self._reader = None  # opened again after a failure, as it may stand anywhere
        entries, ahead = self._take_window(reader)
        if not entries:
            raise StopIteration
        lengths = as_lengths(f"lengths from position {self._start} on", [length for length, _ in entries])
        if over := np.flatnonzero(lengths > self._capacity).tolist():
            listed = list_offenders([f"sequence {self._start + i} has {lengths[i]}" for i in over])
            text = "1 sequence is" if len(over) == 1 else f"{len(over)} sequences are"
            raise InfeasibleError(f"{text} longer than the capacity of {self._capacity} tokens: {listed}")
        filled = np.flatnonzero(lengths)
        bins = self._pack(lengths[filled], [entries[i][1] for i in filled.tolist()])
        self._bins = _in_order(bins, filled + self._start)
        self._num_read, self._num_tokens = lengths.size, exact_sum(lengths)
        self._reader, self._ahead = reader, ahead

    def _open(self) -> Iterator[_Entry]:
        """Read lengths, and groups where there are any, from the start of the window on."""
        self._ahead = []
        lengths = iter(self._open_at(self._start))
        if self._groups_at is None:
            return ((length, None) for length in lengths)
        return _in_pairs(lengths, iter(self._groups_at(self._start)), self._start)

    def _take_window(self, reader: Iterator[_Entry]) -> tuple[list[_Entry], list[_Entry]]:
        """Read a window, and with groups the sequence behind it, which may belong to its last group.

        Returns:
            What is in the window, and what was read beyond it.

        Raises:
            ArgumentError: a group that is longer than the window.
        """
        stream = chain(self._ahead, reader)
        entries = list(islice(stream, self._window))
        if self._groups_at is None:
            return entries, []
        beyond = list(islice(stream, 1))  # never more than a window is left over from the last one
        if not beyond or entries[-1][1] != beyond[0][1]:
            return entries, beyond
        end = len(entries)
        while end and entries[end - 1][1] == beyond[0][1]:
            end -= 1
        if end == 0:
            raise ArgumentError(
                f"window must hold every group whole, got {self._window}: from position {self._start} on group "
                f"{beyond[0][1]} has more sequences"
            )
        return entries[:end], entries[end:] + beyond

    def _pack(self, lengths: Int64Array, groups: list[Any]) -> Bins:
        """Pack what is not empty of a window, and check what the packer made of it."""
        if self._groups_at is None:
            bins = self._packer(lengths, self._capacity, max_sequences=self._max_sequences)
            _check_bins(bins, lengths, self._capacity, np.ones_like(lengths), self._max_sequences)
            return bins
        merged = merge_groups(lengths, groups, self._capacity, max_sequences=self._max_sequences)
        bins = self._packer(merged.lengths, self._capacity, max_sequences=self._max_sequences, sizes=merged.sizes)
        _check_bins(bins, merged.lengths, self._capacity, merged.sizes, self._max_sequences)
        return merged.apart(bins)


def _in_pairs(lengths: Iterator[int], groups: Iterator[int], start: int) -> Iterator[_Entry]:
    """Pair lengths with their groups; an error where one ends before the other."""
    for position in count(start):
        length, group = next(lengths, None), next(groups, None)
        if length is None and group is None:
            return
        if length is None or group is None:
            first, last = ("groups_at", "open_at") if group is None else ("open_at", "groups_at")
            raise ArgumentError(f"{first} must give as many as {last}, but ends at position {position}")
        yield length, group


def _in_order(bins: Bins, positions: Int64Array) -> list[Int64Array]:
    """Return the positions of each bin, ascending, the bin with the first of all first."""
    members = np.split(positions[bins.items], bins.offsets[1:-1]) if bins.num_bins else []
    return sorted((frozen(np.sort(each)) for each in members), key=lambda each: int(each[0]))


def _check_bins(bins: Any, lengths: Int64Array, capacity: int, sizes: Int64Array, max_sequences: int | None) -> None:
    """Refuse what a packer of the user's own got wrong: nothing may be lost or over a limit without a word."""
    if not isinstance(bins, Bins):
        raise ArgumentError(f"packer must return Bins, got {type(bins).__name__}")
    if not np.array_equal(np.sort(bins.items), np.arange(lengths.size)):
        raise ArgumentError(f"packer must give each of {lengths.size} items once, got {bins.items.size} items")
    loads = np.add.reduceat(lengths[bins.items], bins.offsets[:-1]) if bins.num_bins else np.zeros(0, np.int64)
    if over := np.flatnonzero(loads > capacity).tolist():
        texts = [f"bin {b} holds {loads[b]}" for b in over]
        raise ArgumentError(f"packer must keep the capacity of {capacity} tokens: {list_offenders(texts)}")
    counts = np.add.reduceat(sizes[bins.items], bins.offsets[:-1]) if bins.num_bins else np.zeros(0, np.int64)
    if max_sequences is not None and (full := np.flatnonzero(counts > max_sequences).tolist()):
        texts = [f"bin {b} holds {counts[b]}" for b in full]
        raise ArgumentError(f"packer must keep max_sequences = {max_sequences}: {list_offenders(texts)}")
