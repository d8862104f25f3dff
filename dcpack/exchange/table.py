"""One all-gather before the plan: what every sample is, and where it lies.

Each process describes its own samples in one message. Every process merges the messages of all in the same way, so all
hold the same `SampleTable`; every size in the exchange follows from it and the plan, and none is negotiated again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dcpack._checks import Int64Array, as_lengths, check_kinds, check_names, frozen, list_offenders
from dcpack.comm import Communicator
from dcpack.comm.dtypes import as_bytes, dtype_from_name, wire_name
from dcpack.errors import ArgumentError
from dcpack.exchange.fields import PER_TOKEN_FIELDS, PreparedSample, check_prepared, prepare_samples

__all__ = ["FieldKind", "GatheredSamples", "SampleTable", "gather_prepared", "gather_samples"]


@dataclass(frozen=True, kw_only=True, slots=True, order=True)
class FieldKind:
    """One way that a field occurs.

    Attributes:
        name: the field.
        dtype: name of its dtype.
        dims: its dimensions after the first (after none for a scalar).
        is_scalar: a 0-d array.
        per_token: one element a token in the first dimension.

    Example:
        >>> FieldKind(name="pixels", dtype="float32", dims=(3, 8), is_scalar=False, per_token=False).row_bytes
        96
    """

    name: str
    dtype: str
    dims: tuple[int, ...]
    is_scalar: bool
    per_token: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of one row (of the scalar itself)."""
        return dtype_from_name(self.dtype).itemsize * int(np.prod(self.dims, dtype=np.int64))


@dataclass(frozen=True, kw_only=True, eq=False)
class SampleTable:
    """Every sample of the step, the same on all processes. Sample i is sequence i of the plan.

    Attributes:
        ids: int64[n], the caller's id of each sample.
        lengths: int64[n], tokens.
        num_valid: int64[n], tokens that count in the loss.
        holder_offsets: int64[n + 1], where the holders of each sample begin.
        holders: int64[h], processes (group-local numbers) that hold it, ascending.
        holder_places: int64[h], its place among the samples of that process.
        kinds: the distinct ways that fields occur, sorted.
        kind_of: int64[n, f], which kind each of the f fields of the sample is; -1 where it has no such field.
        rows: int64[n, f], rows of each field; 1 for a scalar, 0 where absent.
        field_names: the f names, sorted.

    Example:
        >>> import dcpack
        >>> def describe(communicator):
        ...     return gather_samples(communicator, [{"input_ids": list(range(2 + communicator.rank))}]).table
        >>> table = dcpack.run_ranks(2, describe)[0]
        >>> table.lengths.tolist(), table.num_valid.tolist(), table.holders.tolist(), table.field_names
        ([2, 3], [1, 2], [0, 1], ('input_ids', 'labels'))
    """

    ids: Int64Array
    lengths: Int64Array
    num_valid: Int64Array
    holder_offsets: Int64Array
    holders: Int64Array
    holder_places: Int64Array
    kinds: tuple[FieldKind, ...]
    kind_of: Int64Array
    rows: Int64Array
    field_names: tuple[str, ...]

    @property
    def num_samples(self) -> int:
        """Number of different samples."""
        return self.lengths.size

    @property
    def global_valid_tokens(self) -> int:
        """Tokens that count in the loss, over all samples."""
        return int(self.num_valid.sum())

    @cached_property
    def token_fields(self) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
        """Dtype and further dims of every per-token field of the step: what all its occurrences fit in.

        Raises:
            ArgumentError: a field that differs in its further dims, or has no common dtype.
        """
        made = {name: dtype for name, dtype in _MADE_FIELDS.items() if not self.has_field(name).all()}
        return _token_fields(self.kinds, made)

    def has_field(self, name: str) -> npt.NDArray[np.bool_]:
        """Return bool[n]: which samples have the field `name`."""
        check_kinds(name=(name, str))
        if name not in self.field_names:
            return np.zeros(self.num_samples, np.bool_)
        return self.kind_of[:, self.field_names.index(name)] >= 0


