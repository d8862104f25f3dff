"""Text records to sequences, sequences to rows, rows to a batch: the three callbacks of `repack_sequences`.

A record is a mapping with ``input_ids`` [t], ``labels`` [t], shifted already, and ``cu_seq_lens`` [k + 1]. A row is
filled up with the pad token and labels of -100; what fills it is a segment of its own, so the offsets always end at
`seq_len`. Example, `seq_len` 5, pad token 0, rows (1 2)(3) and (4 5 6 7 8):

    input_ids     1 2 3 0 0 | 4 5 6 7 8
    cu_seq_lens   0 2 3 5 | 10          the second row's offsets go on from the first's
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_array, check_int, check_kinds, list_offenders
from dcpack.errors import ArgumentError
from dcpack.layout import IGNORED_LABEL, MAX_OFFSET
from dcpack.loader.specs import TensorFieldSpec

__all__ = ["TextRows"]

Sequence1D = Mapping[str, Int64Array]
"""``input_ids`` and ``labels`` of one sequence, int64[t] each."""


class TextRows:
    """How text records become rows.

    Args:
        seq_len: tokens of a row.
        pad_token_id: what fills rows; at the ends of records tokens that equal it and are labelled -100 are stripped.
            None fills with 0 and strips nothing.

    Example:
        >>> rows = TextRows(seq_len=4, pad_token_id=0)
        >>> record = {"input_ids": [7, 8, 9, 0], "labels": [8, -100, 5, -100], "cu_seq_lens": [0, 2, 4]}
        >>> [sequence["input_ids"].tolist() for sequence in rows.split(record)]
        [[7, 8], [9]]
    """

    def __init__(self, *, seq_len: int, pad_token_id: int | None) -> None:
        self.seq_len = check_int("seq_len", seq_len, minimum=1, maximum=MAX_OFFSET)
        largest = np.iinfo(np.int64).max
        self.pad_token_id = (
            None if pad_token_id is None else check_int("pad_token_id", pad_token_id, minimum=0, maximum=largest)
        )

    def split(self, record: Any) -> list[Sequence1D]:
        """Return the sequences of a record, in order; none where all of it is stripped.

        Raises:
            ArgumentError: fields that are missing or do not fit each other.
        """
        if not isinstance(record, Mapping):
            raise ArgumentError(f"a text record must be a mapping, got {type(record).__name__}")
        if missing := [name for name in ("input_ids", "labels", "cu_seq_lens") if name not in record]:
            raise ArgumentError(f"a text record needs {', '.join(missing)}; it has {sorted(map(str, record))}")
        tokens, labels = _tokens(record, "input_ids"), _tokens(record, "labels")
        if tokens.shape != labels.shape:
            raise ArgumentError(f"labels must be as many as input_ids, {tokens.size}, got {labels.size}")
        offsets = _offsets(record["cu_seq_lens"], tokens.size)
        kept = self._kept_tokens(tokens, labels)
        ends = np.minimum(offsets[1:], kept)
        return [
            {"input_ids": tokens[start:end], "labels": labels[start:end]}
            for start, end in zip(offsets[:-1].tolist(), ends.tolist(), strict=True)
            if end > start
        ]

    def _kept_tokens(self, tokens: Int64Array, labels: Int64Array) -> int:
        """Return how many tokens are left when the padding at the end is stripped."""
        if self.pad_token_id is None:
            return tokens.size
        real = np.flatnonzero((tokens != self.pad_token_id) | (labels != IGNORED_LABEL))
        return int(real[-1]) + 1 if real.size else 0

    def pack(self, sequences: Sequence[Sequence1D]) -> dict[str, npt.NDArray[Any]]:
        """Return one row: ``input_ids`` and ``labels`` int64[seq_len], ``cu_seq_lens`` int32[k].

        Without sequences it is all padding.

        Raises:
            ArgumentError: sequences that are together longer than the row.
        """
        check_kinds(sequences=(sequences, list | tuple))
        if wrong := [str(i) for i, sequence in enumerate(sequences) if not _is_sequence(sequence)]:
            raise ArgumentError(f"sequences must be those of split; other: {list_offenders(wrong)}")
        lengths = [len(sequence["input_ids"]) for sequence in sequences]
        used = sum(lengths)
        if used > self.seq_len:
            raise ArgumentError(f"sequences of {lengths} tokens are {used} together, more than seq_len {self.seq_len}")
        tokens = np.full(self.seq_len, 0 if self.pad_token_id is None else self.pad_token_id, np.int64)
        labels = np.full(self.seq_len, IGNORED_LABEL, np.int64)
        if sequences:
            tokens[:used] = np.concatenate([sequence["input_ids"] for sequence in sequences])
            labels[:used] = np.concatenate([sequence["labels"] for sequence in sequences])
        ends = np.cumsum([0, *lengths])
        offsets = ends if used == self.seq_len else [*ends, self.seq_len]
        return {"input_ids": tokens, "labels": labels, "cu_seq_lens": np.asarray(offsets, np.int32)}

    def collate(self, rows: Sequence[Mapping[str, npt.NDArray[Any]]]) -> dict[str, npt.NDArray[Any]]:
        """Return a batch: rows stacked, offsets end to end with one leading 0.

        Example:
            >>> rows = TextRows(seq_len=5, pad_token_id=0)
            >>> sequence = {"input_ids": np.array([1, 2]), "labels": np.array([2, 3])}
            >>> rows.collate([rows.pack([sequence])] * 2)["cu_seq_lens"].tolist()
            [0, 2, 5, 7, 10]
        """
        check_kinds(rows=(rows, list | tuple))
        wrong = [str(i) for i, row in enumerate(rows) if not _is_sequence(row) or len(row["labels"]) != self.seq_len]
        if wrong or not rows:
            raise ArgumentError(f"rows must be one of pack or more; other: {list_offenders(wrong) or 'none at all'}")
        if len(rows) * self.seq_len > MAX_OFFSET:
            raise ArgumentError(
                f"{len(rows)} rows of {self.seq_len} tokens are over the {MAX_OFFSET} that int32 offsets can hold"
            )
        parts = [row["cu_seq_lens"][1:] + number * self.seq_len for number, row in enumerate(rows)]
        return {
            "input_ids": np.stack([row["input_ids"] for row in rows]),
            "labels": np.stack([row["labels"] for row in rows]),
            "cu_seq_lens": np.concatenate([[0], *parts]).astype(np.int32),
        }

    def batch_spec(self, local_batch_size: int) -> dict[str, TensorFieldSpec]:
        """Return what a batch looks like, for its peers."""
        shape = (check_int("local_batch_size", local_batch_size, minimum=1), self.seq_len)
        return {
            "input_ids": TensorFieldSpec(shape=shape, dtype="int64"),
            "labels": TensorFieldSpec(shape=shape, dtype="int64"),
            "cu_seq_lens": TensorFieldSpec(shape=(None,), dtype="int32"),
        }


def _is_sequence(given: Any) -> bool:
    """Tell whether it has ``input_ids`` and ``labels``, arrays [t] of equal length; a row has offsets beside."""
    names = ("input_ids", "labels")
    if not isinstance(given, Mapping) or not all(isinstance(given.get(name), np.ndarray) for name in names):
        return False
    return given["input_ids"].ndim == 1 and given["input_ids"].shape == given["labels"].shape


def _tokens(record: Mapping[str, Any], name: str) -> Int64Array:
    values = as_array(name, record[name])
    if values.ndim != 1 or values.size == 0 or values.dtype.kind not in "iu":
        raise ArgumentError(f"{name} of a text record must be integers [t], got {values.dtype} of shape {values.shape}")
    return values.astype(np.int64)


def _offsets(values: Any, num_tokens: int) -> Int64Array:
    offsets = as_array("cu_seq_lens", values)
    if offsets.ndim != 1 or offsets.size < 2 or offsets.dtype.kind not in "iu":
        raise ArgumentError(f"cu_seq_lens must be at least 2 integers, got {offsets.dtype} of shape {offsets.shape}")
    offsets = offsets.astype(np.int64)
    faults = [] if offsets[0] == 0 else [f"the first is {offsets[0]}, not 0"]
    faults += [] if offsets[-1] == num_tokens else [f"the last is {offsets[-1]}, not the {num_tokens} tokens"]
    faults += [f"number {i + 1} is below the one before" for i in np.flatnonzero(np.diff(offsets) < 0).tolist()]
    if faults:
        raise ArgumentError(f"cu_seq_lens must go from 0 to the number of tokens: {list_offenders(faults)}")
    return offsets
