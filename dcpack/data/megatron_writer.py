"""Writing Megatron-Core's indexed datasets, for tests, benchmarks and conversions."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_array, as_lengths, check_items, check_path, list_offenders
from dcpack.data.megatron import HEADER, MAGIC, MEGATRON_DTYPES, VERSION, split_prefix
from dcpack.data.values import CHUNK
from dcpack.errors import ArgumentError

__all__ = ["write_megatron_idx", "write_megatron_index"]

_MAX_INT32 = int(np.iinfo(np.int32).max)


def write_megatron_index(
    path_prefix: str | Path,
    sequences: Iterable[npt.ArrayLike],
    dtype: npt.DTypeLike,
    *,
    document_bounds: npt.ArrayLike | None = None,
) -> tuple[Path, Path]:
    """Write sequences as ``<path_prefix>.bin`` and ``<path_prefix>.idx``.

    Args:
        path_prefix: path of both files without their endings.
        sequences: one-dimensional arrays of tokens; written one by one, so a generator needs no memory.
        dtype: of the tokens in the file, one of `MEGATRON_DTYPES`.
        document_bounds: int[d], from 0 up to the number of sequences; None makes each sequence a document.

    Returns:
        The ``.idx`` and the ``.bin`` file.

    Raises:
        ArgumentError: a dtype without a code, a sequence that is not one-dimensional, or a token that `dtype` cannot
            hold.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     idx_file, bin_file = write_megatron_index(f"{folder}/corpus", [[7, 8, 9], [5]], dtype=np.uint16)
        ...     idx_file.stat().st_size, bin_file.read_bytes().hex()
        (82, '0700080009000500')
    """
    code = _code_of(dtype)
    items = check_items("sequences", sequences)
    idx_file, bin_file = split_prefix(path_prefix)
    lengths = array("q")
    with bin_file.open("wb") as stream:
        for number, sequence in enumerate(items):
            tokens = _convert(sequence, MEGATRON_DTYPES[code], number)
            stream.write(tokens.tobytes())
            lengths.append(tokens.size)
    write_megatron_idx(idx_file, np.array(lengths, np.int64), dtype, document_bounds=document_bounds)
    return idx_file, bin_file


def write_megatron_idx(
    path: str | Path, lengths: npt.ArrayLike, dtype: npt.DTypeLike, *, document_bounds: npt.ArrayLike | None = None
) -> None:
    """Write an ``.idx`` file alone, for sequences that lie end to end in their ``.bin`` file.

    Args:
        path: the file.
        lengths: int[n], tokens of each sequence.
        dtype: of the tokens, one of `MEGATRON_DTYPES`.
        document_bounds: int[d], from 0 up to n; None makes each sequence a document.

    Raises:
        ArgumentError: a dtype without a code, a length that is negative or beyond int32, or bounds out of order.

    Example:
        >>> import tempfile
        >>> from dcpack.data import read_lengths
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     write_megatron_idx(f"{folder}/a.idx", [3, 1], dtype=np.int32)
        ...     read_lengths(f"{folder}/a.idx").tolist()
        [3, 1]
    """
    code = _code_of(dtype)
    table = as_lengths("lengths", lengths)
    if (over := np.flatnonzero(table > _MAX_INT32)).size:
        listed = list_offenders([f"lengths[{i}] = {table[i]}" for i in over.tolist()])
        raise ArgumentError(f"lengths must be at most {_MAX_INT32}: {listed}")
    bounds = _check_bounds(document_bounds, table.size)
    with check_path("path", path).open("wb") as stream:
        stream.write(HEADER.pack(MAGIC, VERSION, code, table.size, bounds.size))
        for chunk in _chunks(table):
            stream.write(chunk.astype("<i4").tobytes())
        position = 0
        for chunk in _chunks(table):
            ends = position + np.cumsum(chunk * MEGATRON_DTYPES[code].itemsize)
            stream.write(np.concatenate([[position], ends[:-1]]).astype("<i8").tobytes())
            position = int(ends[-1])
        for chunk in _chunks(bounds):
            stream.write(chunk.astype("<i8").tobytes())


def _chunks(values: Int64Array) -> Iterator[Int64Array]:
    return (values[start : start + CHUNK] for start in range(0, values.size, CHUNK))


def _code_of(dtype: npt.DTypeLike) -> int:
    listed = ", ".join(map(str, MEGATRON_DTYPES.values()))
    try:
        if dtype is None:  # NumPy takes it for float64
            raise TypeError("no dtype")
        wanted = np.dtype(dtype).newbyteorder("<")
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"dtype must be one of {listed}, got {dtype!r}") from error
    for code, known in MEGATRON_DTYPES.items():
        if known == wanted:
            return code
    raise ArgumentError(f"dtype must be one of {listed}, got {wanted}")


def _convert(sequence: npt.ArrayLike, dtype: np.dtype[Any], number: int) -> npt.NDArray[Any]:
    tokens = as_array(f"sequence {number}", sequence)
    if tokens.ndim != 1:
        raise ArgumentError(f"sequences must be one-dimensional: sequence {number} has shape {tokens.shape}")
    if tokens.size == 0:
        return np.zeros(0, dtype)
    if tokens.dtype.kind not in ("iu" if dtype.kind in "iu" else "iuf"):
        raise ArgumentError(f"sequences must hold tokens of {dtype}: sequence {number} has dtype {tokens.dtype}")
    if dtype.kind in "iu":
        low, high = int(tokens.min()), int(tokens.max())
        if low < np.iinfo(dtype).min or high > np.iinfo(dtype).max:
            raise ArgumentError(f"sequences must fit in {dtype}: sequence {number} has tokens from {low} to {high}")
    return tokens.astype(dtype)


def _check_bounds(document_bounds: npt.ArrayLike | None, num_sequences: int) -> Int64Array:
    if document_bounds is None:
        return np.arange(num_sequences + 1)
    bounds = as_lengths("document_bounds", document_bounds)
    if bounds.size == 0 or bounds[0] != 0 or bounds[-1] != num_sequences or (np.diff(bounds) < 0).any():
        raise ArgumentError(f"document_bounds must go up from 0 to {num_sequences}, got {bounds.tolist()}")
    return bounds
