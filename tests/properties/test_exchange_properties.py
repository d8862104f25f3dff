"""Whole steps against a slow reading of what a batch must hold, token by token.

The reading below shares no code with the exchange: it lays out every bin in plain lists and asks each token where it
comes from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

import dcpack
from dcpack.exchange import (
    ROUTINGS,
    GatheredSamples,
    PackedBatch,
    StaticShapes,
    align_fields,
    exchange_samples,
    gather_samples,
    restore,
)
from dcpack.sharding import SHARDINGS

MAX_SEQUENCES = 4
OPTIONAL = ("image", "score", "emb", "labels", "loss_mask", "position_ids")


@dataclass(frozen=True, kw_only=True)
class Case:
    """One step: who holds what, and how it is to be carried out."""

    samples: list[dict[str, Any]]
    holders: list[list[int]]
    num_processes: int
    process_of_rank: list[int]
    node_size: int | None
    capacity: int
    padding: dcpack.PaddingRule
    sharding: str
    routing: str
    is_static: bool
    overlong: str
    scheduler: str
    align: bool

    @property
    def has_copies(self) -> bool:
        return any(len(held) > 1 for held in self.holders)

    def held_by(self, process: int) -> list[int]:
        return [i for i, held in enumerate(self.holders) if process in held]

    def order(self) -> list[int]:
        """The samples in the order of the plan: by the first process that holds them, and by place."""
        return list(dict.fromkeys(i for process in range(self.num_processes) for i in self.held_by(process)))


@st.composite
def cases(draw: st.DrawFn) -> Case:
    num_processes = draw(st.integers(1, 4))
    num_ranks = num_processes * draw(st.sampled_from([1, 1, 2]))
    capacity = draw(st.sampled_from([16, 32]))
    lengths = draw(st.lists(st.integers(0, 2 * capacity) | st.integers(0, 12), max_size=10))
    copies = draw(st.booleans())
    process = st.integers(0, num_processes - 1)
    several = st.lists(process, min_size=1, max_size=num_processes, unique=True)
    rng = np.random.default_rng(draw(st.integers(0, 2**16)))
    frequencies = {name: draw(st.sampled_from([0.0, 0.5, 1.0])) for name in OPTIONAL}
    return Case(
        samples=[make_sample(rng, length, frequencies) for length in lengths],
        holders=[draw(several) if copies else [draw(process)] for _ in lengths],
        num_processes=num_processes,
        process_of_rank=draw(st.permutations([r % num_processes for r in range(num_ranks)])),
        node_size=draw(st.sampled_from([None, 1, 2])),
        capacity=capacity,
        padding=dcpack.PaddingRule(
            tp=draw(st.sampled_from([1, 2])),
            block=draw(st.sampled_from([1, 2])),
            sequence_parallel=draw(st.booleans()),
        ),
        sharding=draw(st.sampled_from(sorted(SHARDINGS))),
        routing=draw(st.sampled_from(ROUTINGS)),
        is_static=draw(st.booleans()),
        overlong=draw(st.sampled_from(["split", "split", "truncate", "drop"])),
        scheduler=draw(st.sampled_from(["packing_aware", "in_order"])),
        align=draw(st.booleans()),
    )


def make_sample(rng: np.random.Generator, length: int, frequencies: Mapping[str, float]) -> dict[str, Any]:
    sample: dict[str, Any] = {"tokens": rng.integers(1, 2**15, length).astype(rng.choice(["int32", "int64", "uint16"]))}
    made = {
        "image": rng.random((int(rng.integers(0, 3)), 2, 3)).astype(np.float32),
        "score": np.float16(rng.random()),
        "emb": rng.random((length, 2)),
        "labels": np.where(rng.random(length) < 0.3, -100, rng.integers(0, 99, length)),
        "loss_mask": rng.integers(0, 2, length).astype(np.float32),
        "position_ids": rng.integers(0, 1000, length),
    }
    for name, value in made.items():
        if rng.random() < frequencies[name]:
            sample[name] = value
    return sample


# ---- the slow reading ------------------------------------------------------------------------------------------------


def token_of(sample: Mapping[str, Any], position: int, start: int) -> dict[str, Any]:
    """What one real token has in each per-token field; `start` is where its piece of the sample begins."""
    tokens = sample["tokens"]
    following = tokens[position + 1] if position + 1 < len(tokens) else -100
    label = sample["labels"][position] if "labels" in sample else following
    return {
        "input_ids": tokens[position],
        "labels": label,
        "loss_mask": sample["loss_mask"][position] if "loss_mask" in sample else float(label != -100),
        "position_ids": sample["position_ids"][position] if "position_ids" in sample else position - start,
        "emb": sample["emb"][position].tolist() if "emb" in sample else [0.0, 0.0],
    }


PADDING = {
    "input_ids": 0,
    "labels": -100,
    "loss_mask": 0,
    "position_ids": 0,
    "emb": [0.0, 0.0],
    "segment_ids": 0,
}


def owner_of(sharding: str, cp: int, within: int, length: int, slot: int, row: int) -> int:
    """The CP rank of one slot: number `within` of the `length` of its sequence, `slot` of the `row` of its bin."""
    if sharding == "striped":
        return slot % cp
    if sharding == "contiguous":
        return slot * cp // row
    if cp == 1:
        return 0
    place, whole = (within, length) if sharding == "zigzag" else (slot, row)
    chunk = place * 2 * cp // whole
    return min(chunk, 2 * cp - 1 - chunk)


def rows_of_bin(case: Case, plan: dcpack.Plan, index: int) -> list[list[tuple[int, dict[str, Any], tuple[int, int]]]]:
    """For each CP rank its slots: number in the bin's row, fields, and (sample, position) or (-1, -1) in padding."""
    cp, rule, order = int(plan.cp_size[index]), case.padding, case.order()
    multiple = math.lcm(2 * cp * rule.tp if cp > 1 else rule.tp, rule.block * cp)
    entries = range(int(plan.offsets[index]), int(plan.offsets[index + 1]))
    padded = [-(-int(plan.entry_lengths[e]) // multiple) * multiple for e in entries]
    ranks: list[list[tuple[int, dict[str, Any], tuple[int, int]]]] = [[] for _ in range(cp)]
    slot = 0
    for number, (entry, length) in enumerate(zip(entries, padded, strict=True), start=1):
        which, start = order[plan.sequence_ids[entry]], int(plan.starts[entry])
        for within in range(length):
            owner = owner_of(case.sharding, cp, within, length, slot, sum(padded))
            if within < plan.entry_lengths[entry]:
                fields = {**token_of(case.samples[which], start + within, start), "segment_ids": number}
                ranks[owner].append((slot, fields, (which, start + within)))
            else:
                ranks[owner].append((slot, PADDING, (-1, -1)))
            slot += 1
    return ranks


def check_batch(
    case: Case, plan: dcpack.Plan, index: int, rank: int, batch: PackedBatch, seen: Counter[str]
) -> list[tuple[int, int]]:
    """Compare one batch with the slow reading; return the tokens that it holds."""
    assert batch.microbatch == plan.microbatch[index]
    assert batch.cp_ranks == tuple(range(plan.first_rank[index], plan.first_rank[index] + plan.cp_size[index]))
    assert batch.cp_ranks[batch.cp_rank] == rank
    assert batch.is_dummy == plan.dummy[index]
    assert {array.shape[0] for array in batch.tokens.values()} == {batch.num_tokens}
    if case.is_static:
        assert batch.num_tokens == case.capacity
        assert batch.cu_seqlens.size == batch.local_cu_seqlens_padded.size == MAX_SEQUENCES + 1
        assert batch.max_seqlen == case.capacity * batch.cp_size
    if batch.is_dummy:
        assert batch.num_valid_tokens == 0
        assert set(batch.tokens["labels"].tolist()) == {-100}
        assert not batch.tokens["loss_mask"].any()
        seen["dummy batches"] += 1
        return []
    row = rows_of_bin(case, plan, index)[batch.cp_rank]
    multiple = case.padding.block * case.padding.tp if case.padding.sequence_parallel else 1
    size = case.capacity if case.is_static else -(-len(row) // multiple) * multiple
    tail = size - len(row)
    assert batch.num_tokens == size
    assert batch.slots.tolist() == [slot for slot, _, _ in row] + [-1] * tail
    for name, found in batch.tokens.items():
        assert found.tolist() == [fields[name] for _, fields, _ in row] + [PADDING[name]] * tail, name
    check_offsets(plan, index, batch, row)
    check_sample_fields(case, plan, index, batch)
    valid = [fields["labels"] != -100 and fields["loss_mask"] != 0 for _, fields, _ in row]
    assert batch.num_valid_tokens == sum(valid)
    held = [token for _, _, token in row if token[0] >= 0]
    seen["tokens"] += len(held)
    seen["padding"] += size - len(held)
    seen[f"cp {min(batch.cp_size, 3)}"] += 1
    seen["pieces"] += int(np.count_nonzero(batch.starts))
    seen["stand-ins"] += len(batch.dummy_fields)
    return held


def check_offsets(plan: dcpack.Plan, index: int, batch: PackedBatch, row: list[Any]) -> None:
    count = batch.num_sequences
    span = slice(int(plan.offsets[index]), int(plan.offsets[index + 1]))
    real_here = [sum(fields["segment_ids"] == k + 1 for _, fields, _ in row) for k in range(count)]
    assert np.diff(batch.cu_seqlens)[:count].tolist() == plan.entry_lengths[span].tolist()
    assert np.diff(batch.local_cu_seqlens)[:count].tolist() == real_here
    assert batch.cu_seqlens_padded[count] == batch.cp_size * len(row)
    assert batch.local_cu_seqlens_padded[count] == len(row)
    for name in ("cu_seqlens", "cu_seqlens_padded", "local_cu_seqlens", "local_cu_seqlens_padded"):
        offsets = getattr(batch, name)
        assert offsets.dtype == np.int32
        assert offsets[0] == 0
        assert set(np.diff(offsets)[count:].tolist()) <= {0}
    # The padding of every sequence lies behind its real tokens, in the bin and in the slice.
    segments = batch.tokens["segment_ids"]
    for k, (start, stop) in enumerate(
        zip(batch.local_cu_seqlens_padded[:count], batch.local_cu_seqlens_padded[1 : count + 1], strict=True)
    ):
        assert set(segments[start:stop].tolist()) <= {0, k + 1}
    assert batch.true_max_seqlen == np.diff(batch.cu_seqlens_padded).max()


def check_sample_fields(case: Case, plan: dcpack.Plan, index: int, batch: PackedBatch) -> None:
    order = case.order()
    assert len(batch.sample_fields) == batch.num_sequences
    assert batch.sequence_ids.tolist() == plan.sequence_ids[plan.offsets[index] : plan.offsets[index + 1]].tolist()
    for which, start, found in zip(batch.sequence_ids, batch.starts, batch.sample_fields, strict=True):
        sample = case.samples[order[which]]
        expected = {name: sample[name] for name in ("image", "score") if name in sample}
        if start > 0:
            expected.pop("image", None)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert found[name].dtype == value.dtype
            assert found[name].shape == value.shape
            assert found[name].tobytes() == value.tobytes()


# ---- the step --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Outcome:
    gathered: GatheredSamples
    plan: dcpack.Plan
    batches: dict[int, list[PackedBatch]]
    restored: list[npt.NDArray[Any] | None]


def run_step(case: Case) -> list[Outcome]:
    topology = dcpack.Topology.of_domain(
        len(case.process_of_rank), process_of_rank=case.process_of_rank, node_size=case.node_size
    )

    def fn(communicator: dcpack.Communicator) -> Outcome:
        held = case.held_by(communicator.rank)
        ids = [7 * i + 3 for i in held] if case.has_copies else None
        gathered = gather_samples(communicator, [case.samples[i] for i in held], ids=ids, per_token=["emb"])
        plan = dcpack.plan(
            gathered.table.lengths,
            num_ranks=len(case.process_of_rank),
            capacity=case.capacity,
            padding=case.padding,
            scheduler=case.scheduler,
            overlong=case.overlong,
            on_empty="dummy",
            max_sequences=MAX_SEQUENCES if case.is_static else None,
        )
        stand_ins = None
        if case.align:
            plan, stand_ins = align_fields(plan, gathered.table, ["image", "score"])
        batches = exchange_samples(
            communicator,
            gathered,
            plan,
            topology=topology,
            sharding=case.sharding,
            routing=case.routing,
            static_shapes=StaticShapes(max_sequences=MAX_SEQUENCES) if case.is_static else None,
            dummy_fields=stand_ins,
        )
        outputs = {rank: [batch.tokens["input_ids"] for batch in mine] for rank, mine in batches.items()}
        restored = restore(
            communicator, gathered, plan, batches, outputs, topology=topology, sharding=case.sharding, fill_value=0
        )
        return Outcome(gathered=gathered, plan=plan, batches=batches, restored=restored)

    return dcpack.run_ranks(case.num_processes, fn)


def check_step(case: Case, seen: Counter[str]) -> None:
    outcomes = run_step(case)
    plan, order = outcomes[0].plan, case.order()
    assert {outcome.plan.digest() for outcome in outcomes} == {plan.digest()}
    assert plan.lengths.tolist() == [len(case.samples[i]["tokens"]) for i in order]
    batches = {rank: mine for outcome in outcomes for rank, mine in outcome.batches.items()}
    assert sorted(batches) == list(range(plan.num_ranks))
    for process, outcome in enumerate(outcomes):
        assert set(outcome.batches) == {r for r, p in enumerate(case.process_of_rank) if p == process}
    computed: Counter[tuple[int, int]] = Counter()
    for rank, mine in batches.items():
        assert len(mine) == plan.num_microbatches
        for index, batch in zip(plan.bins_of_rank(rank), mine, strict=True):
            computed.update(check_batch(case, plan, int(index), rank, batch, seen))
    placed = {
        (order[plan.sequence_ids[e]], int(plan.starts[e]) + k)
        for e in range(plan.sequence_ids.size)
        for k in range(int(plan.entry_lengths[e]))
    }
    assert set(computed) == placed
    assert set(computed.values()) <= {1}
    assert len(placed) == sum(len(sample["tokens"]) for sample in case.samples) - plan.dropped.sum()
    check_counts(case, batches, placed)
    check_restored(case, outcomes, placed, seen)
    seen["copies"] += sum(len(held) - 1 for held in case.holders)
    seen["empty samples"] += sum(len(sample["tokens"]) == 0 for sample in case.samples)
    seen["dropped"] += int(plan.dropped.sum())


def check_counts(case: Case, batches: Mapping[int, list[PackedBatch]], placed: set[tuple[int, int]]) -> None:
    """Every token counts once, over all ranks; what was dropped counts nowhere."""
    of_sample: Counter[int] = Counter()
    for which, position in placed:
        token = token_of(case.samples[which], position, 0)
        of_sample[which] += bool(token["labels"] != -100 and token["loss_mask"] != 0)
    every = [batch for mine in batches.values() for batch in mine]
    assert sum(batch.num_valid_tokens for batch in every) == sum(of_sample.values())
    order = case.order()
    for batch in every:
        assert batch.global_valid_tokens == sum(of_sample.values())
        assert batch.global_valid_sequences == sum(count > 0 for count in of_sample.values())
        if not batch.is_dummy:
            assert batch.sequence_valid_tokens.tolist() == [of_sample[order[i]] for i in batch.sequence_ids]


def check_restored(case: Case, outcomes: list[Outcome], placed: set[tuple[int, int]], seen: Counter[str]) -> None:
    """Restoring the tokens gives the tokens, at the first holder of each sample and nowhere else."""
    for process, outcome in enumerate(outcomes):
        for which, found in zip(case.held_by(process), outcome.restored, strict=True):
            if process != min(case.holders[which]):
                assert found is None
                continue
            assert found is not None
            tokens = case.samples[which]["tokens"]
            assert found.tolist() == [t if (which, k) in placed else 0 for k, t in enumerate(tokens.tolist())]
            seen["restored"] += len(tokens)


def test_every_token_is_computed_once_where_it_belongs() -> None:
    seen: Counter[str] = Counter()

    @settings(deadline=None, max_examples=200)
    @given(case=cases())
    def check(case: Case) -> None:
        check_step(case, seen)

    check()
    # Guard against a test that passes because nothing of the kind came up.
    wanted = ["tokens", "padding", "pieces", "dropped", "copies", "empty samples", "dummy batches", "stand-ins"]
    wanted += ["restored", "cp 1", "cp 2", "cp 3"]
    assert {what: seen[what] for what in wanted if not seen[what]} == {}


@settings(deadline=None, max_examples=30)
@given(case=cases())
def test_the_same_step_twice_is_the_same(case: Case) -> None:
    one, two = run_step(case), run_step(case)
    for left, right in zip(one, two, strict=True):
        assert left.plan.digest() == right.plan.digest()
        for rank, mine in left.batches.items():
            for a, b in zip(mine, right.batches[rank], strict=True):
                assert {n: x.tobytes() for n, x in a.tokens.items()} == {n: x.tobytes() for n, x in b.tokens.items()}


@settings(deadline=None, max_examples=30)
@given(case=cases())
def test_both_routings_give_the_same_batches(case: Case) -> None:
    results = []
    for routing in ROUTINGS:
        fields = {name: getattr(case, name) for name in Case.__dataclass_fields__}
        results.append(run_step(Case(**{**fields, "routing": routing})))
    for left, right in zip(*results, strict=True):
        for rank, mine in left.batches.items():
            for a, b in zip(mine, right.batches[rank], strict=True):
                assert {n: x.tobytes() for n, x in a.tokens.items()} == {n: x.tobytes() for n, x in b.tokens.items()}
                for x, y in zip(a.sample_fields, b.sample_fields, strict=True):
                    assert {n: v.tobytes() for n, v in x.items()} == {n: v.tobytes() for n, v in y.items()}
