"""Arrays in memory, or memory-mapped by whoever made them, as a source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_lengths, frozen, list_offenders
from dcpack.data.base import TokenSource
from dcpack.errors import ArgumentError

__all__ = ["ArraySource"]


class ArraySource(TokenSource):
    """A source of token arrays: a list of them, or one flat array and the offsets that cut it. Nothing is copied.

    Args:
        tokens: one-dimensional integer arrays; with `offsets` one such array, sequences end to end.
        offsets: int64[n + 1]: sequence i is ``tokens[offsets[i] : offsets[i + 1]]``. Tokens before the first and
            behind the last belong to none.

    Raises:
        ArgumentError: an array that is not one-dimensional or holds no integers (all are named), or offsets that fall
            or lie outside the tokens.

    Example:
        >>> ArraySource([[1, 2, 3], [4]])[0]
        {'input_ids': array([1, 2, 3])}
        >>> source = ArraySource(np.arange(10, 16), offsets=[0, 2, 6])
        >>> source.lengths(), source[1]
        (array([2, 4]), {'input_ids': array([12, 13, 14, 15])})
    """

    def __init__(
        self, tokens: npt.NDArray[Any] | Sequence[npt.ArrayLike], *, offsets: npt.ArrayLike | None = None
    ) -> None:
        if offsets is not None:
            self._flat = _as_tokens({"tokens": tokens})[0]
            self._offsets = _check_offsets(offsets, self._flat.size)
            self._lengths = frozen(np.diff(self._offsets))
            self._arrays = None
            return
        if isinstance(tokens, np.ndarray) and tokens.ndim == 1:
            raise ArgumentError("offsets must say where the sequences of a flat array of tokens begin, got None")
        self._arrays = _as_tokens({f"tokens[{i}]": array for i, array in enumerate(tokens)})
        self._lengths = frozen(np.array([array.size for array in self._arrays], np.int64))

    def __len__(self) -> int:
        return self._lengths.size

    def lengths(self) -> Int64Array:
        """Return int64[n]: tokens of each sequence."""
        return self._lengths

    def _tokens(self, index: int) -> npt.NDArray[Any]:
        if self._arrays is not None:
            return self._arrays[index]
        return self._flat[self._offsets[index] : self._offsets[index + 1]]


def _as_tokens(arrays: Mapping[str, Any]) -> list[npt.NDArray[Any]]:
    result, wrong = [], []
    for name, values in arrays.items():
        try:
            array = np.asarray(values)
        except (ValueError, OverflowError) as error:
            raise ArgumentError(f"tokens must be one-dimensional arrays of integers: {name}: {error}") from error
        if array.size == 0 and array.ndim == 1:
            array = array.astype(np.int64) if array.dtype.kind not in "iu" else array
        if array.ndim != 1 or array.dtype.kind not in "iu":
            wrong.append(f"{name} has shape {array.shape} and dtype {array.dtype}")
        result.append(array)
    if wrong:
        raise ArgumentError(f"tokens must be one-dimensional arrays of integers: {list_offenders(wrong)}")
    return result


def _check_offsets(offsets: npt.ArrayLike, num_tokens: int) -> Int64Array:
    cuts = as_lengths("offsets", offsets)
    if cuts.size == 0 or cuts[-1] > num_tokens:
        raise ArgumentError(f"offsets must begin each sequence and end within the {num_tokens} tokens, got {cuts}")
    if (falls := np.flatnonzero(cuts[1:] < cuts[:-1])).size:
        listed = list_offenders([f"offsets[{i + 1}] = {cuts[i + 1]} after {cuts[i]}" for i in falls.tolist()])
        raise ArgumentError(f"offsets must not fall: {listed}")
    return cuts