@dataclass(frozen=True, kw_only=True, eq=False)
class GatheredSamples:
    """The samples of this process, and the table of all.

    Attributes:
        table: the same on every process.
        local: this process's samples, in the order given.

    Example:
        >>> import dcpack
        >>> gathered = dcpack.run_ranks(2, lambda c: gather_samples(c, [{"input_ids": [1, 2, 3]}]))[0]
        >>> len(gathered.local), gathered.table.num_samples
        (1, 2)
    """

    table: SampleTable
    local: tuple[PreparedSample, ...]


def gather_samples(
    communicator: Communicator,
    samples: Sequence[Mapping[str, Any]],
    *,
    ids: Any = None,
    per_token: Sequence[str] = (),
) -> GatheredSamples:
    """Describe this process's samples to all others and learn of theirs. Collective.

    Args:
        communicator: the processes of the DPxCP domain.
        samples: this process's samples; may be empty, and their number may differ between processes.
        ids: int64[len(samples)] or None. Samples with the same id on several processes are copies of one sample, as
            CP siblings hold them. None on all processes: every sample is its own.
        per_token: further fields with one element a token; the same on every process.

    Returns:
        The table of all samples, ordered by process and place, copies counted once; and the prepared local samples.

    Raises:
        PeerError: some process's samples or ids are wrong; on every process.
        ArgumentError: copies that differ, ids given on some processes only, or a per-token field whose occurrences
            cannot share a row; on every process.

    Example:
        >>> import dcpack
        >>> def fn(communicator):
        ...     mine = [{"input_ids": list(range(communicator.rank + 2))}]
        ...     return gather_samples(communicator, mine).table.lengths.tolist()
        >>> dcpack.run_ranks(2, fn)
        [[2, 3], [2, 3]]
    """
    check_kinds(communicator=(communicator, Communicator))
    with communicator.guard():
        local = prepare_samples(samples, per_token)
        message = _describe(local, None if ids is None else _check_ids(ids, len(local)), per_token)
    return _exchange_descriptions(communicator, message, local)


def gather_prepared(
    communicator: Communicator, local: Sequence[PreparedSample], *, ids: Any = None, per_token: Sequence[str] = ()
) -> GatheredSamples:
    """Do what `gather_samples` does for samples that are prepared already, and need not have the standard fields.

    For paths with rules of their own, such as pipeline stages that move only what they compute on. `move_samples` takes
    the result; `exchange_samples`, which builds batches, needs the standard fields.

    Args:
        communicator: the processes of the DPxCP domain.
        local: this process's samples. Per-token fields have ``length`` rows.
        ids: as in `gather_samples`.
        per_token: as in `gather_samples`.

    Returns:
        As `gather_samples`.

    Raises:
        PeerError: as in `gather_samples`.
        ArgumentError: as in `gather_samples`.

    Example:
        >>> import dcpack
        >>> sample = PreparedSample(fields={"score": np.ones(3, np.float32)}, length=3, num_valid=0)
        >>> dcpack.run_ranks(2, lambda c: gather_prepared(c, [sample], per_token=["score"]).table.lengths.tolist())
        [[3, 3], [3, 3]]
    """
    check_kinds(communicator=(communicator, Communicator))
    with communicator.guard():
        per_token = check_names("per_token", per_token)
        check_prepared(local, per_token)
        message = _describe(local, None if ids is None else _check_ids(ids, len(local)), per_token)
    return _exchange_descriptions(communicator, message, tuple(local))


def _exchange_descriptions(
    communicator: Communicator, message: npt.NDArray[Any], local: tuple[PreparedSample, ...]
) -> GatheredSamples:
    gathered = communicator.all_gather(message)
    table = _merge([_parse(part) for part in gathered], communicator.ranks)
    _ = table.token_fields  # fields that cannot share a row are an error now, on all processes alike
    return GatheredSamples(table=table, local=local)


def _check_ids(ids: Any, count: int) -> Int64Array:
    checked = as_lengths("ids", ids)
    if checked.size != count:
        raise ArgumentError(f"ids must name each sample: {checked.size} ids, {count} samples")
    values, counts = np.unique(checked, return_counts=True)
    if repeated := values[counts > 1].tolist():
        raise ArgumentError(f"ids must be different on one process: {list_offenders([str(i) for i in repeated])}")
    return checked


