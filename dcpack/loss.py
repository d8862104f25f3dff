"""Exact losses: what counts, by what it is divided, and how to undo the averaging of data-parallel wrappers.

The loss of a step is one sum over all tokens that count, divided once by a number that every rank knows:

    loss = sum over ranks, micro-batches, tokens of  weight(token) * token_loss(token)

With the weights of `token_weights` that sum is the token mean, the sequence mean or the group mean of the whole step,
however sequences were packed and split. Each token is computed on exactly one CP rank, so plain sums over ranks are
right; a rank without valid tokens adds exactly 0, and a step without any gives exactly 0.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Float64Array, as_integers, as_lengths, check_choice, check_int, list_offenders
from dcpack.errors import ArgumentError
from dcpack.layout import IGNORED_LABEL

__all__ = ["NORMALISERS", "averaging_factor", "count_valid_tokens", "token_weights", "valid_token_mask"]

_ANY = int(np.iinfo(np.int64).min)

NORMALISERS = ("token", "sequence", "group")
"""The mean over tokens; over sequences of their token means; over prompt groups of the token means of each group."""


def valid_token_mask(labels: Any, loss_mask: Any = None) -> npt.NDArray[np.bool_]:
    """Tell which tokens count in the loss: label not -100, and loss mask, where there is one, not 0.

    Args:
        labels: [t], shifted labels.
        loss_mask: [t] or None.

    Returns:
        bool[t].

    Raises:
        ArgumentError: labels that are no integers, or a loss mask that is no array of finite numbers of their shape.

    Example:
        >>> valid_token_mask([5, -100, 7], [1.0, 1.0, 0.0]).tolist()
        [True, False, False]
    """
    labels = as_integers("labels", labels, minimum=_ANY)
    valid = labels != IGNORED_LABEL
    if loss_mask is None:
        return valid
    try:
        mask = np.asarray(loss_mask)
        mask = mask.astype(np.float32) if mask.dtype.kind == "V" else mask  # bfloat16 and the like
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: a tensor that wants gradients
        raise ArgumentError(f"loss_mask must be an array of numbers: {error}") from error
    if mask.dtype.kind not in "biuf":
        raise ArgumentError(f"loss_mask must hold numbers, got dtype {mask.dtype}")
    if mask.shape != labels.shape:
        raise ArgumentError(f"loss_mask must have the shape of labels {labels.shape}, got {mask.shape}")
    if mask.dtype.kind == "f" and not np.isfinite(mask).all():
        raise ArgumentError(f"loss_mask must be finite, got {mask[~np.isfinite(mask)][:4].tolist()}")
    return valid & (mask != 0)


def count_valid_tokens(labels: Any, loss_mask: Any = None) -> int:
    """Return how many tokens count in the loss.

    Args:
        labels: [t], integers; -100 is ignored.
        loss_mask: [t], finite; 0 does not count. None counts all labels.

    Returns:
        Tokens whose label and mask both count.

    Example:
        >>> count_valid_tokens([5, -100, 7])
        2
    """
    return int(np.count_nonzero(valid_token_mask(labels, loss_mask)))


def token_weights(
    labels: Any,
    loss_mask: Any = None,
    *,
    normaliser: str = "token",
    global_valid_tokens: int | None = None,
    segment_ids: Any = None,
    sequence_valid_tokens: Any = None,
    num_units: int | None = None,
) -> Float64Array:
    """Return the weight of each token, so that the plain sum of ``weight * token_loss`` over all ranks is the mean.

    Every number is one of the whole step, so that the weight of a token depends on nothing that packing or CP changes.

    Args:
        labels: [t], shifted labels of one batch.
        loss_mask: [t] or None.
        normaliser: ``"token"``: needs `global_valid_tokens`. ``"sequence"``, ``"group"``: need the other three.
        global_valid_tokens: valid tokens of the step.
        segment_ids: int[t], sequence of each token, from 1; 0 is padding.
        sequence_valid_tokens: int64[n], for each sequence of the batch the valid tokens of its unit over the whole
            step: of the sequence itself (before it was cut or split over ranks) under ``"sequence"``, of all sequences
            of its prompt group under ``"group"``.
        num_units: sequences (or groups) of the step that have a valid token.

    Returns:
        float64[t], 0 where a token does not count.

    Raises:
        ArgumentError: a number that the normaliser needs is missing, or does not fit the batch.

    Example:
        >>> token_weights([5, -100, 7], global_valid_tokens=4).tolist()
        [0.25, 0.0, 0.25]
        >>> sizes = [1, 2]
        >>> token_weights([4, 5, 6], normaliser="sequence", segment_ids=[1, 2, 2], sequence_valid_tokens=sizes,
        ...               num_units=2).tolist()
        [0.5, 0.25, 0.25]
    """
    check_choice("normaliser", normaliser, NORMALISERS)
    valid = valid_token_mask(labels, loss_mask)
    if normaliser == "token":
        if global_valid_tokens is None:
            raise ArgumentError("normaliser 'token' needs global_valid_tokens")
        total = check_int("global_valid_tokens", global_valid_tokens, minimum=0)
        if total < np.count_nonzero(valid):
            raise ArgumentError(f"global_valid_tokens is {total}, but this batch alone has {np.count_nonzero(valid)}")
        return np.where(valid, 1.0 / max(total, 1), 0.0)
    if segment_ids is None or sequence_valid_tokens is None or num_units is None:
        raise ArgumentError(f"normaliser {normaliser!r} needs segment_ids, sequence_valid_tokens and num_units")
    return _unit_weights(valid, segment_ids, sequence_valid_tokens, num_units)


def _unit_weights(valid: npt.NDArray[np.bool_], segment_ids: Any, unit_tokens: Any, num_units: int) -> Float64Array:
    tokens = as_lengths("sequence_valid_tokens", unit_tokens)
    segments = as_lengths("segment_ids", segment_ids)
    num_units = check_int("num_units", num_units, minimum=0)
    if segments.shape != valid.shape or segments.max(initial=0) > tokens.size:
        raise ArgumentError(
            f"segment_ids must have shape {valid.shape} and at most {tokens.size} sequences, "
            f"got {segments.shape} and {segments.max(initial=0)}"
        )
    if np.any(valid & (segments == 0)):
        raise ArgumentError(f"valid tokens in padding: slots {np.flatnonzero(valid & (segments == 0))[:8].tolist()}")
    here = np.bincount(segments[valid], minlength=tokens.size + 1)[1:]
    if short := np.flatnonzero(here > tokens).tolist():
        listed = list_offenders([f"sequence {i + 1} has {here[i]} here, {tokens[i]} are given" for i in short])
        raise ArgumentError(f"sequence_valid_tokens must cover the valid tokens of this batch: {listed}")
    if num_units == 0 and valid.any():
        raise ArgumentError(f"num_units is 0, but this batch has {np.count_nonzero(valid)} valid tokens")
    sizes = np.concatenate([[1], tokens])[segments]
    return np.where(valid, 1.0 / (np.maximum(sizes, 1) * float(max(num_units, 1))), 0.0)


def averaging_factor(num_averaged_ranks: int) -> float:
    """Return what to multiply a rank's loss with where a wrapper divides summed gradients by the number of ranks.

    DDP and FSDP average gradients over their ranks by default. The weights above already hold the one division, so the
    average is undone: multiply the loss of every rank by the number of ranks whose gradients are averaged (DP x CP
    together where CP ranks take part in the same reduction). Wrappers told to sum (FSDP2's
    ``set_gradient_divide_factor(1.0)``, Megatron-Core's ``calculate_per_token_loss``) need no factor.

    Args:
        num_averaged_ranks: ranks whose gradients are averaged, at least 1.

    Example:
        >>> averaging_factor(8)
        8.0
    """
    return float(check_int("num_averaged_ranks", num_averaged_ranks, minimum=1))
