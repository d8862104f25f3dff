"""A small job on any mesh: its data, what each rank sees of it, and the proof that all of it is right.

Token p of sequence s is ``(s + 1) * 1000 + p``, its label is that plus ``LABEL``, its weight that plus a half: so every
value says where it belongs. What lies in the padding of a sample is poison.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from typing import Any

import numpy as np

import dcpack
from dcpack.errors import PeerError
from dcpack.megatron import (
    METADATA_KEYS,
    ParallelGroups,
    StepOptions,
    build_groups,
    get_batch_for_rank,
    wrap_data_iterator,
)

LABEL = 500_000_000
POISON = 777_777_777
CAPACITY = 64
NUM_ITEMS = 3

LAYOUTS = (
    (1, 1, 1, 4),
    (2, 1, 1, 2),
    (1, 2, 1, 2),
    (2, 2, 1, 1),
    (1, 1, 2, 2),
    (2, 1, 2, 1),
    (1, 2, 2, 1),
    (1, 4, 1, 1),
    (1, 1, 4, 1),
)
"""Sizes of tp, pp, cp, dp."""

SCHEDULERS = ("in_order", "packing_aware", "dynamic_cp")
VPP_SIZES = (1, 2, 4)


@dataclass(frozen=True)
class Case:
    """One job."""

    layout: tuple[int, int, int, int]
    scheduler: str
    vpp_size: int
    axes: tuple[str, ...] = ("pp", "dp", "cp", "tp")
    sharding: str = "zigzag"
    is_packed: bool = False
    mtp_rank: int | None = None  # pipeline rank whose first virtual stage has MTP layers

    def __str__(self) -> str:
        mesh = "-".join(f"{axis}{size}" for axis, size in self.sizes.items())
        return f"{mesh}-{self.scheduler}-vpp{self.vpp_size}"

    @property
    def sizes(self) -> dict[str, int]:
        return dict(zip(("tp", "pp", "cp", "dp"), self.layout, strict=True))

    @property
    def mesh(self) -> dcpack.Topology:
        return dcpack.Topology(axes=self.axes, sizes=tuple(self.sizes[axis] for axis in self.axes))

    @property
    def max_cp(self) -> int:
        return self.sizes["cp"] if self.scheduler == "in_order" else self.sizes["cp"] * self.sizes["dp"]

    @property
    def options(self) -> StepOptions:
        tp, pp, cp, _ = self.layout
        return StepOptions(
            capacity=CAPACITY,
            scheduler=self.scheduler,
            cp_size=cp,
            tp_size=tp,
            pp_size=pp,
            vpp_size=self.vpp_size,
            sharding=self.sharding,
        )


ALL_CASES = [Case(*parts) for parts in itertools.product(LAYOUTS, SCHEDULERS, VPP_SIZES)]
PROCESS_CASES = [case for case in ALL_CASES if case.vpp_size > 1 or case.scheduler == "dynamic_cp"]


def lengths_of(case: Case) -> list[int]:
    """Real tokens of every sequence; the first one needs all ranks that may share one."""
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, 40, 17)
    lengths[0] = CAPACITY * case.max_cp - 16
    return lengths.tolist()


def _sample(number: int, length: int) -> dict[str, Any]:
    padded = length + number % 3
    tokens = np.arange(padded) + 1000 * (number + 1)
    fields = {
        "tokens": tokens,
        "labels": tokens + LABEL,
        "loss_mask": (tokens % 5 != 0).astype(np.float32),
        "position_ids": np.arange(padded),
        "weight": np.stack([tokens + 0.5, tokens + 0.25], axis=1),
    }
    for values in fields.values():
        values[length:] = POISON
    return {**fields, "original_seq_len": np.array([length]), "padded_seq_len": np.array([padded])}


def _packed(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One pre-packed sample with a batch dimension, and an empty sequence at its end."""
    names = ("tokens", "labels", "loss_mask", "position_ids", "weight")
    offsets = {
        name: np.cumsum([0, *(int(sample[key][0]) for sample in samples), 0])
        for name, key in (("cu_seqlens", "original_seq_len"), ("cu_seqlens_padded", "padded_seq_len"))
    }
    row = {name: np.concatenate([sample[name] for sample in samples]) for name in names}
    return {name: values[np.newaxis] for name, values in {**row, **offsets}.items()}