@dataclass(frozen=True, kw_only=True, slots=True)
class _Description:
    has_ids: bool
    kinds: tuple[FieldKind, ...]
    per_token: tuple[str, ...]
    basics: Int64Array  # [n, 3]: id, length, valid tokens
    kind_of: Int64Array  # [n, f]
    rows: Int64Array  # [n, f]
    names: tuple[str, ...]


def _describe(local: Sequence[PreparedSample], ids: Int64Array | None, per_token: Sequence[str]) -> np.ndarray:
    """Return one message: its header's length, a JSON header, and int64 columns."""
    declared = {*PER_TOKEN_FIELDS, *per_token}
    names = sorted({name for sample in local for name in sample.fields})
    kinds: dict[FieldKind, int] = {}
    table = np.full((len(local), 3 + 2 * len(names)), -1, np.int64)
    for i, sample in enumerate(local):
        table[i, :3] = (i if ids is None else ids[i], sample.length, sample.num_valid)
        for f, name in enumerate(names):
            table[i, 3 + 2 * f + 1] = 0
            if name in sample.fields:
                kind, rows = _kind_of_field(name, sample.fields[name], name in declared)
                table[i, 3 + 2 * f : 5 + 2 * f] = (kinds.setdefault(kind, len(kinds)), rows)
    header = {
        "has_ids": ids is not None,
        "num_samples": len(local),
        "names": names,
        "per_token": sorted(declared),
        "kinds": [[k.name, k.dtype, list(k.dims), k.is_scalar, k.per_token] for k in kinds],
    }
    encoded = np.frombuffer(json.dumps(header).encode(), np.uint8)
    size = np.array([encoded.size], np.int64)
    return np.concatenate([as_bytes(size), encoded, as_bytes(table)])


def _kind_of_field(name: str, array: npt.NDArray[Any], per_token: bool) -> tuple[FieldKind, int]:
    dims = tuple(int(d) for d in array.shape[1:])
    kind = FieldKind(name=name, dtype=wire_name(array.dtype), dims=dims, is_scalar=array.ndim == 0, per_token=per_token)
    return kind, 1 if array.ndim == 0 else int(array.shape[0])


def _parse(message: np.ndarray) -> _Description:
    size = int(message[:8].view(np.int64)[0])
    header = json.loads(message[8 : 8 + size].tobytes())
    names = tuple(header["names"])
    table = np.frombuffer(message[8 + size :].tobytes(), np.int64).reshape(header["num_samples"], 3 + 2 * len(names))
    kinds = tuple(
        FieldKind(name=n, dtype=d, dims=tuple(dims), is_scalar=s, per_token=p) for n, d, dims, s, p in header["kinds"]
    )
    return _Description(
        has_ids=header["has_ids"],
        kinds=kinds,
        per_token=tuple(header["per_token"]),
        basics=table[:, :3],
        kind_of=table[:, 3::2],
        rows=table[:, 4::2],
        names=names,
    )


