"""Samples as Megatron's datasets give them, taken apart into single sequences.

A *pre-packed* sample holds several sequences end to end and their ``cu_seqlens``. An *unpacked* one is a single
sequence with ``padded_seq_len``. Both may have the leading batch dimension of 1 that a default collate function adds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_array, check_kinds, list_offenders
from dcpack.errors import ArgumentError
from dcpack.layout import check_cu_seqlens
from dcpack.megatron.stages import FIRST_STAGE_FIELDS, LAST_STAGE_FIELDS

__all__ = ["LENGTH_KEYS", "Sample", "UnpackedSamples", "unpack_samples"]

Sample = dict[str, npt.NDArray[Any]]
"""One sequence: arrays by Megatron's names."""

LENGTH_KEYS = ("original_seq_len", "padded_seq_len")
"""Real and padded tokens of a sequence, each int64[1]."""

_INTEGERS = ("tokens", "labels", "position_ids")
_OFFSET_KEYS = ("cu_seqlens", "cu_seqlens_padded")
_PACK_KEYS = (*_OFFSET_KEYS, "max_seqlen", "batch_idx", "local_cp_size")  # say something of the pack, not of a sequence


@dataclass(frozen=True, kw_only=True, slots=True)
class UnpackedSamples:
    """Single sequences, and what was left out.

    Attributes:
        samples: one mapping a sequence, with `LENGTH_KEYS`; per-token fields have ``padded_seq_len`` rows.
        num_empty: sequences without a token, which are in no sample.

    Example:
        >>> unpack_samples([{"tokens": np.arange(9)[None], "cu_seqlens": np.array([[0, 4, 4, 9]])}]).lengths.tolist()
        [4, 5]
    """

    samples: tuple[Sample, ...]
    num_empty: int

    @property
    def lengths(self) -> Int64Array:
        """int64[k]: real tokens of each sample."""
        return np.array([sample["original_seq_len"][0] for sample in self.samples], np.int64)

    @property
    def padded_lengths(self) -> Int64Array:
        """int64[k]: padded tokens of each sample, as the dataset padded it."""
        return np.array([sample["padded_seq_len"][0] for sample in self.samples], np.int64)


def unpack_samples(
    items: Sequence[Mapping[str, Any]], *, to_host: Callable[[Any], Any] = np.asarray
) -> UnpackedSamples:
    """Return the sequences in `items`, each on its own. The items and their arrays are not changed.

    Pre-packed samples are sliced at ``cu_seqlens_padded`` where they have it, else at ``cu_seqlens``; every field with
    one element a token goes along, and fields of a single element go to each sequence. Unpacked samples pass through;
    ``original_seq_len`` defaults to ``padded_seq_len``.

    Args:
        items: mappings with ``tokens`` and either ``cu_seqlens`` or ``padded_seq_len``, the same of the two in all.
        to_host: makes a NumPy array of a field; pass one that fetches from a device where the data lies there.

    Raises:
        ArgumentError: both keys or neither, a mixture, another leading dimension than 1, offsets or lengths that do not
            fit the tokens, a field that cannot be sliced; names the samples.

    Example:
        >>> packed = {"tokens": np.arange(9)[None], "cu_seqlens": np.array([[0, 4, 4, 9]])}
        >>> found = unpack_samples([packed])
        >>> [sample["tokens"].tolist() for sample in found.samples], found.num_empty
        ([[0, 1, 2, 3], [4, 5, 6, 7, 8]], 1)
        >>> found.samples[1]["padded_seq_len"]
        array([5])
    """
    check_kinds(items=(items, list | tuple), to_host=(to_host, Callable))
    if _is_packed(items):
        parts = [part for i, item in enumerate(items) for part in _slice(f"sample {i}", item, to_host)]
    else:
        parts = [_pass_through(f"sample {i}", item, to_host) for i, item in enumerate(items)]
    kept = tuple(part for part in parts if part["original_seq_len"][0] > 0)
    return UnpackedSamples(samples=kept, num_empty=len(parts) - len(kept))


def length_of(where: str, sample: Any, name: str) -> int:
    """Return the entry `name`, one of `LENGTH_KEYS`, of a single sequence.

    Raises:
        ArgumentError: no mapping, or no such entry of one integer of at least 0.

    Example:
        >>> length_of("samples[0]", {"padded_seq_len": np.array([4])}, "padded_seq_len")
        4
    """
    if not isinstance(sample, Mapping):
        raise ArgumentError(f"{where} must be a mapping from names to arrays, got {type(sample).__name__}")
    if name not in sample:
        raise ArgumentError(f"{where} has no {name}; see unpack_samples")
    length = _length(where, name, sample)
    if length < 0:
        raise ArgumentError(f"{where}: {name} must be at least 0, got {length}")
    return length


def _is_packed(items: Sequence[Mapping[str, Any]]) -> bool:
    if wrong := [
        f"sample {i} is {type(item).__name__}" for i, item in enumerate(items) if not isinstance(item, Mapping)
    ]:
        raise ArgumentError(f"samples must be mappings from names to arrays: {list_offenders(wrong)}")
    packed = ["cu_seqlens" in item for item in items]
    single = ["padded_seq_len" in item for item in items]
    unclear = [f"sample {i}" for i in range(len(items)) if packed[i] == single[i]]
    if unclear:
        raise ArgumentError(
            f"a sample must have either cu_seqlens or padded_seq_len, not both or neither: {list_offenders(unclear)}"
        )
    if any(packed) and not all(packed):
        listed = list_offenders([f"sample {i}" for i in range(len(items)) if packed[i] != packed[0]])
        raise ArgumentError(f"samples must be all pre-packed or all unpacked; other than sample 0: {listed}")
    return bool(items) and packed[0]