def items_of(case: Case, dp_rank: int) -> list[Any]:
    """What the dataset of one data-parallel rank yields: uneven shares, in items of uneven size."""
    lengths = lengths_of(case)
    dp = case.sizes["dp"]
    bounds = np.linspace(0, len(lengths), dp + 1).astype(int)
    numbers = range(bounds[dp_rank], bounds[dp_rank + 1])
    samples = [_sample(number, lengths[number]) for number in numbers]
    parts = [samples[:1], samples[1:-2], samples[-2:]]
    return [_packed(part) for part in parts] if case.is_packed else parts


def run_cases(world: dcpack.Communicator, cases: Sequence[Case], to_device: Any = None) -> list[dict[str, Any]]:
    """Be one rank of the jobs for one step each, and return all that it saw; cases of one mesh share their groups."""
    results = []
    for _, same in itertools.groupby(cases, key=lambda case: (case.layout, case.axes)):
        group: ParallelGroups | None = None
        for case in same:
            group = group or build_groups(world, case.mesh)
            place = {"pp": 0, "dp": 0, "cp": 0, "tp": 0, **case.mesh.coordinates(world.rank)}
            results.append(run_case(group, case, place, to_device))
        if group is not None:
            group.close()
    return results


def run_case(groups: ParallelGroups, case: Case, place: dict[str, int], to_device: Any = None) -> dict[str, Any]:
    """Be one rank of the job for one step, and return all that it saw."""
    items = items_of(case, place["dp"])
    untouched = copy.deepcopy(items)
    has_data = groups.tp.rank == 0 and (
        groups.is_first_stage or groups.is_last_stage or case.mtp_rank == groups.pp.rank
    )
    source: Any = iter(items) if has_data else None
    if case.vpp_size > 1:
        source = [None, source] + [None] * (case.vpp_size - 2)
    mtp_stages = (0,) if case.mtp_rank == groups.pp.rank else ()
    step = wrap_data_iterator(source, groups, case.options, num_microbatches=NUM_ITEMS, mtp_stages=mtp_stages)
    require_same(items, untouched)
    made = step.data_iterator if case.vpp_size > 1 else [step.data_iterator]
    stages = [None if each is None else list(each) for each in made]
    kept = copy.deepcopy(stages)
    batches = []
    for stage, rows in enumerate(stages):
        source = None if rows is None else iter(rows)
        batches.append(
            [
                _seen(source, groups, case, stage, stage in mtp_stages, to_device)
                for _ in range(step.totals.num_microbatches)
            ]
        )
    require_same(stages, kept)
    return {
        "place": place,
        "plan_rank": groups.plan_rank,
        "domain": groups.dp_cp.ranks,
        "totals": asdict(step.totals),
        "rows": stages,
        "batches": batches,
    }


def _seen(
    source: Iterator[Any] | None, groups: ParallelGroups, case: Case, stage: int, has_mtp: bool, to_device: Any
) -> dict[str, Any]:
    batch = get_batch_for_rank(
        source,
        groups,
        vpp_size=case.vpp_size,
        vpp_stage=stage if case.vpp_size > 1 else None,
        has_mtp=has_mtp,
        sharding=case.sharding,
        to_device=to_device,
    )
    arrays = {name: np.asarray(values) for name, values in batch.fields.items()}
    params = {n: v if n == "cp_group" else np.asarray(v).tolist() for n, v in batch.packed_seq_params.items()}
    return {"fields": arrays, "params": params, "padding_mask": np.asarray(batch.padding_mask)}


