"""Random external step sources against a slow model: part of `loader_fuzz.py`, which runs it.

Each case draws sources of steps for some ranks, often of other lengths, groups of ranks, and a configuration, and runs
an epoch in two parts. Compared with plain Python loops: which samples each group has in each step, what rows hold, the
gain, token counts, where the epoch ends, what was dropped, and that those samples alone travel that change their rank.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import dcpack
from dcpack import SampleMetadata, Topology, build_distributed_dataloader
from dcpack.comm import encoded_size

__all__ = ["ExternalCase", "check_external", "draw_external"]

Row = tuple[int, ...]
"""Samples of a row: each has a number that no other sample of any rank has."""


@dataclass(frozen=True, kw_only=True)
class ExternalCase:
    """One random loader over external steps."""

    mesh: dict[str, int]
    sources: tuple[tuple[tuple[Row, ...], ...], ...]  # [rank][step][row]
    lengths: tuple[int, ...]  # by sample
    rows: int
    seq_len: int
    group_size: int | None
    policy: str
    min_balance_gain: float
    broadcast_plan: bool
    oversized: str
    packs: bool
    stop_after: int  # micro-batches of each rank before the resume

    @property
    def mode(self) -> str:
        """Its name in the list of modes."""
        return "external"

    @property
    def num_steps(self) -> int:
        """Steps that are delivered: as many as the shortest source has."""
        return min(len(steps) for steps in self.sources)

    @property
    def groups(self) -> list[range]:
        """The ranks that balance with each other."""
        size = self.group_size or len(self.sources)
        return [range(start, start + size) for start in range(0, len(self.sources), size)]


def draw_external(rng: random.Random) -> ExternalCase:
    """Return a random case."""
    mesh = rng.choice([{"dp": rng.choice([1, 2, 3, 4, 6])}, {"dp_replicate": 2, "dp_shard": rng.choice([1, 2, 3])}])
    num_ranks = int(np.prod(list(mesh.values())))
    rows = rng.choice([1, 2, 3, 4])
    longest, seq_len = rng.choice([(4, 10), (20, 40), (60, 64)])
    oversized = "single" if rng.random() < 0.3 else "error"
    if oversized == "single":
        seq_len //= 2
    most = rng.choice([0, 1, 3, 5, 5, 5])
    uneven = rng.random() < 0.3
    lengths: list[int] = []

    def draw_row() -> Row:
        row = []
        total = 0
        for _ in range(rng.choice([1, 1, 2, 4])):
            length = rng.randint(1, longest)
            if row and total + length > seq_len:
                break
            total += length
            row.append(len(lengths))
            lengths.append(length)
        return tuple(row)

    sources = []
    for _ in range(num_ranks):
        count = most + (rng.randint(0, 2) if uneven else 0)
        sources.append(tuple(tuple(draw_row() for _ in range(rows)) for _ in range(count)))
    return ExternalCase(
        mesh=mesh,
        sources=tuple(sources),
        lengths=tuple(lengths),
        rows=rows,
        seq_len=seq_len,
        group_size=rng.choice([None, 1, *[n for n in range(2, num_ranks + 1) if num_ranks % n == 0] * 3]),
        policy=rng.choice(["local_gain", "balanced"]),
        min_balance_gain=rng.choice([0.0, 0.0, 0.1, 0.5]),
        broadcast_plan=rng.random() < 0.7,
        oversized=oversized,
        packs=rng.random() < 0.5,
        stop_after=rng.randint(0, 12),
    )


# ---- the loader ------------------------------------------------------------------------------------------------------


def cost_of(case: ExternalCase, sample: int) -> int:
    return case.lengths[sample] ** 2 + sample % 5


def tokens_of(case: ExternalCase, sample: int) -> list[int]:
    """Tokens that occur nowhere else."""
    return [1 + sample * 1000 + t for t in range(case.lengths[sample])]


def labels_of(case: ExternalCase, sample: int) -> list[int]:
    """Every third label does not count."""
    return [-100 if (sample + t) % 3 == 0 else 7 for t in range(case.lengths[sample])]


class Source:
    """The steps of one rank; keeps what it gave, and can be resumed."""

    def __init__(self, case: ExternalCase, rank: int) -> None:
        self.case, self.steps = case, case.sources[rank]
        self.at = 0
        self.given: dict[int, dict[str, Any]] = {}

    def __iter__(self) -> Iterator[list[list[Any]]]:
        while self.at < len(self.steps):
            self.at += 1
            yield [[self.read(sample) for sample in row] for row in self.steps[self.at - 1]]

    def read(self, sample: int) -> dict[str, Any]:
        assert sample not in self.given, "a sample was asked for twice"
        tokens, labels = np.array(tokens_of(self.case, sample)), np.array(labels_of(self.case, sample))
        self.given[sample] = {"sample": sample, "input_ids": tokens, "labels": labels}
        return self.given[sample]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


@dataclass(frozen=True, kw_only=True)
class Result:
    """What one rank saw."""

    batches: list[Any]
    given: dict[int, dict[str, Any]]
    sizes: dict[int, int]  # bytes of the message of each sample that was given
    sent: dict[int, int]  # bytes that left in each whole step
    planned: dict[int, Any]
    state: dict[str, Any]
    num_dropped: int


def run_part(case: ExternalCase, states: list[Any] | None) -> list[Result]:
    """Run until the stop, or from the states of the ranks to the end."""
    topology = Topology(axes=tuple(case.mesh), sizes=tuple(case.mesh.values()))
    config = dcpack.DistributedDatasetConfig(
        seq_len=case.seq_len,
        local_batch_size=case.rows,
        communication_backend="fake",
        balance_group_size=case.group_size,
        min_balance_gain=case.min_balance_gain,
        broadcast_plan=case.broadcast_plan,
        oversized_policy=case.oversized,
    )
    packing: dict[str, Any] = {"pack_fn": list, "collate_fn": list} if case.packs else {}

    def body(communicator: dcpack.Communicator) -> Result:
        source = Source(case, communicator.rank)
        loader = build_distributed_dataloader(
            None,
            topology,
            config,
            external_step_source=source,
            metadata_fn=lambda s: SampleMetadata(pack_tokens=len(s["input_ids"]), cost=cost_of(case, s["sample"])),
            balancing_algorithm=case.policy,
            **packing,
        )
        if states is not None:
            loader.load_state_dict(states[communicator.rank])
        batches, sent, planned = [], {}, {}
        while (states is not None or len(batches) < case.stop_after) and (batch := next(loader, None)) is not None:
            batches.append(batch)
            planned[batch.step] = loader.last_planned
            if batch.is_last and loader.last_step is not None:
                sent[batch.step] = loader.last_step.bytes_sent
        state, dropped = loader.state_dict(), loader.num_dropped
        loader.close()  # nothing is taken any more
        return Result(
            batches=batches,
            given=source.given,
            sizes={n: encoded_size(communicator, sample) for n, sample in source.given.items()},
            sent=sent,
            planned=planned,
            state=state,
            num_dropped=dropped,
        )

    return dcpack.run_ranks(topology.num_ranks, body, deadline_s=60.0)


# ---- the slow model --------------------------------------------------------------------------------------------------


def check_external(case: ExternalCase) -> str:
    """Run a case and compare it; returns a line about it.

    Raises:
        AssertionError: the loader did something else than the model.
    """
    assert "GROUP_RANK" not in os.environ, "without a group size all ranks of this host balance with each other"
    first = run_part(case, None)
    done = first[0].state["step"]
    second = run_part(case, [found.state for found in first])
    assert all(found.state["step"] == done for found in first), "ranks are at other steps"
    for results, whole in ((first, range(done)), (second, range(done, case.num_steps))):
        for rank, found in enumerate(results):
            check_taken(case, rank, found, whole.start)
        for step in whole:
            check_step(case, step, results)
    for rank, found in enumerate(second):
        assert found.state["step"] == case.num_steps, "the end is not the end"
        behind = case.sources[rank][case.num_steps : case.num_steps + 1]
        dropped = sum(len(row) for rows in behind for row in rows)
        assert found.num_dropped == dropped, f"dropped {dropped}, the loader says {found.num_dropped}"
    count = sum(len(found.batches) for found in (*first, *second))
    mesh = " x ".join(f"{axis} {n}" for axis, n in case.mesh.items())
    lengths = sorted({len(steps) for steps in case.sources})
    return (
        f"{case.mode:19} {mesh} in groups of {case.group_size}; sources of {lengths} steps of {case.rows} rows, "
        f"resumed after {done}, {count} batches"
    )


def check_taken(case: ExternalCase, rank: int, found: Result, start: int) -> None:
    """What the source was asked for: the steps that have begun, and at most one behind them."""
    steps = case.sources[rank]
    begun = max([batch.step for batch in found.batches], default=start - 1) + 1
    taken = [n for n in range(len(steps)) if any(sample in found.given for row in steps[n] for sample in row)]
    assert taken in (list(range(start, begun)), list(range(start, min(begun + 1, len(steps))))), "steps taken"
    assert len(found.given) == sum(len(row) for n in taken for row in steps[n]), "steps were taken in part"


def check_step(case: ExternalCase, step: int, results: list[Result]) -> None:
    """Check one whole step of all groups."""
    batches = [[batch for batch in found.batches if batch.step == step] for found in results]
    for mine in batches:
        numbers = [(batch.microbatch, batch.num_microbatches) for batch in mine]
        assert numbers == [(m, case.rows) for m in range(case.rows)], "other micro-batches"
    counts = {sample: count_valid(case, sample) for rows in case.sources for row in rows[step] for sample in row}
    total = sum(counts.values())
    assert all(batch.global_valid_tokens == total for mine in batches for batch in mine), "global valid tokens"
    for group in case.groups:
        reference = [list(case.sources[rank][step]) for rank in group]
        got = [[row_of(case, batch, reference) for batch in batches[rank]] for rank in group]
        check_group(case, reference, got)
        check_moves(case, step, group, reference, got, results)


def count_valid(case: ExternalCase, sample: int) -> int:
    return sum(label != -100 for label in labels_of(case, sample))


def row_of(case: ExternalCase, batch: Any, reference: list[list[Row]]) -> Row:
    """Return the samples of a micro-batch, which is one row; what is in them is what their source gave."""
    assert type(batch.data) is (list if case.packs else tuple), "not what collate_fn returns"
    (row,) = batch.data
    for sample in row:
        assert sample["input_ids"].tolist() == tokens_of(case, sample["sample"]), "other tokens"
        assert sample["labels"].tolist() == labels_of(case, sample["sample"]), "other labels"
    found = tuple(sample["sample"] for sample in row)
    assert batch.num_valid_tokens == sum(count_valid(case, sample) for sample in found), "valid tokens"
    in_order = [sample for rows in reference for row in rows for sample in row]
    assert batch.sample_ids.tolist() == [in_order.index(sample) for sample in found], "sample ids"
    return found


def check_group(case: ExternalCase, reference: list[list[Row]], got: list[list[Row]]) -> None:
    """The samples of the group, what rows may hold, and that a change pays."""
    before = Counter(sample for rows in reference for row in rows for sample in row)
    assert Counter(sample for rows in got for row in rows for sample in row) == before, "the group lost its samples"
    for row in (row for rows in got for row in rows):
        tokens = sum(case.lengths[sample] for sample in row)
        assert row, "an empty row"
        assert tokens <= case.seq_len or (case.oversized == "single" and len(row) == 1), "a row is too long"
    # Ranks that meet once a step wait for the busiest of them.
    cost_before, cost_after = (
        max(sum(cost_of(case, sample) for row in rows for sample in row) for rows in placement)
        for placement in (reference, got)
    )
    pays = (cost_before - cost_after) / cost_before > case.min_balance_gain - 1e-9
    assert got == reference or pays, "a change that does not pay"


def check_moves(
    case: ExternalCase,
    step: int,
    group: range,
    reference: list[list[Row]],
    got: list[list[Row]],
    results: list[Result],
) -> None:
    """Only what changes its rank travels; what stays is the very object that the source gave."""
    home = {sample: rank for rank, rows in zip(group, reference, strict=True) for row in rows for sample in row}
    num_moved, leaving = 0, Counter[int]()
    for rank, rows in zip(group, got, strict=True):
        for sample in (sample for row in rows for sample in row):
            held = next(s for b in results[rank].batches if b.step == step for s in b.data[0] if s["sample"] == sample)
            if home[sample] == rank:
                assert held is results[rank].given[sample], "a sample that stays was copied"
            else:
                num_moved += 1
                leaving[home[sample]] += results[home[sample]].sizes[sample]
    for rank in group:
        sent = results[rank].sent.get(step, 0)
        assert sent == leaving[rank], f"rank {rank} sent {sent} bytes, its samples that moved have {leaving[rank]}"
        assert results[rank].planned[step].num_moved == num_moved, "samples that moved"
