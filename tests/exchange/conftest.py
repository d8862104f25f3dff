"""Plans and sample tables from a few plain lists, and a run that must fail everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import dcpack
from dcpack.errors import DcpackError
from dcpack.exchange import PER_TOKEN_FIELDS, FieldKind, SampleTable, prepare_samples

Bin = tuple[int, int, int, list[tuple[int, int, int]]]


def _plan_of(
    lengths: Sequence[int],
    bins: Sequence[Bin],
    *,
    num_ranks: int,
    capacity: int = 64,
    padding: dcpack.PaddingRule | None = None,
) -> dcpack.Plan:
    """A valid plan out of bins (micro-batch, first rank, CP size, [(sequence, start, length), ...])."""
    entries = [entry for *_, held in bins for entry in held]
    covered = np.zeros(len(lengths), np.int64)
    for sequence, _, length in entries:
        covered[sequence] += length
    plan = dcpack.Plan(
        microbatch=np.array([b[0] for b in bins], np.int64),
        first_rank=np.array([b[1] for b in bins], np.int64),
        cp_size=np.array([b[2] for b in bins], np.int64),
        row=np.zeros(len(bins), np.int64),
        oversized=np.zeros(len(bins), np.bool_),
        dummy=np.array([not b[3] for b in bins], np.bool_),
        offsets=np.array([0, *np.cumsum([len(b[3]) for b in bins])], np.int64),
        sequence_ids=np.array([e[0] for e in entries], np.int64),
        starts=np.array([e[1] for e in entries], np.int64),
        entry_lengths=np.array([e[2] for e in entries], np.int64),
        lengths=np.array(lengths, np.int64),
        dropped=np.array(lengths, np.int64) - covered,
        num_ranks=num_ranks,
        num_microbatches=max((b[0] for b in bins), default=-1) + 1,
        rows_per_rank=1,
        capacity=capacity,
        padding=padding,
        cp_sizes=tuple(sorted({b[2] for b in bins})) or (1,),
    )
    plan.validate(lengths)
    return plan


def _table_of(
    samples: Sequence[Mapping[str, Any]], holders: Sequence[Sequence[int]] | None = None, per_token: Sequence[str] = ()
) -> SampleTable:
    """The table of `samples`, sample i held by the processes ``holders[i]`` (default: process 0), made step by step."""
    holders = [[0] for _ in samples] if holders is None else holders
    prepared = prepare_samples(samples, per_token)
    names = sorted({name for sample in prepared for name in sample.fields})
    found = [
        {
            name: FieldKind(
                name=name,
                dtype=array.dtype.name,
                dims=array.shape[1:],
                is_scalar=array.ndim == 0,
                per_token=name in (*PER_TOKEN_FIELDS, *per_token),
            )
            for name, array in sample.fields.items()
        }
        for sample in prepared
    ]
    kinds = sorted({kind for sample in found for kind in sample.values()})
    held: list[int] = []
    places: list[int] = []
    for processes in holders:
        for process in processes:
            places.append(held.count(process))
            held.append(process)
    kind_of = [[kinds.index(kinds_of[name]) if name in kinds_of else -1 for name in names] for kinds_of in found]
    rows = [[len(np.atleast_1d(s.fields[name])) if name in s.fields else 0 for name in names] for s in prepared]
    shape = (len(prepared), len(names))
    return SampleTable(
        ids=np.arange(len(prepared)),
        lengths=np.array([sample.length for sample in prepared], np.int64),
        num_valid=np.array([sample.num_valid for sample in prepared], np.int64),
        holder_offsets=np.array([0, *np.cumsum([len(held_by) for held_by in holders])], np.int64),
        holders=np.array(held, np.int64),
        holder_places=np.array(places, np.int64),
        kinds=tuple(kinds),
        kind_of=np.array(kind_of, np.int64).reshape(shape),
        rows=np.array(rows, np.int64).reshape(shape),
        field_names=tuple(names),
    )


def _fail_everywhere(
    num_ranks: int, fn: Callable[[dcpack.Communicator], object], **options: Any
) -> list[tuple[type[DcpackError], str]]:
    """Run `fn`, which must raise one of our errors on every rank; return kind and text by rank."""
    caught: dict[int, tuple[type[DcpackError], str]] = {}

    def attempt(communicator: dcpack.Communicator) -> None:
        try:
            fn(communicator)
        except DcpackError as error:
            caught[communicator.rank] = (type(error), str(error))

    dcpack.run_ranks(num_ranks, attempt, **options)
    assert sorted(caught) == list(range(num_ranks)), f"only ranks {sorted(caught)} raised: {caught}"
    return [caught[rank] for rank in range(num_ranks)]


@pytest.fixture
def plan_of() -> Callable[..., dcpack.Plan]:
    return _plan_of


@pytest.fixture
def table_of() -> Callable[..., SampleTable]:
    return _table_of


@pytest.fixture
def fail_everywhere() -> Callable[..., list[tuple[type[DcpackError], str]]]:
    return _fail_everywhere