def move_and_fail(groups: ParallelGroups, make_row: Callable[[], Any], givers: Sequence[int]) -> dict[str, Any]:
    """Take two micro-batches with `to_device` on the ranks `givers` alone; in the first the last of them fails."""
    place = groups.tp.rank
    rows = iter([make_row(), make_row()]) if place == 0 else None
    is_over, moved, fault = False, [], None

    def to_device(array: Any) -> Any:
        if not is_over and place == givers[-1]:
            raise MemoryError("no room")
        moved.append(is_over)
        return array

    given = to_device if place in givers else None
    try:
        get_batch_for_rank(rows, groups, to_device=given)
    except PeerError as error:
        fault = (error.rank, error.cause)
    is_over = True
    batch = get_batch_for_rank(rows, groups, to_device=given)
    assert batch.fields["tokens"].shape == batch.padding_mask.shape
    calls = {verb: count for verb, count in groups.tp.counters.calls.items() if count}
    return {"fault": fault, "moved": any(moved), "calls": [part for item in sorted(calls.items()) for part in item]}


def require_same(actual: Any, expected: Any, where: str = "value") -> None:
    """Compare nested structures of arrays exactly, dtypes included."""
    assert type(actual) is type(expected), where
    if isinstance(actual, dict):
        assert list(actual) == list(expected), where
        for name in actual:
            require_same(actual[name], expected[name], f"{where}[{name!r}]")
    elif isinstance(actual, list | tuple):
        assert len(actual) == len(expected), where
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            require_same(one, other, f"{where}[{i}]")
    elif isinstance(actual, np.ndarray):
        assert actual.dtype == expected.dtype, where
        np.testing.assert_array_equal(actual, expected, where)
    else:
        assert actual == expected, where


# ---- the proof -------------------------------------------------------------------------------------------------------


def check_case(case: Case, seen: Sequence[dict[str, Any]]) -> None:
    """Raise AssertionError where the ranks of a job saw anything but what they should have."""
    lengths = lengths_of(case)
    by_place = {tuple(each["place"][axis] for axis in ("pp", "dp", "cp", "tp")): each for each in seen}
    assert len(by_place) == len(seen) == case.mesh.num_ranks
    totals = seen[0]["totals"]
    assert all(each["totals"] == totals for each in seen)
    assert (totals["num_sequences"], totals["num_tokens"]) == (len(lengths), sum(lengths))
    assert totals["num_microbatches"] % case.options.microbatch_multiple == 0
    assert totals["num_empty"] == (NUM_ITEMS * case.sizes["dp"] if case.is_packed else 0)
    valid = sum(((s + 1) * 1000 + p) % 5 != 0 for s, length in enumerate(lengths) for p in range(length))
    assert totals["global_valid_tokens"] == valid
    for each in seen:
        _check_stages(case, each)
        _check_tp_peers(each, by_place)
        _check_slices(case, each, by_place)
    _check_pipeline(case, by_place)
    _check_every_token(case, by_place, lengths)
    _check_sums(case, by_place, lengths, totals)


def _needs(case: Case, place: dict[str, int], stage: int) -> tuple[bool, bool]:
    is_mtp = case.mtp_rank == place["pp"] and stage == 0
    first = place["pp"] == 0 and stage == 0
    last = place["pp"] == case.sizes["pp"] - 1 and stage == case.vpp_size - 1
    return first or is_mtp, last or is_mtp


def _check_stages(case: Case, each: dict[str, Any]) -> None:
    """Iterators on the first rank of a tensor-parallel group; data where it is computed on, metadata elsewhere."""
    assert len(each["rows"]) == len(each["batches"]) == case.vpp_size
    for stage, (rows, batches) in enumerate(zip(each["rows"], each["batches"], strict=True)):
        first, last = _needs(case, each["place"], stage)
        names = {"tokens", "position_ids"} if first else set()
        names |= {"labels", "loss_mask"} if last else set()
        names |= {"weight"} if first or last else set()
        assert (rows is None) == (each["place"]["tp"] > 0)
        for row in rows or ():
            assert set(row) == names | set(METADATA_KEYS) | (
                {"padding_mask", "cp_group", "sample_fields"} if names else set()
            )
            assert (row["cu_seqlens"].dtype, row["cu_seqlens_padded"].dtype) == (np.int32, np.int32)
            assert type(row["max_seqlen"]) is int
        dtypes = {"tokens": "int64", "position_ids": "int64", "labels": "int64", "loss_mask": "float32"}
        for batch in batches:
            assert set(batch["fields"]) == names
            shape = batch["padding_mask"].shape
            assert (shape[0], batch["padding_mask"].dtype) == (1, np.bool_)
            assert shape[1] <= CAPACITY
            for name, values in batch["fields"].items():
                assert values.dtype.name == dtypes.get(name, "float64"), name
                assert values.shape == (*shape, 2) if name == "weight" else shape, name


