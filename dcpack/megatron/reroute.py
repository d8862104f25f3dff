"""Every sequence to the DPxCP ranks that work on it: one gather, one all-to-all for all fields."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import as_array, as_lengths, check_kinds, check_names, list_offenders
from dcpack.comm import Communicator, all_gather_trees
from dcpack.comm.dtypes import dtype_from_name, wire_name
from dcpack.errors import ArgumentError
from dcpack.exchange import PreparedSample, check_same_plan, gather_prepared, move_samples, routes_for
from dcpack.exchange.table import common_dtype
from dcpack.layout import IGNORED_LABEL, shift_labels
from dcpack.loss import count_valid_tokens
from dcpack.megatron.samples import LENGTH_KEYS, Sample, length_of
from dcpack.megatron.stages import FIRST_STAGE_FIELDS, LAST_STAGE_FIELDS
from dcpack.plans import Plan

__all__ = ["complete_sample", "per_token_fields", "reroute_samples"]


def complete_sample(sample: Mapping[str, Any]) -> Sample:
    """Return a sequence with all four standard fields; those that it has stay as they are.

    Labels are the tokens shifted inside the sequence, before anything is packed or sliced; positions restart at 0; the
    loss mask is 1 for labels that count.

    Args:
        sample: one of `unpack_samples`.

    Raises:
        ArgumentError: a sample whose tokens and lengths do not fit each other.

    Example:
        >>> lengths = {"original_seq_len": np.array([3]), "padded_seq_len": np.array([4])}
        >>> made = complete_sample({"tokens": np.array([5, 6, 7, 0]), **lengths})
        >>> made["labels"].tolist(), made["loss_mask"].tolist(), made["position_ids"].tolist()
        ([6, 7, -100, -100], [1.0, 1.0, 0.0, 0.0], [0, 1, 2, 3])
    """
    real, padded = (length_of("sample", sample, name) for name in LENGTH_KEYS)
    made = dict(sample)
    if "tokens" not in made or as_array("tokens", made["tokens"]).shape != (padded,) or real > padded:
        raise ArgumentError(f"sample must have {padded} tokens, of which {real} are real")
    if "labels" not in made:
        labels = shift_labels(made["tokens"][:real], [0, real])
        made["labels"] = np.concatenate([labels, np.full(padded - real, IGNORED_LABEL, labels.dtype)])
    if "loss_mask" not in made:
        made["loss_mask"] = (made["labels"] != IGNORED_LABEL).astype(np.float32)
    if "position_ids" not in made:
        made["position_ids"] = np.arange(padded)
    return made


def per_token_fields(communicator: Communicator, samples: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """Return the fields that have one row a token in every sample of every rank that has them. Collective.

    A field of fixed size can look like one on ranks, or in rows, whose sequences happen to be as long as it; and a rank
    may have no sample with a field that others have. So the ranks decide once, for `reroute_samples` and
    `build_packed_microbatches`.

    Args:
        communicator: the DPxCP domain.
        samples: this rank's sequences, as of `unpack_samples`.

    Returns:
        By name, sorted, an array without rows: of the field's further dimensions, and of a dtype that holds all that
        the ranks have.

    Raises:
        PeerError: a sample of some rank has no length; on every rank.
        ArgumentError: a field differs in its further dimensions, or has no common dtype; on every rank.

    Example:
        >>> from dcpack.comm import run_ranks
        >>> def fn(communicator):
        ...     length = 2 + communicator.rank
        ...     sample = {"tokens": np.arange(length), "image": np.zeros(2), "padded_seq_len": np.array([length])}
        ...     return per_token_fields(communicator, [sample])
        >>> run_ranks(2, fn)[0]
        {'tokens': array([], dtype=int64)}
    """
    check_kinds(communicator=(communicator, Communicator))
    with communicator.guard():
        check_kinds(samples=(samples, list | tuple))
        kinds, other = _kinds_of_fields(samples)
    parts = all_gather_trees(communicator, [[[name, dtype, list(dims)] for name, dtype, dims in kinds], other])
    others = {name for _, names in parts for name in names}
    found: dict[str, set[tuple[str, tuple[int, ...]]]] = {}
    for name, dtype, dims in (kind for kinds, _ in parts for kind in kinds):
        found.setdefault(name, set()).add((dtype, tuple(dims)))
    return {name: _template(name, found[name]) for name in sorted(found.keys() - others)}


def _kinds_of_fields(samples: Sequence[Any]) -> tuple[list[tuple[str, str, tuple[int, ...]]], list[str]]:
    """Return (name, dtype, further dims) of what can be per token here, and the names of what cannot."""
    kinds: set[tuple[str, np.dtype[Any], tuple[int, ...]]] = set()
    other: set[str] = set()
    for i, sample in enumerate(samples):
        rows = length_of(f"samples[{i}]", sample, "padded_seq_len")
        for name, values in sample.items():
            array = values if isinstance(values, np.ndarray) else as_array(f"samples[{i}][{name!r}]", values)
            if name not in LENGTH_KEYS and array.shape[:1] == (rows,):
                kinds.add((name, array.dtype, array.shape[1:]))
            elif name not in LENGTH_KEYS:
                other.add(name)
    check_names("samples", {*other, *(name for name, _, _ in kinds)})
    return sorted((name, wire_name(dtype), dims) for name, dtype, dims in kinds), sorted(other)


def _template(name: str, kinds: set[tuple[str, tuple[int, ...]]]) -> npt.NDArray[Any]:
    dims = sorted({dims for _, dims in kinds})
    if len(dims) > 1:
        raise ArgumentError(f"per-token field {name!r} must have the same dimensions everywhere: {dims}")
    return np.zeros((0, *dims[0]), common_dtype(name, [dtype_from_name(dtype) for dtype, _ in sorted(kinds)]))


def reroute_samples(
    communicator: Communicator,
    samples: Sequence[Mapping[str, Any]],
    ids: Any,
    plan: Plan,
    *,
    sharding: str = "zigzag",
    per_token: Mapping[str, Any] | None = None,
    to_host: Callable[[Any], Any] = np.asarray,
) -> dict[int, Sample]:
    """Return the whole sequences that this rank's bins hold. Collective.

    Ranks that read the same data bring the same ids, and each sequence is sent by the nearest of them. Only the fields
    that the samples have travel: leave out what this pipeline stage does not compute on.

    Args:
        communicator: the DPxCP domain; member p is plan rank p.
        samples: this rank's sequences, as of `unpack_samples`; they are not changed.
        ids: int64[len(samples)], their numbers in the plan, ascending over the ranks.
        plan: the plan of the step over padded lengths, the same on every rank; no sequence may be cut.
        sharding: how CP ranks will slice; lengths that it cannot divide are an error here.
        per_token: the per-token fields, of `per_token_fields`; None asks for them.
        to_host: makes a NumPy array of a field; pass one that fetches from a device where the data lies there.

    Returns:
        The sequences by number.

    Raises:
        PeerError: some rank's samples or plan are wrong, or plans differ; on every rank.
        ArgumentError: the plan cuts sequences, or does not fit the samples; on every rank.

    Example:
        >>> import dcpack
        >>> def fn(communicator):
        ...     lengths = {"original_seq_len": np.array([2]), "padded_seq_len": np.array([2])}
        ...     sample = {"tokens": np.full(2, communicator.rank), **lengths}
        ...     plan = dcpack.plan([2, 2], num_ranks=2, capacity=4, scheduler="in_order", on_empty="dummy")
        ...     found = reroute_samples(communicator, [sample], [communicator.rank], plan)
        ...     return {number: sample["tokens"].tolist() for number, sample in found.items()}
        >>> dcpack.run_ranks(2, fn)
        [{0: [0, 0]}, {1: [1, 1]}]
    """
    check_kinds(communicator=(communicator, Communicator))
    with communicator.guard():
        check_kinds(
            samples=(samples, list | tuple),
            plan=(plan, Plan),
            per_token=(per_token, Mapping | None),
            to_host=(to_host, Callable),
        )
        numbers = as_lengths("ids", ids)
        prepared = tuple(_prepare(i, sample, to_host) for i, sample in enumerate(samples))
        if cut := np.flatnonzero((plan.starts > 0) | (plan.entry_lengths < plan.lengths[plan.sequence_ids])).tolist():
            listed = list_offenders([f"sequence {plan.sequence_ids[e]}" for e in sorted(cut)])
            raise ArgumentError(f"the plan cuts sequences, which go whole here: {listed}")
    if per_token is None:
        per_token = per_token_fields(communicator, [sample.fields for sample in prepared])
    gathered = gather_prepared(communicator, prepared, ids=numbers, per_token=list(per_token))
    check_same_plan(communicator, plan)
    if not np.array_equal(gathered.table.ids, np.arange(plan.num_sequences)):
        raise ArgumentError(
            f"ids must number {plan.num_sequences} sequences in the order of the ranks, got {gathered.table.ids[:8]}"
        )
    with communicator.guard():
        routes = routes_for(communicator, gathered, plan, None, sharding, "whole")
    parcels = move_samples(communicator, gathered, plan, routes)
    found: dict[int, Sample] = {}
    for (delivery, name), values in parcels.items():
        found.setdefault(int(plan.sequence_ids[routes.deliveries.entry[delivery]]), {})[name] = values
    return found


def _on_host(where: str, values: Any, to_host: Callable[[Any], Any]) -> npt.NDArray[Any]:
    try:
        on_host = to_host(values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(f"{where} cannot be brought to the host: {error}") from error
    return as_array(where, on_host)


def _prepare(index: int, sample: Mapping[str, Any], to_host: Callable[[Any], Any]) -> PreparedSample:
    check_kinds(**{f"samples[{index}]": (sample, Mapping)})
    fields = {name: _on_host(f"samples[{index}][{name!r}]", values, to_host) for name, values in sample.items()}
    real, padded = (length_of(f"samples[{index}]", fields, name) for name in LENGTH_KEYS)
    if real > padded:
        raise ArgumentError(f"samples[{index}]: original_seq_len {real} must be at most padded_seq_len {padded}")
    standard = [name for name in (*FIRST_STAGE_FIELDS, *LAST_STAGE_FIELDS) if name in fields]
    if wrong := [f"{name} {list(fields[name].shape)}" for name in standard if fields[name].shape != (padded,)]:
        raise ArgumentError(f"samples[{index}] has {padded} tokens with padding, but {list_offenders(wrong)}")
    valid = 0
    if "labels" in fields:
        mask = fields.get("loss_mask")
        valid = count_valid_tokens(fields["labels"][:real], None if mask is None else mask[:real])
    return PreparedSample(fields=fields, length=padded, num_valid=valid)
