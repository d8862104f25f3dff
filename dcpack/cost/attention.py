"""Attention patterns: how many (query, key) pairs a sequence of a given length has.

A pattern is any function from lengths (int64[n]) to pairs (float64[n]). The four usual ones have names, so that they
can stand in a file or on a command line. Pairs are exact up to 2**53 and correctly rounded to within one unit in the
last place beyond.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Float64Array, Int64Array, as_array, as_integers, check_int, list_offenders
from dcpack.cost.checks import as_token_counts
from dcpack.errors import ArgumentError

__all__ = [
    "AttentionPattern",
    "Chunked",
    "SlidingWindow",
    "attention_name",
    "causal_pairs",
    "count_pairs",
    "full_pairs",
    "get_attention",
    "named_if_known",
]

AttentionPattern = Callable[[Int64Array], npt.NDArray[Any]]
"""A vectorised function: lengths, int64[n] -> pairs, float64[n]."""


def causal_pairs(lengths: Int64Array) -> Float64Array:
    """Return float64[n], ``s * (s + 1) / 2``: every token attends to itself and all tokens before it.

    Args:
        lengths: int64[n], tokens.

    Example:
        >>> causal_pairs(np.array([1, 4])).tolist()
        [1.0, 10.0]
    """
    s = as_integers("lengths", lengths).astype(np.float64)
    return s * (s + 1) / 2


def full_pairs(lengths: Int64Array) -> Float64Array:
    """Return float64[n], ``s * s``: every token attends to all tokens (encoders, diffusion).

    Args:
        lengths: int64[n], tokens.

    Example:
        >>> full_pairs(np.array([1, 4])).tolist()
        [1.0, 16.0]
    """
    return np.square(as_integers("lengths", lengths).astype(np.float64))


@dataclass(frozen=True, slots=True)
class SlidingWindow:
    """Causal attention to at most `window` tokens, the token itself among them: ``m(m+1)/2 + (s-m) * window``.

    ``m = min(s, window)``: the first m tokens see all tokens before them, each later one sees `window`.

    Args:
        window: tokens that a token attends to at most, at least 1.

    Example:
        >>> SlidingWindow(3)(np.array([2, 5])).tolist()  # 1 + 2, and 1 + 2 + 3 + 3 + 3
        [3.0, 12.0]
    """

    window: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "window", check_int("window", self.window, minimum=1))

    def __call__(self, lengths: Int64Array) -> Float64Array:
        """Return float64[n]: the pairs of sequences of `lengths` (int64[n])."""
        s = np.asarray(lengths, np.float64)
        head = np.minimum(s, self.window)
        return head * (head + 1) / 2 + (s - head) * self.window


@dataclass(frozen=True, slots=True)
class Chunked:
    """Causal attention inside chunks of `chunk` tokens: ``k * c(c+1)/2 + r(r+1)/2`` for ``s = k*c + r``.

    Args:
        chunk: tokens of a chunk, at least 1.

    Example:
        >>> Chunked(3)(np.array([2, 5])).tolist()  # 1 + 2, and (1 + 2 + 3) + (1 + 2)
        [3.0, 9.0]
    """

    chunk: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "chunk", check_int("chunk", self.chunk, minimum=1))

    def __call__(self, lengths: Int64Array) -> Float64Array:
        """Return float64[n]: the pairs of sequences of `lengths` (int64[n])."""
        whole, rest = np.divmod(np.asarray(lengths, np.int64), self.chunk)
        return whole * causal_pairs(np.array(self.chunk)) + causal_pairs(rest)


_PLAIN: dict[str, AttentionPattern] = {"causal": causal_pairs, "full": full_pairs}
_SIZED: dict[str, Callable[[int], AttentionPattern]] = {"sliding_window": SlidingWindow, "chunked": Chunked}


def get_attention(pattern: str | AttentionPattern) -> AttentionPattern:
    """Return the function behind a name: ``"causal"``, ``"full"``, ``"sliding_window:4096"``, ``"chunked:8192"``.

    A function is returned as it is.

    Args:
        pattern: a name, or a function from lengths (int64[n]) to pairs (float64[n]).

    Raises:
        ArgumentError: an unknown name, or a size that is none.

    Example:
        >>> get_attention("sliding_window:4096")
        SlidingWindow(window=4096)
        >>> get_attention("diagonal")
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: attention must be 'causal', 'full', 'sliding_window:N', 'chunked:N' or a \
function, got 'diagonal'
    """
    if callable(pattern):
        return pattern
    if isinstance(pattern, str):
        name, _, size = pattern.partition(":")
        if pattern in _PLAIN:
            return _PLAIN[pattern]
        if name in _SIZED and size.isascii() and size.isdigit():
            return _SIZED[name](int(size))
    known = [*map(repr, _PLAIN), *(repr(f"{name}:N") for name in _SIZED)]
    raise ArgumentError(f"attention must be {', '.join(known)} or a function, got {pattern!r}")


def attention_name(pattern: AttentionPattern) -> str:
    """Return the name that `get_attention` turns into `pattern`.

    Raises:
        ArgumentError: a function of the user's own, which no file can hold.

    Example:
        >>> attention_name(causal_pairs), attention_name(Chunked(8192))
        ('causal', 'chunked:8192')
    """
    for name, function in _PLAIN.items():
        if pattern is function:
            return name
    if isinstance(pattern, SlidingWindow):
        return f"sliding_window:{pattern.window}"
    if isinstance(pattern, Chunked):
        return f"chunked:{pattern.chunk}"
    raise ArgumentError(f"attention {pattern!r} is a function of your own and cannot be written to a file")


def named_if_known(pattern: AttentionPattern) -> str | AttentionPattern:
    """Return the name of `pattern` where it has one, so that equal patterns compare and print alike.

    Example:
        >>> named_if_known(SlidingWindow(3)), named_if_known(len) is len
        ('sliding_window:3', True)
    """
    named = pattern is causal_pairs or pattern is full_pairs or isinstance(pattern, SlidingWindow | Chunked)
    return attention_name(pattern) if named else pattern


def count_pairs(pattern: AttentionPattern, lengths: Any) -> Float64Array:
    """Return float64[n]: the pairs of sequences of `lengths` (int64[n]), after a look at what the pattern returned.

    Raises:
        ArgumentError: the pattern returned another shape, or values that are no counts (all are named).

    Example:
        >>> count_pairs(lambda s: -s, np.array([0, 3]))
        Traceback (most recent call last):
        ...
        dcpack.errors.ArgumentError: attention must return finite counts of at least 0: length 3 gave -3.0
    """
    checked = as_token_counts("padded_lengths", lengths)
    counted = as_array("what attention returned", pattern(checked))
    if counted.dtype.kind not in "iuf":
        raise ArgumentError(f"attention must return counts, got {counted.dtype}")
    pairs = counted.astype(np.float64)
    if pairs.shape != checked.shape:
        raise ArgumentError(f"attention must return one count a sequence, shape {checked.shape}, got {pairs.shape}")
    if bad := np.flatnonzero(~np.isfinite(pairs) | (pairs < 0)).tolist():
        listed = list_offenders([f"length {checked[i]} gave {pairs[i]}" for i in bad])
        raise ArgumentError(f"attention must return finite counts of at least 0: {listed}")
    return pairs