def _merge(parts: Sequence[_Description], ranks: Sequence[int]) -> SampleTable:
    """Merge the descriptions of all processes; pure, and the same everywhere."""
    filled = [p for p, part in enumerate(parts) if part.basics.shape[0]]
    without = [f"rank {ranks[p]}" for p in filled if not parts[p].has_ids]
    if without and len(without) < len(filled):
        raise ArgumentError(f"ids must be given on all ranks or on none; missing on {list_offenders(without)}")
    if len({part.per_token for part in parts}) > 1:
        listed = [f"rank {ranks[p]} has {list(part.per_token)}" for p, part in enumerate(parts)]
        raise ArgumentError(f"per_token must be the same on all ranks: {list_offenders(listed)}")
    kinds = tuple(sorted({kind for part in parts for kind in part.kinds}))
    names = tuple(sorted({name for part in parts for name in part.names}))
    basics = np.concatenate([part.basics for part in parts])
    number_of_kind = {kind: number for number, kind in enumerate(kinds)}
    kind_of = np.full((basics.shape[0], len(names)), -1, np.int64)
    rows = np.zeros_like(kind_of)
    counts = [part.basics.shape[0] for part in parts]
    start = 0
    for part, count in zip(parts, counts, strict=True):
        columns = [names.index(name) for name in part.names]
        renumber = np.array([number_of_kind[kind] for kind in part.kinds] + [-1], np.int64)  # -1 stays -1
        kind_of[start : start + count, columns] = renumber[part.kind_of]
        rows[start : start + count, columns] = part.rows
        start += count
    holder = np.repeat(np.arange(len(parts)), counts)
    place = np.concatenate([np.arange(count) for count in counts])
    sample = np.arange(basics.shape[0]) if without or not filled else _first_occurrences(basics[:, 0])
    _check_copies(sample, np.concatenate([basics, kind_of, rows], axis=1), holder, ranks)
    first, sample = np.unique(sample, return_inverse=True)
    order = np.lexsort((holder, sample))
    per_sample = np.bincount(sample, minlength=first.size)
    ids = first if without or not filled else basics[first, 0]
    return SampleTable(
        ids=frozen(ids),
        lengths=frozen(basics[first, 1]),
        num_valid=frozen(basics[first, 2]),
        holder_offsets=frozen(np.concatenate([[0], np.cumsum(per_sample)]).astype(np.int64)),
        holders=frozen(holder[order]),
        holder_places=frozen(place[order]),
        kinds=kinds,
        kind_of=frozen(kind_of[first]),
        rows=frozen(rows[first]),
        field_names=names,
    )


def _first_occurrences(ids: Int64Array) -> Int64Array:
    """Return for each element the index at which its value first occurs."""
    _, first, inverse = np.unique(ids, return_index=True, return_inverse=True)
    return first[inverse]


def _check_copies(sample: Int64Array, described: Int64Array, holder: Int64Array, ranks: Sequence[int]) -> None:
    different = np.flatnonzero((described != described[sample]).any(axis=1)).tolist()
    if different:
        on = [ranks[p] for p in holder.tolist()]
        listed = [f"id {described[i, 0]} on rank {on[i]} against rank {on[int(sample[i])]}" for i in different]
        raise ArgumentError(f"copies of a sample must agree in length and fields: {list_offenders(listed)}")


_MADE_FIELDS = {"loss_mask": np.dtype(np.float32), "position_ids": np.dtype(np.int64)}
"""Fields that are made where a sample has none, and the dtype that holds what is made."""


def _token_fields(
    kinds: tuple[FieldKind, ...], made: Mapping[str, np.dtype[Any]]
) -> dict[str, tuple[np.dtype[Any], tuple[int, ...]]]:
    """Return dtype and further dims of every per-token field: what all its occurrences can be held in."""
    found: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {
        "input_ids": (np.dtype(np.int64), ()),
        "labels": (np.dtype(np.int64), ()),
        "loss_mask": (np.dtype(np.float32), ()),
        "position_ids": (np.dtype(np.int64), ()),
    }
    seen: dict[str, list[FieldKind]] = {}
    for kind in kinds:
        if kind.per_token:
            seen.setdefault(kind.name, []).append(kind)
    for name, found_kinds in seen.items():
        dims = {kind.dims for kind in found_kinds}
        if len(dims) > 1:
            raise ArgumentError(f"per-token field {name!r} must have the same dimensions everywhere: {sorted(dims)}")
        dtypes = [dtype_from_name(kind.dtype) for kind in found_kinds]
        dtypes += [made[name]] if name in made else []
        found[name] = (common_dtype(name, dtypes), dims.pop())
    return found


def common_dtype(name: str, dtypes: Sequence[np.dtype[Any]]) -> np.dtype[Any]:
    """Return the dtype that holds all of `dtypes`; integers that only a float could hold together are refused.

    Example:
        >>> common_dtype("score", [np.dtype(np.int32), np.dtype(np.float32)])
        dtype('float64')
    """
    try:
        common = np.result_type(*dtypes) if len(dtypes) > 1 else dtypes[0]
    except TypeError as error:
        raise ArgumentError(f"per-token field {name!r} has dtypes that no common one can hold: {dtypes}") from error
    if common.kind == "f" and all(dtype.kind in "iu" for dtype in dtypes):
        raise ArgumentError(f"per-token field {name!r} has integers that no common dtype can hold: {dtypes}")
    return common
