"""Hugging Face: one flattened row without padding in the batch ("padding-free"), with unshifted labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import as_array, check_kinds, list_offenders
from dcpack.errors import ArgumentError
from dcpack.export.base import Packed, check_packed, cover_tail
from dcpack.export.segments import segment_ids
from dcpack.layout import IGNORED_LABEL

__all__ = ["huggingface_flat"]


def huggingface_flat(packed: Packed, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a Hugging Face model takes for one flattened row.

    Hugging Face models shift labels themselves, over the whole row, so each label goes back to the token that it
    predicts, and the first token of each sequence has -100. A loss mask of 0 becomes a label of -100.

    Args:
        packed: the offsets.
        fields: ``input_ids``, ``position_ids`` and ``labels`` (shifted) of the whole row, [t]; ``loss_mask`` if there
            is one. CP slices cannot be given: the shift needs the neighbour of each token.

    Returns:
        ``input_ids``, ``position_ids``, ``labels`` (int64[1, t]), ``cu_seq_lens_q``, ``cu_seq_lens_k`` (int32, padded,
        covering the row), ``max_length_q``, ``max_length_k`` (Python ints).

    Raises:
        ArgumentError: a field is missing, is not the whole row or holds no integers; a loss mask with other weights
            than 0 and 1; a label at the last token of a sequence, which has no token to go back to.

    Example:
        >>> from dcpack.layout import packed_offsets, position_ids, shift_labels
        >>> tokens = np.array([5, 6, 7, 8, 9])
        >>> fields = {"input_ids": tokens, "position_ids": position_ids([3, 2])}
        >>> fields["labels"] = shift_labels(tokens, [0, 3, 5])
        >>> huggingface_flat(packed_offsets([3, 2]), fields)["labels"]
        array([[-100,    6,    7, -100,    9]])
    """
    real, padded, largest = check_packed(packed)
    check_kinds(fields=(fields, Mapping))
    if missing := sorted({"input_ids", "position_ids", "labels"} - fields.keys()):
        raise ArgumentError(f"fields must hold input_ids, position_ids and labels; no {', '.join(missing)}")
    arrays = {name: as_array(name, fields[name]) for name in ("input_ids", "position_ids", "labels")}
    size = arrays["input_ids"].size
    wrong = [f"{name} {array.shape}" for name, array in arrays.items() if array.shape != (size,)]
    if wrong or size < padded[-1]:
        raise ArgumentError(
            f"fields must be whole rows of at least {padded[-1]} tokens, got {list_offenders(wrong) or size}"
        )
    if other := [f"{name} {array.dtype}" for name, array in arrays.items() if not np.can_cast(array.dtype, np.int64)]:
        raise ArgumentError(f"fields must hold integers that fit in int64, got {list_offenders(other)}")
    is_padding = segment_ids(packed, num_tokens=size)[0] == 0
    labels = np.where(is_padding, IGNORED_LABEL, _masked(arrays["labels"], fields.get("loss_mask")))
    labels = _unshift(labels, np.diff(real), padded)
    _, covered, tail = cover_tail(real, padded, size)
    return {
        "input_ids": arrays["input_ids"].astype(np.int64)[np.newaxis],
        "position_ids": arrays["position_ids"].astype(np.int64)[np.newaxis],
        "labels": labels[np.newaxis],
        "cu_seq_lens_q": covered.copy(),
        "cu_seq_lens_k": covered.copy(),
        "max_length_q": max(largest, tail),
        "max_length_k": max(largest, tail),
    }


def _masked(labels: npt.NDArray[Any], loss_mask: Any) -> npt.NDArray[np.int64]:
    labels = labels.astype(np.int64)
    if loss_mask is None:
        return labels
    mask = as_array("loss_mask", loss_mask)
    if mask.shape != labels.shape:
        raise ArgumentError(f"loss_mask must have the shape of labels {labels.shape}, got {mask.shape}")
    if weighted := np.flatnonzero((mask != 0) & (mask != 1) & (labels != IGNORED_LABEL)).tolist():
        listed = list_offenders([f"{mask[i]} at {i}" for i in weighted])
        raise ArgumentError(f"loss_mask must be 0 or 1, as labels can say no more: {listed}")
    return np.where(mask != 0, labels, IGNORED_LABEL)


def _unshift(labels: npt.NDArray[np.int64], lengths: Any, padded: Any) -> npt.NDArray[np.int64]:
    """Return the labels, each one slot later.

    The first slot of a sequence then has the label of a last token or of padding, both of which are -100.
    """
    lasts = (padded[:-1] + lengths - 1)[lengths > 0]
    kept = np.flatnonzero(lengths > 0)
    if bad := np.flatnonzero(labels[lasts] != IGNORED_LABEL).tolist():
        listed = list_offenders([f"sequence {kept[i]} has {labels[lasts[i]]}" for i in bad])
        raise ArgumentError(f"labels at the last token of a sequence have no token that could hold them: {listed}")
    result = np.full(labels.size, IGNORED_LABEL, np.int64)
    result[1:] = labels[:-1]
    return result
