"""The fields of a sample: their spellings, what is counted per token, and what is made before anything is cut.

A sample is a mapping from field names to arrays. *Per-token* fields have one element a token (`input_ids`, `labels`,
`loss_mask`, `position_ids`, and what the caller declares). All others travel whole: fields with a first dimension of
their own (the rows of an image) and scalars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import check_kinds, check_names, list_offenders
from dcpack.comm.dtypes import wire_name
from dcpack.errors import ArgumentError
from dcpack.layout import IGNORED_LABEL, shift_labels
from dcpack.loss import count_valid_tokens

__all__ = ["NEUTRAL_VALUES", "PER_TOKEN_FIELDS", "SPELLINGS", "PreparedSample", "prepare_samples"]

PER_TOKEN_FIELDS = ("input_ids", "labels", "loss_mask", "position_ids")
"""The fields that have one element a token, always."""

SPELLINGS: Mapping[str, str] = {
    "tokens": "input_ids",
    "input": "input_ids",
    "inputs": "input_ids",
    "decoder_input_tokens": "input_ids",
    "targets": "labels",
    "decoder_target_tokens": "labels",
    "decoder_loss_weights": "loss_mask",
    "inputs_position": "position_ids",
    "inputs_positions": "position_ids",
    "decoder_positions": "position_ids",
}
"""Known spellings of the standard fields, and ours. Labels of any spelling are already shifted."""

NEUTRAL_VALUES: Mapping[str, int] = {"labels": IGNORED_LABEL}
"""What padding holds in each per-token field; 0 in those that are not named."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSample:
    """One sample with standard names and labels.

    Attributes:
        fields: the arrays by name; never those of the caller where they had to be changed.
        length: tokens.
        num_valid: tokens that count in the loss.

    Example:
        >>> (sample,) = prepare_samples([{"tokens": [5, 6, 7]}])
        >>> sample.length, sample.num_valid, sorted(sample.fields)
        (3, 2, ['input_ids', 'labels'])
    """

    fields: Mapping[str, npt.NDArray[Any]]
    length: int
    num_valid: int


def prepare_samples(samples: Sequence[Mapping[str, Any]], per_token: Sequence[str] = ()) -> tuple[PreparedSample, ...]:
    """Bring samples to the standard names, shift labels where there are none, and count what counts in the loss.

    The shift comes here, before any split, packing or slice. A token counts if its label is not -100 and its loss mask,
    where there is one, is not 0.

    Args:
        samples: mappings with at least ``input_ids`` (any known spelling), an integer array [length].
        per_token: further fields that have one element a token in their first dimension.

    Returns:
        One prepared sample for each, in their order.

    Raises:
        ArgumentError: a missing or repeated field, a wrong shape or dtype; names the sample and the field.

    Example:
        >>> sample, = prepare_samples([{"tokens": [5, 6, 7]}])
        >>> sample.fields["labels"].tolist(), sample.num_valid
        ([6, 7, -100], 2)
    """
    if isinstance(samples, Mapping) or not isinstance(samples, Sequence):
        raise ArgumentError(f"samples must be a sequence of mappings, got {type(samples).__name__}")
    declared = (*PER_TOKEN_FIELDS, *check_names("per_token", per_token))
    return tuple(_prepare(i, sample, declared) for i, sample in enumerate(samples))


def check_prepared(local: Any, per_token: Sequence[str]) -> None:
    """Raise unless `local` holds samples as `prepare_samples` makes them; standard fields may be missing.

    Raises:
        ArgumentError: names every sample that is none, and what is wrong with it.
    """
    check_kinds(local=(local, list | tuple))
    declared = {*PER_TOKEN_FIELDS, *per_token}
    faults = [(i, _prepared_fault(sample, declared)) for i, sample in enumerate(local)]
    if wrong := [f"local[{i}]{fault}" for i, fault in faults if fault]:
        raise ArgumentError(list_offenders(wrong))


def _prepared_fault(sample: Any, per_token: set[str]) -> str:
    """Return what is wrong with one prepared sample, or nothing."""
    if not isinstance(sample, PreparedSample) or not isinstance(sample.fields, Mapping):
        return f" must be a PreparedSample with a mapping of fields, got {sample!r:.60}"
    length, valid = sample.length, sample.num_valid
    if not isinstance(length, int | np.integer) or not isinstance(valid, int | np.integer) or not 0 <= valid <= length:
        return f": num_valid must be an integer from 0 to length, got {valid!r} of {length!r}"
    for name, array in sample.fields.items():
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            return f": fields must be arrays by name, got {name!r}: {type(array).__name__}"
        if name in per_token and array.shape[:1] != (length,):
            return f": {name} must have {length} tokens, got shape {array.shape}"
    return ""