def _check_tp_peers(each: dict[str, Any], by_place: dict[tuple[int, ...], dict[str, Any]]) -> None:
    place = each["place"]
    first = by_place[place["pp"], place["dp"], place["cp"], 0]
    for own, other in zip(each["batches"], first["batches"], strict=True):
        require_same([_without_group(batch) for batch in own], [_without_group(batch) for batch in other])


def _without_group(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch but for the numbers of the ranks of its CP group, in which tensor-parallel peers differ."""
    return {**batch, "params": {name: value for name, value in batch["params"].items() if name != "cp_group"}}


def _zigzag(row: np.ndarray, padded: np.ndarray, cp: int, rank: int) -> np.ndarray:
    """The definition, sequence by sequence: chunks r and 2 * cp - 1 - r of 2 * cp."""
    if cp == 1:
        return row
    parts = []
    for start, end in itertools.pairwise(padded.tolist()):
        chunks = np.split(row[start:end], 2 * cp)
        parts += [chunks[rank], chunks[2 * cp - 1 - rank]]
    return np.concatenate(parts)


def _contiguous(row: np.ndarray, padded: np.ndarray, cp: int, rank: int) -> np.ndarray:
    return np.split(row, cp)[rank]


def _check_slices(case: Case, each: dict[str, Any], by_place: dict[tuple[int, ...], dict[str, Any]]) -> None:
    """Batches are the slices of the rows, and the fields of PackedSeqParams are those of the whole row."""
    place = each["place"]
    source = by_place[place["pp"], place["dp"], place["cp"], 0]
    cut = {"zigzag": _zigzag, "contiguous": _contiguous}[case.sharding]
    for rows, batches in zip(source["rows"], each["batches"], strict=True):
        for row, batch in zip(rows, batches, strict=True):
            padded, cp, cp_rank = row["cu_seqlens_padded"], row["local_cp_size"], row["cp_rank"]
            assert padded[-1] == row["num_slots"]  # the rule of these cases leaves no tail
            params = batch["params"]
            assert params["cu_seqlens_q"] == params["cu_seqlens_kv"] == row["cu_seqlens"].tolist()
            assert params["cu_seqlens_q_padded"] == params["cu_seqlens_kv_padded"] == padded.tolist()
            assert params["max_seqlen_q"] == np.diff(padded).max()
            assert params["local_cp_size"] == cp
            first = each["plan_rank"] - cp_rank
            assert params["cp_group"] == each["domain"][first : first + cp]
            assert each["place"]["tp"] > 0 or row.get("cp_group", params["cp_group"]) == params["cp_group"]
            assert params["pad_between_seqs"] == (row["cu_seqlens"].tolist() != padded.tolist())
            mask = np.ones(int(padded[-1]), np.bool_)
            for start, length in zip(padded, np.diff(row["cu_seqlens"]), strict=False):
                mask[start : start + length] = False
            for name in ("padding_mask", *batch["fields"]):
                whole = mask if name == "padding_mask" else row[name]
                sliced = batch["padding_mask"] if name == "padding_mask" else batch["fields"][name]
                np.testing.assert_array_equal(sliced[0], cut(whole, padded, cp, cp_rank), name)
            neutral = {"labels": -100}
            for name, values in batch["fields"].items():
                assert np.all(values[batch["padding_mask"]] == neutral.get(name, 0)), name


def _check_pipeline(case: Case, by_place: dict[tuple[int, ...], dict[str, Any]]) -> None:
    """All stages of a pipeline see the same offsets in the same micro-batches, and ranks of their own in CP groups."""
    for (_, dp, cp, tp), each in by_place.items():
        first = by_place[0, dp, cp, tp]
        for stage in range(case.vpp_size):
            for mine, theirs in zip(each["batches"][stage], first["batches"][0], strict=True):
                assert _without_group(mine)["params"] == _without_group(theirs)["params"]
                np.testing.assert_array_equal(mine["padding_mask"], theirs["padding_mask"])


def _stage_batches(case: Case, by_place: dict[tuple[int, ...], dict[str, Any]], pp: int, stage: int) -> Iterator[Any]:
    for dp, cp in itertools.product(range(case.sizes["dp"]), range(case.sizes["cp"])):
        for m, batch in enumerate(by_place[pp, dp, cp, 0]["batches"][stage]):
            yield (dp, cp), m, batch


def _check_every_token(case: Case, by_place: dict[tuple[int, ...], dict[str, Any]], lengths: list[int]) -> None:
    """Each token is exactly once in its CP group and in no other; its label, position and weight are with it."""
    expected = np.concatenate([1000 * (s + 1) + np.arange(length) for s, length in enumerate(lengths)])
    last_pp = case.sizes["pp"] - 1
    labels = {(place, m): batch for place, m, batch in _stage_batches(case, by_place, last_pp, case.vpp_size - 1)}
    found: list[np.ndarray] = []
    members: dict[tuple[int, tuple[int, ...]], list[int]] = {}
    for place, m, batch in _stage_batches(case, by_place, 0, 0):
        real = ~batch["padding_mask"]
        tokens = batch["fields"]["tokens"][real]
        found.append(tokens)
        np.testing.assert_array_equal(batch["fields"]["position_ids"][real], tokens % 1000)
        np.testing.assert_array_equal(batch["fields"]["weight"][real], np.stack([tokens + 0.5, tokens + 0.25], axis=1))
        last = labels[place, m]["fields"]
        np.testing.assert_array_equal(last["labels"][real], tokens + LABEL)
        np.testing.assert_array_equal(last["loss_mask"][real], (tokens % 5 != 0).astype(np.float32))
        np.testing.assert_array_equal(last["weight"][real], np.stack([tokens + 0.5, tokens + 0.25], axis=1))
        members.setdefault((m, batch["params"]["cp_group"]), []).append(batch["params"]["local_cp_size"])
    np.testing.assert_array_equal(np.sort(np.concatenate(found)), np.sort(expected))
    assert len(np.unique(expected)) == len(expected)
    # Every member of a CP group is there, in the same micro-batch, and no rank is in two.
    for (_, group), sizes in members.items():
        assert sizes == [len(group)] * len(group)
    sizes = {len(group) for _, group in members}
    assert case.max_cp in sizes  # the longest sequence needs them all
    if case.scheduler == "in_order":
        assert sizes == {case.sizes["cp"]}


def _check_sums(
    case: Case, by_place: dict[tuple[int, ...], dict[str, Any]], lengths: list[int], totals: dict[str, int]
) -> None:
    """Summed over DPxCP with weight max_cp / local_cp, each sequence counts max_cp times: whole rows, and slices.

    After slicing each rank holds a part of its row; the CP group's sum of the parts stands for the row of each member.
    """
    expected = case.max_cp * sum(1000 * (s + 1) * n + n * (n - 1) // 2 for s, n in enumerate(lengths))
    before, padded, squared = Fraction(0), Fraction(0), Fraction(0)
    parts: dict[tuple[int, tuple[int, ...]], int] = {}
    for dp, cp in itertools.product(range(case.sizes["dp"]), range(case.sizes["cp"])):
        for row in by_place[0, dp, cp, 0]["rows"][0]:
            weight = Fraction(case.max_cp, row["local_cp_size"])
            before += weight * int(row["tokens"].sum())
            widths = np.diff(row["cu_seqlens_padded"]).astype(int)
            padded += weight * int(widths.sum())
            squared += weight * int((widths**2).sum())
    for _, m, batch in _stage_batches(case, by_place, 0, 0):
        key = (m, batch["params"]["cp_group"])
        parts[key] = parts.get(key, 0) + int(batch["fields"]["tokens"].sum())
    after = sum(Fraction(case.max_cp, len(group)) * total * len(group) for (_, group), total in parts.items())
    assert before == after == expected
    assert (padded, squared) == (case.max_cp * totals["num_padded_tokens"], case.max_cp * totals["squared_length_sum"])