def _fields(where: str, item: Mapping[str, Any], to_host: Callable[[Any], Any]) -> tuple[Sample, int]:
    """Return the arrays of a sample without a leading batch dimension, and the number of its tokens."""
    if "tokens" not in item:
        raise ArgumentError(f"{where} must have tokens, got {sorted(map(str, item))}")
    fields = {}
    for name, value in item.items():
        try:
            fields[name] = np.asarray(to_host(value))
        except (TypeError, ValueError, RuntimeError) as error:
            raise ArgumentError(f"{where}: {name} cannot be made an array: {error}") from error
        if fields[name].dtype.kind in "OSU":
            raise ArgumentError(f"{where}: {name} must hold numbers, got {fields[name].dtype}: leave it out")
    tokens = fields["tokens"]
    if tokens.ndim not in (1, 2) or (tokens.ndim == 2 and tokens.shape[0] != 1):
        raise ArgumentError(f"{where}: tokens must be [t] or [1, t], got {list(tokens.shape)}")
    num_tokens = tokens.shape[-1]
    wrong = []
    for name, array in fields.items():
        if array.ndim >= 2 and (tokens.ndim == 2 or _has_batch_dim(name, array, num_tokens)):
            if array.shape[0] != 1:
                wrong.append(f"{name} {list(array.shape)}")
            else:
                fields[name] = array[0]
    if wrong:
        raise ArgumentError(f"{where}: the leading dimension must be 1 as in tokens: {list_offenders(wrong)}")
    standard = [name for name in (*FIRST_STAGE_FIELDS, *LAST_STAGE_FIELDS) if name in fields]
    if wrong := [f"{name} {list(fields[name].shape)}" for name in standard if fields[name].shape != (num_tokens,)]:
        raise ArgumentError(f"{where} has {num_tokens} tokens with padding, but {list_offenders(wrong)}")
    floats = [name for name in _INTEGERS if name in fields and fields[name].dtype.kind not in "iu"]
    if num_tokens and floats:
        raise ArgumentError(f"{where}: {', '.join(floats)} must be integers, got {fields[floats[0]].dtype}")
    return fields, num_tokens


def _has_batch_dim(name: str, array: npt.NDArray[Any], num_tokens: int) -> bool:
    """Tell whether a field beside one-dimensional tokens has a batch dimension all the same."""
    return name in (*_PACK_KEYS, *LENGTH_KEYS) or (array.shape[:2] == (1, num_tokens) and num_tokens > 1)


def _slice(where: str, item: Mapping[str, Any], to_host: Callable[[Any], Any]) -> list[Sample]:
    fields, num_tokens = _fields(where, item, to_host)
    real = _offsets(where, "cu_seqlens", fields)
    padded = _offsets(where, "cu_seqlens_padded", fields) if "cu_seqlens_padded" in fields else real
    if padded.size != real.size or np.any(np.diff(padded) < np.diff(real)) or padded[-1] != num_tokens:
        raise ArgumentError(
            f"{where}: offsets must cover its {num_tokens} tokens: cu_seqlens ends at {real[-1]}"
            + (f", cu_seqlens_padded at {padded[-1]}" if "cu_seqlens_padded" in fields else "")
        )
    per_token, shared, wrong = [], [], []
    for name, array in fields.items():
        if name in _PACK_KEYS:
            continue
        if array.shape[:1] == (num_tokens,):
            per_token.append(name)
        elif array.size == 1:
            shared.append(name)
        else:
            wrong.append(f"{name} {list(array.shape)}")
    if wrong:
        raise ArgumentError(f"{where}: fields without {num_tokens} rows cannot be sliced: {list_offenders(wrong)}")
    lengths, bounds = np.diff(real).tolist(), padded.tolist()
    return [
        {
            **{name: fields[name][start:end] for name in per_token},
            **{name: fields[name] for name in shared},
            "original_seq_len": np.array([length]),
            "padded_seq_len": np.array([end - start]),
        }
        for start, end, length in zip(bounds[:-1], bounds[1:], lengths, strict=True)
    ]


def _offsets(where: str, name: str, fields: Sample) -> Int64Array:
    try:
        return check_cu_seqlens(name, fields[name]).astype(np.int64)
    except ArgumentError as error:
        raise ArgumentError(f"{where}: {error}") from error


def _pass_through(where: str, item: Mapping[str, Any], to_host: Callable[[Any], Any]) -> Sample:
    fields, num_tokens = _fields(where, item, to_host)
    padded = _length(where, "padded_seq_len", fields)
    real = _length(where, "original_seq_len", fields) if "original_seq_len" in fields else padded
    if padded != num_tokens or not 0 <= real <= padded:
        raise ArgumentError(
            f"{where}: original_seq_len {real} and padded_seq_len {padded} do not fit its {num_tokens} tokens"
        )
    return {**fields, "original_seq_len": np.array([real]), "padded_seq_len": np.array([padded])}


def _length(where: str, name: str, fields: Mapping[str, Any]) -> int:
    array = as_array(f"{where}: {name}", fields[name])
    if array.size != 1 or array.dtype.kind not in "iu":
        raise ArgumentError(f"{where}: {name} must be one integer, got {array.dtype} {list(array.shape)}")
    return int(array.reshape(-1)[0])