def _prepare(index: int, sample: Any, per_token: Sequence[str]) -> PreparedSample:
    where = f"samples[{index}]"
    if not isinstance(sample, Mapping):
        raise ArgumentError(f"{where} must be a mapping from field names to arrays, got {type(sample).__name__}")
    fields: dict[str, npt.NDArray[Any]] = {}
    for spelling, value in sample.items():
        name = SPELLINGS.get(spelling, spelling)
        if not isinstance(name, str):
            raise ArgumentError(f"{where}: field names must be str, got {name!r}")
        if name in fields:
            raise ArgumentError(f"{where}: field {name!r} is given twice, the second time as {spelling!r}")
        fields[name] = _as_array(f"{where}[{spelling!r}]", value)
    length = _check_lengths(where, fields, per_token)
    if "labels" not in fields:
        fields["labels"] = shift_labels(fields["input_ids"], [0, length])
    elif fields["labels"].dtype.kind == "u":
        fields["labels"] = fields["labels"].astype(np.int64)  # what stands in padding is negative
    num_valid = count_valid_tokens(fields["labels"], fields.get("loss_mask"))
    return PreparedSample(fields=fields, length=length, num_valid=num_valid)


def _as_array(where: str, value: Any) -> npt.NDArray[Any]:
    try:
        array = np.asarray(value)
        wire_name(array.dtype)
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor that wants gradients
        raise ArgumentError(f"{where}: {error}") from error
    return array


def _check_lengths(where: str, fields: Mapping[str, npt.NDArray[Any]], per_token: Sequence[str]) -> int:
    if "input_ids" not in fields:
        raise ArgumentError(f"{where}: no input_ids under any known spelling among {sorted(fields)}")
    tokens = fields["input_ids"]
    if tokens.ndim != 1 or (tokens.dtype.kind not in "iu" and tokens.size):
        raise ArgumentError(f"{where}: input_ids must be an integer array [length], got {tokens.dtype} {tokens.shape}")
    if tokens.size == 0 and tokens.dtype.kind not in "iu":
        raise ArgumentError(f"{where}: an empty input_ids needs an integer dtype, got {tokens.dtype}")
    wrong = [
        f"{name} of shape {fields[name].shape}"
        for name in dict.fromkeys(per_token)
        if name in fields and fields[name].shape[:1] != tokens.shape
    ]
    if wrong:
        raise ArgumentError(f"{where}: per-token fields must have {tokens.size} tokens: {list_offenders(wrong)}")
    if "labels" in fields and (fields["labels"].ndim != 1 or fields["labels"].dtype.kind not in "iu"):
        labels = fields["labels"]
        raise ArgumentError(f"{where}: labels must be an integer array [length], got {labels.dtype} {labels.shape}")
    if "segment_ids" in fields:
        raise ArgumentError(f"{where}: segment_ids are made by packing and cannot be given")
    if "position_ids" in fields and fields["position_ids"].dtype.kind not in "iu":
        raise ArgumentError(f"{where}: position_ids must be integers, got {fields['position_ids'].dtype}")
    _check_values(where, fields)
    return tokens.size


def _check_values(where: str, fields: Mapping[str, npt.NDArray[Any]]) -> None:
    for name in ("input_ids", "labels"):
        values = fields.get(name)
        if values is not None and values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
            raise ArgumentError(f"{where}: {name} must be below 2**63, got {values.max()}")
    if "loss_mask" in fields:
        mask = fields["loss_mask"]
        if mask.ndim != 1 or mask.dtype.kind == "c":
            raise ArgumentError(f"{where}: loss_mask must be a real array [length], got {mask.dtype} {mask.shape}")
        if bad := np.flatnonzero(~(mask >= 0) | np.isinf(mask)).tolist() if mask.dtype.kind in "if" else []:
            listed = list_offenders([f"{mask[i]} at {i}" for i in bad])
            raise ArgumentError(f"{where}: loss_mask must be finite and at least 0, got {listed}")
