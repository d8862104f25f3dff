"""Megatron-Core's indexed datasets: an ``.idx`` file of tables beside a ``.bin`` file of tokens.

The index is little-endian, without padding::

    bytes          what
    9              the magic MMIDIDX, then two zeros
    8              version, 1
    1              dtype code of the tokens
    8, 8           numbers of sequences n and of document bounds d
    4 * n          lengths, int32, in tokens
    8 * n          pointers, int64: the byte of the .bin file where each sequence begins
    8 * d          document bounds, int64: document k is the sequences from bound k to bound k + 1
    n or nothing   modes, int8, of multimodal data

All of it is memory-mapped; nothing is read before it is asked for.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, check_path, frozen
from dcpack.data.base import TokenSource
from dcpack.data.errors import DataFileError
from dcpack.data.files import map_file
from dcpack.data.values import CHUNK, first_bad_length, not_a_length

__all__ = ["MEGATRON_DTYPES", "MegatronIndexedSource"]

MEGATRON_DTYPES: dict[int, np.dtype[Any]] = {
    code: np.dtype(name) for code, name in enumerate(("u1", "i1", "<i2", "<i4", "<i8", "<f8", "<f4", "<u2"), start=1)
}
"""The dtype of the tokens by its code in the index."""

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
_VERSION_AT, _CODE_AT, _COUNTS_AT = 9, 17, 18


@dataclass(frozen=True, kw_only=True, slots=True)
class MegatronIndex:
    """The tables of an index, memory-mapped and read-only; their sizes are checked, their values are not.

    Attributes:
        file: the ``.idx`` file.
        dtype: of the tokens.
        lengths: int32[n].
        pointers: int64[n].
        bounds: int64[d], document bounds.
    """

    file: Path
    dtype: np.dtype[Any]
    lengths: npt.NDArray[np.int32]
    pointers: Int64Array
    bounds: Int64Array

    @classmethod
    def open(cls, path: str | Path) -> MegatronIndex:
        """Map an ``.idx`` file; the header must be right, and the file as long as it says."""
        file = Path(path)
        data = map_file(file)
        code, num_sequences, num_bounds = _parse_header(data[: HEADER.size].tobytes(), file)
        pointers_at = HEADER.size + 4 * num_sequences
        bounds_at = pointers_at + 8 * num_sequences
        end = bounds_at + 8 * num_bounds
        if data.size not in (end, end + num_sequences):  # in Python's integers: a huge count overflows nothing
            fault = "truncated" if data.size < end else "too long"
            reason = f"{fault}: {num_sequences} sequences and {num_bounds} document bounds take {end} bytes"
            raise DataFileError(file, f"{reason}, the file has {data.size}", offset=min(data.size, end))
        return cls(
            file=file,
            dtype=MEGATRON_DTYPES[code],
            lengths=np.frombuffer(data, "<i4", num_sequences, HEADER.size),
            pointers=np.frombuffer(data, "<i8", num_sequences, pointers_at),
            bounds=np.frombuffer(data, "<i8", num_bounds, bounds_at),
        )

    def check_lengths(self) -> None:
        """Refuse a negative length; reads the table of lengths and nothing else."""
        if (bad := first_bad_length(self.lengths)) is not None:
            reason = not_a_length(int(self.lengths[bad]))
            raise DataFileError(self.file, reason, offset=HEADER.size + 4 * bad, place=f"sequence {bad}")

    def check_pointers(self, num_bytes: int) -> None:
        """Refuse a sequence that is not within the `num_bytes` of the ``.bin`` file."""
        for start in range(0, self.pointers.size, CHUNK):
            pointers = self.pointers[start : start + CHUNK]
            sizes = self.lengths[start : start + CHUNK].astype(np.int64) * self.dtype.itemsize
            outside = (pointers < 0) | (pointers > num_bytes - sizes)  # a sum could overflow, this cannot
            if outside.any():
                bad = start + int(outside.argmax())
                pointer, size = int(self.pointers[bad]), int(self.lengths[bad]) * self.dtype.itemsize
                reason = f"{size} bytes from byte {pointer} on are not within the {num_bytes} bytes of the .bin file"
                offset = HEADER.size + 4 * self.lengths.size + 8 * bad
                raise DataFileError(self.file, reason, offset=offset, place=f"sequence {bad}")

    def check_bounds(self) -> None:
        """Refuse document bounds that do not go up from 0 to the number of sequences."""
        first_byte = HEADER.size + 12 * self.lengths.size
        if self.bounds.size == 0:
            raise DataFileError(self.file, "there are no document bounds, the first is always 0", offset=_COUNTS_AT + 8)
        falls = np.flatnonzero(self.bounds[1:] < self.bounds[:-1])
        last = self.bounds.size - 1
        if self.bounds[0] != 0:
            bad, rule = 0, "the first must be 0"
        elif falls.size:
            bad, rule = int(falls[0]) + 1, f"they must not fall, the one before is {self.bounds[falls[0]]}"
        elif self.bounds[last] != self.lengths.size:
            bad, rule = last, f"the last must be {self.lengths.size}, the number of sequences"
        else:
            return
        reason = f"document bounds are out of order: {rule}, got {self.bounds[bad]}"
        raise DataFileError(self.file, reason, offset=first_byte + 8 * bad, place=f"document bound {bad}")


def _parse_header(head: bytes, file: Path) -> tuple[int, int, int]:
    """Return the dtype code, the number of sequences and the number of document bounds."""
    if not head:
        raise DataFileError(file, "empty", offset=0)
    if not head.startswith(MAGIC[: len(head)]):
        raise DataFileError(file, f"no Megatron index: it begins with {head[: len(MAGIC)]!r}", offset=0)
    if len(head) < HEADER.size:
        raise DataFileError(file, f"truncated: the header takes {HEADER.size} bytes", offset=len(head))
    _, version, code, num_sequences, num_bounds = HEADER.unpack(head)
    if version != VERSION:
        raise DataFileError(file, f"version must be {VERSION}, got {version}", offset=_VERSION_AT)
    if code not in MEGATRON_DTYPES:
        raise DataFileError(file, f"dtype code must be from 1 to {len(MEGATRON_DTYPES)}, got {code}", offset=_CODE_AT)
    return code, num_sequences, num_bounds


def read_idx_lengths(path: str | Path) -> npt.NDArray[np.int32]:
    """Return int32[n], memory-mapped and read-only: the lengths of an index, whose other tables are not touched."""
    index = MegatronIndex.open(path)
    index.check_lengths()
    return index.lengths


def split_prefix(path_prefix: str | Path) -> tuple[Path, Path]:
    """Return the ``.idx`` and the ``.bin`` file of a dataset, given their common path or either of them."""
    path = check_path("path_prefix", path_prefix)
    prefix = path.with_suffix("") if path.suffix in (".idx", ".bin") else path
    return Path(f"{prefix}.idx"), Path(f"{prefix}.bin")


class MegatronIndexedSource(TokenSource):
    """A source of the sequences of a Megatron-Core indexed dataset.

    The tables are checked when it is opened: lengths not negative, every sequence within the ``.bin`` file, document
    bounds in order. Tokens are views of the mapped file, in its own dtype, read-only.

    Args:
        path_prefix: path of both files without their endings, or of either.

    Attributes:
        dtype: of the tokens.
        document_bounds: int64[d]: document k is the sequences from bound k to bound k + 1.

    Raises:
        ArgumentError: a file is not there.
        DataFileError: the index is truncated or corrupt; names file, byte and reason.

    Example:
        >>> import tempfile
        >>> from dcpack.data import write_megatron_index
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     files = write_megatron_index(f"{folder}/corpus", [[7, 8, 9], [5]], dtype=np.uint16)
        ...     source = MegatronIndexedSource(f"{folder}/corpus")
        ...     source.lengths(), source[1], source.num_documents
        (array([3, 1]), {'input_ids': array([5], dtype=uint16)}, 2)
    """

    def __init__(self, path_prefix: str | Path) -> None:
        idx_file, bin_file = split_prefix(path_prefix)
        self._index = MegatronIndex.open(idx_file)
        self._bytes = map_file(bin_file)
        self._index.check_lengths()
        self._index.check_pointers(self._bytes.size)
        self._index.check_bounds()
        self.dtype = self._index.dtype
        self.document_bounds: Int64Array = self._index.bounds

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return self.document_bounds.size - 1

    def __len__(self) -> int:
        return self._index.lengths.size

    def lengths(self) -> Int64Array:
        """Return int64[n]: tokens of each sequence; the ``.bin`` file is not touched."""
        return frozen(self._index.lengths.astype(np.int64))

    def _tokens(self, index: int) -> npt.NDArray[Any]:
        count, start = int(self._index.lengths[index]), int(self._index.pointers[index])
        return np.frombuffer(self._bytes, self.dtype, count, start)
