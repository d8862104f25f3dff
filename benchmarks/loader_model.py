"""The slow model of `loader_fuzz.py`: what a loader over a batch sampler must do, in plain Python loops."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
from loader_places import Place

from dcpack import SampleMetadata

__all__ = [
    "Case",
    "assert_same",
    "check_step",
    "global_order",
    "metadata_of",
    "record_labels",
    "record_offsets",
    "record_tokens",
]

WORD = 2**64


@dataclass(frozen=True, kw_only=True)
class Case:
    """One random loader."""

    mode: str
    places: tuple[Place, Place]  # before and after the resume
    rows: tuple[int, int]  # local batch sizes
    global_batch_size: int
    lengths: tuple[int, ...]
    seq_len: int
    window: int
    policy: str
    min_balance_gain: float
    broadcast_plan: bool
    oversized: str
    drop_last: bool
    shuffle: bool
    shuffle_buffer: int | None
    seed: int
    stop_after: int  # micro-batches of rank 0 before the resume

    @property
    def plans_cp(self) -> bool:
        """Whether CP is planned."""
        return self.mode in ("planned_cp", "planned_cp_metadata")

    @property
    def by_index(self) -> bool:
        """Whether lengths are known by index."""
        return self.mode in ("metadata", "planned_cp_metadata")


def record_tokens(case: Case, index: int) -> list[int]:
    """Tokens that occur nowhere else."""
    return [1 + index * 1000 + t for t in range(case.lengths[index])]


def record_labels(case: Case, index: int) -> list[int]:
    """Every third label does not count."""
    return [-100 if (index + t) % 3 == 0 else 7 for t in range(case.lengths[index])]


def record_offsets(case: Case, index: int) -> list[int]:
    """Sequences of up to three tokens and the rest."""
    length = case.lengths[index]
    return sorted({0, min(1 + index % 3, length), length})


def metadata_of(case: Case, index: int) -> SampleMetadata:
    return SampleMetadata(pack_tokens=case.lengths[index], cost=cost_of(case, index))


def cost_of(case: Case, index: int) -> int:
    return case.lengths[index] ** 2 + index % 5


def mix(word: int) -> int:
    word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9 % WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB % WORD
    return word ^ (word >> 31)


def word_at(seed: int, number: int) -> int:
    """Return a random word of epoch 0."""
    golden = 0x9E3779B97F4A7C15
    stream = mix(mix((seed + golden) % WORD))
    return mix((stream + (number + 1) * golden) % WORD)


def global_order(case: Case) -> list[int]:
    """Return the samples of the epoch in order."""
    count = len(case.lengths)
    if not case.shuffle:
        order = list(range(count))
    elif case.shuffle_buffer is None:
        order = sorted(range(count), key=lambda i: (word_at(case.seed, i), i))
    else:
        waiting, buffer, order = list(range(count)), [], []
        for position in range(count):
            while waiting and len(buffer) < case.shuffle_buffer:
                buffer.append(waiting.pop(0))
            at = word_at(case.seed, position) % len(buffer)
            buffer[at], buffer[-1] = buffer[-1], buffer[at]
            order.append(buffer.pop())
    size = case.global_batch_size
    return order[: count // size * size] if case.drop_last else order


def check_step(case: Case, part: int, batches: list[list[Any]], members: list[int], planned: list[Any]) -> None:
    """Check one whole step: `batches[rank]` against its samples in global order."""
    numbers = [[(b.microbatch, b.num_microbatches) for b in mine] for mine in batches]
    assert all(found == numbers[0] for found in numbers), "ranks have other micro-batches"
    assert [m for m, _ in numbers[0]] == list(range(numbers[0][0][1])), "micro-batches are missing"
    valid = {i: sum(label != -100 for label in record_labels(case, i)) for i in members}
    total = sum(valid.values())
    assert all(b.global_valid_tokens == total for mine in batches for b in mine), "global valid tokens"
    assert sum(b.num_valid_tokens for mine in batches for b in mine) == total, "valid tokens do not add up"
    if case.plans_cp:
        place = case.places[part]
        check_planned(case, split_by_rank(place, batches, planned[0].plans[0]) if place.is_hosted else batches, members)
    elif case.mode == "repack":
        check_repacked(case, part, batches, members, planned)
    else:
        check_rows(case, part, batches, members)


def windows_of(case: Case, part: int, members: list[int], num_ranks: int) -> list[tuple[range, list[list[int]]]]:
    """Return for each window its micro-batches, and the samples that the sampler gave each rank for them."""
    rows = case.rows[part]
    per_round = rows * num_ranks
    rounds = [members[start : start + per_round] for start in range(0, len(members), per_round)]
    windows = []
    for start in range(0, len(rounds), case.window):
        numbers = range(start, min(start + case.window, len(rounds)))
        given = [[i for r in numbers for i in rounds[r][d * rows : (d + 1) * rows]] for d in range(num_ranks)]
        windows.append((numbers, given))
    return windows


def makespan(loads: list[list[float]]) -> float:
    """Return the slowest rank of each micro-batch, summed; loads ``[micro-batch][rank]``."""
    return sum(max(ranks) for ranks in loads)


def check_rows(case: Case, part: int, batches: list[list[Any]], members: list[int]) -> None:
    """Whole samples: rows, windows, costs."""
    num_ranks, rows = len(batches), case.rows[part]
    for numbers, reference in windows_of(case, part, members, num_ranks):
        got: list[int] = []
        loads = []
        for m in numbers:
            loads.append([sum(cost_of(case, i) for i in batches[d][m].sample_ids.tolist()) for d in range(num_ranks)])
            for d in range(num_ranks):
                batch = batches[d][m]
                assert len(batch.data) == rows, "another number of rows"
                for row, i in zip(batch.data, batch.sample_ids.tolist(), strict=True):
                    assert row["input_ids"].tolist() == record_tokens(case, i), "another sample"
                    assert row["labels"].tolist() == record_labels(case, i), "other labels"
                    assert case.oversized == "single" or len(row["input_ids"]) <= case.seq_len
                got += batch.sample_ids.tolist()
        flat = [i for rank in reference for i in rank]
        assert sorted(got) == sorted(flat), "samples left their window"
        before = makespan(
            [
                [sum(cost_of(case, i) for i in reference[d][k * rows : (k + 1) * rows]) for d in range(num_ranks)]
                for k in range(len(numbers))
            ]
        )
        after = makespan(loads)
        unmoved = all(
            batches[d][m].sample_ids.tolist() == reference[d][k * rows : (k + 1) * rows]
            for d in range(num_ranks)
            for k, m in enumerate(numbers)
        )
        assert unmoved or (before - after) / before > case.min_balance_gain - 1e-9, "a change that does not pay"


def check_repacked(case: Case, part: int, batches: list[list[Any]], members: list[int], planned: list[Any]) -> None:
    """Repacked text: every sequence whole and once, rows of the right shape, costs with the new padding."""
    rows = case.rows[part]
    sequences = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
    for i in members:
        offsets = record_offsets(case, i)
        for start, end in pairwise(offsets):
            tokens, labels = record_tokens(case, i)[start:end], record_labels(case, i)[start:end]
            sequences[tuple(tokens), tuple(labels)] += 1
    found = Counter[tuple[tuple[int, ...], tuple[int, ...]]]()
    loads = []
    for m in range(len(batches[0])):
        loads.append([0.0] * len(batches))
        for d, mine in enumerate(batches):
            data = mine[m].data
            assert data["input_ids"].shape == data["labels"].shape == (rows, case.seq_len), "another shape"
            offsets = data["cu_seq_lens"].tolist()
            assert (offsets[0], offsets[-1]) == (0, rows * case.seq_len), "offsets do not cover the rows"
            tokens, labels = data["input_ids"].ravel().tolist(), data["labels"].ravel().tolist()
            for start, end in pairwise(offsets):
                loads[-1][d] += (end - start) ** 2
                if tokens[start] == 0:
                    assert (set(tokens[start:end]), set(labels[start:end])) == ({0}, {-100}), "padding is not padding"
                else:
                    found[tuple(tokens[start:end]), tuple(labels[start:end])] += 1
    assert found == sequences, "sequences were lost, cut or repeated"
    after = makespan(loads)
    told = sum(decision.objective_after for decision in planned[0].decisions)
    assert abs(told - after) <= 1e-6 * max(after, 1.0), f"the objective is {after}, the loader says {told}"
    assert all(d.accepted is (d.gain > case.min_balance_gain) for d in planned[0].decisions), "the gate"


def split_by_rank(place: Place, batches: list[list[Any]], plan: Any) -> list[list[Any]]:
    """Return the batches of each rank of the plan, from those of the processes, which hold several."""
    processes = [lane[0] for lane in place.lanes()]
    ranks: list[list[Any]] = [[] for _ in place.rows()]
    for m in range(len(batches[0])):
        data: dict[int, Any] = {}
        for process, mine in zip(processes, batches, strict=True):
            data |= dict(zip(place.plan_ranks(process), mine[m].data, strict=True))
        ids: dict[int, list[int]] = {}  # of each rank: the samples of its group
        for b in range(plan.num_bins):
            if plan.microbatch[b] == m:
                group = range(plan.first_rank[b], plan.first_rank[b] + plan.cp_size[b])
                found = {
                    (t - 1) // 1000 for r in group for t in data[r]["input_ids"][data[r]["segment_ids"] > 0].tolist()
                }
                is_dummy = bool(plan.dummy[b])
                for number, r in enumerate(group):
                    ids[r] = [] if is_dummy else sorted(found)
                    ranks[r].append(
                        SimpleNamespace(
                            data=data[r],
                            cp_size=len(group),
                            cp_rank=number,
                            sample_ids=np.array(ids[r]),
                            is_dummy=is_dummy,
                        )
                    )
        for process, mine in zip(processes, batches, strict=True):
            hosted = {r - ranks[r][m].cp_rank: ids[r] for r in place.plan_ranks(process)}  # by first rank of the group
            told = sorted(i for i in mine[m].sample_ids.tolist() if i >= 0)
            assert told == sorted(i for found in hosted.values() for i in found), "samples of a process"
            assert mine[m].is_dummy is (not told), "a process without samples"
    return ranks


def check_planned(case: Case, batches: list[list[Any]], members: list[int]) -> None:
    """Planned CP: groups, capacity, and every token once with its label and position."""
    seen = Counter[int]()
    placed = Counter[tuple[int, int, int]]()
    for m in range(len(batches[0])):
        at = 0
        while at < len(batches):
            batch = batches[at][m]
            assert batch.cp_rank == 0, "groups do not partition the ranks"
            group = [batches[at + r][m] for r in range(batch.cp_size)]
            assert [b.cp_rank for b in group] == list(range(batch.cp_size)), "CP ranks"
            assert all(b.sample_ids.tolist() == batch.sample_ids.tolist() for b in group), "siblings"
            seen.update(i for i in batch.sample_ids.tolist() if i >= 0)
            for b in group:
                data = b.data
                assert len(data["input_ids"]) <= case.seq_len, "over capacity"
                real = data["segment_ids"] > 0
                if not b.is_dummy:
                    for token, label, position in zip(
                        data["input_ids"][real].tolist(),
                        data["labels"][real].tolist(),
                        data["position_ids"][real].tolist(),
                        strict=True,
                    ):
                        placed[token, label, position] += 1
            at += batch.cp_size
    assert seen == Counter(members), "samples were lost or repeated"
    wanted = Counter(
        (token, label, position)
        for i in members
        for position, (token, label) in enumerate(zip(record_tokens(case, i), record_labels(case, i), strict=True))
    )
    assert placed == wanted, "tokens were lost, repeated or mislabelled"


def assert_same(mine: Any, theirs: Any) -> None:
    """Compare nested arrays and values."""
    assert type(mine) is type(theirs), "another type"
    if isinstance(mine, dict):
        assert list(mine) == list(theirs), "other keys"
        for key in mine:
            assert_same(mine[key], theirs[key])
    elif isinstance(mine, list | tuple):
        assert len(mine) == len(theirs), "another length"
        for one, other in zip(mine, theirs, strict=True):
            assert_same(one, other)
    elif isinstance(mine, np.ndarray):
        assert mine.dtype == theirs.dtype, "another dtype"
        assert np.array_equal(mine, theirs), "other arrays"
    else:
        assert mine == theirs, "another value"
